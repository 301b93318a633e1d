//! Tests of writes that meet obstacles: a full volume, a concurrent thread, a journal on another
//! device.

use crate::common;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::cached_file::writable_file;
use crate::common::{Image, TIME, new_file, new_inode, open_device_for_writing, open_for_writing};
use base::attributes::FileType;
use base::{DeviceOffset, Error, FileOffset, Result};
use device::{MemoryDevice, RecordDevice, SharedDevice};
use ext4::{Inode, OpenOptions, ROOT_INODE, Volume};
use iomap::{
    CacheOptions, EndIo, PageCache, WritableFile, truncate_cache, wait_for_writeback, write,
    write_back,
};
use parking_lot::{Condvar, Mutex};
use testkit::{DeviceHooks, HookedDevice, Waiter};

fn data_of(inode: &Arc<Inode>) -> Arc<WritableFile> {
    let options = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let cache = PageCache::new(options).unwrap();
    writable_file(inode, Arc::clone(inode), &cache, &EndIo::start().unwrap())
}

fn write_out(file: &Arc<WritableFile>) {
    write_back(file, 0..u64::MAX);
    wait_for_writeback(file, 0..u64::MAX);
}

#[test]
fn inline_data_stays_in_the_inode_if_no_block_is_free() {
    let image = Image::filled(16, "-t ext4 -b 4096 -O inline_data -m 0", |folder| {
        std::fs::write(folder.join("small"), "inline contents").unwrap();
    });
    let volume = open_for_writing(&image);
    let large = new_file(&volume, "large");
    let file = data_of(&large);
    let chunk = vec![7; 64 << 10];
    for at in (0..).step_by(chunk.len()) {
        match write(&file, FileOffset(at), &chunk) {
            Ok(written) if written == chunk.len() => write_out(&file),
            Ok(_) | Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    for at in (large.size()..).step_by(4096) {
        match write(&file, FileOffset(at), &chunk[..4096]) {
            Ok(_) => write_out(&file),
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    write_out(&file);
    let number = volume.inode(ROOT_INODE).unwrap().lookup(b"small").unwrap();
    let small = Arc::new(volume.inode(number).unwrap());
    let refused = write(&data_of(&small), FileOffset(3), b"more");
    assert_eq!(refused, Err(Error::NoSpace));
    volume.sync().unwrap();
    assert_eq!(common::contents(&volume, &small), b"inline contents");
    drop((file, large, small));
    volume.close().unwrap();
    drop(volume);
    image.check_by_e2fsck();
}

#[test]
fn data_is_durable_before_a_commit_in_a_journal_on_another_device() {
    const UUID: &str = "12345678-1234-1234-1234-123456789abc";
    let image = Image::make(16, &["-t", "ext4", "-b", "4096", "-O", "^has_journal"]);
    image.debugfs_write(&format!(
        "feature has_journal\nssv journal_uuid {UUID}\nssv journal_dev 0x700\n"
    ));
    let journal = Image::make(8, &["-O", "journal_dev", "-b", "4096", "-U", UUID]);
    let mut log = journal.bytes();
    // The number of volumes that use the journal, in its superblock.
    log[4096 + 64..][..4].copy_from_slice(&1_u32.to_be_bytes());
    let device = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(image.bytes()))).unwrap());
    let cache = PageCache::new(CacheOptions::default()).unwrap();
    let journal_device: SharedDevice = Arc::new(MemoryDevice::new(log));
    let options = OpenOptions { journal_device: Some(journal_device), ..OpenOptions::default() };
    let volume = Volume::open_for_writing(device.clone(), &cache, &options).unwrap();
    let inode = new_file(&volume, "file");
    let file = data_of(&inode);
    write(&file, FileOffset(0), &[7; 4096]).unwrap();
    write_out(&file);
    inode.sync(false).unwrap();
    let recording = device.recording();
    let end = recording.crash_points().end - 1;
    assert!(recording.volatile_writes(end).is_empty(), "a power cut may lose synced data");
}

/// Hooks of a device that waits before it writes zeroes while the gate is shut.
#[derive(Default, Debug)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    is_waiting: AtomicBool,
}

