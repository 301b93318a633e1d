//! Requests in flight during other operations: a device holds them until the test releases them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::{FileOffset, Result};
use device::{Bio, BioOperation, SharedDevice};
use parking_lot::{Condvar, Mutex};
use testkit::{DeviceHooks, HookedDevice, Waiter, wait_for_wakes, wait_until};
use vfs::{DirectIo, File, Privileges, Volume, VolumeOptions};

use crate::common::make;
use crate::direct::{Stage, allocate, write_direct};

/// A device that holds writes while its gate is shut, and panics while it is broken.
type GatedDevice = HookedDevice<Gate>;

#[derive(Default, Debug)]
struct Gate {
    is_shut: AtomicBool,
    is_broken: AtomicBool,
    held: Mutex<Vec<Bio>>,
    more: Condvar,
    flushes: AtomicU64,
}

impl Gate {
    fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }

    /// Waits until `count` writes are held.
    fn wait_for(&self, count: usize) {
        let mut held = self.held.lock();
        while held.len() < count {
            let waited = self.more.wait_for(&mut held, Duration::from_secs(60));
            assert!(!waited.timed_out(), "{} of {count} writes came", held.len());
        }
    }

    /// Lets later writes pass. Held writes stay.
    fn pass_later_writes(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
    }
}

/// Submits the writes that the gate of `device` holds, and lets later ones pass.
fn open(device: &GatedDevice) {
    device.is_shut.store(false, Ordering::SeqCst);
    device.inner().submit(std::mem::take(&mut *device.held.lock()));
}

impl DeviceHooks for Gate {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let is_shut = self.is_shut.load(Ordering::SeqCst);
        let is_held = |bio: &Bio| is_shut && bio.operation() == BioOperation::Write;
        let (held, others) = batch.into_iter().partition(is_held);
        self.held.lock().extend(held);
        self.more.notify_all();
        assert!(!self.is_broken.load(Ordering::SeqCst), "the test requests this panic");
        device.submit(others);
    }

    fn flush(&self, device: &SharedDevice) -> Result<()> {
        device.flush()?;
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Creates a file of 1 MiB on a device with a gate.
fn gated() -> (Stage, Arc<GatedDevice>, File) {
    let mut gate = None;
    let wrap = |device| -> SharedDevice {
        gate.insert(Arc::new(HookedDevice::new(device, Gate::default()))).clone()
    };
    let (stage, file) = Stage::with_file(1 << 20, wrap);
    (stage, gate.unwrap(), file)
}

/// Submits a write. Returns the receiver of its result.
fn start(file: &File, at: u64, data: Vec<u8>) -> mpsc::Receiver<Result<usize>> {
    let (sender, ended) = mpsc::channel();
    let done = move |_, result| sender.send(result).unwrap();
    let write = DirectIo::write(FileOffset(at), data, done);
    file.submit_direct(vec![write], Privileges::Keep, false);
    ended
}

fn read(file: &File, at: u64) -> u8 {
    let mut found = [0];
    file.read_at(&mut found, at).unwrap();
    found[0]
}

#[test]
fn overwrites_of_allocated_blocks_run_concurrently() {
    let (stage, gate, file) = gated();
    for (state, fill) in [("preallocated", 7), ("written", 8)] {
        gate.shut();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let file = &file;
                scope.spawn(move || {
                    assert_eq!(write_direct(file, writer * 65_536, &[fill; 4096]), Ok(4096));
                });
            }
            // All of them are in flight: none waits for another.
            gate.wait_for(4);
            open(&gate);
        });
        let found = [0, 1, 2, 3].map(|writer| read(&file, writer * 65_536));
        assert_eq!(found, [fill; 4], "{state}");
    }
    drop(file);
    stage.close();
}

#[test]
fn a_write_that_ends_after_the_last_commit_is_flushed_without_a_sync() {
    let mut gate = None;
    let wrap = |device| -> SharedDevice {
        gate.insert(Arc::new(HookedDevice::new(device, Gate::default()))).clone()
    };
    let (stage, file) = Stage::open(1 << 20, wrap, |device| {
        let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
        options.commit_interval = Duration::from_millis(50);
        Volume::open_device(device, &options).unwrap()
    });
    let gate = gate.unwrap();
    assert_eq!(write_direct(&file, 0, &[1; 8192]), Ok(8192));
    stage.volume.sync().unwrap();
    gate.shut();
    let written = start(&file, 0, vec![2; 4096]);
    gate.wait_for(1);
    gate.pass_later_writes();
    // All other changes become durable.
    wait_for_wakes("bifolio-flush", 2);
    let flushes = gate.flushes.load(Ordering::SeqCst);
    open(&gate);
    assert_eq!(written.recv(), Ok(Ok(4096)));
    wait_until("a flush", || gate.flushes.load(Ordering::SeqCst) > flushes);
    drop(file);
    stage.close();
}

