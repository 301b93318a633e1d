//! Tests of every kind of device: data agrees with a model, each bio ends exactly once, ranges
//! outside end with EINVAL, and requests of zero bytes succeed.

use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::{BlockSize, DeviceOffset, Error, IoError, IoOperation};
use device::{
    Bio, BioOperation, BlockDevice, FaultDevice, FaultPlan, FileDevice, LatchDevice, LatencyDevice,
    MemoryDevice, OverlayDevice, RecordDevice, Segment, SharedDevice, Slice, ThreadedDevice,
    UringDevice,
};
use proptest::prelude::*;
use tempfile::NamedTempFile;

/// Not a multiple of a sector or a block.
const SIZE: usize = 150_001;
const EINVAL: i32 = 22;
const EIO: i32 = 5;

/// A device of `SIZE` bytes, and its file if it has one.
struct Subject {
    device: SharedDevice,
    _file: Option<NamedTempFile>,
}

fn temporary(contents: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), contents).unwrap();
    file
}

fn memory(contents: &[u8]) -> Subject {
    Subject { device: Arc::new(MemoryDevice::new(contents.to_vec())), _file: None }
}

fn file(contents: &[u8]) -> Subject {
    let file = temporary(contents);
    let device = Arc::new(FileDevice::open(file.path(), false).unwrap());
    Subject { device, _file: Some(file) }
}

fn slice(contents: &[u8]) -> Subject {
    let mut whole = vec![0xEE; 777];
    whole.extend_from_slice(contents);
    whole.extend_from_slice(&[0xDD; 300]);
    let whole = Arc::new(MemoryDevice::new(whole));
    let device = Arc::new(Slice::new(whole, DeviceOffset(777), contents.len() as u64).unwrap());
    Subject { device, _file: None }
}

/// Returns an overlay into which every other kilobyte was written.
fn overlay(contents: &[u8]) -> Subject {
    let mut base = contents.to_vec();
    for block in base.chunks_mut(1024).step_by(2) {
        block.fill(0xCC);
    }
    let block_size = BlockSize::from_bytes(1024).unwrap();
    let device = OverlayDevice::new(Arc::new(MemoryDevice::new(base)), block_size, 1 << 30);
    for (index, block) in contents.chunks(1024).enumerate().step_by(2) {
        (&device as &dyn BlockDevice).write_at(DeviceOffset(index as u64 * 1024), block).unwrap();
    }
    Subject { device: Arc::new(device), _file: None }
}

fn wrapped(wrap: impl FnOnce(SharedDevice) -> SharedDevice, contents: &[u8]) -> Subject {
    Subject { device: wrap(Arc::new(MemoryDevice::new(contents.to_vec()))), _file: None }
}

fn record(contents: &[u8]) -> Subject {
    wrapped(|inner| Arc::new(RecordDevice::new(inner).unwrap()), contents)
}

fn fault(contents: &[u8]) -> Subject {
    wrapped(|inner| Arc::new(FaultDevice::new(inner, FaultPlan::default())), contents)
}

fn latch(contents: &[u8]) -> Subject {
    wrapped(|inner| Arc::new(LatchDevice::new(inner)), contents)
}

fn latency(contents: &[u8]) -> Subject {
    let latency = Duration::from_micros(20);
    wrapped(|inner| Arc::new(LatencyDevice::new(inner, latency, 3)), contents)
}

fn threaded(contents: &[u8]) -> Subject {
    wrapped(|inner| Arc::new(ThreadedDevice::new(inner, 3, 4)), contents)
}

fn uring(contents: &[u8]) -> Subject {
    let file = temporary(contents);
    let device = Arc::new(FileDevice::open(file.path(), false).unwrap());
    Subject { device: Arc::new(UringDevice::new(device, 4).unwrap()), _file: Some(file) }
}

/// Creates a device of some kind with the given contents.
type Make = fn(&[u8]) -> Subject;

const SUBJECTS: &[(&str, Make)] = &[
    ("memory", memory),
    ("file", file),
    ("slice", slice),
    ("overlay", overlay),
    ("record", record),
    ("fault", fault),
    ("latch", latch),
    ("latency", latency),
    ("threaded", threaded),
    ("uring", uring),
];

/// Calls `check` with a device of each kind that has `contents`.
fn on_every_device(contents: &[u8], check: impl Fn(&str, &Subject)) {
    for (name, make) in SUBJECTS {
        check(name, &make(contents));
    }
}

/// A request of a batch: an operation and the lengths of its segments.
#[derive(Clone, Debug)]
struct Request {
    write: bool,
    offset: usize,
    lengths: Vec<usize>,
    fill: u8,
    waited_for: bool,
}

