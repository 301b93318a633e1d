//! Tests of deleting files with damaged maps or attributes. The name is removed, the inode is free
//! and not an orphan, reachable blocks are freed, and the volume is marked with errors. e2fsck
//! frees the other blocks, and has nothing else to repair.

use crate::common;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Image, TIME, inode_of, open_for_writing};
use base::InodeNumber;
use base::attributes::{AttributeChange, XattrMode};
use device::MemoryDevice;
use ext4::{Inode, ROOT_INODE, Volume};

const EXTENTS: &str = "-t ext4 -b 1024 -J size=1";
const POINTERS: &str = "-t ext3 -b 1024 -J size=1";
const BLOCK: usize = 1024;

/// Creates an image with a fragmented file that has an attribute block.
fn image(options: &str) -> Image {
    let image = Image::filled(16, options, |source| {
        // Every second block is zero. mke2fs makes holes for these.
        let data: Vec<u8> = (0..1600 * BLOCK).map(|at| (at / BLOCK % 2) as u8).collect();
        std::fs::write(source.join("file"), data).unwrap();
        std::fs::write(source.join("small"), "small").unwrap();
    });
    let volume = open_for_writing(&image);
    let change = AttributeChange::default();
    let file = named(&volume, "file");
    file.set_xattr(b"user.x", &[5; 500], XattrMode::Either, &change).unwrap();
    volume.close().unwrap();
    drop((volume, file));
    image.check_by_e2fsck();
    image
}

fn named(volume: &Arc<Volume>, name: &str) -> Arc<Inode> {
    let root = volume.inode(ROOT_INODE).unwrap();
    Arc::new(volume.inode(root.lookup(name.as_bytes()).unwrap()).unwrap())
}

fn number_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The file to damage.
struct File {
    /// The inode's block area.
    area: [u8; 60],
    attributes: usize,
    number: InodeNumber,
}

impl File {
    fn of(image: &Image) -> Self {
        let number = inode_of(image, "file");
        let record = image.open().inode_record(number).unwrap();
        let attributes = record.attribute_block.unwrap().0 as usize;
        Self { area: record.block_area, attributes, number }
    }

    /// Returns the node that an entry of an extent node refers to. `back` counts from the last
    /// entry.
    fn child(node: &[u8], back: usize) -> usize {
        let entries = usize::from(u16::from_le_bytes([node[2], node[3]]));
        number_at(node, 12 * (entries - back) + 4) as usize
    }
}

/// Damages the image's bytes.
type Damage = fn(&mut Vec<u8>, &File);

fn flip(bytes: &mut [u8], block: usize, at: usize) {
    bytes[block * BLOCK + at] ^= 0x55;
}

fn node(bytes: &[u8], block: usize) -> &[u8] {
    &bytes[block * BLOCK..][..BLOCK]
}

/// Damage in nodes outside of the inode, and in the attribute block.
const IN_BLOCKS: [(&str, &str, Damage); 9] = [
    ("an inner node with a wrong checksum", EXTENTS, |bytes, file| {
        flip(bytes, File::child(&file.area, 0), 100 * 8);
    }),
    ("the last leaf with a wrong checksum", EXTENTS, |bytes, file| {
        let leaf = File::child(node(bytes, File::child(&file.area, 0)), 0);
        flip(bytes, leaf, 20);
    }),
    ("a leaf in the middle with a wrong checksum", EXTENTS, |bytes, file| {
        let leaf = File::child(node(bytes, File::child(&file.area, 0)), 4);
        flip(bytes, leaf, 20);
    }),
    (
        "an inner node without its magic",
        "-t ext4 -b 1024 -J size=1 -O ^metadata_csum",
        |bytes, file| {
            flip(bytes, File::child(&file.area, 0), 0);
        },
    ),
    (
        "an extent of length zero in a leaf",
        "-t ext4 -b 1024 -O ^metadata_csum,^has_journal",
        |bytes, file| {
            let leaf = File::child(node(bytes, File::child(&file.area, 0)), 2);
            bytes[leaf * BLOCK + 12 * 3 + 4..][..2].fill(0);
        },
    ),
    ("an attribute block without its magic", EXTENTS, |bytes, file| {
        flip(bytes, file.attributes, 0)
    }),
    ("an attribute block without its magic on ext3", POINTERS, |bytes, file| {
        flip(bytes, file.attributes, 0);
    }),
    ("a pointer out of the volume", POINTERS, |bytes, file| {
        let indirect = number_at(&file.area, 12 * 4) as usize;
        bytes[indirect * BLOCK + 40..][..4].fill(0xEE);
    }),
    ("a pointer block out of the volume", POINTERS, |bytes, file| {
        let double = number_at(&file.area, 13 * 4) as usize;
        bytes[double * BLOCK..][..4].fill(0xEE);
    }),
];

