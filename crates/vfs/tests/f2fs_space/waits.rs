//! Writes that find no block, since blocks of writes in flight are not free yet, wait for these,
//! however long they take.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use base::FileOffset;
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice};
use vfs::{DirectIo, Follow, Privileges, Volume, VolumeOptions};

use crate::model::{BLOCK, Model, WRITE, check, close, fill, image, open};

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

/// The time after which a call counts as one that never ends.
const TIME_MAX: Duration = Duration::from_secs(60);

#[test]
fn a_direct_read_does_not_wait_for_writes_of_its_own_batch() {
    batch_with_dirty_blocks(false);
}

#[test]
fn a_direct_write_does_not_wait_for_writes_of_its_own_batch() {
    batch_with_dirty_blocks(true);
}

/// Submits overwrites of more blocks than the full volume has, and a request for blocks that are
/// dirty in the cache.
fn batch_with_dirty_blocks(is_write: bool) {
    const DIRTY: usize = 512;
    const PART: usize = 256;
    let memory = Arc::new(MemoryDevice::new(image(256)));
    let volume = open(&memory);
    let mut model = Model { path: "/file".into(), versions: Vec::new() };
    assert!(model.fill(&volume, usize::MAX));
    volume.close().unwrap();
    drop(volume);
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    // The dirty blocks are not written before the batch.
    options.cache.bytes_max = 2 << 30;
    options.commit_interval = Duration::from_secs(1000);
    options.f2fs.cleans_in_background = false;
    let volume = Arc::new(Volume::open_device(memory.clone(), &options).unwrap());
    let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
    let file = node.open_for(WRITE).unwrap();
    let first_dirty = model.versions.len() / PART * PART - DIRTY;
    let dirty = first_dirty..first_dirty + DIRTY;
    let at = |block: usize| FileOffset(block as u64 * BLOCK);
    let data = |model: &Model, blocks: Range<usize>| -> Vec<u8> {
        blocks.flat_map(|block| model.data(block)).collect()
    };
    model.versions[..dirty.end].iter_mut().for_each(|version| *version += 1);
    let cached = data(&model, dirty.clone());
    assert_eq!(file.write_at(&cached, at(dirty.start).0), Ok(cached.len()));
    let (sender, ended) = mpsc::channel();
    let done = || {
        let sender = sender.clone();
        move |buffer: Vec<u8>, result: base::Result<usize>| sender.send((buffer, result)).unwrap()
    };
    let writes = (0..dirty.start).step_by(PART);
    let mut batch: Vec<DirectIo> = writes
        .map(|block| DirectIo::write(at(block), data(&model, block..block + PART), done()))
        .collect();
    let count = batch.len();
    if is_write {
        model.versions[dirty.clone()].iter_mut().for_each(|version| *version += 1);
        batch.push(DirectIo::write(at(dirty.start), data(&model, dirty.clone()), done()));
    } else {
        batch.push(DirectIo::read(at(dirty.start), vec![0xEE; cached.len()], done()));
    }
    drop(sender);
    // It keeps the volume if the call does not end.
    let kept = Arc::clone(&volume);
    let submitter = thread::spawn(move || {
        file.submit_direct(batch, Privileges::Keep, false);
        drop((file, kept));
    });
    let mut reads = 0;
    for index in 0..=count {
        let (buffer, result) = ended.recv_timeout(TIME_MAX).unwrap_or_else(|error| {
            panic!("{error} after {index} of {count} requests, then a write: {is_write}")
        });
        assert_eq!(result, Ok(buffer.len()));
        if !is_write && buffer.len() == cached.len() {
            assert!(buffer == cached, "the read got other data");
            reads += 1;
        }
    }
    assert_eq!(reads, usize::from(!is_write));
    submitter.join().unwrap();
    drop(node);
    volume.sync().unwrap();
    model.check(&volume, "overwritten");
    close(&memory, Arc::into_inner(volume).unwrap());
}