impl Request {
    fn length(&self) -> usize {
        self.lengths.iter().sum()
    }
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let lengths = prop_oneof![
        prop::collection::vec(0..3000usize, 1..5),
        prop::collection::vec(1..20usize, 30..60),
        prop::collection::vec(Just(4096usize), 1..8),
    ];
    let request = (any::<bool>(), 0..SIZE, lengths, any::<u8>(), any::<bool>()).prop_map(
        |(write, offset, lengths, fill, waited_for)| {
            let offset = offset.min(SIZE - lengths.iter().sum::<usize>());
            Request { write, offset, lengths, fill, waited_for }
        },
    );
    prop::collection::vec(request, 1..12)
}

/// Splits a batch so that no request overlaps a write of the same batch, since their order would be
/// undefined.
fn without_conflicts(requests: Vec<Request>) -> Vec<Vec<Request>> {
    let mut batches: Vec<Vec<Request>> = vec![Vec::new()];
    for request in requests {
        let conflict = batches.last().unwrap().iter().any(|other| {
            (request.write || other.write)
                && request.offset < other.offset + other.length()
                && other.offset < request.offset + request.length()
        });
        if conflict {
            batches.push(Vec::new());
        }
        batches.last_mut().unwrap().push(request);
    }
    batches
}

/// Submits the batch, waits for all ends, and returns the data that each request has read or
/// written.
fn run(device: &dyn BlockDevice, batch: &[Request]) -> Vec<Vec<u8>> {
    let mut memories: Vec<Vec<u8>> = batch
        .iter()
        .map(|request| {
            (0..request.length()).map(|at| request.fill.wrapping_add(at as u8)).collect()
        })
        .collect();
    let (sender, receiver) = mpsc::channel();
    let mut bios = Vec::new();
    for (request, memory) in batch.iter().zip(&mut memories) {
        let mut rest = memory.as_mut_slice();
        let mut segments = Vec::new();
        for &length in &request.lengths {
            let (part, after) = rest.split_at_mut(length);
            rest = after;
            // SAFETY: `memories` outlives the wait for all ends below, and is not accessed before.
            segments.push(unsafe { Segment::new(NonNull::from(part).cast(), length) });
        }
        let operation = if request.write { BioOperation::Write } else { BioOperation::Read };
        let sender = sender.clone();
        let bio =
            Bio::new(operation, DeviceOffset(request.offset as u64), segments, move |result| {
                sender.send(result).unwrap();
            });
        bios.push(if request.waited_for { bio.waited_for() } else { bio });
    }
    drop(sender);
    device.submit(bios);
    let results: Vec<_> = receiver.iter().collect();
    assert_eq!(results.len(), batch.len(), "every bio ends exactly once");
    for result in results {
        result.unwrap();
    }
    memories
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..SIZE).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn reads_see_the_latest_writes(requests in requests(), seed: u8) {
        let contents = pattern(seed);
        let batches = without_conflicts(requests);
        on_every_device(&contents, |name, subject| {
            let mut model = contents.clone();
            for batch in &batches {
                let memories = run(&*subject.device, batch);
                for (request, memory) in batch.iter().zip(memories) {
                    let range = request.offset..request.offset + request.length();
                    if request.write {
                        model[range].copy_from_slice(&memory);
                    } else {
                        assert_eq!(memory, model[range], "{name}: {request:?}");
                    }
                }
            }
            let mut whole = vec![0; SIZE];
            subject.device.read_at(DeviceOffset(0), &mut whole).unwrap();
            assert!(whole == model, "{name}: contents at the end");
        });
    }

    #[test]
    fn zeroed_ranges_read_as_zeroes(start in 0..SIZE, length in 0..SIZE) {
        let contents = pattern(1);
        let length = length.min(SIZE - start);
        on_every_device(&contents, |name, subject| {
            subject.device.write_zeroes(DeviceOffset(start as u64), length as u64).unwrap();
            let mut model = contents.clone();
            model[start..start + length].fill(0);
            let mut whole = vec![1; SIZE];
            subject.device.read_at(DeviceOffset(0), &mut whole).unwrap();
            assert!(whole == model, "{name}");
        });
    }
}

#[test]
fn every_device_has_the_size_of_its_contents() {
    on_every_device(&pattern(0), |name, subject| {
        assert_eq!(subject.device.size(), SIZE as u64, "{name}");
        assert!(!subject.device.is_read_only(), "{name}");
        subject.device.flush().unwrap();
    });
}

#[test]
fn ranges_outside_end_with_einval() {
    on_every_device(&pattern(0), |name, subject| {
        let size = SIZE as u64;
        for (offset, length) in [(size, 1), (size - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 8)] {
            let located = |operation| {
                let offset = DeviceOffset(offset);
                Error::Io(IoError { operation, offset, length, errno: EINVAL })
            };
            let mut bytes = vec![0; length as usize];
            let offset = DeviceOffset(offset);
            let read = subject.device.read_at(offset, &mut bytes);
            assert_eq!(read, Err(located(IoOperation::Read)), "{name}");
            let written = subject.device.write_at(offset, &bytes);
            assert_eq!(written, Err(located(IoOperation::Write)), "{name}");
            let zeroed = subject.device.write_zeroes(offset, length);
            assert_eq!(zeroed, Err(located(IoOperation::WriteZeroes)), "{name}");
            let discarded = subject.device.discard(offset, length);
            assert_eq!(discarded, Err(located(IoOperation::Discard)), "{name}");
        }
    });
}

