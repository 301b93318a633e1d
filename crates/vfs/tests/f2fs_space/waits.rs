//! Writes that find no block, since blocks of writes in flight are not free yet, wait for these, however long they take.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use device::{Bio, BioOperation, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice};
use vfs::{Follow, Volume, VolumeOptions};

use crate::model::{Model, WRITE, check, close, fill, image, open};

/// The time for which writes are held.
const HELD: Duration = Duration::from_millis(800);

/// Hooks that hold the writes of some threads.
#[derive(Debug, Default)]
struct Gate {
    writers: Mutex<HashSet<ThreadId>>,
    changed: Condvar,
}

impl DeviceHooks for Gate {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let mut writers = self.writers.lock().unwrap();
        let is_write = batch.iter().any(|bio| bio.operation() == BioOperation::Write);
        while is_write && writers.contains(&thread::current().id()) {
            writers = self.changed.wait(writers).unwrap();
        }
        drop(writers);
        device.submit(batch);
    }
}

impl Gate {
    /// Holds the writes of this thread.
    fn hold_own(&self) {
        self.writers.lock().unwrap().insert(thread::current().id());
    }

    fn release(&self) {
        self.writers.lock().unwrap().clear();
        self.changed.notify_all();
    }
}

fn sync(volume: &Volume, model: &Model) {
    let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
    let synced = node.open_for(WRITE).unwrap().sync_all();
    assert_eq!(synced, Ok(()), "{}", model.path);
}

#[test]
fn a_write_waits_for_the_blocks_of_a_slow_write() {
    let memory = Arc::new(MemoryDevice::new(image(256)));
    let volume = open(&memory);
    // Overwriting all of them needs more blocks than users cannot have.
    let mut models = fill(&volume, "file", 5000);
    volume.close().unwrap();
    drop(volume);
    let device = Arc::new(HookedDevice::new(memory.clone(), Gate::default()));
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    // No data is written before the syncs.
    options.cache.bytes_max = 2 << 30;
    options.commit_interval = Duration::from_secs(1000);
    options.f2fs.cleans_in_background = false;
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    models.iter_mut().flatten().for_each(|model| model.overwrite_all(&volume));
    let all: Vec<&Model> = models.iter().flatten().collect();
    let (last, held) = all.split_last().unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (volume, device, is_done) = (&volume, &device, &is_done);
        for model in held {
            scope.spawn(move || {
                device.hold_own();
                sync(volume, model);
            });
        }
        scope.spawn(move || {
            thread::sleep(HELD);
            sync(volume, last);
            is_done.store(true, Ordering::Release);
        });
        thread::sleep(2 * HELD);
        assert!(!is_done.load(Ordering::Acquire), "there was room for the last write");
        device.release();
    });
    volume.sync().unwrap();
    check(&volume, &models, "overwritten");
    close(&memory, volume);
}
