//! Reads that have found a block before its file gets another one, by cleaning or by a write, and
//! reach the device after the block could have been written with other data.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};

use base::{FileOffset, InodeNumber};
use device::{
    Bio, BioOperation, BlockDevice, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice,
};
use fs::{Format as _, FormatOptions};
use pagecache::{CacheOptions, PageCache};
use testkit::wait_until;
use vfs::{Follow, Node, Privileges, Volume, VolumeOptions, WriteAt, WriteSync};

use crate::clean::scattered;
use crate::model::{BLOCK, Model, ROOT, WRITE, check, close, fill, image, open, open_on};

/// Hooks that hold reads or writes of some threads.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The threads whose requests are held, and which of them.
    held: Vec<(ThreadId, BioOperation)>,
    /// The held requests of these threads that have been submitted.
    waiting: Vec<(ThreadId, BioOperation)>,
}

impl DeviceHooks for Gate {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let Some(operation) = batch.first().map(Bio::operation) else { return };
        let request = (thread::current().id(), operation);
        let mut state = self.state.lock().unwrap();
        if state.held.contains(&request) {
            state.waiting.push(request);
            self.changed.notify_all();
            while state.held.contains(&request) {
                state = self.changed.wait(state).unwrap();
            }
        }
        drop(state);
        device.submit(batch);
    }
}

impl Gate {
    /// Holds the requests of this thread that begin with such a bio.
    fn hold_own(&self, operation: BioOperation) {
        self.state.lock().unwrap().held.push((thread::current().id(), operation));
    }

    /// Waits for a held request. Returns its thread.
    fn wait_for(&self, operation: BioOperation) -> ThreadId {
        let mut state = self.state.lock().unwrap();
        loop {
            let found = state.waiting.iter().position(|request| request.1 == operation);
            if let Some(found) = found {
                return state.waiting.swap_remove(found).0;
            }
            state = self.changed.wait(state).unwrap();
        }
    }

    fn release(&self, thread: ThreadId) {
        self.state.lock().unwrap().held.retain(|held| held.0 != thread);
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

/// Lets `read` read a whole file, holds it before the device, moves the file and fills the volume
/// with other data.
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
                device.hold_own(BioOperation::Read);
                read(&node, &mut found);
            });
            let reader = device.wait_for(BioOperation::Read);
            volume.clean().unwrap();
            moved += usize::from(addresses(&node) != before);
            overwrite_all_free(&volume, index);
            device.release(reader);
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

/// The blocks that are read of a file of several segments: in a segment of which the file has all
/// blocks.
const PART: Range<usize> = 1024..1088;

/// A volume with one file, whose nodes are in memory.
struct Stage {
    memory: Arc<MemoryDevice>,
    device: Arc<HookedDevice<Gate>>,
    volume: Volume,
    node: Arc<Node>,
    model: Model,
}

impl Stage {
    fn new() -> Self {
        let memory = Arc::new(MemoryDevice::new(image(128)));
        let volume = open(&memory);
        let mut model = Model { path: "/file".into(), versions: Vec::new() };
        model.fill(&volume, 2048);
        volume.close().unwrap();
        drop(volume);
        let device = Arc::new(HookedDevice::new(memory.clone(), Gate::default()));
        // Freed blocks lose their data at once.
        let mut options =
            VolumeOptions { writable: true, discard: Some(true), ..VolumeOptions::default() };
        options.cache.bytes_max = 8 << 20;
        options.f2fs.cleans_in_background = false;
        let volume = Volume::open_device(device.clone(), &options).unwrap();
        let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
        addresses(&node);
        Self { memory, device, volume, node, model }
    }

    /// Gives all of the file new blocks by a direct write.
    fn overwrite(&self, model: &Model) {
        let data: Vec<u8> = (0..model.versions.len()).flat_map(|block| model.data(block)).collect();
        let file = self.node.open_for(WRITE).unwrap();
        let at = WriteAt::Offset(FileOffset(0));
        let written = file.write_direct(at, &data, Privileges::Keep, WriteSync::None);
        assert_eq!(written, Ok(data.len()));
    }