#[test]
fn requests_of_zero_bytes_succeed_anywhere_inside() {
    on_every_device(&pattern(0), |_, subject| {
        for offset in [0, 1, SIZE as u64] {
            subject.device.read_at(DeviceOffset(offset), &mut []).unwrap();
            subject.device.write_at(DeviceOffset(offset), &[]).unwrap();
            subject.device.write_zeroes(DeviceOffset(offset), 0).unwrap();
            subject.device.discard(DeviceOffset(offset), 0).unwrap();
        }
    });
}

#[test]
fn an_empty_batch_is_allowed() {
    on_every_device(&pattern(0), |_, subject| subject.device.submit(Vec::new()));
}

#[test]
fn a_discard_does_not_change_data_outside_its_range() {
    let contents = pattern(3);
    on_every_device(&contents, |name, subject| {
        subject.device.discard(DeviceOffset(8192), 4096).unwrap();
        let mut whole = vec![0; SIZE];
        subject.device.read_at(DeviceOffset(0), &mut whole).unwrap();
        assert!(whole[..8192] == contents[..8192], "{name}");
        assert!(whole[12_288..] == contents[12_288..], "{name}");
    });
}

#[test]
fn a_dropped_bio_ends_with_eio() {
    let (sender, receiver) = mpsc::channel();
    drop(Bio::new(BioOperation::Read, DeviceOffset(9), [], move |result| {
        sender.send(result).unwrap();
    }));
    let error = receiver.recv().unwrap().unwrap_err();
    assert_eq!((error.errno, error.offset), (EIO, DeviceOffset(9)));
}

#[test]
fn many_threads_share_a_device() {
    on_every_device(&pattern(0), |name, subject| {
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let device = &*subject.device;
                scope.spawn(move || {
                    let offset = DeviceOffset(u64::from(thread) * 30_000);
                    for round in 0..50 {
                        let data = vec![thread * 50 + round; 20_000];
                        device.write_at(offset, &data).unwrap();
                        let mut back = vec![0; 20_000];
                        device.read_at(offset, &mut back).unwrap();
                        assert!(back == data, "{name}");
                    }
                });
            }
        });
    });
}

/// Returns a read of zero bytes at offset 0, which needs no memory.
fn empty_read(end: impl FnOnce(Result<(), IoError>) + Send + 'static) -> Bio {
    Bio::new(BioOperation::Read, DeviceOffset(0), [], end)
}

#[test]
fn the_end_of_a_bio_may_submit_another_one() {
    fn chain(device: SharedDevice, left: usize, done: mpsc::Sender<()>) {
        let next = Arc::clone(&device);
        device.submit(vec![empty_read(move |result| {
            result.unwrap();
            if left == 0 {
                done.send(()).unwrap();
            } else {
                chain(next, left - 1, done);
            }
        })]);
    }
    on_every_device(&pattern(0), |_, subject| {
        let (sender, receiver) = mpsc::channel();
        chain(Arc::clone(&subject.device), 100, sender);
        receiver.recv().unwrap();
    });
}

#[test]
fn dropping_a_device_waits_for_submitted_bios() {
    for (name, make) in SUBJECTS {
        let contents = pattern(5);
        let subject = make(&contents);
        let mut memories = vec![vec![0u8; 9000]; 40];
        let (sender, receiver) = mpsc::channel();
        let bios = memories.iter_mut().map(|memory| {
            let sender = sender.clone();
            // SAFETY: `memories` outlives the device, whose drop waits for all ends.
            let segment = unsafe { Segment::new(NonNull::from(&mut memory[..]).cast(), 9000) };
            Bio::new(BioOperation::Read, DeviceOffset(77), [segment], move |result| {
                sender.send(result).unwrap();
            })
        });
        subject.device.submit(bios.collect());
        drop((subject, sender));
        assert_eq!(receiver.try_iter().filter(Result::is_ok).count(), 40, "{name}");
        assert!(memories.iter().all(|memory| memory[..] == contents[77..9077]), "{name}");
    }
}

#[test]
fn the_end_of_a_bio_may_drop_the_last_reference_to_the_device() {
    for (_, make) in SUBJECTS {
        let Subject { device, _file } = make(&pattern(0));
        let (sender, receiver) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let kept = Arc::clone(&device);
        std::thread::spawn(move || {
            let submitter = std::thread::current().id();
            let end = move |result: Result<(), IoError>| {
                result.unwrap();
                // On a thread of the device, waits until `kept` is the last reference. If the
                // submitter does the work itself, its own reference is the last one.
                if std::thread::current().id() != submitter {
                    released.recv().unwrap();
                }
                drop(kept);
                sender.send(()).unwrap();
            };
            device.submit(vec![empty_read(end)]);
            drop(device);
            // Fails if the end did not wait.
            let _ = release.send(());
        });
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
