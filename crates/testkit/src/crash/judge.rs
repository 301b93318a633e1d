//! The judge of the states that power cuts leave.
//!
//! Bifolio recovers every state in memory, checks it, reads all of it and compares it with the
//! promises. Then one of two judges follows in turn, for ext4. Either e2fsck recovers the state,
//! which may replay the log and clear orphans but must repair nothing, and its result is compared
//! in the same way. Or Bifolio recovers the state in place, and e2fsck must find no errors in it.
//! Some of these recoveries are interrupted by another cut. Half of the states of f2fs are
//! recovered in place, and fsck.f2fs must find no errors in half of these.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cut::Cut;
use super::disks::{Disks, VolumeFormat};
use super::history::{History, RecordedRun};
use super::snapshot::{Snapshot, findings};
use super::{e2fsck, fsck_f2fs};
use crate::Random;
use base::{DeviceOffset, GroupNumber};
use device::{RecordDevice, Recording, Replay, SharedDevice};
use iomap::{CacheOptions, PageCache};

/// The number of states in this run.
pub(super) static STATES: AtomicUsize = AtomicUsize::new(0);
/// The number of states with a torn superblock.
pub(super) static TORN: AtomicUsize = AtomicUsize::new(0);
/// The number of states that e2fsck has recovered.
pub(super) static MENDED: AtomicUsize = AtomicUsize::new(0);
/// The number of states that were recovered in place.
pub(super) static IN_PLACE: AtomicUsize = AtomicUsize::new(0);
/// The number of states that were recovered in place, and then checked by e2fsck or fsck.f2fs.
pub(super) static CHECKED: AtomicUsize = AtomicUsize::new(0);
/// The number of cuts during recoveries in place.
pub(super) static CUT_AGAIN: AtomicUsize = AtomicUsize::new(0);

/// Counts a state that a suite judges itself after e2fsck has repaired it.
pub fn count_mended_state() {
    STATES.fetch_add(1, Ordering::Relaxed);
    MENDED.fetch_add(1, Ordering::Relaxed);
}

/// One in this number of recoveries in place is interrupted by cuts.
const CUT_AGAIN_EVERY: usize = 8;
/// The same for f2fs, whose volumes are larger.
const F2FS_CUT_AGAIN_EVERY: usize = 32;
/// One in this number of states of f2fs is recovered in place. This and fsck.f2fs take most of the
/// time.
const F2FS_IN_PLACE_EVERY: usize = 2;
/// One in this number of states of f2fs that are recovered in place is checked by fsck.f2fs.
const FSCK_F2FS_EVERY: usize = 2;
/// The number of cuts of such a recovery.
const CUTS_OF_A_RECOVERY: usize = 4;

/// The number of cuts from which one is chosen at random.
const CUTS_TO_CHOOSE_FROM: usize = 12;

/// A state that breaks a promise.
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

    /// Returns a description for `trial`, and keeps the image in `folder`.
    pub(super) fn report(&self, trial: &str, folder: &Path) -> String {
        let name = format!("crash-{}.img", trial.replace(|c: char| !c.is_alphanumeric(), "-"));
        let path = folder.join(name);
        let written = std::fs::write(&path, &self.image);
        let (what, cut) = (&self.what, self.cut);
        format!("{trial}, {cut:?}, image in {path:?} ({written:?}): {what}")
    }
}

/// Judges `count` states of `history`, without duplicates. Returns the first violation.
pub fn judge<H: History>(history: &H, seed: u64, count: usize) -> Option<Violation> {
    judge_by(history, seed, count, |cut, disks, random| {
        let number = STATES.fetch_add(1, Ordering::Relaxed);
        judge_one(history, cut, &disks, number, random)
    })
}

/// Judges states like [`judge`], but only by Bifolio's recovery in memory, and does not count them.
pub fn judge_in_memory<H: History>(history: &H, seed: u64, count: usize) -> Option<Violation> {
    judge_by(history, seed, count, |cut, disks, _| history.judge(cut.point, &read(&disks)?))
}

/// Judges states of a volume without a journal. It promises only that e2fsck can repair it, and
/// that files which were not changed since their sync are there afterwards. Bifolio's check also
/// reads the state, and must not panic.
pub fn judge_without_journal<H: History>(
    history: &H,
    seed: u64,
    count: usize,
) -> Option<Violation> {
    judge_by(history, seed, count, |cut, disks, _| {
        count_mended_state();
        if let Ok(volume) = disks.open(&cache()) {
            let _ = findings(&*volume);
        }
        let repaired = e2fsck::run("-fy", &disks);
        if repaired.code > 1 {
            return Err(format!("e2fsck cannot repair it: {}", repaired.text));
        }
        history.judge(cut.point, &read_repaired(&repaired.disks)?)?;
        let again = e2fsck::run("-fn", &repaired.disks);
        if again.code > 0 {
            Err(format!("e2fsck has not repaired it: {}", again.text))
        } else {
            Ok(())
        }
    })
}

