//! Few blocks that are overwritten and synced: they stay where they are, and cleaning meanwhile
//! loses none of them.

use std::sync::Arc;
use std::thread;

use base::FileOffset;
use device::{HookedDevice, MemoryDevice};
use fs::AtomicWrite;
use vfs::{F2fsMode, Fallocate, File, Follow, Privileges, RwFlags, Volume, WriteAt, WriteSync};

use crate::clean::scattered;
use crate::model::{BLOCK, WRITE, check, close, image, open, open_in, open_on};
use crate::pinned::{Late, blocks};

const PATH: &str = "/file";
const NONE: [u64; 0] = [];

fn make(volume: &Volume, blocks: u64) -> File {
    let node = volume.create_file(PATH.as_bytes(), 0o644, crate::model::ROOT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    let data = vec![1; (blocks * BLOCK) as usize];
    assert_eq!(file.write_at(&data, 0), Ok(data.len()));
    file.sync_all().unwrap();
    file
}

/// Writes and syncs blocks. Returns the blocks of the file that have moved.
fn moved(file: &File, at: u64, count: u64) -> Vec<u64> {
    let before = blocks(file);
    let data = vec![2; (count * BLOCK) as usize];
    assert_eq!(file.write_at(&data, at * BLOCK), Ok(data.len()));
    file.sync_data().unwrap();
    let after = blocks(file);
    assert_eq!(before.len(), after.len());
    (0..).zip(before.iter().zip(&after)).filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect()
}

#[test]
fn synced_overwrites_of_few_blocks_stay_in_place() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    let file = make(&volume, 40);
    assert_eq!(moved(&file, 3, 1), NONE);
    assert_eq!(moved(&file, 10, 16), NONE);
    assert_eq!(moved(&file, 10, 17), (10..27).collect::<Vec<_>>());
    assert_eq!(moved(&file, 10, 1), NONE);
    // Each write is synced.
    let before = blocks(&file);
    let flags = RwFlags { sync: WriteSync::Data, ..RwFlags::default() };
    let at = WriteAt::Offset(FileOffset(7 * BLOCK + 5));
    assert_eq!(file.write_with(at, b"data", Privileges::Keep, flags), Ok(4));
    assert_eq!(blocks(&file), before);
    // The next checkpoint may move blocks that other addresses refer to.
    let removed = FileOffset(BLOCK)..FileOffset(2 * BLOCK);
    file.fallocate(Fallocate::CollapseRange, removed, Privileges::Keep).unwrap();
    assert_eq!(moved(&file, 5, 1), [5]);
    volume.sync().unwrap();
    assert_eq!(moved(&file, 5, 1), NONE);
    // An atomic write is not in the file before its commit.
    file.atomic_start(AtomicWrite::Update).unwrap();
    assert_eq!(file.write_at(&[9; 100], 0), Ok(100));
    file.sync_data().unwrap();
    file.atomic_abort().unwrap();
    let mut found = [0; 100];
    assert_eq!(file.read_at(&mut found, 0), Ok(100));
    assert_eq!(found, [1; 100]);
    drop(file);
    close(&device, volume);
}

#[test]
fn nothing_is_overwritten_with_mode_lfs() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open_in(Arc::clone(&device) as _, F2fsMode::Lfs);
    let file = make(&volume, 40);
    assert_eq!(moved(&file, 3, 1), [3]);
    assert_eq!(moved(&file, 10, 3), [10, 11, 12]);
    drop(file);
    close(&device, volume);
}

#[test]
fn cleaning_loses_no_overwrite_that_is_late() {
    let memory = Arc::new(MemoryDevice::new(image(128)));
    let late = Late::default();
    let delayed = late.delayed();
    let volume = open_on(Arc::new(HookedDevice::new(Arc::clone(&memory) as _, late)));
    let mut models = scattered(&volume, 3);
    for model in models.iter_mut().flatten().take(4) {
        let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
        let file = node.open_for(WRITE).unwrap();
        file.sync_all().unwrap();
        let block = model.versions.iter().position(|version| *version != u32::MAX).unwrap();
        let before = crate::pinned::block_at(&file, block as u64);
        delayed.lock().unwrap().bytes = before * BLOCK..(before + 1) * BLOCK;
        model.versions[block] += 1;
        let written = file.write_at(&model.data(block), block as u64 * BLOCK);
        assert_eq!(written, Ok(BLOCK as usize));
        thread::scope(|scope| {
            let sync = scope.spawn(|| file.sync_data().unwrap());
            testkit::wait_until("a late write", || delayed.lock().unwrap().in_flight > 0);
            volume.clean().unwrap();
            sync.join().unwrap();
        });
        delayed.lock().unwrap().bytes = 0..0;
        model.check_directly(&volume, "after a late write");
    }
    check(&volume, &models, "cleaned");
    close(&memory, volume);
}
