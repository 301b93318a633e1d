//! Tests of I/O errors. Any single write or flush of a workload fails, once or permanently. The
//! affected callers get errors, no caller is told that lost changes are durable, the volume reacts
//! as its error policy requires, and after a power cut all durable changes are recovered.

#[path = "../common/mod.rs"]
mod common;
mod data;
mod policy;
mod replay;
mod workload;

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use base::{Error, IoOperation};
use common::Image;
use device::{
    CountedFault, Fault, FaultDevice, FaultPlan, Lasting, MemoryDevice, RecordDevice, Recording,
};
use ext4::{OpenOptions, Volume};
use iomap::{CacheOptions, PageCache};
use testkit::Random;
use testkit::crash::with_stale_blocks;
use workload::Workload;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
/// Bit of `s_state`: the volume has errors.
const STATE_ERRORS: u16 = 2;
const STEPS: usize = 60;

/// A kind of volume.
struct Kind {
    options: &'static str,
    megabytes: u64,
}

const KINDS: [Kind; 5] = [
    Kind { options: "-t ext4 -b 1024 -J size=1", megabytes: 6 },
    Kind { options: "-t ext4 -b 1024 -O orphan_file -J size=1 -e remount-ro", megabytes: 6 },
    Kind { options: "-t ext4 -b 4096 -O bigalloc -C 16384 -J size=4", megabytes: 12 },
    Kind { options: "-t ext4 -b 1024 -O ^has_journal", megabytes: 4 },
    Kind { options: "-t ext3 -b 1024 -J size=1", megabytes: 6 },
];

impl Kind {
    fn has_journal(&self) -> bool {
        !self.options.contains("^has_journal")
    }

    fn image(&self) -> Vec<u8> {
        let options: Vec<&str> = self.options.split_whitespace().collect();
        with_stale_blocks(&Image::make(self.megabytes, &options).path)
    }
}

/// The outcome of a workload with a fault.
struct Outcome {
    recording: Recording,
    faults: Vec<Fault>,
    workload: Option<Workload>,
    errors: Vec<Error>,
    /// The error of changes before the volume was closed, if it refused any.
    shut: Option<Error>,
    requests: [u64; 3],
}

fn run(image: &[u8], fault: Option<CountedFault>, seed: u64) -> Outcome {
    let memory = Arc::new(MemoryDevice::new(image.to_vec()));
    let plan = FaultPlan { seed, counted: fault, ..FaultPlan::default() };
    let faulty = Arc::new(FaultDevice::new(memory, plan));
    let device = Arc::new(RecordDevice::new(faulty.clone()).unwrap());
    let options = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let cache = PageCache::new(options).unwrap();
    let opened = Volume::open_for_writing(device.clone(), &cache, &OpenOptions::default())
        .and_then(|volume| Workload::new(volume, cache, seed));
    let (mut workload, mut errors, mut shut) = (None, Vec::new(), None);
    match opened {
        Ok(mut opened) => {
            opened.run(STEPS);
            shut = opened.volume.check_writable().err();
            opened.close();
            errors.append(&mut opened.errors);
            workload = Some(opened);
        }
        Err(error) => errors.push(error),
    }
    let requests = [IoOperation::Read, IoOperation::Write, IoOperation::Flush];
    let requests = requests.map(|operation| faulty.requests(operation));
    let (recording, faults) = (device.recording(), faulty.faults());
    Outcome { recording, faults, workload, errors, shut, requests }
}

/// Returns the image after a power cut at the end of the recording, with a random part of the
/// sectors that no flush has made durable. The superblock's two sectors are kept or lost together,
/// because of its checksum. Without a journal, which would repair torn blocks, this holds for the
/// sectors of every block.
fn after_power_cut(kind: &Kind, recording: &Recording, random: &mut Random) -> Vec<u8> {
    let (kept_of_4, mut kept) = (random.below(5), false);
    recording.image(recording.crash_points().end - 1, |write, sector| {
        let sector = write.offset.0 / 512 + sector;
        let is_with_the_one_before = sector == 3 || !kind.has_journal() && sector % 2 == 1;
        if !is_with_the_one_before {
            kept = random.below(4) < kept_of_4;
        }
        kept
    })
}

/// Runs e2fsck on an image. Returns the image afterwards.
fn e2fsck(image: &[u8], option: &str, code_max: i32, case: &str) -> Vec<u8> {
    let scratch = common::Scratch::new();
    let path = scratch.write("image", image);
    let output = Command::new("e2fsck").arg(option).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.code().is_some_and(|code| code <= code_max);
    assert!(passed, "{case}: e2fsck {option} says {:?}\n{text}", output.status.code());
    std::fs::read(path).unwrap()
}

/// Opens the volume of an image read-only, and checks its consistency.
fn open_consistent(image: Vec<u8>, case: &str) -> Arc<Volume> {
    let volume = common::open(image).unwrap_or_else(|error| panic!("{case}: {error}"));
    let mut wrong = Vec::new();
    volume.check(&mut |error| {
        wrong.push(error.to_string());
        ControlFlow::Continue(())
    });
    assert!(wrong.is_empty(), "{case}: {wrong:?}");
    volume
}

