//! Changes of a damaged volume, and the judgement of the library's check before and after. For
//! volumes of any format. Not here: damage, other judges.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::BlockSize;
use device::{MemoryDevice, OverlayDevice, SharedDevice};
use vfs::{Volume, VolumeOptions};

use super::kept::Files;
use crate::{Changer, Choose, must};

/// The maximum memory for what the changes of an image write.
const WRITTEN_BYTES_MAX: u64 = 256 << 20;
/// The limit of the cache's memory.
const CACHE_BYTES_MAX: u64 = 8 << 20;
/// The unit in which a device over an image keeps writes.
const UNIT_SHIFT: u32 = 12;

/// The kinds of findings of the check that say nothing about changes, if there was another one
/// before them.
const FOLLOWING: &[(&str, &[&str])] = &[
    // What a damaged structure does not give back stays in use. The counts of groups are compared
    // with what is in use, and those of the superblock of ext4, which become the sums of the
    // groups' when a volume is closed.
    (
        "",
        &[
            "not in use but marked used",
            "group free",
            "group directory count",
            "superblock at byte free",
        ],
    ),
    // Orphans of a volume that has recorded errors are left to e2fsck.
    ("", &["time of deletion is missing"]),
    // After a power cut, the summaries of the node logs of f2fs are made of the footers of nodes.
    ("corrupt node footer", &["corrupt summary"]),
    // An inode that has more links than names stays without a name, and one that has more names is
    // freed before the last one.
    ("link count is but must be", &["name is missing", "the entry names inode which is free"]),
    // The blocks of a truncated file that are in a damaged group, or below a damaged node, cannot
    // be freed.
    ("corrupt block bitmap", &["corrupt inode at inode size is outside to"]),
    ("corrupt group descriptor", &["corrupt inode at inode size is outside to"]),
    ("corrupt extent", &["corrupt inode at inode size is outside to"]),
    // The orphan file is not read if the list is damaged.
    ("corrupt orphan list", &["corrupt orphan file"]),
    // An address that is reserved, but not counted in its inode, is not counted when it gets a
    // block either.
    ("block count is but must be", &["blocks in use is but must be"]),
    // The counts of a checkpoint are compared with what is in use, and a block that is marked free
    // is not freed again.
    ("in use but marked", &["blocks in use is but must be"]),
    // A block of two owners, or one that is in use and can be allocated, has the contents that the
    // last write gave it.
    ("used more than once", SHARED),
    ("in use but marked free", SHARED),
    // Such a block is freed with one of the owners.
    ("used more than once", &["in use but marked free"]),
    // A damaged ".." may have the number of a free inode, which any new file gets.
    ("corrupt directory at inode is but must be", &["corrupt directory entry"]),
];

/// What follows of a block with two owners.
const SHARED: &[&str] = &[
    "used more than once",
    "corrupt directory",
    "corrupt extended attribute",
    "corrupt extent",
    "name of a directory",
];

/// The parts of findings after which a change of a file may overwrite another one: blocks of two
/// owners, and blocks or inodes that are in use and can be allocated.
const MAY_LOSE: &[&str] = &["used more than once", "marked free", "the volume's own metadata"];

/// Returns a device with `image`, which keeps writes to itself.
pub fn over(image: &Arc<Vec<u8>>) -> SharedDevice {
    let base: SharedDevice = Arc::new(MemoryDevice::shared(Arc::clone(image)));
    let unit = BlockSize::from_shift(UNIT_SHIFT).expect("a block size");
    Arc::new(OverlayDevice::new(base, unit, WRITTEN_BYTES_MAX))
}

/// Returns the findings of the check, after recovery in memory, and the files, or `None` if the
/// volume is refused.
fn read(device: &SharedDevice) -> Option<(Vec<String>, Files)> {
    let mut options = VolumeOptions::new();
    options.cache_bytes_max(CACHE_BYTES_MAX);
    let volume = Volume::open_device(Arc::clone(device), &options).ok()?;
    let mut findings = Vec::new();
    volume.check(&mut |error| {
        findings.push(error.to_string());
        ControlFlow::Continue(())
    });
    Some((findings, Files::of(&volume)))
}

