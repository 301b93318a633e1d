//! The judge of the states that power cuts leave.
//!
//! Every state is recovered in memory, walked by our check, read as a whole and compared with the promises.
//! Then there are two ways, by turns. Either e2fsck recovers the state, in which it may replay the log and clear
//! orphans but repair nothing, and its result is judged in the same way; or we recover the state in place, and
//! e2fsck must find nothing in it. Now and then our recovery is itself interrupted by a cut.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cut::Cut;
use super::disks::Disks;
use super::e2fsck;
use super::history::History;
use super::snapshot::{Snapshot, findings};
use crate::Random;
use base::{DeviceOffset, GroupNumber};
use device::{RecordDevice, Recording, Replay, SharedDevice};
use iomap::{CacheOptions, PageCache};

/// Counts of this run: states; those whose superblock is torn; those that e2fsck recovered; those that were
/// recovered in place; and recoveries that were cut off.
pub(super) static STATES: AtomicUsize = AtomicUsize::new(0);
pub(super) static TORN: AtomicUsize = AtomicUsize::new(0);
pub(super) static MENDED: AtomicUsize = AtomicUsize::new(0);
pub(super) static IN_PLACE: AtomicUsize = AtomicUsize::new(0);
pub(super) static CUT_AGAIN: AtomicUsize = AtomicUsize::new(0);

/// Counts a state that a suite judges by itself after e2fsck has mended it.
pub fn count_mended_state() {
    STATES.fetch_add(1, Ordering::Relaxed);
    MENDED.fetch_add(1, Ordering::Relaxed);
}

/// One in this number of recoveries in place is cut off.
const CUT_AGAIN_EVERY: usize = 8;
/// The number of cuts of such a recovery.
const CUTS_OF_A_RECOVERY: usize = 4;

/// A state that should not have been, and why.
#[derive(Debug)]
pub struct Violation {
    /// The description of the failure.
    pub what: String,
    cut: Option<Cut>,
    image: Vec<u8>,
}

impl Violation {
    /// Returns the failure for the state of `device` after a cut.
    pub fn new(what: String, cut: Option<Cut>, device: &SharedDevice) -> Self {
        let mut image = vec![0; device.size() as usize];
        device.read_at(DeviceOffset(0), &mut image).unwrap();
        Self { what, cut, image }
    }

    /// Describes it, and keeps the image in `folder`.
    pub(super) fn report(&self, place: &str, folder: &Path) -> String {
        let name = format!("crash-{}.img", place.replace(|c: char| !c.is_alphanumeric(), "-"));
        let path = folder.join(name);
        let kept = std::fs::write(&path, &self.image);
        let (what, cut) = (&self.what, self.cut);
        format!("{place}, {cut:?}, image in {path:?} ({kept:?}): {what}")
    }
}

/// Judges `count` states of `history`, less those that are the same, up to the first violation.
pub fn judge<H: History>(history: &H, seed: u64, count: usize) -> Option<Violation> {
    judge_by(history, seed, count, |cut, disks, random| {
        let number = STATES.fetch_add(1, Ordering::Relaxed);
        judge_one(history, cut, &disks, number, random)
    })
}

/// The same by our recovery in memory alone; not counted.
pub fn judge_in_memory<H: History>(history: &H, seed: u64, count: usize) -> Option<Violation> {
    judge_by(history, seed, count, |cut, disks, _| history.judge(cut.point, &read(&disks)?))
}

/// The same for a volume without a journal, which promises only that files that were synced, and
/// not touched since, are there after e2fsck. We look at the state, too, and do not fall over it.
pub fn judge_without_journal<H: History>(
    history: &H,
    seed: u64,
    count: usize,
) -> Option<Violation> {
    judge_by(history, seed, count, |cut, disks, _| {
        count_mended_state();
        if let Ok(volume) = disks.open(&cache()) {
            let _ = findings(&volume);
        }
        let mended = e2fsck::run("-fy", &disks);
        if mended.code > 1 {
            return Err(format!("e2fsck cannot mend it: {}", mended.text));
        }
        history.judge(cut.point, &read(&mended.disks)?)?;
        let again = e2fsck::run("-fn", &mended.disks);
        if again.code > 0 {
            Err(format!("e2fsck has not mended it: {}", again.text))
        } else {
            Ok(())
        }
    })
}

