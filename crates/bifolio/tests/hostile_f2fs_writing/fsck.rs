//! fsck.f2fs as a second judge.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use base::DeviceOffset;
use device::SharedDevice;
use tempfile::NamedTempFile;
use testkit::f2fs::complaint_of_fsck;
use testkit::hostile::written;

use super::COPIED;

/// The parts of lines that are complaints.
const MARKS: [&str; 3] = ["[Fail]", "[ASSERT]", "[FIX]"];

/// The kinds of complaints that say nothing about changes, if there was another one before them.
pub const HIDDEN: &[(&str, &[&str])] = &[
    // For nodes that nothing refers to, fsck.f2fs creates `lost+found` in memory before it
    // compares.
    ("Unreachable nat entries Fail", &["nat lookup", "Wrong segment type", "fsck get lpf"]),
    // It does not look at blocks whose summary is wrong. Blocks that move get a right one.
    ("summary data block is not valid", &["chk dentries", "f2fs check dirent position"]),
    // A node of two files is freed with one of them, and a file that has more names than links with
    // its last link.
    ("sanity check nid", &["sanity check nid"]),
    ("needs more i links", &["sanity check nid"]),
    // An address that is reserved, but not counted in its inode, is not counted when it gets a
    // block either.
    ("has i blocks but has blocks", &["valid block count matching with CP"]),
    // A file that has more links than names stays without a name.
    (
        "Hard link checking for regular file Fail",
        &["Unreachable nat entries", "valid inode count", "valid node count", "fsck verify res"],
    ),
];

/// The last comparison of fsck.f2fs. It crashes before that on some images, and if it has no space
/// for `lost+found`.
const LAST_COMPARISON: &str = "other corrupted bugs";

/// A file with the contents of one device after another.
pub struct Image {
    file: NamedTempFile,
    contents: Vec<u8>,
}

impl Image {
    /// Returns a file of `length` zeroes.
    pub fn new(length: usize) -> Self {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(length as u64).unwrap();
        Self { file, contents: vec![0; length] }
    }

    /// Returns the kinds of complaints of fsck.f2fs about `device`: its lines without their
    /// numbers. `None` if it does not get to its end.
    pub fn complaints(&mut self, device: &SharedDevice) -> Option<BTreeSet<String>> {
        let file: &File = self.file.as_file();
        let mut read = vec![0; COPIED];
        for (at, old) in (0..).step_by(COPIED).zip(self.contents.chunks_mut(COPIED)) {
            let read = &mut read[..old.len()];
            device.read_at(DeviceOffset(at), read).unwrap();
            if old != read {
                old.copy_from_slice(read);
                file.write_all_at(old, at).unwrap();
            }
        }
        match complaint_of_fsck(self.file.path()) {
            None => Some(BTreeSet::new()),
            Some(output) if output.contains(LAST_COMPARISON) => Some(kinds(&output)),
            Some(_) => None,
        }
    }
}

/// Returns the lines of the output of fsck.f2fs that are complaints, without their numbers.
fn kinds(output: &str) -> BTreeSet<String> {
    let is_complaint = |line: &&str| MARKS.iter().any(|mark| line.contains(mark));
    written::kinds(output.lines().filter(is_complaint))
}
