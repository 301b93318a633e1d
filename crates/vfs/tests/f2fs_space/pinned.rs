//! Pinned files: writes and cleaning leave their blocks where they are, and reads never return what
//! the blocks held before.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base::{Error, FileOffset, FsBlock, InodeNumber};
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice};
use fs::AtomicWrite;
use testkit::Random;
use vfs::{
    DirectIo, F2fsMode, Fallocate, File, Follow, Node, Privileges, RangeCleaning, SyncRange,
    Volume, WriteAt, WriteSync,
};

use crate::clean::scattered;
use crate::model::{BLOCK, Model, ROOT, WRITE, check, close, image, open, open_in, open_on};

const PATH: &str = "/pinned";
const KEEP_SIZE: Fallocate = Fallocate::Allocate { keep_size: true };
/// The blocks that fallocate gives a file on a volume with sections of one segment.
const SECTION: u64 = 512;

fn bytes(blocks: Range<u64>) -> Range<FileOffset> {
    FileOffset(blocks.start * BLOCK)..FileOffset(blocks.end * BLOCK)
}

fn allocate(file: &File, blocks: Range<u64>) -> Result<(), Error> {
    file.fallocate(KEEP_SIZE, bytes(blocks), Privileges::Keep)
}

/// Creates a pinned file with addresses for `blocks` blocks at least.
fn make(volume: &Volume, blocks: u64) -> File {
    let node = volume.create_file(PATH.as_bytes(), 0o644, ROOT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    file.node().set_pinned(true).unwrap();
    assert_eq!(file.node().pin_failures(), Ok(Some(0)));
    allocate(&file, 0..blocks).unwrap();
    file
}

/// Returns the blocks of the device, in the order of the file.
pub fn blocks(file: &File) -> Vec<u64> {
    let mut blocks = Vec::new();
    let emit = &mut |extent: iomap::FiemapExtent| {
        assert!(!extent.flags.unwritten, "{extent:?}");
        assert_eq!(extent.logical.0, blocks.len() as u64 * BLOCK, "the file has no hole");
        let first = extent.physical.0 / BLOCK;
        blocks.extend(first..first + extent.length / BLOCK);
        ControlFlow::Continue(())
    };
    file.extents(FileOffset(0)..FileOffset(u64::MAX >> 1), emit).unwrap();
    blocks
}

/// Returns the block of the device with block `at` of the file.
pub fn block_at(file: &File, at: u64) -> u64 {
    let mut found = None;
    let emit = &mut |extent: iomap::FiemapExtent| {
        found = Some((extent.physical.0 + at * BLOCK - extent.logical.0) / BLOCK);
        ControlFlow::Break(())
    };
    file.extents(bytes(at..at + 1), emit).unwrap();
    found.expect("the block has an address")
}

/// Overwrites blocks of the file by each kind of write.
fn overwrite(file: &File, model: &mut Model, random: &mut Random) {
    let block = random.below(model.versions.len() as u64) as usize;
    model.versions[block] = model.versions[block].wrapping_add(1);
    let (at, data) = (block as u64 * BLOCK, model.data(block));
    if random.below(2) == 0 {
        let at = WriteAt::Offset(FileOffset(at));
        let written = file.write_direct(at, &data, Privileges::Keep, WriteSync::None);
        assert_eq!(written, Ok(data.len()));
    } else {
        assert_eq!(file.write_at(&data, at), Ok(data.len()));
    }
    match random.below(8) {
        0 => file.sync_all().unwrap(),
        1 => file.sync_data().unwrap(),
        _ => {}
    }
}

/// Writes all blocks of a new pinned file. Returns its model.
fn fill(file: &File, count: usize) -> Model {
    let model = Model { path: PATH.to_owned(), versions: vec![0; count] };
    for block in 0..count {
        assert_eq!(file.write_at(&model.data(block), block as u64 * BLOCK), Ok(BLOCK as usize));
    }
    model
}

#[test]
fn data_behind_the_durable_end_is_not_written_to_preallocated_blocks() {
    let device = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&device);
    // All data of cold files is overwritten in place.
    let node = volume.create_file(b"/film.mp4", 0o644, ROOT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    node.set_pinned(true).unwrap();
    allocate(&file, 0..SECTION).unwrap();
    assert_eq!(file.write_at(&[1; BLOCK as usize], 0), Ok(BLOCK as usize));
    node.set_pinned(false).unwrap();
    file.sync_all().unwrap();
    let before = blocks(&file);
    let overwrite = |block: u64| {
        assert_eq!(file.write_at(&[2; BLOCK as usize], block * BLOCK), Ok(BLOCK as usize));
        let all = SyncRange { wait_before: true, write: true, wait_after: true };
        file.sync_range(0..u64::MAX, all).unwrap();
    };
    overwrite(0);
    assert_eq!(blocks(&file), before);
    node.set_size(3 * BLOCK, Privileges::Keep).unwrap();
    overwrite(1);
    // The power fails after all writes: the file still ends behind its first block.
    let cut = Arc::new(MemoryDevice::new(device.snapshot()));
    let after = open(&cut);
    let after_cut = after.resolve(b"/film.mp4", Follow::No).unwrap();
    assert_eq!(after_cut.attributes().size, BLOCK);
    after_cut.set_size(2 * BLOCK, Privileges::Keep).unwrap();
    let mut found = vec![7; 2 * BLOCK as usize];
    assert_eq!(after_cut.open().unwrap().read_at(&mut found, 0), Ok(found.len()));
    assert!(found[BLOCK as usize..] == [0; BLOCK as usize], "a block past the end has data");
    drop(after_cut);
    close(&cut, after);
    // Once the size is durable, blocks below it are overwritten.
    file.sync_all().unwrap();
    let before = blocks(&file);
    overwrite(2);
    assert_eq!(blocks(&file), before);
    drop(file);
    drop(node);
    close(&device, volume);
}

#[test]
fn overwrites_and_cleaning_leave_pinned_files_where_they_are() {
    let device = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&device);
    let file = make(&volume, 100);
    let addresses = blocks(&file);
    assert_eq!(addresses.len() as u64, SECTION, "the rest of the section is the file's");
    let mut model = fill(&file, 90);
    // A section with a free part would be a victim that cannot be cleaned.
    for size in [1, 89 * BLOCK, 90 * BLOCK] {
        let truncated = file.node().set_size(size, Privileges::Keep);
        assert!(matches!(truncated, Err(Error::InvalidArgument(_))), "{size}: {truncated:?}");
    }
    model.check(&volume, "not truncated");
    let mut models = scattered(&volume, 7);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (volume, file, is_done, model) = (&volume, &file, &is_done, &mut model);
        scope.spawn(move || {
            let mut random = Random(70);
            while !is_done.load(Ordering::Acquire) {
                overwrite(file, model, &mut random);
                model.check(volume, "during cleaning");
            }
        });
        let mut random = Random(71);
        let mut sections = 0;
        for _ in 0..4 {
            models.iter_mut().flatten().for_each(|model| model.overwrite(volume, &mut random, 1));
            sections += volume.clean().unwrap().sections;
            // Also if the section is chosen, which has nothing to gain.
            let block = FsBlock(addresses[0]);
            assert_eq!(volume.clean_range(block..=block, false), Ok(RangeCleaning::Kept));
        }
        is_done.store(true, Ordering::Release);
        assert!(sections > 10, "only {sections} sections were cleaned");
    });
    assert_eq!(blocks(&file), addresses);
    model.check(&volume, "cleaned");
    check(&volume, &models, "cleaned");
    drop(file);
    close(&device, volume);
    let volume = open(&device);
    let file = volume.resolve(PATH.as_bytes(), Follow::No).unwrap().open_for(WRITE).unwrap();
    assert_eq!(blocks(&file), addresses);
    model.check(&volume, "after closing");
    // Without the pin, both move the blocks.
    file.node().set_pinned(false).unwrap();
    assert_eq!(file.node().pin_failures(), Ok(None));
    model.overwrite(&volume, &mut Random(1), 20);
    file.sync_all().unwrap();
    assert_ne!(blocks(&file), addresses);
    drop(file);
    close(&device, volume);
}

