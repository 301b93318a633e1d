//! Reads that have found a block before cleaning moves it, and reach the device after it was written with other data.

use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};

use base::{FileOffset, InodeNumber};
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice};
use fs::{Format as _, FormatOptions};
use pagecache::{CacheOptions, PageCache};
use vfs::{Follow, Node, Volume};

use crate::clean::scattered;
use crate::model::{BLOCK, ROOT, check, close, fill, image, open, open_on};

/// Hooks that hold the reads of one thread.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The thread whose reads are held.
    reader: Option<ThreadId>,
    is_waiting: bool,
}

impl DeviceHooks for Gate {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let is_read = batch.iter().any(|bio| bio.operation() == BioOperation::Read);
        let mut state = self.state.lock().unwrap();
        while is_read && state.reader == Some(thread::current().id()) {
            state.is_waiting = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        drop(state);
        device.submit(batch);
    }
}

impl Gate {
    /// Holds the reads of this thread.
    fn hold_own(&self) {
        self.state.lock().unwrap().reader = Some(thread::current().id());
    }

    fn wait_for_reader(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.is_waiting {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn release(&self) {
        self.state.lock().unwrap().reader = None;
        self.changed.notify_all();
    }
}

/// Returns the addresses of a file's extents. Its nodes are in memory afterwards.
fn addresses(node: &Arc<Node>) -> Vec<u64> {
    let mut found = Vec::new();
    let all = FileOffset(0)..FileOffset(u64::MAX);
    node.extents(all, &mut |extent| {
        found.push(extent.physical.0);
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

/// Lets `read` read a whole file, holds it before the device, moves the file and fills the volume with other data.
fn read_while_cleaned(read: fn(&Arc<Node>, &mut [u8])) {
    let memory = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&memory);
    let models = scattered(&volume, 3);
    volume.close().unwrap();
    drop(volume);
    let device = Arc::new(HookedDevice::new(memory.clone(), Gate::default()));
    let volume = open_on(device.clone());
    // A file of the first segments, which are cleaned first or soon.
    let mut moved = 0;
    for (index, of_thread) in models.iter().enumerate().take(1) {
        let model = &of_thread[0];
        let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
        let before = addresses(&node);
        let mut found = vec![0xEE; model.versions.len() * BLOCK as usize];
        thread::scope(|scope| {
            scope.spawn(|| {
                device.hold_own();
                read(&node, &mut found);
            });
            device.wait_for_reader();
            volume.clean().unwrap();
            moved += usize::from(addresses(&node) != before);
            overwrite_all_free(&volume, index);
            device.release();
        });
        model.compare(&found, "held read");
    }
    assert!(moved > 0, "no file was moved");
    check(&volume, &models, "cleaned");
    close(&memory, volume);
}

/// Fills the volume, and deletes the new files.
fn overwrite_all_free(volume: &Volume, round: usize) {
    let more = fill(volume, &format!("more{round}-"), 4096);
    volume.sync().unwrap();
    check(volume, &more, "more");
    for model in more.iter().flatten() {
        volume.remove(model.path.as_bytes(), ROOT).unwrap();
    }
    volume.sync().unwrap();
}

#[test]
fn a_cached_read_gets_the_data_of_a_block_that_was_moved_meanwhile() {
    read_while_cleaned(|node, into| {
        let read = node.open().unwrap().read_at(into, 0).unwrap();
        assert_eq!(read, into.len());
    });
}

#[test]
fn a_direct_read_gets_the_data_of_a_block_that_was_moved_meanwhile() {
    read_while_cleaned(|node, into| {
        let read = node.open().unwrap().read_direct(FileOffset(0), into).unwrap();
        assert_eq!(read, into.len());
    });
}

/// The vfs loads an inode twice if two threads look it up at the same time, and drops one of the results.
#[test]
fn an_inode_that_was_loaded_twice_is_mapped_anew_after_it_was_moved() {
    let memory = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&memory);
    let models = scattered(&volume, 4);
    let number_of = |path: &str| volume.resolve(path.as_bytes(), Follow::No).unwrap().number();
    let numbers: Vec<_> = models.iter().flatten().map(|model| number_of(&model.path)).collect();
    volume.close().unwrap();
    drop(volume);
    let options = FormatOptions { writable: true, ..FormatOptions::default() };
    let cache = PageCache::new(CacheOptions { bytes_max: 8 << 20, ..Default::default() });
    let opened = f2fs::Format::default().open(&(memory as _), &cache.unwrap(), &options).unwrap();
    let load = |number: &InodeNumber| opened.load_inode(*number).unwrap();
    let inodes: Vec<_> = numbers.iter().map(load).collect();
    numbers.iter().map(load).for_each(drop);
    let look = |inode: &Arc<dyn fs::Inode>| {
        let data = inode.data().unwrap();
        let map = data.mapper.map_read(FileOffset(0), data.size).unwrap();
        (map.address, data.mapper.generation())
    };
    let before: Vec<_> = inodes.iter().map(look).collect();
    opened.clean().unwrap();
    let mut moved = 0;
    for (inode, (address, generation)) in inodes.iter().zip(before) {
        let after = look(inode);
        if after.0 != address {
            moved += 1;
            assert_ne!(after.1, generation, "readers use the old map");
        }
    }
    assert!(moved > 0, "no file was moved");
}
