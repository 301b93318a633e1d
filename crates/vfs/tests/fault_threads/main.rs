//! Threads that write, sync, move, cut off and delete files on a device of which a write or a flush
//! fails. Every fsync tells of what was lost or has made all durable, each open file hears of a loss
//! once, the volume goes on or ends all changes as what was lost demands, and after a power cut all
//! that was promised is there, and nothing that never was.
//!
//! Which request fails is counted, and threads differ: a seed gives each thread its operations only.

mod worker;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::IoOperation;
use device::{
    CountedFault, Fault, FaultDevice, FaultPlan, Lasting, LatencyDevice, MemoryDevice,
    RecordDevice, Recording, SharedDevice,
};
use testkit::{Mke2fs, Random};
use vfs::{Credentials, Volume, VolumeOptions};
use worker::{Found, Worker};

const EIO: i32 = 5;
const THREADS: u64 = 4;
const STEPS: usize = 40;
/// So that requests of several threads are under way at once.
const LATENCY: std::time::Duration = std::time::Duration::from_micros(20);
const QUEUE_DEPTH: usize = 4;
/// One request in so many takes longer, and is overtaken by others.
const STRAGGLERS_EVERY: u64 = 11;
/// How long such a request takes.
const STRAGGLERS_LATENCY: std::time::Duration = std::time::Duration::from_millis(1);

/// A kind of volume.
struct Kind {
    format: &'static str,
    block_size: u32,
    arguments: &'static str,
    megabytes: u64,
}

const KINDS: [Kind; 5] = [
    Kind { format: "ext4", block_size: 1024, arguments: "-J size=1 -e continue", megabytes: 6 },
    Kind {
        format: "ext4",
        block_size: 1024,
        arguments: "-O orphan_file -J size=1 -e remount-ro",
        megabytes: 6,
    },
    Kind {
        format: "ext4",
        block_size: 4096,
        arguments: "-O bigalloc -C 16384 -J size=4 -e panic",
        megabytes: 12,
    },
    Kind { format: "ext4", block_size: 1024, arguments: "-O ^has_journal", megabytes: 6 },
    Kind { format: "ext3", block_size: 1024, arguments: "-J size=1", megabytes: 6 },
];

impl Kind {
    fn has_journal(&self) -> bool {
        !self.arguments.contains("^has_journal")
    }

    /// Whether blocks are made zeroes before they get data, as a part of metadata's change.
    fn zeroes_blocks(&self) -> bool {
        self.format == "ext3"
    }

    fn image(&self) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let made = Mke2fs::new(self.format, self.block_size).with(self.arguments);
        Mke2fs { size: self.megabytes << 20, ..made }.make(&path, None);
        std::fs::read(path).unwrap()
    }
}

/// What happened when threads ran into a fault.
struct Outcome {
    recording: Recording,
    faults: Vec<Fault>,
    workers: Vec<Worker>,
    /// Nothing could be changed any more before the volume was closed.
    is_shut: bool,
    /// The fault had come by then.
    has_come: bool,
    /// Errors that the volume has noted.
    noted: u64,
    /// All that anybody was told.
    told: usize,
    requests: [u64; 2],
}

fn open(device: SharedDevice, writable: bool) -> base::Result<Volume> {
    let mut options = VolumeOptions { writable, ..VolumeOptions::default() };
    options.cache.bytes_max = 8 << 20;
    Volume::open_device(device, &options)
}

fn errors_noted(volume: &Volume) -> u64 {
    let noted = volume.info().details.into_iter().find(|one| one.0 == "errors_found");
    noted.map_or(0, |noted| noted.1.to_string().parse().unwrap())
}

fn run(image: &[u8], fault: Option<CountedFault>, seed: u64) -> Outcome {
    let memory: SharedDevice = Arc::new(MemoryDevice::new(image.to_vec()));
    let plan = FaultPlan { seed, counted: fault, ..FaultPlan::default() };
    let slow = LatencyDevice::new(memory, LATENCY, QUEUE_DEPTH)
        .with_stragglers(STRAGGLERS_EVERY, STRAGGLERS_LATENCY);
    let slow: SharedDevice = Arc::new(slow);
    let faulty = Arc::new(FaultDevice::new(slow, plan));
    let device = Arc::new(RecordDevice::new(faulty.clone()).unwrap());
    let opened = open(device.clone(), true).and_then(|volume| {
        for name in (0..THREADS).map(|number| number.to_string()).chain(["shared".into()]) {
            volume.mkdir(format!("/{name}").as_bytes(), 0o755, &Credentials::ROOT)?;
        }
        Ok(volume)
    });
    let (mut workers, mut is_shut, mut has_come, mut noted, mut told) =
        (Vec::new(), false, false, 0, 0);
    match opened {
        Ok(volume) => {
            let shut = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let start = |number| {
                    let mut worker = Worker::new(number, seed);
                    let (volume, shut) = (&volume, &shut);
                    scope.spawn(move || {
                        worker.run(volume, shut, STEPS);
                        worker
                    })
                };
                let all: Vec<_> = (0..THREADS).map(start).collect();
                workers.extend(all.into_iter().map(|one| one.join().unwrap()));
            });
            let last = volume.mkdir(b"/last", 0o755, &Credentials::ROOT);
            is_shut = last.is_err();
            assert!(
                is_shut || !shut.load(Ordering::Acquire),
                "changes were refused, and are not now"
            );
            noted = errors_noted(&volume);
            has_come = !faulty.faults().is_empty();
            told = workers.iter().map(|worker| worker.told).sum();
            workers.iter_mut().for_each(Worker::let_go);
            told += usize::from(volume.close().is_err());
        }
        Err(_) => told += 1,
    }
    let requests = [IoOperation::Write, IoOperation::Flush].map(|one| faulty.requests(one));
    let (recording, faults) = (device.recording(), faulty.faults());
    Outcome { recording, faults, workers, is_shut, has_come, noted, told, requests }
}