#[test]
fn preallocated_blocks_of_pinned_files_read_as_zeroes_whatever_they_held() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    // All segments have old data.
    for name in ["first", "second", "third"] {
        let models = crate::model::fill(&volume, name, 64);
        volume.sync().unwrap();
        for model in models.iter().flatten() {
            volume.remove(model.path.as_bytes(), ROOT).unwrap();
        }
        volume.sync().unwrap();
    }
    let before = device.snapshot();
    let file = make(&volume, 2 * SECTION);
    let had_data = |block: &u64| before[(*block * BLOCK) as usize] != 0;
    let with_data = blocks(&file).iter().filter(|block| had_data(block)).count();
    assert!(with_data > 900, "only {with_data} blocks had old data");
    file.node().set_size(2 * SECTION * BLOCK, Privileges::Keep).unwrap();
    let found = |file: &File| {
        let mut found = vec![1; (2 * SECTION * BLOCK) as usize];
        assert_eq!(file.read_direct(FileOffset(0), &mut found), Ok(found.len()));
        found
    };
    assert!(found(&file).iter().all(|byte| *byte == 0));
    assert_eq!(blocks(&file).len() as u64, 2 * SECTION);
    // A part of a block, directly: the rest stays.
    let at = WriteAt::Offset(FileOffset(5 * BLOCK + 512));
    let written = file.write_direct(at, &[7; 512], Privileges::Keep, WriteSync::All);
    assert_eq!(written, Ok(512));
    let now = found(&file);
    assert_eq!(now.iter().filter(|byte| **byte == 7).count(), 512);
    assert!(now[5 * BLOCK as usize + 512..][..512].iter().all(|byte| *byte == 7));
    drop(file);
    close(&device, volume);
}