    /// Reads a part of the file directly. The read is held. Returns the version of each block.
    fn read_directly(&self, models: &[&Model]) -> Vec<u32> {
        let mut found = vec![0xEE; PART.len() * BLOCK as usize];
        self.device.hold_own(BioOperation::Read);
        let at = FileOffset(PART.start as u64 * BLOCK);
        let read = self.node.open().unwrap().read_direct(at, &mut found);
        assert_eq!(read, Ok(found.len()));
        versions(&found, models)
    }

    /// Reads a part of the file through the cache, like [`read_directly`](Self::read_directly).
    fn read(&self, models: &[&Model]) -> Vec<u32> {
        let mut found = vec![0xEE; PART.len() * BLOCK as usize];
        self.device.hold_own(BioOperation::Read);
        let read = self.node.open().unwrap().read_at(&mut found, PART.start as u64 * BLOCK);
        assert_eq!(read, Ok(found.len()));
        versions(&found, models)
    }

    /// Writes other data to blocks that are free, to all of them if nothing else uses them.
    fn use_free_blocks(&self) {
        for _ in 0..6 {
            let mut other = Model { path: "/other".into(), versions: Vec::new() };
            other.fill(&self.volume, 8192);
            self.volume.sync().unwrap();
            self.volume.remove(other.path.as_bytes(), ROOT).unwrap();
            self.volume.sync().unwrap();
        }
    }

    fn close(self) {
        check(&self.volume, &[vec![self.model]], "overwritten");
        drop(self.node);
        close(&self.memory, self.volume);
    }
}

/// Returns the model of a file after a write of all blocks.
fn overwritten(model: &Model) -> Model {
    let versions = model.versions.iter().map(|version| version + 1).collect();
    Model { path: model.path.clone(), versions }
}

/// Returns the version of each block in [`PART`] of a file, as one of `models` has it.
fn versions(found: &[u8], models: &[&Model]) -> Vec<u32> {
    let version_of = |(block, found): (usize, &[u8])| {
        let model = models.iter().find(|model| model.data(block) == found);
        let text = String::from_utf8_lossy(&found[..40]);
        model.unwrap_or_else(|| panic!("block {block} has {text:?}")).versions[block]
    };
    PART.zip(found.chunks(BLOCK as usize)).map(version_of).collect()
}

/// Lets a direct read find the blocks of a file, gives the file others, and writes to all free ones
/// before the read goes on. With `is_new`, no checkpoint has had the blocks that are read.
fn read_while_overwritten(is_new: bool) {
    let mut stage = Stage::new();
    if is_new {
        stage.model = overwritten(&stage.model);
        stage.overwrite(&stage.model);
    }
    let after = overwritten(&stage.model);
    thread::scope(|scope| {
        let reader = scope.spawn(|| stage.read_directly(&[&stage.model]));
        let held = stage.device.wait_for(BioOperation::Read);
        let old = addresses(&stage.node);
        stage.overwrite(&after);
        assert_ne!(addresses(&stage.node), old, "the file was overwritten in place");
        stage.volume.sync().unwrap();
        stage.use_free_blocks();
        stage.device.release(held);
        assert_eq!(reader.join().unwrap(), stage.model.versions[PART]);
    });
    stage.model = after;
    stage.close();
}

#[test]
fn a_direct_read_gets_the_data_of_a_block_that_was_overwritten_meanwhile() {
    read_while_overwritten(false);
}

#[test]
fn a_direct_read_gets_the_data_of_a_new_block_that_was_overwritten_meanwhile() {
    read_while_overwritten(true);
}