/// The outcome of changes of a volume.
#[derive(Debug)]
pub struct Outcome {
    /// The number of successful changes. `None` if the volume was not opened for writing.
    pub made: Option<u64>,
    /// The findings of the check before.
    pub before: Option<Vec<String>>,
    /// Those after, if there were any changes.
    pub after: Option<Vec<String>>,
    /// Files that changes have not touched, and that are lost or have other contents.
    pub lost: Vec<String>,
    /// The error of the last sync or of closing.
    pub not_closed: Option<base::Error>,
}

/// Makes at most `changes` changes that `choose` chooses of the volume on `device`, and closes it.
pub fn write<C: Choose>(device: &SharedDevice, mut choose: C, changes: usize) -> Outcome {
    let before = read(device);
    let removes = choose.below(4) == 0;
    let Some(mut changer) = Changer::open(Arc::clone(device), choose) else {
        let before = before.map(|(findings, _)| findings);
        return Outcome { made: None, before, after: None, lost: Vec::new(), not_closed: None };
    };
    changer = changer.change_some(changes);
    if removes {
        changer = changer.remove_all();
    }
    let touched = changer.touched().clone();
    let (made, closed) = changer.close();
    let after = read(device);
    let lost = match (&before, &after) {
        (Some((_, before)), Some((_, after))) => before.lost_in(after, &touched),
        _ => Vec::new(),
    };
    let [before, after] = [before, after].map(|read| read.map(|(findings, _)| findings));
    Outcome { made: Some(made), before, after, lost, not_closed: closed.err() }
}

impl Outcome {
    /// Returns whether the check found nothing before.
    pub fn is_sound(&self) -> bool {
        self.before.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns the findings that changes have caused, and the files that they have lost. Of a
    /// volume that was not sound before, the findings are the kinds that it did not have.
    pub fn new_findings(&self) -> Vec<String> {
        let Some(before) = self.before.as_ref().filter(|_| self.made.is_some()) else {
            return Vec::new();
        };
        let Some(after) = &self.after else {
            return vec!["the volume cannot be opened after it was written".to_owned()];
        };
        let mut new = if before.is_empty() {
            let not_closed = self.not_closed.iter().map(|error| format!("not closed: {error}"));
            after.iter().cloned().chain(not_closed).collect()
        } else {
            let kinds = |findings: &[String]| kinds(findings.iter().map(String::as_str));
            let (before, after) = (kinds(before), kinds(after));
            new_kinds(&before, &after, FOLLOWING).into_iter().cloned().collect::<Vec<_>>()
        };
        let may_lose = |finding: &String| MAY_LOSE.iter().any(|kind| finding.contains(kind));
        if !before.iter().any(may_lose) {
            new.extend(self.lost.iter().cloned());
        }
        new
    }
}

/// Returns the inputs that the fuzzer has kept for `target`, with their names, if
/// `BIFOLIO_FUZZ_CORPUS` is the folder of its corpora.
pub fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = std::env::var_os("BIFOLIO_FUZZ_CORPUS").map(|all| Path::new(&all).join(target));
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    let paths = entries.into_iter().flatten().map(|entry| must(entry, target).path());
    paths.map(|path| (path.display().to_string(), must(std::fs::read(&path), target))).collect()
}

/// Returns complaints without their numbers.
pub fn kinds<'a>(complaints: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let is_number = |word: &&str| {
        let has_digit = word.is_empty() || word.bytes().any(|byte| byte.is_ascii_digit());
        has_digit && word.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let words = |line: &str| {
        let words = line.split(|symbol: char| !symbol.is_ascii_alphanumeric());
        let words = words.filter(|word| !word.starts_with("0x") && !is_number(word));
        words.collect::<Vec<_>>().join(" ")
    };
    complaints.map(words).collect()
}

/// Returns the kinds of complaints in `after` that changes have caused.
///
/// `hidden` lists kinds that say nothing about changes if `before` has another one, of which they
/// follow. The empty string stands for any other kind.
pub fn new_kinds<'a>(
    before: &'a BTreeSet<String>,
    after: &'a BTreeSet<String>,
    hidden: &[(&str, &[&str])],
) -> Vec<&'a String> {
    let is_hidden = |kind: &str| {
        hidden.iter().any(|(hiding, hidden)| {
            hidden.iter().any(|part| kind.contains(part))
                && before.iter().any(|old| old.contains(hiding))
        })
    };
    after.difference(before).filter(|kind| !is_hidden(kind)).collect()
}
