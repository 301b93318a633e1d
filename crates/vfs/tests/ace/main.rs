//! Short sequences of operations and syncs, all of them, with a power cut after each sync and at
//! other times. The operations and the files are those of ACE (Mohan et al., "Finding
//! Crash-Consistency Bugs with Bounded Black-Box Crash Testing", OSDI 2018), chosen as its bounds
//! are: sequences of one and two operations on a new, small volume.
//!
//! `BIFOLIO_ACE_EVERY=N` runs one of N sequences of two operations. `make ace` runs them all.
#![allow(clippy::print_stdout, reason = "a run prints the number of sequences")]

#[path = "../common/mod.rs"]
mod common;

mod lost;
mod operation;
mod oracle;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Result;
use device::{DeviceHooks, HookedDevice, SharedDevice};
use libtest_mimic::{Arguments, Failed, Trial};
use pagecache::CacheOptions;
use testkit::crash::{
    DEFAULT, F2FS, History, Kind, Pace, Recorded, RecordedRun, SMALL_BLOCKS, Snapshot, judge,
    judge_in_memory,
};
use vfs::{Follow, MapAccess, MapSync, Volume, VolumeOptions};

use crate::common::bytes;
use crate::lost::Lost;
use crate::operation::{Operation, parent_of};
use crate::oracle::{Oracle, State, state_of};

/// One in this number of sequences of two operations is run by default.
const EVERY: usize = 521;
/// The number of trials for the sequences of two operations on a kind of volume.
const TRIALS: usize = 8;
/// The number of states of each sequence.
const STATES: usize = 6;
/// The number of states of the sequence that shows a bug: those after all flushes are among them.
const STATES_OF_A_BUG: usize = 40;
/// The states of one in this number of sequences are judged by e2fsck and fsck.f2fs, too.
const JUDGED_EVERY: usize = 16;
/// The letters that the operations write.
const LETTERS: [u8; 4] = *b"adgk";

/// A sync after an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sync {
    Volume,
    File,
    FileData,
    /// The whole file by a map of it, as msync(2) does.
    Map,
    Directory,
    None,
}

const SYNCS: [Sync; 6] =
    [Sync::Volume, Sync::File, Sync::FileData, Sync::Map, Sync::Directory, Sync::None];
/// The last operation is always followed by a sync.
const LAST_SYNCS: usize = SYNCS.len() - 1;

type Step = (Operation, Sync);

static SEQUENCES: AtomicUsize = AtomicUsize::new(0);

