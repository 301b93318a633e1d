//! Atomic writes on devices that fail.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockSize, Error, Result};
use device::{
    Bio, BioOperation, FaultDevice, FaultPlan, MemoryDevice, OverlayDevice, SharedDevice,
};
use parking_lot::Mutex;
use testkit::{DeviceHooks, HookedDevice, wait_until};
use vfs::{AtomicWrite, File, OpenMode, SyncRange, Volume, VolumeOptions};

use crate::atomic::stage::{ALL, MEGABYTES, Stage, data, read};
use crate::common::{device, file, make, open_on};

const BLOCK: usize = 4096;
/// The number of blocks of the file whose commits fail. It has two nodes.
const BLOCKS: usize = 1200;
/// The error number EIO.
const EIO: i32 = 5;

#[test]
fn a_commit_without_all_of_its_data_fails_and_can_be_tried_again() {
    let stage = Stage::new();
    let faults = Arc::new(FaultDevice::new(device(&stage.image), FaultPlan::default()));
    let volume = open_on(faults.clone() as SharedDevice, iomap::DirectOptions::default());
    let file = make(&volume, "f");
    let old = data(1, 100 * BLOCK);
    file.write_all_at(&old, 0).unwrap();
    volume.sync().unwrap();
    for kind in [AtomicWrite::Update, AtomicWrite::Replace] {
        file.atomic_start(kind).unwrap();
        file.write_all_at(&data(2, 50 * BLOCK), 0).unwrap();
        file.sync_range(0..u64::MAX, ALL).unwrap();
        file.write_all_at(&data(3, 50 * BLOCK), 30 * BLOCK as u64).unwrap();
        faults.fail_writes_in(0..MEGABYTES << 20);
        let failed = file.atomic_commit();
        assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
        faults.heal();
        assert!(read(&file) == old, "after the failed commit");
        assert_eq!(file.sync_all(), Ok(()), "the commit has reported the error");
        volume.sync().unwrap_err();
        volume.sync().unwrap();
        assert!(stage.contents_on_device("f") == old, "after the failed commit");
    }
    file.atomic_start(AtomicWrite::Update).unwrap();
    file.write_all_at(&data(4, 2 * BLOCK), 0).unwrap();
    file.atomic_commit().unwrap();
    let new = [data(4, 2 * BLOCK), old[2 * BLOCK..].to_vec()].concat();
    assert!(stage.contents_on_device("f") == new, "after the second try");
    drop((file, faults));
    stage.close(volume);
}

/// A program that only starts and commits atomic writes would not learn of it otherwise.
#[test]
fn the_start_reports_the_loss_of_earlier_data_once() {
    let stage = Stage::new();
    let faults = Arc::new(FaultDevice::new(device(&stage.image), FaultPlan::default()));
    let volume = open_on(faults.clone() as SharedDevice, iomap::DirectOptions::default());
    let file = make(&volume, "f");
    let other = file.node().open_for(OpenMode { write: true, append: false }).unwrap();
    let old = data(1, 2 * BLOCK);
    file.write_all_at(&old, 0).unwrap();
    volume.sync().unwrap();
    file.write_all_at(&data(2, BLOCK), 0).unwrap();
    faults.fail_writes_in(0..MEGABYTES << 20);
    // The call starts a write, and does not wait for it.
    let in_background = SyncRange { wait_before: false, write: true, wait_after: false };
    other.sync_range(0..u64::MAX, in_background).unwrap();
    wait_until("the write has failed", || !faults.faults().is_empty());
    faults.heal();
    let refused = file.atomic_start(AtomicWrite::Update);
    assert!(matches!(refused, Err(Error::Io(_))), "{refused:?}");
    file.atomic_start(AtomicWrite::Update).unwrap();
    file.write_all_at(&data(3, BLOCK), BLOCK as u64).unwrap();
    file.atomic_commit().unwrap();
    assert_eq!(file.sync_all(), Ok(()), "the start has reported the error");
    assert!(matches!(other.sync_all(), Err(Error::Io(_))), "the other open file reports it, too");
    let new = [&old[..BLOCK], &data(3, BLOCK)].concat();
    assert!(stage.contents_on_device("f") == new);
    volume.sync().unwrap_err();
    drop((file, other, faults));
    stage.close(volume);
}

/// Hooks that fail requests, which are counted from [`arm`](Self::arm) on.
#[derive(Debug, Default)]
struct Failures(Mutex<Option<Armed>>);

#[derive(Debug)]
struct Armed {
    /// The number of a write or a flush that fails.
    one: u64,
    /// The number of the first request from which on all fail.
    from: u64,
    count: u64,
    failed: u64,
}

impl Failures {
    fn arm(&self, one: u64, from: u64) {
        *self.0.lock() = Some(Armed { one, from, count: 0, failed: 0 });
    }

    /// Lets all requests pass. Returns the number of those that have failed.
    fn disarm(&self) -> u64 {
        self.0.lock().take().expect("it was armed").failed
    }

    /// Counts a request. Returns whether it fails.
    fn fails(&self) -> bool {
        let mut armed = self.0.lock();
        let Some(armed) = &mut *armed else { return false };
        let fails = armed.count == armed.one || armed.count >= armed.from;
        armed.count += 1;
        armed.failed += u64::from(fails);
        fails
    }
}

impl DeviceHooks for Failures {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            if bio.operation() == BioOperation::Write && self.fails() {
                bio.end(Err(EIO));
            } else {
                device.submit(vec![bio]);
            }
        }
    }

    fn flush(&self, device: &SharedDevice) -> Result<()> {
        if self.fails() { Err(Error::Panicked("a planted failure")) } else { device.flush() }
    }
}