fn judge_by(
    history: &dyn History,
    seed: u64,
    count: usize,
    mut judge: impl FnMut(&Cut, Disks, &mut Random) -> Result<(), String>,
) -> Option<Violation> {
    let mut random = Random(seed ^ 0xAAAA);
    let run = history.run();
    let recording = &run.recording;
    let (mut replay, mut seen) = (Replay::new(recording), HashSet::new());
    let cuts = Cut::choose(recording, run.begun, count, &mut random);
    for cut in cuts {
        let Some(device) = cut.device(&mut replay, &mut seen) else { continue };
        let disks = Disks::of(device, run.volume_bytes);
        let judged = catch_unwind(AssertUnwindSafe(|| judge(&cut, disks, &mut random)));
        let judged = judged.unwrap_or_else(|_| Err("a panic, told above".into()));
        if let Err(what) = judged {
            let device = cut.device(&mut replay, &mut HashSet::new()).unwrap();
            return Some(Violation::new(what, Some(cut), &device));
        }
    }
    None
}

fn judge_one(
    history: &dyn History,
    cut: &Cut,
    disks: &Disks,
    number: usize,
    random: &mut Random,
) -> Result<(), String> {
    let recovered = read(disks).map_err(|what| format!("recovered: {what}"))?;
    let check = |by: &str, found: &Snapshot| {
        history.judge(cut.point, found).map_err(|what| format!("{by}: {what}"))
    };
    check("recovered", &recovered)?;
    let is_torn = ext4::Superblock::read(&disks.volume).is_err();
    TORN.fetch_add(usize::from(is_torn), Ordering::Relaxed);
    if number % 2 == 0 && cut.point >= history.run().e2fsck_from {
        let outcome = match is_torn {
            false => Some(e2fsck::run("-fy", disks)),
            true => mend_by_copy(disks)?,
        };
        let is_judge =
            |outcome: &e2fsck::Outcome| !is_mishandled(&outcome.text, &recovered, &disks.volume);
        if let Some(outcome) = outcome.filter(is_judge) {
            MENDED.fetch_add(1, Ordering::Relaxed);
            // By a copy of the superblock it counts everything anew.
            let mended = if is_torn { Ok(outcome.disks) } else { unmended(outcome) };
            let mended = mended.and_then(|disks| read(&disks));
            return check("e2fsck", &mended.map_err(|what| format!("e2fsck: {what}"))?);
        }
    }
    IN_PLACE.fetch_add(1, Ordering::Relaxed);
    if number / 2 % CUT_AGAIN_EVERY > 0 {
        return recover_in_place(disks, disks, &recovered, || ());
    }
    let (recorder, recorded) = record(disks).map_err(|error| error.to_string())?;
    let mut recovery = None;
    recover_in_place(disks, &recorded, &recovered, || {
        recovery = Some(recorder.recording());
    })?;
    let volume_bytes = history.run().volume_bytes;
    recovery.map_or(Ok(()), |recovery| cut_again(&recovery, volume_bytes, &recovered, random))
}

/// Returns the result of e2fsck on a volume with a torn superblock, by the copy in the second group, if there is one.
fn mend_by_copy(disks: &Disks) -> Result<Option<e2fsck::Outcome>, String> {
    let volume = disks.open(&cache()).map_err(|error| error.to_string())?;
    let geometry = volume.geometry();
    let group = GroupNumber(1);
    if geometry.group_count < 2 || !geometry.has_superblock(group) {
        return Ok(None);
    }
    let outcome = e2fsck::mend_by_copy(geometry.group_start(group), geometry.block_size, disks);
    match outcome.code {
        0 | 1 => Ok(Some(outcome)),
        _ => Err(format!("e2fsck cannot mend it by a copy: {}", outcome.text)),
    }
}

/// Returns a recorder, and disks through which it records all writes to `disks`.
fn record(disks: &Disks) -> base::Result<(Arc<RecordDevice>, Disks)> {
    let volume = Arc::clone(&disks.volume);
    let (volume, journal): (_, Option<SharedDevice>) = match &disks.journal {
        None => (RecordDevice::new(volume)?, None),
        Some(journal) => {
            let [volume, journal] = RecordDevice::pair(volume, Arc::clone(journal))?;
            (volume, Some(Arc::new(journal)))
        }
    };
    let volume = Arc::new(volume);
    Ok((Arc::clone(&volume), Disks { volume, journal }))
}

/// Recovers `disks` through `written`, and checks their contents.
fn recover_in_place(
    disks: &Disks,
    written: &Disks,
    expected: &Snapshot,
    when_open: impl FnOnce(),
) -> Result<(), String> {
    let place = |what: String| format!("recovered in place: {what}");
    let volume = written.open_for_writing(&cache());
    let volume = volume.map_err(|error| place(error.to_string()))?;
    when_open();
    volume.close().map_err(|error| place(error.to_string()))?;
    drop(volume);
    let outcome = e2fsck::run("-fn", disks);
    if outcome.code != 0 {
        return Err(place(outcome.text));
    }
    match read(disks).map_err(place)? == *expected {
        true => Ok(()),
        false => Err(place("it holds something else than when recovered in memory".into())),
    }
}