/// Damage in the inode's block area, by commands of debugfs.
const IN_INODES: [(&str, &str, &str); 4] = [
    ("an extent of length zero", EXTENTS, "sif small block[4] 0"),
    ("a tree that is too deep", EXTENTS, "sif file block[1] 0x00070004"),
    ("a root without its magic", EXTENTS, "sif file block[0] 0x00010000"),
    ("a pointer out of the volume", POINTERS, "sif file block[5] 0xEEEEEEEE"),
];

/// Deletes a file of the volume on a device. Returns the number of free blocks afterwards.
fn delete(device: &Arc<MemoryDevice>, name: &str, case: &str) -> u64 {
    let volume = common::open_device_for_writing(device.clone()).unwrap();
    let root = volume.inode(ROOT_INODE).unwrap();
    let file = named(&volume, name);
    root.unlink(name.as_bytes(), &file, TIME).unwrap_or_else(|error| panic!("{case}: {error}"));
    file.release().unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_ne!(volume.errors().count, 0, "{case}: the volume must record the damage");
    volume.check_writable().unwrap();
    volume.close().unwrap();
    volume.statfs().blocks_free
}

/// Checks that e2fsck repairs nothing on the image except free space.
fn check_repair(image: &Image, number: InodeNumber, case: &str) {
    assert!(image.dumpe2fs(&["-h"]).contains("with errors"), "{case}");
    let output = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{case}: {text}");
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.windows(2).filter(|pair| pair[1].starts_with("Fix?")) {
        let is_space = ["Free blocks count wrong", "Block bitmap differences:"];
        assert!(is_space.iter().any(|start| pair[0].starts_with(start)), "{case}: {text}");
    }
    assert!(lines.iter().all(|line| !line.contains("<y>")), "{case}: {text}");
    image.check_by_e2fsck();
    let again = image.open().inode(number);
    assert!(matches!(again, Err(base::Error::NotFound)), "{case}: {again:?}");
}

fn check(image: &Image, name: &str, case: &str) {
    let number = inode_of(image, name);
    let blocks = image.open().inode_record(number).unwrap().blocks;
    let device = Arc::new(MemoryDevice::new(image.bytes()));
    let before = image.open().statfs().blocks_free;
    let free = delete(&device, name, case);
    assert!(free >= before, "{case}");
    std::fs::write(&image.path, device.snapshot()).unwrap();
    check_repair(image, number, case);
    // The block with the name stays allocated to the directory.
    let all = image.open().statfs().blocks_free;
    assert_eq!(all, before + blocks / 2, "{case}");
}

#[test]
fn files_with_a_damaged_node_are_deleted() {
    for (case, options, damage) in IN_BLOCKS {
        let image = image(options);
        let file = File::of(&image);
        assert!(file.number.0 > 0);
        let mut bytes = image.bytes();
        damage(&mut bytes, &file);
        std::fs::write(&image.path, bytes).unwrap();
        check(&image, "file", case);
    }
}

#[test]
fn files_with_a_damaged_root_keep_their_names_as_in_linux() {
    for (case, options, commands) in IN_INODES {
        let image = image(options);
        image.debugfs_write(&format!("{commands}\n"));
        let before = image.open().statfs();
        let volume = open_for_writing(&image);
        let root = volume.inode(ROOT_INODE).unwrap();
        let name = if commands.contains("small") { "small" } else { "file" };
        let number = root.lookup(name.as_bytes()).unwrap();
        let found = volume.inode(number);
        assert!(matches!(found, Err(base::Error::Corrupt(_))), "{case}: {found:?}");
        volume.close().unwrap();
        let after = volume.statfs();
        let free = (after.blocks_free, after.inodes_free);
        assert_eq!(free, (before.blocks_free, before.inodes_free), "{case}");
    }
}

