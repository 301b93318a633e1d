//! Tests of the write side: reservations of shared clusters, and the durability of changed maps.

use std::sync::Arc;

use base::InodeNumber;
use device::{MemoryDevice, SharedDevice};
use testkit::Waiter;

use super::*;
use crate::common::{self, Image, new_file, open_for_writing};
use crate::volume::Volume;

const BLOCK: u64 = 1024;

fn file() -> (Image, Arc<Volume>, Arc<Inode>) {
    let options = ["-t", "ext4", "-b", "1024", "-O", "bigalloc,^resize_inode", "-C", "4096"];
    let image = Image::make(16, &options);
    let volume = open_for_writing(&image);
    let inode = new_file(&volume, "file");
    (image, volume, inode)
}

fn reserved(volume: &Volume) -> u64 {
    volume.writer().unwrap().allocator.reserved_clusters()
}

fn single_block(block: u64) -> Range<FileBlock> {
    FileBlock(block)..FileBlock(block + 1)
}

#[test]
fn a_reservation_waits_while_another_thread_allocates_a_shared_cluster() {
    let (_image, volume, inode) = file();
    inode.map_write(FileOffset(0), BLOCK).unwrap();
    let (mut allocation, waiter) = (inode.allocation_lock.lock(), Waiter::default());
    let is_delayed = |block| inode.delayed.lock().run_at(FileBlock(block)).is_some();
    std::thread::scope(|scope| {
        scope.spawn(|| waiter.run(|| inode.map_write(FileOffset(BLOCK), BLOCK).unwrap()));
        let waits = waiter.begins_to_wait();
        let was_early = is_delayed(1);
        inode.allocate_delayed_locked(&single_block(0), &mut allocation).unwrap();
        drop(allocation);
        assert!(waits && !was_early, "what it saw may be out of date");
    });
    assert!(is_delayed(1));
    assert_eq!(reserved(&volume), 0, "the file has the cluster");
    inode.map_writeback(FileOffset(BLOCK), BLOCK).unwrap();
    assert_eq!(reserved(&volume), 0);
}

/// Reserves and allocates a block, as a write and its writeback do.
fn allocate(inode: &Inode, block: u64) {
    inode.map_write(FileOffset(block * BLOCK), BLOCK).unwrap();
    inode.map_writeback(FileOffset(block * BLOCK), BLOCK).unwrap();
}

/// Completes the write of a block.
fn end(inode: &Inode, block: u64) {
    let (offset, kind) = (FileOffset(block * BLOCK), IomapKind::Unwritten);
    let size = FileOffset((block + 1) * BLOCK);
    inode.end_io(&[FinishedRange { offset, length: BLOCK, kind, token: None }], size).unwrap();
}

/// Creates a volume in memory.
fn volume(options: &[&str]) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let device = Arc::new(MemoryDevice::new(Image::make(16, options).bytes()));
    let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
    (device, volume)
}

#[test]
fn a_sync_makes_a_change_of_only_a_map_leaf_durable() {
    let bigalloc = ["-t", "ext4", "-b", "1024", "-O", "bigalloc,^resize_inode", "-C", "4096"];
    for options in [&["-t", "ext4", "-b", "1024"][..], &bigalloc] {
        let (device, volume) = volume(options);
        let inode = new_file(&volume, "file");
        // More extents than fit into an inode, so that they are in a leaf.
        for block in [0, 8, 16, 24, 32, 40, 48] {
            allocate(&inode, block);
            end(&inode, block);
        }
        let is_durable = |number: InodeNumber, block: u64| {
            let volume = common::open(device.snapshot()).unwrap();
            let inode = volume.inode(number).unwrap();
            inode.map_read(FileOffset(block * BLOCK), BLOCK).unwrap().kind == IomapKind::Mapped
        };
        // With clusters, the second block is in a cluster that the file has.
        for block in [20, 18] {
            allocate(&inode, block);
            // A sync of the volume while the data is in flight.
            volume.sync().unwrap();
            end(&inode, block);
            inode.sync(true).unwrap();
            assert!(is_durable(inode.number(), block), "{block} {options:?}");
        }
        volume.close().unwrap();
    }
}

#[test]
fn no_data_is_written_after_the_volume_is_shut_down() {
    let (_device, volume) = volume(&["-t", "ext4", "-b", "1024"]);
    let inode = new_file(&volume, "file");
    allocate(&inode, 0);
    end(&inode, 0);
    inode.map_writeback(FileOffset(0), BLOCK).unwrap();
    // Another host has claimed the volume.
    volume.writer().unwrap().journal.stop(&Error::InUse { by: "another host".into() });
    let map = inode.map_writeback(FileOffset(0), BLOCK);
    assert!(matches!(map, Err(Error::ShutDown(_))), "{map:?}");
}
