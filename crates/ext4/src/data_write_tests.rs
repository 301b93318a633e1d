//! Reservations on volumes with clusters, while others give places to what shares them.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use base::attributes::{DeviceNumber, FileType, Timestamp};

use super::*;
use crate::common::{Image, open_for_writing};
use crate::volume::Volume;
use crate::{NewInode, ROOT_INODE};

const BLOCK: u64 = 1024;
const TIME: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

fn file() -> (Image, Arc<Volume>, Arc<Inode>) {
    let options = ["-t", "ext4", "-b", "1024", "-O", "bigalloc,^resize_inode", "-C", "4096"];
    let image = Image::make(16, &options);
    let volume = open_for_writing(&image);
    let new = NewInode {
        kind: FileType::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        device: DeviceNumber::default(),
        target: &[],
        xattrs: &[],
        time: TIME,
    };
    let inode = volume.inode(ROOT_INODE).unwrap().create(b"file", &new).unwrap();
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