fn main() {
    let arguments = Arguments::from_args();
    let every = std::env::var("BIFOLIO_ACE_EVERY").ok();
    let every = every.map_or(EVERY, |text| text.parse().expect("BIFOLIO_ACE_EVERY is a number"));
    let mut trials = Vec::new();
    for kind in [&DEFAULT, &SMALL_BLOCKS, &F2FS[0], &F2FS[1]] {
        let name = format!("sequences_of_one_operation_survive_power_cuts_on_{}", kind.name);
        trials.push(Trial::test(name, move || check(kind, &sequences_of_one(), 0)));
        let name = format!("omitted_flushes_are_seen_on_{}", kind.name);
        trials.push(Trial::test(name, move || sees_omitted_flushes(kind)));
        for trial in 0..TRIALS {
            let name =
                format!("sequences_of_two_operations_survive_power_cuts_{trial}_on_{}", kind.name);
            trials.push(Trial::test(name, move || {
                let chosen = sequences_of_two().into_iter().skip(trial).step_by(TRIALS * every);
                check(kind, &chosen.collect::<Vec<_>>(), trial)
            }));
        }
    }
    for lost in lost::ALL {
        let name = format!("lost_{lost:?}_is_seen_on_f2fs").to_lowercase();
        trials.push(Trial::test(name, move || sees_lost(lost)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!("{} sequences were run\n", SEQUENCES.load(Ordering::Relaxed));
    conclusion.exit();
}

fn sequences_of_one() -> Vec<Vec<Step>> {
    let operations = operation::all();
    let with_syncs = |operation: &Operation| {
        SYNCS[..LAST_SYNCS].iter().map(|sync| vec![(*operation, *sync)]).collect::<Vec<_>>()
    };
    let sequences = operations.iter().flat_map(with_syncs);
    sequences.filter(|steps| steps.iter().all(can_be_synced)).collect()
}

/// Returns whether the sync of a step is possible: only regular files are mapped.
fn can_be_synced((operation, sync): &Step) -> bool {
    *sync != Sync::Map || operation.changes_data()
}

fn sequences_of_two() -> Vec<Vec<Step>> {
    let operations = operation::all();
    let mut sequences = Vec::new();
    for first in &operations {
        for first_sync in SYNCS {
            for second in &operations {
                for second_sync in &SYNCS[..LAST_SYNCS] {
                    sequences.push(vec![(*first, first_sync), (*second, *second_sync)]);
                }
            }
        }
    }
    sequences.retain(|steps| steps.iter().all(can_be_synced));
    sequences
}

/// Runs sequences, and judges the states that cuts leave.
fn check(
    kind: &'static Kind,
    sequences: &[Vec<Step>],
    trial: usize,
) -> std::result::Result<(), Failed> {
    for (number, steps) in sequences.iter().enumerate() {
        let sequence = Sequence::record(kind, steps, |device| device)
            .map_err(|error| format!("{steps:?}: {error}"))?;
        SEQUENCES.fetch_add(1, Ordering::Relaxed);
        let seed = (number * TRIALS + trial) as u64;
        let judge = if number % JUDGED_EVERY == 0 { judge } else { judge_in_memory };
        if let Some(violation) = judge(&sequence, seed, STATES) {
            return Err(format!("{steps:?}: {}", violation.what).into());
        }
    }
    Ok(())
}

/// Checks that a judge sees when a device omits flushes.
fn sees_omitted_flushes(kind: &'static Kind) -> std::result::Result<(), Failed> {
    let wrap = |device| -> SharedDevice {
        Arc::new(HookedDevice::new(device, OmittedFlushes { count: AtomicUsize::new(0) }))
    };
    for (seed, steps) in (0..).zip(&sequences_of_one()) {
        let sequence = Sequence::record(kind, steps, wrap)?;
        if judge_in_memory(&sequence, seed, STATES).is_some() {
            return Ok(());
        }
    }
    Err("no state breaks a promise".into())
}

/// Checks that a judge sees when the nodes of a sync have an old attribute.
fn sees_lost(lost: Lost) -> std::result::Result<(), Failed> {
    let kind = &F2FS[0];
    let steps = [(Operation::Create("/foo"), Sync::Volume), (lost.operation("/foo"), Sync::File)];
    for is_lost in [false, true] {
        let sequence = Sequence::record(kind, &steps, |device| match is_lost {
            true => lost.device(device),
            false => device,
        })?;
        match (is_lost, judge_in_memory(&sequence, 1, STATES_OF_A_BUG)) {
            (false, Some(violation)) => return Err(violation.what.into()),
            (true, None) => return Err("no state breaks a promise".into()),
            _ => {}
        }
    }
    Ok(())
}

/// Omits every other flush.
#[derive(Debug)]
struct OmittedFlushes {
    count: AtomicUsize,
}

impl DeviceHooks for OmittedFlushes {
    fn flush(&self, device: &SharedDevice) -> Result<()> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        if number % 2 == 0 { device.flush() } else { Ok(()) }
    }
}

/// A recorded sequence and its promises.
struct Sequence {
    run: RecordedRun,
    oracle: Oracle,
}

impl Sequence {
    fn record(
        kind: &'static Kind,
        steps: &[Step],
        wrap: impl Fn(SharedDevice) -> SharedDevice,
    ) -> Result<Self> {
        let Recorded { recorder, disks } = kind.record(Pace::AtOnce, wrap);
        let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
        let options = VolumeOptions { writable: true, cache, ..VolumeOptions::default() };
        let volume = Volume::open_device(disks.volume, &options)?;
        let begun = recorder.point();
        let mut oracle = Oracle::default();
        let known: Vec<&str> = steps.iter().flat_map(|(operation, _)| operation.paths()).collect();
        let mut state = State::new();
        for ((operation, sync), letters) in steps.iter().zip(LETTERS.chunks(2)) {
            let begins = recorder.point();
            oracle.operation_begins(begins, *operation, &state);
            operation.prepare(&volume, letters[0])?;
            if operation.is_rename() && oracle.has_promises() {
                oracle.rename_begins(begins, *operation, &state_of(&volume)?);
            }
            operation.run(&volume, letters[1])?;
            let path = operation.target();
            let parent = parent_of(path);
            // What was removed cannot be synced.
            let exists = volume.symlink_metadata(path).is_ok();
            let open = |path: &str| volume.resolve(path.as_bytes(), Follow::No);
            match sync {
                Sync::None => {}
                Sync::Volume => volume.sync()?,
                Sync::File | Sync::FileData if exists => {
                    open(path)?.sync(*sync == Sync::FileData)?;
                }
                Sync::Map if exists => sync_map(&volume, path)?,
                Sync::File | Sync::FileData | Sync::Map | Sync::Directory => {
                    open(parent)?.sync(false)?;
                }
            }
            // Read after the sync, which allocates blocks.
            let synced = recorder.point();
            state = state_of(&volume)?;
            match sync {
                Sync::None => {}
                Sync::Volume => oracle.volume_synced(synced, &state, &known),
                Sync::Map if exists => oracle.map_synced(synced, &state, path),
                Sync::File | Sync::FileData if exists => {
                    let data_only = *sync == Sync::FileData;
                    oracle.path_synced(synced, &state, path, &known, data_only);
                }
                _ => oracle.directory_synced(synced, &state, parent, &known),
            }
        }
        Ok(Self { run: RecordedRun::new(kind, &recorder, begun), oracle })
    }
}

/// Syncs a file by a map of it. An empty file has none.
fn sync_map(volume: &Volume, path: &str) -> Result<()> {
    let file = operation::open(volume, path)?;
    match file.metadata()?.size {
        0 => Ok(()),
        size => {
            file.map(bytes(0..size), MapAccess::ReadWrite)?.sync(0..size as usize, MapSync::Sync)
        }
    }
}

impl History for Sequence {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> std::result::Result<(), String> {
        self.oracle.check(point, found)
    }
}