#[test]
fn data_cached_during_a_direct_write_is_invalidated_at_its_end() {
    let (stage, gate, file) = gated();
    for (fill, old) in [(1, 0), (2, 1)] {
        gate.shut();
        let written = start(&file, 8192, vec![fill; 4096]);
        gate.wait_for(1);
        assert_eq!(read(&file, 8192), old, "this caches the old data");
        open(&gate);
        assert_eq!(written.recv(), Ok(Ok(4096)));
        assert_eq!(read(&file, 8192), fill);
    }
    drop(file);
    stage.close();
}

#[test]
fn a_buffered_write_beside_a_direct_write_does_not_undo_it() {
    let (stage, gate, file) = gated();
    assert_eq!(write_direct(&file, 0, &[1; 65_536]), Ok(65_536));
    // In the block that is being written, and in a block next to it that is cached in the same
    // folio.
    for beside in [100, 20_480] {
        gate.shut();
        let written = start(&file, 0, vec![9; 4096]);
        gate.wait_for(1);
        assert_eq!(read(&file, 40_960), 1, "the cache has old data around it");
        let waiter = Waiter::default();
        std::thread::scope(|scope| {
            let cached = scope.spawn(|| {
                let data = [5; 4096];
                let data = if beside < 4096 { &data[..10] } else { &data };
                waiter.run(|| file.write_at(data, beside))
            });
            // The cached write may wait for the direct one, or end before it.
            let waits = waiter.begins_to_wait();
            let has_ended = waiter.has_ended();
            open(&gate);
            assert!(waits || has_ended, "the race was not reached");
            assert_eq!(written.recv(), Ok(Ok(4096)));
            cached.join().unwrap().unwrap();
        });
        for at in [0, 50, 200, 4095] {
            assert_eq!(read(&file, at), 9, "{at} beside {beside}");
        }
        file.sync_all().unwrap();
        let mut found = vec![0; 4096];
        assert_eq!(file.read_direct(FileOffset(0), &mut found), Ok(4096));
        assert!(found[..100] == [9; 100] && found[110..] == [9; 3986], "{beside}");
        assert_eq!(write_direct(&file, 0, &[1; 65_536]), Ok(65_536));
    }
    drop(file);
    stage.close();
}

/// An operation that takes blocks from a file.
type Way<'w> = &'w (dyn Fn(&File) -> Result<()> + Sync);

#[test]
fn operations_that_free_blocks_wait_for_direct_writes() {
    let (stage, gate, file) = gated();
    let punch = |file: &File| {
        let range = FileOffset(0)..FileOffset(1 << 20);
        file.fallocate(vfs::Fallocate::PunchHole, range, Privileges::Keep)
    };
    let truncate = |file: &File| file.node().set_size(0, Privileges::Keep);
    let donor = make(&stage.volume, "donor");
    allocate(&donor, 1 << 20);
    let exchange =
        |file: &File| file.move_extents(FileOffset(0), &donor, FileOffset(0), 1 << 20).map(drop);
    // With the byte that the file has there afterwards.
    let ways: [(Way<'_>, u8); 3] = [(&punch, 0), (&truncate, 0), (&exchange, 9)];
    for (way, left) in ways {
        gate.shut();
        let written = start(&file, 0, vec![9; 4096]);
        gate.wait_for(1);
        let waiter = Waiter::default();
        std::thread::scope(|scope| {
            let freed = scope.spawn(|| waiter.run(|| way(&file)));
            let waits = waiter.begins_to_wait();
            open(&gate);
            assert!(waits, "blocks were freed during a write to them");
            assert_eq!(written.recv(), Ok(Ok(4096)));
            assert_eq!(freed.join().unwrap(), Ok(()));
        });
        assert_eq!(read(&file, 0), left);
        allocate(&file, 1 << 20);
    }
    drop((file, donor));
    stage.close();
}

#[test]
fn a_panicking_submission_waits_for_its_bios_and_leaves_no_request_in_flight() {
    let (stage, gate, file) = gated();
    assert_eq!(write_direct(&file, 0, &[1; 8192]), Ok(8192));
    gate.shut();
    gate.is_broken.store(true, Ordering::SeqCst);
    let waiter = Waiter::default();
    let panics = || catch_unwind(AssertUnwindSafe(|| write_direct(&file, 0, &[9; 4096]))).is_err();
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| waiter.run(panics));
        gate.wait_for(1);
        // The panic must wait, since the device still uses memory of the caller.
        let waits = waiter.begins_to_wait();
        gate.is_broken.store(false, Ordering::SeqCst);
        open(&gate);
        assert!(waits, "the memory was freed during the write");
        assert!(ended.join().unwrap(), "the panic is passed on");
    });
    // This waits until no request is in flight.
    file.node().set_size(4096, Privileges::Keep).unwrap();
    assert_eq!(read(&file, 0), 9);
    drop(file);
    stage.close();
}
