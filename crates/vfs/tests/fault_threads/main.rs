//! Threads that write, sync, rename, truncate and delete files on a device on which one write or
//! flush fails. Every fsync either reports the loss or has made the file durable. Each open file
//! reports a loss once. After lost data, the volume goes on; after lost metadata, it is shut down.
//! After a power cut, files have all promised data, and only data that was written.
//!
//! The failing request is chosen by its number. Threads run at varying speeds, so a seed determines
//! the operations of each thread, but not which operation fails.

mod after_cut;
mod kind;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::IoOperation;
use device::{
    CountedFault, Fault, FaultDevice, FaultPlan, Lasting, LatencyDevice, RecordDevice, Recording,
    SharedDevice,
};
use vfs::{Credentials, Volume};

use after_cut::check_after_power_cut;
use kind::{KINDS, Kind};
use worker::Worker;

const EIO: i32 = 5;
const THREADS: u64 = 4;
const STEPS: usize = 40;
/// The latency of the device, so that requests of several threads are in flight at once.
const LATENCY: std::time::Duration = std::time::Duration::from_micros(20);
const QUEUE_DEPTH: usize = 4;
/// One in this number of requests takes longer, so that others overtake it.
const STRAGGLERS_EVERY: u64 = 11;
/// The latency of these requests.
const STRAGGLERS_LATENCY: std::time::Duration = std::time::Duration::from_millis(1);

/// The outcome of a run with a fault.
struct Outcome {
    recording: Recording,
    faults: Vec<Fault>,
    workers: Vec<Worker>,
    /// Whether changes failed before the volume was closed.
    is_shut: bool,
    /// Whether the fault had occurred by then.
    has_occurred: bool,
    /// The number of errors that the volume has recorded.
    recorded: u64,
    /// The number of operations that have failed.
    reported: usize,
    requests: [u64; 2],
}

fn errors_recorded(volume: &Volume) -> u64 {
    let recorded = volume.info().details.into_iter().find(|detail| detail.0 == "errors_found");
    recorded.map_or(0, |recorded| recorded.1.to_string().parse().unwrap())
}

fn run(kind: &Kind, image: &SharedDevice, fault: Option<CountedFault>, seed: u64) -> Outcome {
    let plan = FaultPlan { seed, counted: fault, ..FaultPlan::default() };
    let mut faulty = None;
    let device = Arc::new(RecordDevice::over_layer(Arc::clone(image), |layer| {
        let slow = LatencyDevice::new(layer, LATENCY, QUEUE_DEPTH)
            .with_stragglers(STRAGGLERS_EVERY, STRAGGLERS_LATENCY);
        let device = Arc::new(FaultDevice::new(Arc::new(slow), plan));
        Arc::clone(faulty.insert(device)) as SharedDevice
    }));
    let faulty = faulty.expect("the layer was wrapped");
    let opened = kind.open(device.clone(), true).and_then(|volume| {
        kind.prepare(&volume)?;
        for name in (0..THREADS).map(|number| number.to_string()).chain(["shared".into()]) {
            volume.mkdir(format!("/{name}").as_bytes(), 0o755, &Credentials::ROOT)?;
        }
        Ok(volume)
    });
    let mut workers = Vec::new();
    let mut is_shut = false;
    let mut has_occurred = false;
    let mut recorded = 0;
    let mut reported = 0;
    match opened {
        Ok(volume) => {
            let shut = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let start = |number| {
                    let mut worker = Worker::new(number, seed, kind.work());
                    let (volume, shut) = (&volume, &shut);
                    scope.spawn(move || {
                        worker.run(volume, shut, STEPS);
                        worker
                    })
                };
                let all: Vec<_> = (0..THREADS).map(start).collect();
                workers.extend(all.into_iter().map(|thread| thread.join().unwrap()));
            });
            let last = volume.mkdir(b"/last", 0o755, &Credentials::ROOT);
            is_shut = last.is_err();
            assert!(
                is_shut || !shut.load(Ordering::Acquire),
                "changes failed before, and succeed now"
            );
            recorded = errors_recorded(&volume);
            has_occurred = !faulty.faults().is_empty();
            reported = workers.iter().map(|worker| worker.reported).sum();
            workers.iter_mut().for_each(Worker::close_files);
            reported += usize::from(volume.close().is_err());
        }
        Err(_) => reported += 1,
    }
    let requests =
        [IoOperation::Write, IoOperation::Flush].map(|operation| faulty.requests(operation));
    let (recording, faults) = (device.recording(), faulty.faults());
    Outcome { recording, faults, workers, is_shut, has_occurred, recorded, reported, requests }
}

fn check_reports(kind: &Kind, fault: CountedFault, outcome: &Outcome, place: &str) {
    let is_flush = fault.operation == IoOperation::Flush;
    if is_flush || fault.lasting == Lasting::ForGood {
        assert!(outcome.reported > 0, "{place}: no operation has failed");
    }
    if !outcome.has_occurred {
        return;
    }
    let is_recorded = outcome.is_shut && kind.records_errors();
    assert_eq!(outcome.recorded, u64::from(is_recorded), "{place}: errors that the volume records");
    if outcome.is_shut {
        return;
    }
    assert!(!is_flush, "{place}: the volume is not shut down after a failed flush");
    for worker in &outcome.workers {
        worker.check_reports(place);
    }
    let losses: usize = outcome.workers.iter().map(|worker| worker.losses()).sum();
    if fault.lasting == Lasting::Once && !kind.zeroes_blocks() {
        assert!(losses <= 1, "{place}: one failed write was reported for {losses} files");
    }
}

/// Runs the threads up to `runs` times, and fails another request of `operation` each time. Returns
/// the number of runs in which the fault occurred, and the number of these after which the volume
/// was not shut down.
fn sweep(kind: &Kind, operation: IoOperation, lasting: Lasting, runs: u64) -> [u64; 2] {
    let image = kind.image();
    let healthy = run(kind, &image, None, 1);
    assert_eq!((healthy.reported, healthy.is_shut), (0, false), "{kind:?}");
    let count = healthy.requests[usize::from(operation == IoOperation::Flush)];
    let mut occurred = 0;
    let mut went_on = 0;
    for index in 0..runs {
        let number = index * count / runs;
        let fault = CountedFault { operation, number, lasting, errno: EIO };
        let outcome = run(kind, &image, Some(fault), 1 + index);
        let place =
            format!("{kind:?}, {operation:?} {number} of {count}, {lasting:?}, run {index}");
        if outcome.faults.is_empty() {
            continue;
        }
        occurred += 1;
        went_on += u64::from(!outcome.is_shut);
        check_reports(kind, fault, &outcome, &place);
        check_after_power_cut(kind, fault, &outcome, &place);
    }
    assert!(occurred > runs / 2, "{kind:?}: only {occurred} faults occurred");
    [occurred, went_on]
}

#[test]
fn a_write_that_fails_once_is_reported_and_no_thread_loses_durable_data() {
    for kind in &KINDS {
        let [occurred, went_on] = sweep(kind, IoOperation::Write, Lasting::Once, 30);
        // Some runs have lost data, and others metadata.
        assert!(went_on > 0 && went_on < occurred, "{kind:?}: {went_on} of {occurred}");
    }
}

#[test]
fn a_flush_that_fails_once_is_reported_and_no_thread_loses_durable_data() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Flush, Lasting::Once, 12);
    }
}

#[test]
fn no_thread_loses_durable_data_when_the_device_fails_for_good() {
    for kind in &KINDS {
        sweep(kind, IoOperation::Write, Lasting::ForGood, 8);
    }
}