/// Opens a volume whose changes become durable only on request.
fn open_without_flusher(device: SharedDevice) -> Volume {
    let commit_interval = Duration::from_secs(3600);
    let mut options = VolumeOptions { writable: true, commit_interval, ..VolumeOptions::default() };
    options.cache.bytes_max = 16 << 20;
    Volume::open_device(device, &options).unwrap()
}

/// Writes to both nodes of the file. Returns its new contents.
fn write_everywhere(file: &File, kind: AtomicWrite, old: &[u8]) -> Vec<u8> {
    let mut new = if kind == AtomicWrite::Replace { Vec::new() } else { old.to_vec() };
    for (seed, at) in [(7, 0), (8, 910 * BLOCK), (9, (BLOCKS - 20) * BLOCK)] {
        let piece = data(seed, 20 * BLOCK - 100);
        file.write_all_at(&piece, at as u64).unwrap();
        new.resize(new.len().max(at + piece.len()), 0);
        new[at..at + piece.len()].copy_from_slice(&piece);
    }
    new
}

/// The outcome of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// No request has failed.
    Undisturbed,
    /// It succeeded after some failures.
    Committed { failed: u64 },
    /// It failed, and a recovery has found the new contents, or the old ones.
    Failed { is_new: bool },
}

/// Commits an atomic write while the request `one` fails, and all from `from` on. Checks the file,
/// and a recovery.
fn commit_with_failures(
    image: &Arc<Vec<u8>>,
    (kind, old): (AtomicWrite, &[u8]),
    one: u64,
    from: u64,
) -> Outcome {
    let place = format!("{kind:?}, failures of {one} and from {from} on");
    let base = Arc::new(MemoryDevice::shared(Arc::clone(image)));
    let block_size = BlockSize::from_bytes(BLOCK as u64).unwrap();
    let disk = Arc::new(OverlayDevice::new(base, block_size, 64 << 20));
    let hooked = Arc::new(HookedDevice::new(Arc::clone(&disk) as _, Failures::default()));
    let volume = open_without_flusher(Arc::clone(&hooked) as _);
    // The first change writes a checkpoint.
    make(&volume, "other").sync_all().unwrap();
    let subject = file(&volume, "f");
    subject.atomic_start(kind).unwrap();
    let new = write_everywhere(&subject, kind, old);
    subject.sync_range(0..u64::MAX, ALL).unwrap();
    hooked.arm(one, from);
    let committed = subject.atomic_commit();
    let failed = hooked.disarm();
    let shown = read(&subject);
    assert!(shown == new || committed.is_err() && shown == old, "{place}: in memory");
    if committed.is_err() {
        // The volume is shut down: no later checkpoint makes the rest of the commit durable.
        assert!(!subject.has_started_atomic_write(), "{place}");
        assert_eq!(subject.atomic_abort(), Ok(()), "{place}");
        let again = subject.atomic_start(kind);
        assert!(matches!(again, Err(Error::ShutDown(_) | Error::ReadOnly)), "{place}: {again:?}");
        assert!(volume.sync().is_err() && subject.sync_all().is_err(), "{place}");
    }
    drop(subject);
    drop(volume);
    let volume = open_without_flusher(Arc::clone(&disk) as _);
    let subject = file(&volume, "f");
    let recovered = read(&subject);
    let is_new = recovered == new;
    assert!(is_new || committed.is_err() && recovered == old, "{place}: after the recovery");
    // A second try on the healthy device, of a write that begins anew.
    subject.atomic_start(kind).unwrap();
    let new = write_everywhere(&subject, kind, &recovered);
    subject.atomic_commit().unwrap();
    assert!(read(&subject) == new, "{place}: after the second try");
    drop(subject);
    volume.close().unwrap();
    let mut findings = Vec::new();
    volume.check(&mut |error| {
        findings.push(error.to_string());
        ControlFlow::Continue(())
    });
    assert_eq!(findings, [""; 0], "{place}");
    drop(volume);
    let findings = testkit::f2fs::findings(disk);
    assert_eq!(findings, [""; 0], "{place}");
    match committed {
        Ok(()) if failed == 0 => Outcome::Undisturbed,
        Ok(()) => Outcome::Committed { failed },
        Err(_) => Outcome::Failed { is_new },
    }
}

#[test]
fn a_commit_is_all_or_nothing_wherever_its_chain_and_the_checkpoint_after_it_fail() {
    let stage = Stage::of(64);
    let volume = stage.open();
    let old = data(1, BLOCKS * BLOCK);
    make(&volume, "f").write_all_at(&old, 0).unwrap();
    stage.close(volume);
    let image = Arc::new(std::fs::read(&stage.image).unwrap());
    for kind in [AtomicWrite::Update, AtomicWrite::Replace] {
        let commit = |one, from| commit_with_failures(&image, (kind, &old), one, from);
        // The flush of data, the nodes, and their flush.
        assert_eq!(commit(0, u64::MAX), Outcome::Failed { is_new: false }, "{kind:?}");
        assert_eq!(commit(1, u64::MAX), Outcome::Committed { failed: 1 }, "{kind:?}");
        assert_eq!(commit(2, u64::MAX), Outcome::Failed { is_new: true }, "{kind:?}");
        assert_eq!(commit(3, u64::MAX), Outcome::Undisturbed, "{kind:?}");
        // After the nodes, the checkpoint fails at each of its requests.
        let mut outcomes = Vec::new();
        for from in 2.. {
            outcomes.push(commit(1, from));
            if outcomes.last() == Some(&Outcome::Committed { failed: 1 }) {
                break;
            }
        }
        assert!(outcomes.len() > 3, "{kind:?}: a checkpoint has several requests");
        for is_new in [false, true] {
            assert!(outcomes.contains(&Outcome::Failed { is_new }), "{kind:?}: {outcomes:?}");
        }
    }
}