/// What a power cut leaves at the end of the recording, with some of the sectors that no flush has
/// made durable. The superblock's two are taken to be written together, as its checksum needs; and
/// those of every kilobyte where there is no journal, which is what makes up for torn blocks.
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

/// Runs e2fsck on an image; gives the image afterwards.
fn e2fsck(image: &[u8], option: &str, code_max: i32, place: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, image).unwrap();
    let output = Command::new("e2fsck").arg(option).arg(Path::new(&path)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.code().is_some_and(|code| code <= code_max);
    assert!(passed, "{place}: e2fsck {option} says {:?}\n{text}", output.status.code());
    std::fs::read(path).unwrap()
}

/// The image as the next opening for writing, and closing, leaves it.
fn reopened(image: Vec<u8>, place: &str) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open(device.clone(), true).unwrap_or_else(|error| panic!("{place}: {error}"));
    volume.close().unwrap();
    drop(volume);
    device.snapshot()
}

fn check_told(kind: &Kind, fault: CountedFault, outcome: &Outcome, place: &str) {
    let is_flush = fault.operation == IoOperation::Flush;
    if is_flush || fault.lasting == Lasting::ForGood {
        assert!(outcome.told > 0, "{place}: nobody was told");
    }
    if !outcome.has_come {
        return;
    }
    if outcome.is_shut {
        assert_eq!(outcome.noted, 1, "{place}: the volume has not noted why it is shut");
        return;
    }
    assert_eq!(outcome.noted, 0, "{place}: lost data is no error of the volume");
    assert!(!is_flush, "{place}: all goes on after a flush that failed");
    for worker in &outcome.workers {
        worker.check_told(place);
    }
    let losses: usize = outcome.workers.iter().map(|worker| worker.losses()).sum();
    if fault.lasting == Lasting::Once && !kind.zeroes_blocks() {
        assert!(losses <= 1, "{place}: one write that failed was told of {losses} files");
    }
}

fn check_after_power_cut(kind: &Kind, fault: CountedFault, outcome: &Outcome, place: &str) {
    let mut random = Random(fault.number + 1);
    let cut = after_power_cut(kind, &outcome.recording, &mut random);
    let has_journal = kind.has_journal();
    let check = |by: &str, image: Vec<u8>, padding: usize| {
        let place = &format!("{place}, recovered by {by}");
        let volume = open(Arc::new(MemoryDevice::new(image)), false);
        let volume = volume.unwrap_or_else(|error| panic!("{place}: {error}"));
        Found { volume: &volume, has_journal, padding }.check(&outcome.workers, place);
    };
    if has_journal {
        let recovered = reopened(cut.clone(), place);
        // Where an error was noted, nobody believes what the volume says of its orphans: neither do
        // we, nor Linux. A check has to find them, which the volume asks for.
        let mended = match outcome.is_shut {
            true => e2fsck(&recovered, "-fy", 1, place),
            false => recovered.clone(),
        };
        e2fsck(&mended, "-fn", 0, place);
        check("us", recovered, 1);
    }
    if !has_journal || fault.number % 4 == 0 {
        let mended = e2fsck(&cut, "-fy", 1, place);
        e2fsck(&mended, "-fn", 0, place);
        check("e2fsck", mended, if outcome.is_shut { kind.block_size as usize } else { 1 });
    }
}

/// Fails requests of an operation, so many of them at most, spread over all that there are; gives in
/// how many runs that came to pass, and after how many of those all went on.
fn sweep(kind: &Kind, operation: IoOperation, lasting: Lasting, runs: u64) -> [u64; 2] {
    let image = kind.image();
    let undisturbed = run(&image, None, 1);
    assert_eq!((undisturbed.told, undisturbed.is_shut), (0, false), "{}", kind.arguments);
    let count = undisturbed.requests[usize::from(operation == IoOperation::Flush)];
    let (mut came, mut went_on) = (0, 0);
    for index in 0..runs {
        let number = index * count / runs;
        let fault = CountedFault { operation, number, lasting, errno: EIO };
        let outcome = run(&image, Some(fault), 1 + index);
        let name = (kind.format, kind.block_size, kind.arguments);
        let place =
            format!("{name:?}, {operation:?} {number} of {count}, {lasting:?}, run {index}");
        if outcome.faults.is_empty() {
            continue;
        }
        came += 1;
        went_on += u64::from(!outcome.is_shut);
        check_told(kind, fault, &outcome, &place);
        check_after_power_cut(kind, fault, &outcome, &place);
    }
    assert!(came > runs / 2, "{}: only {came} faults came", kind.arguments);
    [came, went_on]
}

#[test]
fn a_write_that_fails_once_is_told_and_no_thread_loses_what_was_durable() {
    for kind in &KINDS {
        let [came, went_on] = sweep(kind, IoOperation::Write, Lasting::Once, 30);
        // Both data and metadata were lost.
        assert!(went_on > 0 && went_on < came, "{}: {went_on} of {came}", kind.arguments);
    }
}

#[test]
fn a_flush_that_fails_once_is_told_and_no_thread_loses_what_was_durable() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Flush, Lasting::Once, 12);
    }
}

#[test]
fn a_device_that_dies_takes_nothing_durable_from_any_thread() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Write, Lasting::ForGood, 8);
    }
}