/// Cuts the power during a recovery: the next recovery must have the same result.
fn cut_again(
    recovery: &Recording,
    volume_bytes: Option<u64>,
    expected: &Snapshot,
    random: &mut Random,
) -> Result<(), String> {
    let (mut replay, mut seen) = (Replay::new(recovery), HashSet::new());
    for cut in Cut::choose(recovery, 0, CUTS_OF_A_RECOVERY, random) {
        let Some(device) = cut.device(&mut replay, &mut seen) else { continue };
        CUT_AGAIN.fetch_add(1, Ordering::Relaxed);
        let place = |what: String| format!("cut again, {cut:?}: {what}");
        let disks = Disks::of(device, volume_bytes);
        if read(&disks).map_err(place)? != *expected {
            return Err(place("the second recovery comes to another end".into()));
        }
        recover_in_place(&disks, &disks, expected, || ()).map_err(place)?;
    }
    Ok(())
}

/// Returns the contents of `disks` after recovery in memory. Checks that they are sound, and does not write
/// to them.
pub fn read(disks: &Disks) -> Result<Snapshot, String> {
    let volume = disks.open(&cache()).map_err(|error| error.to_string())?;
    findings(&volume)?;
    Snapshot::read(&volume).map_err(|error| error.to_string())
}

/// Returns whether e2fsck 1.47 has come upon an orphan that it does not treat as the format wants. One that
/// it truncates loses its block of attributes, but goes on to count it; and of one that has no map,
/// as of a fifo or with inline data, that block is not freed. Of a cluster that is cut off, it unmaps
/// only the first block. Of a commit block only the first sector counts, but it takes one for corrupt
/// that has old sectors behind that.
fn is_mishandled(text: &str, recovered: &Snapshot, device: &SharedDevice) -> bool {
    let orphans = |before: &'static str| text.lines().filter_map(move |it| it.strip_prefix(before));
    let has_attributes = |orphan: &str| {
        let number = orphan.split(' ').next().and_then(|number| number.parse().ok());
        number.is_some_and(|number| recovered.xattrs.contains_key(&number))
    };
    let superblock = ext4::Superblock::read(device);
    let has = |feature| superblock.as_ref().is_ok_and(|it| it.has(feature));
    let (has_inline_data, has_clusters) =
        (has(ext4::Feature::InlineData), has(ext4::Feature::Bigalloc));
    // Regular files and directories have a map.
    let has_map = |orphan: &str| orphan.contains("mode=0100") || orphan.contains("mode=04");
    let is_not_freed = |orphan: &str| has_inline_data || !has_map(orphan);
    text.contains("was corrupt, replay was aborted")
        || orphans("Truncating orphaned inode ").any(|it| has_clusters || has_attributes(it))
        || orphans("Clearing orphaned inode ").any(is_not_freed)
            && text.contains("Block bitmap differences:  -")
}

/// Runs e2fsck and returns the disks after it, as `unmended` does.
pub fn mended(disks: &Disks) -> Result<Disks, String> {
    unmended(e2fsck::run("-fy", disks))
}

/// Returns the disks after e2fsck. It may have replayed the log, corrected totals, cleared orphans, and cleared a mark
/// that is set while a volume is in use; anything else means that the volume was not sound.
fn unmended(outcome: e2fsck::Outcome) -> Result<Disks, String> {
    let text = without_totals(&outcome.text);
    let complaints = ["Fix? yes", "Clear? yes", "Connect", "lost+found? yes"];
    if outcome.code > 1 || complaints.iter().any(|complaint| text.contains(complaint)) {
        return Err(format!("e2fsck has something to mend: {}", outcome.text));
    }
    Ok(outcome.disks)
}

/// Returns the text without lines about the superblock's totals, which are right only after a sync (groups have
/// counts of their own), and without lines about the orphan file, which e2fsck empties after clearing the orphans.
fn without_totals(text: &str) -> String {
    let (mut lines, mut kept) = (text.lines(), String::new());
    while let Some(line) = lines.next() {
        let is_total = ["Free blocks count wrong (", "Free inodes count wrong ("]
            .iter()
            .any(|start| line.starts_with(start));
        let is_orphan_file = line
            .starts_with("Feature orphan_present is set but orphan file is clean")
            || line.starts_with("Orphan file (inode ") && line.ends_with(" is not clean.");
        if is_total || is_orphan_file {
            lines.next();
        } else {
            kept.extend([line, "\n"]);
        }
    }
    kept
}

/// One for all volumes of a thread, which come one after the other.
pub fn cache() -> Arc<PageCache> {
    thread_local! {
        static CACHE: OnceCell<Arc<PageCache>> = const { OnceCell::new() };
    }
    let new = || {
        let options = CacheOptions { bytes_max: 32 << 20, ..CacheOptions::default() };
        PageCache::new(options).unwrap()
    };
    CACHE.with(|cache| Arc::clone(cache.get_or_init(new)))
}
