//! The segments of a volume as dump.f2fs shows them.

use std::path::Path;

use super::Tools;
use crate::host::command;
use crate::must;

/// A segment of the main area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its type: 0 to 2 for hot, warm and cold data, 3 to 5 for nodes.
    pub kind: u64,
    /// The number of blocks in use.
    pub used: u64,
}

/// Returns the segments of an image.
pub fn segments(image: &Path) -> Vec<Segment> {
    let folder = must(tempfile::tempdir(), "a folder");
    let mut dump = Tools::Installed.command("dump.f2fs");
    command::run(dump.args(["-s", "0~-1"]).arg(image).current_dir(&folder));
    let text = must(std::fs::read_to_string(folder.path().join("dump_sit")), "dump_sit");
    let number = |line: &str, label: &str| {
        let (_, rest) = line.split_once(label).expect("dump.f2fs writes it");
        must(rest.split_whitespace().next().unwrap_or_default().parse(), label)
    };
    let lines = text.lines().filter(|line| line.starts_with("segno:"));
    lines
        .map(|line| Segment { kind: number(line, "seg_type:"), used: number(line, "vblocks:") })
        .collect()
}

/// Checks that no section has both data and nodes, as Linux requires when it cleans one. The kind
/// of the first segment counts, also without blocks in use.
pub fn check_kinds_of_sections(image: &Path, segments_per_section: usize) {
    let segments = segments(image);
    for (number, section) in segments.chunks(segments_per_section).enumerate() {
        let has_nodes = |segment: &Segment| segment.kind > 2;
        let used: Vec<&Segment> = section.iter().filter(|segment| segment.used > 0).collect();
        let is_one = used.iter().all(|segment| has_nodes(segment) == has_nodes(&section[0]));
        assert!(is_one, "section {number} has data and nodes: {section:?}");
    }
}