impl Gate {
    /// Creates a device with the contents of `image` behind a gate.
    fn before(image: &Image, is_shut: bool) -> Arc<HookedDevice<Self>> {
        let gate = Self { is_shut: Mutex::new(is_shut), ..Self::default() };
        Arc::new(HookedDevice::new(Arc::new(MemoryDevice::new(image.bytes())), gate))
    }
}

impl DeviceHooks for Gate {
    fn write_zeroes(&self, device: &SharedDevice, offset: DeviceOffset, length: u64) -> Result<()> {
        let mut is_shut = self.is_shut.lock();
        while *is_shut {
            self.is_waiting.store(true, Ordering::Release);
            self.opened.wait(&mut is_shut);
        }
        device.write_zeroes(offset, length)
    }
}

#[test]
fn a_file_can_be_truncated_while_writeback_allocates_its_end() {
    const PAGE: u64 = 4096;
    let image = Image::make(16, &["-t", "ext3", "-b", "1024"]);
    let device = Gate::before(&image, false);
    let volume = open_device_for_writing(device.clone()).unwrap();
    let free = volume.statfs().blocks_free;
    let inode = new_file(&volume, "file");
    let file = data_of(&inode);
    // The size on the disk is already past the truncation, with a hole before it.
    write(&file, FileOffset(5 * PAGE), &[1; 4096]).unwrap();
    write_out(&file);
    for page in 0..5 {
        write(&file, FileOffset(page * PAGE), &[2; 4096]).unwrap();
    }
    *device.is_shut.lock() = true;
    let waiter = Waiter::default();
    std::thread::scope(|scope| {
        scope.spawn(|| write_out(&file));
        while !device.is_waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let truncation = scope.spawn(|| {
            waiter.run(|| {
                truncate_cache(&file, PAGE).unwrap();
                inode.set_size(PAGE, false, TIME).unwrap();
            });
        });
        let waits = waiter.begins_to_wait();
        *device.is_shut.lock() = false;
        device.opened.notify_all();
        assert!(waits, "the race was not reached");
        truncation.join().unwrap();
    });
    volume.sync().unwrap();
    assert_eq!(common::contents(&volume, &inode), [2; 4096]);
    assert_eq!(volume.statfs().blocks_free, free - 4);
}

#[test]
fn no_data_is_written_to_blocks_before_they_are_zeroed() {
    let image = Image::make(16, &["-t", "ext3", "-b", "1024"]);
    let device = Gate::before(&image, true);
    let volume = open_device_for_writing(device.clone()).unwrap();
    let inode = new_file(&volume, "file");
    let file = data_of(&inode);
    for page in 0..2 {
        write(&file, FileOffset(page * 4096), &[2; 4096]).unwrap();
    }
    let waiter = Waiter::default();
    std::thread::scope(|scope| {
        // This thread allocates all blocks of the file at once.
        scope.spawn(|| write_out(&file));
        while !device.is_waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        scope.spawn(|| {
            waiter.run(|| {
                write_back(&file, 4096..8192);
                wait_for_writeback(&file, 4096..8192);
            });
        });
        let waits = waiter.begins_to_wait();
        *device.is_shut.lock() = false;
        device.opened.notify_all();
        assert!(waits, "the race was not reached");
    });
    volume.sync().unwrap();
    assert!(
        common::contents(&volume, &inode) == [2; 8192],
        "the zeroes were written after the data"
    );
}