#[test]
fn blocks_of_pinned_files_come_from_fallocate_only() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    let file = make(&volume, 1);
    let unsupported = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Unsupported(_))), "{result:?}");
    };
    unsupported(file.write_at(b"data", SECTION * BLOCK).map(drop));
    assert_eq!(file.write_at(b"data", SECTION * BLOCK - 4), Ok(4));
    for mode in [
        Fallocate::PunchHole,
        Fallocate::ZeroRange { keep_size: true },
        Fallocate::CollapseRange,
        Fallocate::InsertRange,
    ] {
        unsupported(file.fallocate(mode, bytes(1..2), Privileges::Keep));
    }
    unsupported(file.atomic_start(AtomicWrite::Update));
    // A file that has blocks cannot be pinned.
    file.node().set_pinned(false).unwrap();
    assert_eq!(file.node().set_pinned(true), Err(Error::FileTooLarge));
    file.node().set_size(0, Privileges::Keep).unwrap();
    file.node().set_pinned(true).unwrap();
    // All or nothing.
    let free = volume.statfs().blocks_free;
    assert_eq!(allocate(&file, 0..free + 1), Err(Error::NoSpace));
    assert_eq!(volume.statfs().blocks_free, free);
    let small = volume.create_file(b"/small", 0o644, ROOT).unwrap().open_for(WRITE).unwrap();
    assert_eq!(small.write_at(b"in the cache", 0), Ok(12));
    assert_eq!(small.node().set_pinned(true), Err(Error::FileTooLarge));
    let root = volume.root().unwrap();
    assert!(matches!(root.pin_failures(), Err(Error::WrongType(_))));
    drop((file, small, root));
    close(&device, volume);
}

/// Hooks that delay writes to a part of the device.
#[derive(Debug, Default)]
pub struct Late(Arc<Mutex<Delayed>>);

#[derive(Debug, Default)]
pub struct Delayed {
    /// The bytes of the device whose writes are delayed.
    pub bytes: Range<u64>,
    /// The number of delayed writes that have not ended.
    pub in_flight: usize,
}

impl Late {
    pub fn delayed(&self) -> Arc<Mutex<Delayed>> {
        Arc::clone(&self.0)
    }
}

impl DeviceHooks for Late {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let mut delayed = self.0.lock().unwrap();
            if bio.operation() != BioOperation::Write || !delayed.bytes.contains(&bio.offset().0) {
                drop(delayed);
                device.submit(vec![bio]);
                continue;
            }
            delayed.in_flight += 1;
            drop(delayed);
            let (delayed, device) = (Arc::clone(&self.0), Arc::clone(device));
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                device.submit(vec![bio]);
                delayed.lock().unwrap().in_flight -= 1;
            });
        }
    }
}

