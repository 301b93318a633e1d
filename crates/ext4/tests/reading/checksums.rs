//! Tests that metadata checksums detect each changed byte of a structure.

use crate::common;
use std::sync::Arc;

use crate::common::{Image, inode_of, open_device};
use base::{DeviceOffset, FileOffset, GroupNumber, Result};
use device::{MemoryDevice, SharedDevice};
use ext4::Volume;
use iomap::MapRead;

/// Checks that `read` fails after any change of a byte in the range, and succeeds without one.
fn check(
    image: &Image,
    bytes: std::ops::Range<u64>,
    read: impl Fn(Arc<Volume>) -> Result<()>,
    what: &str,
) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(image.bytes()));
    let attempt = || open_device(Arc::clone(&device)).and_then(&read);
    attempt().unwrap();
    for at in bytes.map(DeviceOffset) {
        let mut byte = [0];
        device.read_at(at, &mut byte).unwrap();
        device.write_at(at, &[byte[0] ^ 0x10]).unwrap();
        assert!(attempt().is_err(), "{what}: byte {at}");
        device.write_at(at, &byte).unwrap();
    }
}

#[test]
fn a_changed_byte_in_the_superblock_is_detected() {
    for options in ["-t ext4", "-t ext4 -O metadata_csum_seed"] {
        let image = Image::filled(8, options, |_| {});
        check(&image, 1024..2048, |_| Ok(()), options);
    }
}

#[test]
fn a_changed_byte_in_a_group_descriptor_is_detected() {
    for options in [
        "-t ext4 -b 1024",
        "-t ext4 -b 1024 -O ^64bit",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^64bit",
        "-t ext4 -b 1024 -O metadata_csum_seed,meta_bg,^resize_inode",
    ] {
        let image = Image::filled(20, options, |_| {});
        let size = u64::from(image.open().geometry().descriptor_size);
        let read = |volume: Arc<Volume>| volume.group(GroupNumber(1)).map(drop);
        check(&image, 2048 + size..2048 + 2 * size, read, options);
    }
}

#[test]
fn a_changed_byte_in_a_bitmap_is_detected() {
    for options in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O ^64bit"] {
        let image = Image::filled(8, options, |_| {});
        let volume = image.open();
        let group = volume.group(GroupNumber(0)).unwrap();
        let geometry = volume.geometry();
        let start = group.block_bitmap.0 * 1024;
        let read = |volume: Arc<Volume>| {
            let group = volume.group(GroupNumber(0))?;
            volume.block_bitmap(&group).map(drop)
        };
        check(&image, start..start + u64::from(geometry.clusters_per_group() / 8), read, options);
        let start = group.inode_bitmap.0 * 1024;
        let read = |volume: Arc<Volume>| {
            let group = volume.group(GroupNumber(0))?;
            volume.inode_bitmap(&group).map(drop)
        };
        check(&image, start..start + u64::from(geometry.inodes_per_group / 8), read, options);
    }
}

#[test]
fn a_changed_byte_in_an_extent_node_is_detected() {
    let image = Image::filled(8, "-t ext4 -b 1024", |folder| {
        let mut striped = vec![0; 600 << 10];
        striped.chunks_mut(2048).for_each(|blocks| blocks[..1024].fill(1));
        std::fs::write(folder.join("striped"), striped).unwrap();
    });
    let number = inode_of(&image, "striped");
    // The first node: its block number follows "(ETB0):".
    let text = image.debugfs("stat /striped");
    let block = common::number_after(&text, "(ETB0):").unwrap();
    let read = |volume: Arc<Volume>| {
        volume.inode(number)?.map_read(FileOffset(0), 1)?;
        Ok(())
    };
    // The header, room for 84 entries and the checksum fill the block.
    check(&image, block * 1024..(block + 1) * 1024, read, "extent node");
}