#[test]
fn truncation_releases_reserved_and_allocated_blocks_of_unwritten_data() {
    for kind in ["ext4", "ext3"] {
        let image = Image::make(16, &["-t", kind, "-b", "1024"]);
        let volume = open_for_writing(&image);
        let free = volume.statfs().blocks_free;
        let inode = new_file(&volume, "file");
        let file = data_of(&inode);
        write(&file, FileOffset(0), &[1; 12 << 10]).unwrap();
        truncate_cache(&file, 4096).unwrap();
        inode.set_size(4096, false, TIME).unwrap();
        assert_eq!(volume.statfs().blocks_free, free - 4, "{kind}, reserved");
        // All blocks are allocated before the truncation.
        let second = new_file(&volume, "second");
        let file = data_of(&second);
        for page in 0..3 {
            write(&file, FileOffset(page << 12), &[2; 4096]).unwrap();
        }
        iomap::MapWrite::map_writeback(&*second, FileOffset(0), 12 << 10).unwrap();
        truncate_cache(&file, 4096).unwrap();
        second.set_size(4096, false, TIME).unwrap();
        assert_eq!(volume.statfs().blocks_free, free - 8, "{kind}, allocated");
        drop((file, inode, second));
        volume.close().unwrap();
        drop(volume);
        image.check_by_e2fsck();
    }
}

#[test]
fn a_file_without_a_name_stays_an_orphan_when_it_is_truncated() {
    for options in ["-t ext4 -b 1024 -O ^orphan_file", "-t ext4 -b 1024 -O orphan_file"] {
        let image = Image::make(16, &options.split_whitespace().collect::<Vec<_>>());
        let volume = open_for_writing(&image);
        let inode = new_file(&volume, "file");
        let file = data_of(&inode);
        write(&file, FileOffset(0), &[1; 12 << 10]).unwrap();
        write_out(&file);
        volume.inode(ROOT_INODE).unwrap().unlink(b"file", &inode, TIME).unwrap();
        truncate_cache(&file, 4096).unwrap();
        inode.set_size(4096, false, TIME).unwrap();
        volume.sync().unwrap();
        // As after a power cut, the file is not released, and the volume is not closed.
        drop((file, inode, volume));
        open_for_writing(&image).close().unwrap();
        image.check_by_e2fsck();
    }
}

#[test]
fn a_volume_with_a_journal_too_small_for_an_operation_is_not_opened_for_writing() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let mut bytes = image.bytes();
    // The number of blocks in the journal's superblock.
    let is_journal = |block: &[u8]| block.starts_with(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4]);
    let journal = bytes.chunks_mut(1024).find(|block| is_journal(block)).unwrap();
    journal[16..20].copy_from_slice(&20_u32.to_be_bytes());
    let opened = open_device_for_writing(Arc::new(MemoryDevice::new(bytes)));
    assert!(matches!(opened, Err(Error::Unsupported(_))), "{opened:?}");
}

#[test]
fn threads_that_change_write_and_sync_concurrently_leave_a_consistent_volume() {
    let image = Image::make(32, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let volume = open_for_writing(&image);
    let root = volume.inode(ROOT_INODE).unwrap();
    let directory =
        |name: &str| root.create(name.as_bytes(), &new_inode(FileType::Directory)).unwrap();
    let directories = ["a", "b", "c"].map(directory);
    std::thread::scope(|scope| {
        for directory in &directories {
            scope.spawn(|| {
                for round in 0..300 {
                    let name = format!("{round:0100}");
                    let new = new_inode(FileType::Regular);
                    let inode = directory.create(name.as_bytes(), &new).unwrap();
                    let file = data_of(&inode);
                    write(&file, FileOffset(round * 100), &[1; 5000]).unwrap();
                    write_out(&file);
                    if round % 5 == 0 {
                        inode.sync(false).unwrap();
                    }
                    if round % 2 == 0 {
                        directory.unlink(name.as_bytes(), &inode, TIME).unwrap();
                        truncate_cache(&file, 0).unwrap();
                        inode.release().unwrap();
                    }
                    if round % 50 == 0 {
                        volume.sync().unwrap();
                    }
                }
            });
        }
    });
    drop((root, directories));
    volume.close().unwrap();
    drop(volume);
    image.check_by_e2fsck();
}
