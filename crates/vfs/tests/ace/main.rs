//! Short sequences of operations and syncs, all of them, with a power cut after each sync and at other times. The
//! operations and the files are those of ACE (Mohan et al., "Finding Crash-Consistency Bugs with Bounded Black-Box Crash
//! Testing", OSDI 2018), chosen as its bounds are: sequences of one and two operations on a new, small volume.
//!
//! `BIFOLIO_ACE_EVERY=N` runs one of N sequences of two operations. `make ace` runs them all.
#![allow(clippy::print_stdout, reason = "a run prints the number of sequences")]

#[path = "../common/mod.rs"]
mod common;

mod operation;
mod oracle;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use base::Result;
use device::{DeviceHooks, HookedDevice, SharedDevice};
use libtest_mimic::{Arguments, Failed, Trial};
use pagecache::CacheOptions;
use testkit::crash::{
    DEFAULT, F2FS, History, Kind, Recorded, RecordedRun, SMALL_BLOCKS, Snapshot, Template, judge,
    judge_in_memory,
};
use vfs::{Follow, Volume, VolumeOptions};

use crate::operation::Operation;
use crate::oracle::{Oracle, state_of};

/// One in this number of sequences of two operations is run by default.
const EVERY: usize = 401;
/// The number of trials for the sequences of two operations on a kind of volume.
const TRIALS: usize = 8;
/// The number of states of each sequence.
const STATES: usize = 6;
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
    Directory,
    None,
}

const SYNCS: [Sync; 5] = [Sync::Volume, Sync::File, Sync::FileData, Sync::Directory, Sync::None];
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
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!("{} sequences were run\n", SEQUENCES.load(Ordering::Relaxed));
    conclusion.exit();
}

fn sequences_of_one() -> Vec<Vec<Step>> {
    let operations = operation::all();
    let with_syncs = |operation: &Operation| {
        SYNCS[..LAST_SYNCS].iter().map(|sync| vec![(*operation, *sync)]).collect::<Vec<_>>()
    };
    operations.iter().flat_map(with_syncs).collect()
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

/// Returns a new volume of a kind, which is made once.
fn template(kind: &'static Kind) -> &'static Template {
    static TEMPLATES: [OnceLock<Template>; 4] = [const { OnceLock::new() }; 4];
    let index =
        [&DEFAULT, &SMALL_BLOCKS, &F2FS[0], &F2FS[1]].iter().position(|it| it.name == kind.name);
    TEMPLATES[index.expect("a kind of these")].get_or_init(|| kind.template())
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
        wrap: fn(SharedDevice) -> SharedDevice,
    ) -> Result<Self> {
        let Recorded { recorder, disks } = template(kind).record(wrap);
        let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
        let options = VolumeOptions { writable: true, cache, ..VolumeOptions::default() };
        let volume = Volume::open_device(disks.volume, &options)?;
        let begun = recorder.point();
        let mut oracle = Oracle::default();
        let known: Vec<&str> = steps.iter().flat_map(|(operation, _)| operation.paths()).collect();
        for ((operation, sync), letters) in steps.iter().zip(LETTERS.chunks(2)) {
            let point = recorder.point();
            oracle.operation_begins(point, *operation, &state_of(&volume)?);
            operation.prepare(&volume, letters[0])?;
            oracle.rename_begins(point, *operation, &state_of(&volume)?);
            operation.run(&volume, letters[1])?;
            let state = state_of(&volume)?;
            let path = operation.target();
            let parent = path
                .rsplit_once('/')
                .map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent });
            let open = |path: &str| volume.resolve(path.as_bytes(), Follow::No);
            match sync {
                Sync::None => {}
                Sync::Volume => {
                    volume.sync()?;
                    oracle.volume_synced(recorder.point(), &state, &known);
                }
                // What was removed cannot be synced.
                Sync::File | Sync::FileData if state.contains_key(path) => {
                    let data_only = *sync == Sync::FileData;
                    open(path)?.sync(data_only)?;
                    oracle.path_synced(recorder.point(), &state, path, data_only);
                }
                Sync::File | Sync::FileData | Sync::Directory => {
                    open(parent)?.sync(false)?;
                    oracle.directory_synced(recorder.point(), &state, parent);
                }
            }
        }
        Ok(Self { run: RecordedRun::new(kind, &recorder, begun), oracle })
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
