//! Faults: any one write or flush of a workload fails, once or for good. Whoever it concerns is told
//! so, nobody is told that something is durable that is not, the volume is in the state that its
//! error policy says, and after a power cut it recovers to what was durable.

#[path = "../common/mod.rs"]
mod common;
mod data;
mod policy;
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
/// Bit of `s_state`: errors were met.
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

/// What happened when a workload ran into a fault.
struct Outcome {
    recording: Recording,
    faults: Vec<Fault>,
    workload: Option<Workload>,
    errors: Vec<Error>,
    /// Why nothing could be changed any more before the volume was closed.
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

/// What a power cut leaves at the end of the recording, with some of the sectors that no flush has
/// made durable. The superblock's two are taken to be written together, as its checksum needs; and
/// those of every block where there is no journal, which is what makes up for torn blocks.
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

/// Runs e2fsck on an image; what it says, and the image afterwards.
fn e2fsck(image: &[u8], option: &str, code_max: i32, location: &str) -> Vec<u8> {
    let scratch = common::Scratch::new();
    let path = scratch.write("image", image);
    let output = Command::new("e2fsck").arg(option).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.code().is_some_and(|code| code <= code_max);
    assert!(passed, "{location}: e2fsck {option} says {:?}\n{text}", output.status.code());
    std::fs::read(path).unwrap()
}

/// The volume of an image, looked at without changing it, which is sound.
fn sound(image: Vec<u8>, location: &str) -> Arc<Volume> {
    let volume = common::open(image).unwrap_or_else(|error| panic!("{location}: {error}"));
    let mut wrong = Vec::new();
    volume.check(&mut |error| {
        wrong.push(error.to_string());
        ControlFlow::Continue(())
    });
    assert!(wrong.is_empty(), "{location}: {wrong:?}");
    volume
}

/// The image as the next opening for writing, and closing, leaves it.
fn reopened(image: Vec<u8>, location: &str) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(image));
    let volume = common::open_device_for_writing(device.clone());
    let volume = volume.unwrap_or_else(|error| panic!("{location}: {error}"));
    volume.close().unwrap();
    drop(volume);
    device.snapshot()
}

/// Whether the right ones were told of a fault, and the volume is in the right state.
fn check_told(fault: CountedFault, outcome: &Outcome, location: &str) {
    assert!(!outcome.faults.is_empty(), "{location}: it never came");
    assert!(!outcome.errors.is_empty(), "{location}: nobody was told");
    let Some(workload) = &outcome.workload else { return };
    let is_data = fault.operation == IoOperation::Write && {
        let at = outcome.faults[0].offset.0;
        workload.data_places().iter().any(|range| range.contains(&at))
    };
    if is_data && fault.lasting == Lasting::Once {
        assert_eq!(outcome.shut, None, "{location}: data that is lost ends all changes");
        assert_eq!(workload.volume.errors().count, 0, "{location}: data that is lost is recorded");
    }
    let is_failed = workload.volume.check_writable();
    if let (Some(_), Err(Error::ShutDown(_))) = (&outcome.shut, &is_failed) {
        let errors = workload.volume.errors();
        assert_eq!((errors.count, errors.first), (1, errors.last), "{location}");
    }
}

fn check_after_power_cut(kind: &Kind, fault: CountedFault, outcome: &Outcome, location: &str) {
    let mut random = Random(fault.number + 1);
    let cut = after_power_cut(kind, &outcome.recording, &mut random);
    let is_whole = if kind.has_journal() {
        let recovered = reopened(cut.clone(), location);
        e2fsck(&recovered, "-fn", 0, location);
        recovered
    } else {
        let mended = e2fsck(&cut, "-fy", 1, location);
        e2fsck(&mended, "-fn", 0, location);
        mended
    };
    let volume = sound(is_whole, location);
    if let Some(workload) = &outcome.workload {
        workload.check(&volume, kind.has_journal(), location);
        if kind.has_journal() && fault.number % 4 == 0 {
            let volume = sound(e2fsck(&cut, "-fy", 1, location), location);
            workload.check(&volume, true, location);
        }
    }
    let has_failed = outcome.shut.is_some() && kind.has_journal();
    if has_failed && fault.lasting == Lasting::Once {
        // Word of the failure was flushed, so that no cut can have taken it.
        assert_ne!(volume.superblock().raw().state.get() & STATE_ERRORS, 0, "{location}");
        assert!(volume.errors().count > 0, "{location}");
    }
}

/// Fails requests of an operation, so many of them at most, spread over the whole workload.
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
    // What records the device reads all of it first.
    let first = u64::from(operation == IoOperation::Read);
    for number in (first..runs).map(|index| index * count / runs) {
        let fault = CountedFault { operation, number, lasting, errno };
        let outcome = run(&image, Some(fault), seed);
        let location = format!("{}, {operation:?} {number} of {count}, {lasting:?}", kind.options);
        if operation != IoOperation::Read {
            check_told(fault, &outcome, &location);
        }
        check_after_power_cut(kind, fault, &outcome, &location);
    }
}

#[test]
fn a_write_that_fails_once_is_told_and_nothing_durable_is_lost() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Write, Lasting::Once, EIO, 60);
    }
}

#[test]
fn a_flush_that_fails_once_is_told_and_nothing_durable_is_lost() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Flush, Lasting::Once, EIO, 40);
    }
}

#[test]
fn a_device_that_dies_takes_nothing_durable_with_it() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Write, Lasting::ForGood, ENOSPC, 20);
        sweep(kind, IoOperation::Flush, Lasting::ForGood, EIO, 10);
    }
}

#[test]
fn a_read_that_fails_harms_nothing_durable() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Read, Lasting::Once, EIO, 20);
    }
}