#[test]
fn no_late_write_reaches_a_block_that_a_truncation_has_freed() {
    let memory = Arc::new(MemoryDevice::new(image(64)));
    let late = Late::default();
    let delayed = late.delayed();
    let volume = open_on(Arc::new(HookedDevice::new(Arc::clone(&memory) as _, late)));
    let file = make(&volume, SECTION);
    for (is_direct, name) in [(false, "cached"), (true, "direct")] {
        allocate(&file, 0..SECTION).unwrap();
        file.node().set_size(SECTION * BLOCK, Privileges::Keep).unwrap();
        file.sync_all().unwrap();
        let addresses = blocks(&file);
        let first = addresses[0] * BLOCK;
        delayed.lock().unwrap().bytes = first..first + SECTION * BLOCK;
        let data = vec![9; (SECTION * BLOCK) as usize];
        if is_direct {
            let write = DirectIo::write(FileOffset(0), data, |_, result| {
                result.unwrap();
            });
            file.submit_direct(vec![write], Privileges::Keep, false);
        } else {
            assert_eq!(file.write_at(&data, 0), Ok(data.len()));
            let how = SyncRange { write: true, ..SyncRange::default() };
            file.sync_range(0..SECTION * BLOCK, how).unwrap();
        }
        assert!(delayed.lock().unwrap().in_flight > 0, "nothing is late");
        file.node().set_size(0, Privileges::Keep).unwrap();
        volume.sync().unwrap();
        delayed.lock().unwrap().bytes = 0..0;
        let models = crate::model::fill(&volume, name, 256);
        testkit::wait_until("the end of writes", || delayed.lock().unwrap().in_flight == 0);
        volume.sync().unwrap();
        for model in models.iter().flatten() {
            model.check_directly(&volume, "after late writes");
            volume.remove(model.path.as_bytes(), ROOT).unwrap();
        }
        volume.sync().unwrap();
    }
    drop(file);
    close(&memory, volume);
}

/// Sets the mark of a pinned inode in an image. As Linux pins a file that has blocks, among those
/// of others.
fn set_mark(image: &mut [u8], inode: InodeNumber) {
    let (mut marked, number) = (0, (inode.0 as u32).to_le_bytes());
    for node in image.chunks_mut(BLOCK as usize) {
        let footer = BLOCK as usize - 24;
        if node[footer..footer + 4] == number && node[footer + 4..footer + 8] == number {
            node[3] |= 0x40;
            marked += 1;
        }
    }
    assert!(marked > 0, "inode {inode} has no node");
}

#[test]
fn cleaning_counts_its_failures_to_move_pinned_blocks() {
    let device = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&device);
    let mut model = Model { path: PATH.to_owned(), versions: Vec::new() };
    assert!(!model.fill(&volume, 8192), "the volume is full");
    let file = volume.resolve(PATH.as_bytes(), Follow::No).unwrap().open_for(WRITE).unwrap();
    for block in (0..8192).step_by(8) {
        file.fallocate(Fallocate::PunchHole, bytes(block..block + 7), Privileges::Keep).unwrap();
        model.punch(block as usize..block as usize + 7);
    }
    let number = file.node().number();
    drop(file);
    volume.close().unwrap();
    drop(volume);
    let mut image = device.snapshot();
    set_mark(&mut image, number);

    let device = Arc::new(MemoryDevice::new(image));
    // Logs do not fill the holes.
    let volume = open_in(Arc::clone(&device) as _, F2fsMode::Lfs);
    let node = volume.resolve(PATH.as_bytes(), Follow::No).unwrap();
    assert_eq!(node.pin_failures(), Ok(Some(0)));
    let addresses = |node: &Arc<Node>| {
        let mut found = Vec::new();
        node.extents(FileOffset(0)..FileOffset(u64::MAX), &mut |extent| {
            found.push((extent.logical, extent.physical, extent.length));
            ControlFlow::Continue(())
        })
        .unwrap();
        found
    };
    let before = addresses(&node);
    // Cleaning on request counts nothing.
    volume.clean().unwrap();
    assert_eq!(node.pin_failures(), Ok(Some(0)));
    let mut others = crate::model::fill(&volume, "file", 64);
    for _ in 0..3 {
        others.iter_mut().flatten().for_each(|other| other.overwrite(&volume, &mut Random(3), 2));
        volume.sync().unwrap();
    }
    let failures = node.pin_failures().unwrap().unwrap();
    assert!((1..2048).contains(&failures), "{failures} failures");
    assert_eq!(addresses(&node), before);
    model.check(&volume, "not moved");
    check(&volume, &others, "full");
    drop(node);
    close(&device, volume);
    let volume = open(&device);
    let node = volume.resolve(PATH.as_bytes(), Follow::No).unwrap();
    let durable = node.pin_failures().unwrap().unwrap();
    assert!(durable >= failures, "{durable} of {failures} failures are durable");
    node.set_pinned(false).unwrap();
    assert_eq!(node.pin_failures(), Ok(None));
    drop(node);
    close(&device, volume);
}