/// Returns the image after the volume was opened for writing and closed.
fn reopen(image: Vec<u8>, case: &str) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(image));
    let volume = common::open_device_for_writing(device.clone());
    let volume = volume.unwrap_or_else(|error| panic!("{case}: {error}"));
    volume.close().unwrap();
    drop(volume);
    device.snapshot()
}

/// Returns whether a fault was in the zeroing of the rest of a truncated block. All other writes
/// are of whole kilobytes.
fn is_rest_of_block(fault: Fault) -> bool {
    fault.offset.0 % 1024 != 0 || fault.length % 1024 != 0
}

/// Checks that errors were reported, and that the volume is in the right state.
fn check_reported(fault: CountedFault, outcome: &Outcome, case: &str) {
    assert!(!outcome.faults.is_empty(), "{case}: the fault did not happen");
    if fault.lasting == Lasting::Once && is_rest_of_block(outcome.faults[0]) {
        // The cache writes the zeroes again.
        assert_eq!(outcome.errors, [], "{case}");
        return;
    }
    assert!(!outcome.errors.is_empty(), "{case}: no error was reported");
    let Some(workload) = &outcome.workload else { return };
    let is_data = fault.operation == IoOperation::Write && {
        let at = outcome.faults[0].offset.0;
        workload.data_ranges().iter().any(|range| range.contains(&at))
    };
    if is_data && fault.lasting == Lasting::Once {
        assert_eq!(outcome.shut, None, "{case}: lost data must not prevent changes");
        assert_eq!(
            workload.volume.errors().count,
            0,
            "{case}: lost data must not be recorded as an error"
        );
    }
    let is_failed = workload.volume.check_writable();
    if let (Some(_), Err(Error::ShutDown(_))) = (&outcome.shut, &is_failed) {
        let errors = workload.volume.errors();
        assert_eq!((errors.count, errors.first), (1, errors.last), "{case}");
    }
}

fn check_after_power_cut(kind: &Kind, fault: CountedFault, outcome: &Outcome, case: &str) {
    let mut random = Random(fault.number + 1);
    let cut = after_power_cut(kind, &outcome.recording, &mut random);
    let usable = if kind.has_journal() {
        let recovered = reopen(cut.clone(), case);
        e2fsck(&recovered, "-fn", 0, case);
        recovered
    } else {
        let repaired = e2fsck(&cut, "-fy", 1, case);
        e2fsck(&repaired, "-fn", 0, case);
        repaired
    };
    let volume = open_consistent(usable, case);
    if let Some(workload) = &outcome.workload {
        workload.check(&volume, kind.has_journal(), case);
        if kind.has_journal() && fault.number % 4 == 0 {
            let volume = open_consistent(e2fsck(&cut, "-fy", 1, case), case);
            workload.check(&volume, true, case);
        }
    }
    let has_failed = outcome.shut.is_some() && kind.has_journal();
    if has_failed && fault.lasting == Lasting::Once {
        // The record of the failure was flushed, so no cut can lose it.
        assert_ne!(volume.superblock().raw().state.get() & STATE_ERRORS, 0, "{case}");
        assert!(volume.errors().count > 0, "{case}");
    }
}

/// Runs the workload with one failing request at a time, for at most `runs_max` requests spread
/// over the workload.
fn sweep(kind: &Kind, operation: IoOperation, lasting: Lasting, errno: i32, runs_max: u64) {
    let (image, seed) = (kind.image(), 7 + runs_max);
    let undisturbed = run(&image, None, seed);
    assert_eq!(undisturbed.errors, [], "{}", kind.options);
    let count = match operation {
        IoOperation::Read => undisturbed.requests[0],
        IoOperation::Flush => undisturbed.requests[2],
        _ => undisturbed.requests[1],
    };
    let runs = count.min(runs_max);
    // The first read is the recorder's, which reads the whole device.
    let first = u64::from(operation == IoOperation::Read);
    for number in (first..runs).map(|index| index * count / runs) {
        let fault = CountedFault { operation, number, lasting, errno };
        let outcome = run(&image, Some(fault), seed);
        let case = format!("{}, {operation:?} {number} of {count}, {lasting:?}", kind.options);
        if operation != IoOperation::Read {
            check_reported(fault, &outcome, &case);
        }
        check_after_power_cut(kind, fault, &outcome, &case);
    }
}

#[test]
fn a_write_that_fails_once_is_reported_and_loses_nothing_durable() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Write, Lasting::Once, EIO, 60);
    }
}

#[test]
fn a_flush_that_fails_once_is_reported_and_loses_nothing_durable() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Flush, Lasting::Once, EIO, 40);
    }
}

#[test]
fn a_device_that_fails_permanently_loses_nothing_durable() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Write, Lasting::ForGood, ENOSPC, 20);
        sweep(kind, IoOperation::Flush, Lasting::ForGood, EIO, 10);
    }
}

#[test]
fn a_failed_read_loses_nothing_durable() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Read, Lasting::Once, EIO, 20);
    }
}