#[test]
fn orphans_with_a_damaged_root_are_left_to_e2fsck_as_in_linux() {
    for (case, options, commands) in IN_INODES {
        let image = image(options);
        let name = if commands.contains("small") { "small" } else { "file" };
        let number = inode_of(&image, name);
        image.debugfs_write(&format!(
            "{commands}\nsif {name} links_count 0\nunlink {name}\nssv last_orphan {number}\n"
        ));
        let volume = open_for_writing(&image);
        assert_ne!(volume.errors().count, 0, "{case}");
        volume.check_writable().unwrap();
        volume.close().unwrap();
        drop(volume);
        assert!(image.dumpe2fs(&["-h"]).contains("with errors"), "{case}");
        let output = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{case}: {output:?}");
        image.check_by_e2fsck();
        let again = image.open().inode(number);
        assert!(matches!(again, Err(base::Error::NotFound)), "{case}: {again:?}");
    }
}

#[test]
fn reachable_blocks_are_freed_despite_damage() {
    let image = image(POINTERS);
    let double = number_at(&File::of(&image).area, 13 * 4) as usize;
    let mut bytes = image.bytes();
    // The second of five blocks of pointers.
    bytes[double * BLOCK + 4..][..4].fill(0xEE);
    let device = Arc::new(MemoryDevice::new(bytes));
    let before = image.open().statfs().blocks_free;
    let free = delete(&device, "file", "a damaged block of pointers");
    // Of 800 data blocks, the 128 of the damaged block of pointers cannot be found.
    assert!(free - before > 600, "{}", free - before);
}

#[test]
fn an_interrupted_deletion_of_a_damaged_file_is_completed_when_the_volume_is_opened() {
    let image = image(EXTENTS);
    let file = File::of(&image);
    let mut bytes = image.bytes();
    flip(&mut bytes, File::child(&file.area, 0), 100 * 8);
    let device = Arc::new(MemoryDevice::new(bytes));
    let volume = common::open_device_for_writing(device.clone()).unwrap();
    let inode = named(&volume, "file");
    volume.inode(ROOT_INODE).unwrap().unlink(b"file", &inode, TIME).unwrap();
    volume.sync().unwrap();
    let crashed = device.snapshot();
    drop((volume, inode));
    let device = Arc::new(MemoryDevice::new(crashed));
    let volume = common::open_device_for_writing(device.clone()).unwrap();
    assert_ne!(volume.errors().count, 0);
    volume.close().unwrap();
    std::fs::write(&image.path, device.snapshot()).unwrap();
    check_repair(&image, file.number, "after a crash");
}

#[test]
fn blocks_that_are_already_free_do_not_prevent_a_deletion() {
    for options in [EXTENTS, POINTERS, "-t ext2 -b 1024"] {
        let image = image(options);
        let number = inode_of(&image, "small");
        let block = image.debugfs("bmap small 0");
        let block: u64 = block.trim().parse().unwrap();
        // The count matches the bitmap, so that the bitmap is accepted.
        let volume = image.open();
        let group = volume.geometry().group_of_block(base::FsBlock(block)).unwrap();
        let free = volume.group(group).unwrap().free_clusters + 1;
        drop(volume);
        image.debugfs_write(&format!(
            "freeb {block}\nset_bg {0} free_blocks_count {free}\nset_bg {0} checksum calc\n",
            group.0
        ));
        let device = Arc::new(MemoryDevice::new(image.bytes()));
        delete(&device, "small", options);
        std::fs::write(&image.path, device.snapshot()).unwrap();
        let repaired = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
        assert!(repaired.status.code().is_some_and(|code| code <= 1), "{repaired:?}");
        let again = image.open().inode(number);
        assert!(matches!(again, Err(base::Error::NotFound)), "{options}: {again:?}");
    }
}