/// Returns the volume after a random cut of `run`, and the point of the cut.
pub fn cut_off(run: &RecordedRun, random: &mut Random) -> (usize, Disks) {
    loop {
        let cuts = Cut::choose(&run.recording, run.begun, CUTS_TO_CHOOSE_FROM, random);
        let cut = cuts[random.below(cuts.len() as u64) as usize];
        let mut replay = Replay::new(&run.recording);
        if let Some(device) = cut.device(&mut replay, run.atomic_bytes, &mut HashSet::new()) {
            return (cut.point, Disks::of(device, run.volume_bytes, run.format));
        }
    }
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
    let mut replay = Replay::new(recording);
    let unit = run.atomic_bytes;
    let mut seen = HashSet::new();
    let cuts = Cut::choose(recording, run.begun, count, &mut random);
    for cut in cuts {
        let Some(device) = cut.device(&mut replay, unit, &mut seen) else { continue };
        let disks = Disks::of(device, run.volume_bytes, run.format);
        let judged = catch_unwind(AssertUnwindSafe(|| judge(&cut, disks, &mut random)));
        let judged = judged.unwrap_or_else(|_| Err("a panic, whose message is above".into()));
        if let Err(what) = judged {
            let rebuilt = cut.device(&mut replay, unit, &mut HashSet::new()).unwrap();
            return Some(Violation::new(what, Some(cut), &rebuilt.device()));
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
    let is_ext4 = disks.format == VolumeFormat::Ext4;
    let is_torn = is_ext4 && ext4::Superblock::read(&disks.volume).is_err();
    TORN.fetch_add(usize::from(is_torn), Ordering::Relaxed);
    if is_ext4 && number % 2 == 0 && cut.point >= history.run().e2fsck_from {
        let outcome =
            if is_torn { repair_by_copy(disks)? } else { Some(e2fsck::run("-fy", disks)) };
        let is_judge =
            |outcome: &e2fsck::Outcome| !is_mishandled(&outcome.text, &recovered, &disks.volume);
        if let Some(outcome) = outcome.filter(is_judge) {
            MENDED.fetch_add(1, Ordering::Relaxed);
            // With a copy of the superblock, e2fsck corrects all counts.
            let disks = if is_torn { Ok(outcome.disks) } else { without_repairs(outcome) };
            let found = disks.and_then(|disks| read(&disks));
            return check("e2fsck", &found.map_err(|what| format!("e2fsck: {what}"))?);
        }
    }
    if !is_ext4 && number % F2FS_IN_PLACE_EVERY > 0 {
        return Ok(());
    }
    let number = IN_PLACE.fetch_add(1, Ordering::Relaxed);
    let is_checked = is_ext4 || number % FSCK_F2FS_EVERY == 0;
    let cut_again_every = if is_ext4 { CUT_AGAIN_EVERY } else { F2FS_CUT_AGAIN_EVERY };
    if number / 2 % cut_again_every > 0 {
        return recover_in_place(disks, disks, &recovered, is_checked, || ());
    }
    let (recorder, recorded) = record(disks).map_err(|error| error.to_string())?;
    let mut recovery = None;
    recover_in_place(disks, &recorded, &recovered, is_checked, || {
        recovery = Some(recorder.recording());
    })?;
    let run = history.run();
    recovery.map_or(Ok(()), |recovery| cut_again(&recovery, run, &recovered, random))
}

/// Returns the result of e2fsck on a volume with a torn superblock, with the copy in the second
/// group, if there is one.
fn repair_by_copy(disks: &Disks) -> Result<Option<e2fsck::Outcome>, String> {
    let volume = disks.open_ext4(&cache()).map_err(|error| error.to_string())?;
    let geometry = volume.geometry();
    let group = GroupNumber(1);
    if geometry.group_count < 2 || !geometry.has_superblock(group) {
        return Ok(None);
    }
    let outcome = e2fsck::repair_by_copy(geometry.group_start(group), geometry.block_size, disks);
    match outcome.code {
        0 | 1 => Ok(Some(outcome)),
        _ => Err(format!("e2fsck cannot repair it with a copy: {}", outcome.text)),
    }
}

/// Returns a recorder, and disks through which it records all writes to `disks`.
fn record(disks: &Disks) -> base::Result<(Arc<RecordDevice>, Disks)> {
    let volume = Arc::clone(&disks.volume);
    let (volume, journal): (_, Option<SharedDevice>) = match &disks.journal {
        None => match &disks.rebuilt {
            Some(rebuilt) => (RecordDevice::over(volume, rebuilt.snapshot()), None),
            None => (RecordDevice::new(volume)?, None),
        },
        Some(journal) => {
            let [volume, journal] = RecordDevice::pair(volume, Arc::clone(journal))?;
            (volume, Some(Arc::new(journal)))
        }
    };
    let volume = Arc::new(volume);
    let written: SharedDevice = volume.clone();
    Ok((volume, Disks { journal, ..Disks::new(written, disks.format) }))
}

/// Recovers `disks` in place, through `written`, which may record the writes. Compares their
/// contents. With `is_checked`, e2fsck or fsck.f2fs must find no errors.
fn recover_in_place(
    disks: &Disks,
    written: &Disks,
    expected: &Snapshot,
    is_checked: bool,
    when_open: impl FnOnce(),
) -> Result<(), String> {
    let failure = |what: String| format!("recovered in place: {what}");
    let volume = written.open_for_writing(&cache());
    let volume = volume.map_err(|error| failure(error.to_string()))?;
    when_open();
    volume.close().map_err(|error| failure(error.to_string()))?;
    drop(volume);
    if is_checked {
        let complaint = match disks.format {
            VolumeFormat::Ext4 => {
                CHECKED.fetch_add(1, Ordering::Relaxed);
                let outcome = e2fsck::run("-fn", disks);
                (outcome.code != 0).then_some(outcome.text)
            }
            VolumeFormat::F2fs => {
                let rebuilt = disks.rebuilt.as_ref().filter(|it| fsck_f2fs::can_read(it));
                CHECKED.fetch_add(usize::from(rebuilt.is_some()), Ordering::Relaxed);
                rebuilt.and_then(fsck_f2fs::complaint)
            }
        };
        if let Some(complaint) = complaint {
            return Err(failure(complaint));
        }
    }
    if read(disks).map_err(failure)? == *expected {
        Ok(())
    } else {
        Err(failure("the contents differ from those recovered in memory".into()))
    }
}

/// Cuts the power during a recovery: the next recovery must have the same result.
fn cut_again(
    recovery: &Recording,
    run: &RecordedRun,
    expected: &Snapshot,
    random: &mut Random,
) -> Result<(), String> {
    let mut replay = Replay::new(recovery);
    let unit = run.atomic_bytes;
    let mut seen = HashSet::new();
    for cut in Cut::choose(recovery, 0, CUTS_OF_A_RECOVERY, random) {
        let Some(device) = cut.device(&mut replay, unit, &mut seen) else { continue };
        CUT_AGAIN.fetch_add(1, Ordering::Relaxed);
        let failure = |what: String| format!("cut again, {cut:?}: {what}");
        let disks = Disks::of(device, run.volume_bytes, run.format);
        if read(&disks).map_err(failure)? != *expected {
            return Err(failure("the second recovery has another result".into()));
        }
        let is_checked = run.format == VolumeFormat::Ext4;
        recover_in_place(&disks, &disks, expected, is_checked, || ()).map_err(failure)?;
    }
    Ok(())
}

/// Returns the contents of `disks` after recovery in memory. Checks that they are consistent, and
/// does not write to them.
pub fn read(disks: &Disks) -> Result<Snapshot, String> {
    let snapshot = read_repaired(disks)?;
    if snapshot.repeated.is_empty() {
        return Ok(snapshot);
    }
    Err(format!("directories have names more than once: {:?}", snapshot.repeated))
}

/// [`read`] for a volume that e2fsck has repaired. If only one of the two blocks of a split
/// directory was written, names are in both. e2fsck 1.47 leaves them there, unless it also rebuilds
/// the directory.
fn read_repaired(disks: &Disks) -> Result<Snapshot, String> {
    let volume = disks.open(&cache()).map_err(|error| error.to_string())?;
    findings(&*volume)?;
    Snapshot::read(&*volume).map_err(|error| error.to_string())
}

/// Returns whether e2fsck 1.47 has handled the state in a way that the format does not permit, so
/// that it cannot be a judge. It has four such bugs:
/// - An orphan that it truncates loses its attribute block, which the inode's block count still
///   contains.
/// - It does not free the attribute block of an orphan without a map, such as a fifo or a file with
///   inline data.
/// - If it truncates within a cluster, it unmaps only the first block.
/// - In a commit block only the first sector matters, but it rejects a block whose other sectors
///   have old data.
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

/// Runs e2fsck and returns the disks afterwards. Fails if e2fsck has repaired anything that
/// recovery should not need.
pub fn mended(disks: &Disks) -> Result<Disks, String> {
    without_repairs(e2fsck::run("-fy", disks))
}

/// Returns the disks after e2fsck. It may have replayed the log, corrected totals, cleared orphans,
/// and cleared a flag that is set while a volume is in use. Fails on any other repair, since the
/// volume was inconsistent then.
fn without_repairs(outcome: e2fsck::Outcome) -> Result<Disks, String> {
    let text = without_totals(&outcome.text);
    let complaints = ["Fix? yes", "Clear? yes", "Connect", "lost+found? yes"];
    if outcome.code > 1 || complaints.iter().any(|complaint| text.contains(complaint)) {
        return Err(format!("e2fsck has repaired an error: {}", outcome.text));
    }
    Ok(outcome.disks)
}

/// Returns the text without lines about the superblock's totals, which are right only after a sync
/// (groups have counts of their own), and without lines about the orphan file, which e2fsck empties
/// after it has cleared the orphans.
fn without_totals(text: &str) -> String {
    let mut lines = text.lines();
    let mut kept = String::new();
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

/// Returns the page cache of this thread, for all volumes that it opens one after the other.
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