/// The device loses what it discards. Later reads, of which one is always in flight, do not keep
/// the old blocks.
#[test]
fn old_blocks_are_not_free_before_reads_have_ended_that_had_begun_before() {
    let mut stage = Stage::new();
    let after = overwritten(&stage.model);
    let bytes = stage.model.versions.len() as u64 * BLOCK;
    let trim = || stage.volume.trim(0..stage.memory.size(), 0).unwrap();
    let free = trim();
    thread::scope(|scope| {
        let mut last = scope.spawn(|| stage.read_directly(&[&stage.model]));
        let mut held = stage.device.wait_for(BioOperation::Read);
        stage.overwrite(&after);
        stage.volume.sync().unwrap();
        let free_meanwhile = trim();
        assert!(free_meanwhile < free, "{free_meanwhile} of {free} bytes are free");
        let mut looks = 0;
        while trim() < free_meanwhile + bytes {
            looks += 1;
            assert!(looks < 6, "the blocks stay taken");
            let next = scope.spawn(|| stage.read_directly(&[&stage.model, &after]));
            let next_held = stage.device.wait_for(BioOperation::Read);
            stage.device.release(std::mem::replace(&mut held, next_held));
            let found = std::mem::replace(&mut last, next).join().unwrap();
            let model = if looks == 1 { &stage.model } else { &after };
            assert_eq!(found, model.versions[PART], "read {looks}");
        }
        stage.device.release(held);
        last.join().unwrap();
    });
    stage.model = after;
    stage.close();
}

/// A synced node refers to blocks that the file has replaced since. A read of them ends before the
/// next checkpoint, and then so many other blocks are replaced while they are read that the ended
/// reads are looked for.
#[test]
fn synced_blocks_are_not_free_before_the_next_checkpoint_although_their_read_has_ended() {
    let stage = Stage::new();
    let file = stage.node.open_for(WRITE).unwrap();
    let synced = overwritten(&stage.model);
    stage.overwrite(&synced);
    file.sync_all().unwrap();
    let after = overwritten(&synced);
    thread::scope(|scope| {
        let reader = scope.spawn(|| stage.read_directly(&[&synced]));
        let held = stage.device.wait_for(BioOperation::Read);
        stage.overwrite(&after);
        stage.device.release(held);
        assert_eq!(reader.join().unwrap(), synced.versions[PART]);
        let reader = scope.spawn(|| stage.read_directly(&[&after]));
        let held = stage.device.wait_for(BioOperation::Read);
        for _ in 0..1200 {
            let at = WriteAt::Offset(FileOffset(0));
            let written = file.write_direct(at, &after.data(0), Privileges::Keep, WriteSync::None);
            assert_eq!(written, Ok(BLOCK as usize));
        }
        stage.device.release(held);
        reader.join().unwrap();
    });
    // As after a power cut. A checkpoint in the background may have the later data.
    let cut = Arc::new(MemoryDevice::new(stage.memory.snapshot()));
    let volume = open(&cut);
    let node = volume.resolve(stage.model.path.as_bytes(), Follow::No).unwrap();
    let mut found = vec![0; PART.len() * BLOCK as usize];
    node.open().unwrap().read_exact_at(&mut found, PART.start as u64 * BLOCK).unwrap();
    versions(&found, &[&synced, &after]);
    drop(node);
    close(&cut, volume);
}

/// The cached read begins after the write has cleared the cache:
///
/// ```text
/// writer                         reader                          writer of another file
/// clears the cache
///                                locks a folio, maps block A
/// writes to B, address := B
/// waits for the folio                                            checkpoint, places data in A, writes it
///                                reads A
/// ```
#[test]
fn a_cached_read_gets_the_data_of_a_block_that_a_direct_write_replaces_meanwhile() {
    let mut stage = Stage::new();
    let after = overwritten(&stage.model);
    thread::scope(|scope| {
        scope.spawn(|| {
            stage.device.hold_own(BioOperation::Write);
            stage.overwrite(&after);
        });
        let writer = stage.device.wait_for(BioOperation::Write);
        // A part that is read only after the write has ended has its data.
        let reader = scope.spawn(|| stage.read(&[&stage.model, &after]));
        let held = stage.device.wait_for(BioOperation::Read);
        let old = addresses(&stage.node);
        stage.device.release(writer);
        wait_until("the write has ended", || addresses(&stage.node) != old);
        stage.volume.sync().unwrap();
        stage.use_free_blocks();
        stage.device.release(held);
        let found = reader.join().unwrap();
        assert_eq!(found[0], stage.model.versions[PART.start], "the read began too late");
    });
    stage.model = after;
    stage.close();
}

/// The vfs loads an inode twice if two threads look it up at the same time, and drops one of the
/// results.
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
