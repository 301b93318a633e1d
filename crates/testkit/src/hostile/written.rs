//! Changes of a damaged volume, and the judgement of the library's check before and after. For volumes of any format. Not
//! here: damage, other judges.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::BlockSize;
use device::{MemoryDevice, OverlayDevice, SharedDevice};
use vfs::{Volume, VolumeOptions};

use crate::{Changer, Choose, must};

/// The maximum memory for what the changes of an image write.
const WRITTEN_BYTES_MAX: u64 = 256 << 20;
/// The limit of the cache's memory.
const CACHE_BYTES_MAX: u64 = 8 << 20;
/// The unit in which a device over an image keeps writes.
const UNIT_SHIFT: u32 = 12;

/// Returns a device with `image`, which keeps writes to itself.
pub fn over(image: &Arc<Vec<u8>>) -> SharedDevice {
    let base: SharedDevice = Arc::new(MemoryDevice::shared(Arc::clone(image)));
    let unit = BlockSize::from_shift(UNIT_SHIFT).expect("a block size");
    Arc::new(OverlayDevice::new(base, unit, WRITTEN_BYTES_MAX))
}

/// Returns the findings of the check, after recovery in memory, or `None` if the volume is refused.
pub fn findings(device: &SharedDevice) -> Option<Vec<String>> {
    let mut options = VolumeOptions::new();
    options.cache_bytes_max(CACHE_BYTES_MAX);
    let volume = Volume::open_device(Arc::clone(device), &options).ok()?;
    let mut findings = Vec::new();
    volume.check(&mut |error| {
        findings.push(error.to_string());
        ControlFlow::Continue(())
    });
    Some(findings)
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
    /// The error of the last sync or of closing.
    pub not_closed: Option<base::Error>,
}

/// Makes at most `changes` changes that `choose` chooses of the volume on `device`, and closes it.
pub fn write<C: Choose>(device: &SharedDevice, mut choose: C, changes: usize) -> Outcome {
    let before = findings(device);
    let removes = choose.below(4) == 0;
    let Some(mut changer) = Changer::open(Arc::clone(device), choose) else {
        return Outcome { made: None, before, after: None, not_closed: None };
    };
    changer = changer.change_some(changes);
    if removes {
        changer = changer.remove_all();
    }
    let (made, closed) = changer.close();
    Outcome { made: Some(made), before, after: findings(device), not_closed: closed.err() }
}

impl Outcome {
    /// Returns whether the check found nothing before.
    pub fn is_sound(&self) -> bool {
        self.before.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns the kinds of findings that changes have caused. Those of a volume that was not sound before may follow from
    /// what the check found there.
    pub fn new_findings(&self) -> Vec<String> {
        let Some(before) = self.before.as_ref().filter(|_| self.made.is_some()) else {
            return Vec::new();
        };
        match &self.after {
            Some(after) if before.is_empty() => {
                let not_closed = self.not_closed.iter().map(|error| format!("not closed: {error}"));
                after.iter().cloned().chain(not_closed).collect()
            }
            Some(_) => Vec::new(),
            None => vec!["the volume cannot be opened after it was written".to_owned()],
        }
    }
}

/// Returns the inputs that the fuzzer has kept for `target`, with their names, if `BIFOLIO_FUZZ_CORPUS` is the folder of its
/// corpora.
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
/// `hidden` lists kinds that say nothing about changes if `before` has another one, of which they follow.
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
