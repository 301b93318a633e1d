//! Reservations on volumes with clusters, while others give places to what shares them.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use base::InodeNumber;
use device::{MemoryDevice, SharedDevice};

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

fn one(block: u64) -> Range<FileBlock> {
    FileBlock(block)..FileBlock(block + 1)
}

#[test]
fn clusters_are_not_looked_at_while_others_give_them_places() {
    let (_image, volume, inode) = file();
    inode.map_write(FileOffset(0), BLOCK).unwrap();
    let (placing, begun) = (inode.placing.lock(), Barrier::new(2));
    let is_delayed = |block| inode.delayed.lock().run_at(FileBlock(block)).is_some();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.wait();
            inode.map_write(FileOffset(BLOCK), BLOCK).unwrap();
        });
        begun.wait();
        // Long enough for the other one to get on, if nothing keeps it from that.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!is_delayed(1), "what it saw may be out of date");
        inode.place_delayed(&one(0)).unwrap();
        drop(placing);
    });
    assert!(is_delayed(1));
    assert_eq!(reserved(&volume), 0, "the file has the cluster");
    inode.map_writeback(FileOffset(BLOCK), BLOCK).unwrap();
    assert_eq!(reserved(&volume), 0);
}

/// Writes a block as far as it gets a place, as writeback does.
fn location(inode: &Inode, block: u64) {
    inode.map_write(FileOffset(block * BLOCK), BLOCK).unwrap();
    inode.map_writeback(FileOffset(block * BLOCK), BLOCK).unwrap();
}

/// Ends the writing of a block.
fn end(inode: &Inode, block: u64) {
    let (offset, kind) = (FileOffset(block * BLOCK), IomapKind::Unwritten);
    let size = FileOffset((block + 1) * BLOCK);
    inode.end_io(&[FinishedRange { offset, length: BLOCK, kind, token: None }], size).unwrap();
}

/// A volume in memory.
fn volume(options: &[&str]) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let device = Arc::new(MemoryDevice::new(Image::make(16, options).bytes()));
    let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
    (device, volume)
}

#[test]
fn who_syncs_gets_what_was_changed_in_a_leaf_of_the_map_alone() {
    let bigalloc = ["-t", "ext4", "-b", "1024", "-O", "bigalloc,^resize_inode", "-C", "4096"];
    for options in [&["-t", "ext4", "-b", "1024"][..], &bigalloc] {
        let (device, volume) = volume(options);
        let inode = new_file(&volume, "file");
        // More than an inode has room for, so that they lie in a leaf.
        for block in [0, 8, 16, 24, 32, 40, 48] {
            location(&inode, block);
            end(&inode, block);
        }
        let is_durable = |number: InodeNumber, block: u64| {
            let volume = common::open(device.snapshot()).unwrap();
            let inode = volume.inode(number).unwrap();
            inode.map_read(FileOffset(block * BLOCK), BLOCK).unwrap().kind == IomapKind::Mapped
        };
        // In the file, and, where there are clusters, in one that the file has.
        for block in [20, 18] {
            location(&inode, block);
            // Somebody else's sync, while the data is on its way.
            volume.sync().unwrap();
            end(&inode, block);
            inode.sync(true).unwrap();
            assert!(is_durable(inode.number(), block), "{block} {options:?}");
        }
        volume.close().unwrap();
    }
}

#[test]
fn no_data_is_written_where_nothing_may_be_changed_any_more() {
    let (_device, volume) = volume(&["-t", "ext4", "-b", "1024"]);
    let inode = new_file(&volume, "file");
    location(&inode, 0);
    end(&inode, 0);
    inode.map_writeback(FileOffset(0), BLOCK).unwrap();
    // Somebody else has taken the volume.
    volume.writer().unwrap().journal.stop(&Error::InUse { by: "another host".into() });
    let map = inode.map_writeback(FileOffset(0), BLOCK);
    assert!(matches!(map, Err(Error::ShutDown(_))), "{map:?}");
}
