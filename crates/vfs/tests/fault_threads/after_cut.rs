//! Volumes after a power cut at the end of a run: what the cut leaves, the recoveries, and the
//! judges.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use device::{CountedFault, MemoryDevice, RecordedWrite, Recording, Replay, SharedDevice};
use testkit::crash::{can_fsck_f2fs_read, complaint_of_fsck_f2fs};
use testkit::{Random, f2fs};

use crate::Outcome;
use crate::kind::Kind;
use crate::worker::Found;

pub fn check_after_power_cut(kind: &Kind, fault: CountedFault, outcome: &Outcome, place: &str) {
    let mut random = Random(fault.number + 1);
    match kind {
        Kind::Ext { .. } => check_ext(kind, fault, outcome, &mut random, place),
        Kind::F2fs(_) => check_f2fs(kind, outcome, &mut random, place),
    }
}

/// Returns a function that chooses the sectors which a power cut at the end of the recording
/// leaves. It keeps or loses all sectors of a part of the device together, as often as those that
/// the kind's device writes as a whole.
fn any_sectors<'r>(
    kind: &'r Kind,
    random: &'r mut Random,
) -> impl FnMut(&RecordedWrite, u64) -> bool + use<'r> {
    let (kept_of_4, mut kept) = (random.below(5), false);
    move |write, sector| {
        if !kind.is_with_previous(write.offset.0 / 512 + sector) {
            kept = random.below(4) < kept_of_4;
        }
        kept
    }
}

/// Runs e2fsck on an image, and returns the image afterwards.
fn e2fsck(image: &[u8], option: &str, code_max: i32, place: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, image).unwrap();
    let output = Command::new("e2fsck").arg(option).arg(Path::new(&path)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.code().is_some_and(|code| code <= code_max);
    assert!(passed, "{place}: e2fsck {option} ends with {:?}\n{text}", output.status.code());
    std::fs::read(path).unwrap()
}

/// Opens the volume for writing and closes it again.
fn reopen(kind: &Kind, device: SharedDevice, place: &str) {
    let volume = kind.open(device, true).unwrap_or_else(|error| panic!("{place}: {error}"));
    volume.close().unwrap_or_else(|error| panic!("{place}: {error}"));
}

/// Checks the files of a volume that was recovered, or is to be recovered in memory.
fn check_files(kind: &Kind, device: SharedDevice, outcome: &Outcome, padding: usize, place: &str) {
    let volume = kind.open(device, false).unwrap_or_else(|error| panic!("{place}: {error}"));
    let has_journal = kind.has_journal();
    Found { volume: &volume, has_journal, padding }.check(&outcome.workers, place);
}

fn check_ext(
    kind: &Kind,
    fault: CountedFault,
    outcome: &Outcome,
    random: &mut Random,
    place: &str,
) {
    let recording = &outcome.recording;
    let cut = recording.image(recording.crash_points().end - 1, any_sectors(kind, random));
    let has_journal = kind.has_journal();
    let check = |by: &str, image: Vec<u8>, padding: usize| {
        let place = &format!("{place}, recovered by {by}");
        check_files(kind, Arc::new(MemoryDevice::new(image)), outcome, padding, place);
    };
    if has_journal {
        let device = Arc::new(MemoryDevice::new(cut.clone()));
        reopen(kind, device.clone(), place);
        let recovered = device.snapshot();
        // On a volume with a recorded error, neither this library nor Linux processes the orphan
        // list. The volume requests a check, and e2fsck finds the orphans.
        let repaired =
            if outcome.is_shut { e2fsck(&recovered, "-fy", 1, place) } else { recovered.clone() };
        e2fsck(&repaired, "-fn", 0, place);
        check("this library", recovered, 1);
    }
    if !has_journal || fault.number % 4 == 0 {
        let repaired = e2fsck(&cut, "-fy", 1, place);
        e2fsck(&repaired, "-fn", 0, place);
        check("e2fsck", repaired, if outcome.is_shut { kind.block_size() } else { 1 });
    }
}

/// Checks a volume of f2fs, whose last checkpoint is good whatever has failed.
fn check_f2fs(kind: &Kind, outcome: &Outcome, random: &mut Random, place: &str) {
    let recording: &Recording = &outcome.recording;
    let end = recording.crash_points().end - 1;
    let cut = Replay::new(recording).device(end, any_sectors(kind, random)).unwrap();
    check_files(kind, cut.device(), outcome, 1, &format!("{place}, recovered in memory"));
    let place = &format!("{place}, recovered");
    reopen(kind, cut.device(), place);
    assert_eq!(f2fs::findings(cut.device()), [""; 0], "{place}");
    if can_fsck_f2fs_read(&cut) {
        assert_eq!(complaint_of_fsck_f2fs(&cut), None, "{place}");
    }
    check_files(kind, cut.device(), outcome, 1, place);
}
