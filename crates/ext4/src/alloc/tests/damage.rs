//! Tests of allocation with damaged bitmaps, counts and references. Not here: checks of other
//! structures.

use base::{InodeNumber, Problem};

use super::common::Image;
use super::*;
use crate::layout::group::GroupDescriptor;

fn problem<T: std::fmt::Debug>(result: Result<T>) -> Problem {
    match result {
        Err(Error::Corrupt(corrupt)) => corrupt.problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn free_blocks_and_blocks_of_structures_are_not_freed() {
    for options in ["-t ext4 -b 1024", "-t ext4 -O bigalloc,^resize_inode -C 16384"] {
        let image = Image::make(40, &options.split_whitespace().collect::<Vec<_>>());
        let at_first = free(&image);
        let volume = open_for_writing(&image);
        let (start, count) = volume.allocate(9000, 8, Purpose::Data).unwrap();
        volume.free((start, count)).unwrap();
        assert!(matches!(problem(volume.free((start, 1))), Problem::MarkedFree { count: 1 }));
        let descriptor = volume.group(GroupNumber(0)).unwrap();
        for block in [descriptor.block_bitmap, descriptor.inode_bitmap, descriptor.inode_table] {
            assert!(matches!(problem(volume.free((block, 1))), Problem::SystemZone { .. }));
        }
        let outside = FsBlock(volume.geometry().block_count);
        assert!(matches!(problem(volume.free((outside, 1))), Problem::Range { .. }));
        assert!(matches!(problem(volume.free((FsBlock(0), 1))), Problem::Range { .. }));
        let free_inode = |number| {
            let free = |handle: &mut _| {
                volume.allocator().unwrap().free_inode(handle, InodeNumber(number), false)
            };
            volume.change(FREE_INODE_CREDITS, free)
        };
        assert!(matches!(problem(free_inode(40)), Problem::MarkedFree { count: 1 }));
        assert!(matches!(problem(free_inode(2)), Problem::Range { .. }));
        // None of this has changed anything, and the volume can be written.
        volume.allocate(0, 1, Purpose::Data).and_then(|blocks| volume.free(blocks)).unwrap();
        close(volume);
        assert!(free(&image) == at_first, "{options}");
        image.check_by_e2fsck();
    }
}

#[test]
fn a_group_with_wrong_counts_is_not_used() {
    let image = Image::make(40, &["-t", "ext4", "-b", "1024"]);
    image.debugfs_write("set_bg 2 free_blocks_count 77\nset_bg 2 checksum calc\n");
    let volume = open_for_writing(&image);
    let geometry = volume.geometry();
    let goal = geometry.group_start(GroupNumber(2)).0 + 8000;
    let before = volume.statfs().blocks_free;
    let (start, count) = volume.allocate(goal, 20, Purpose::Data).unwrap();
    assert_ne!(geometry.group_of_block(start), Some(GroupNumber(2)));
    assert_eq!(volume.statfs().blocks_free, before - count - 77);
    assert!(matches!(problem(volume.free((FsBlock(goal), 1))), Problem::Mismatch { .. }));
    close(volume);
}

#[test]
fn a_bitmap_that_marks_an_inode_table_free_is_not_used() {
    // Without checksums, so that the bitmap has no other error.
    let image = Image::make(40, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let table = open_for_writing(&image).group(GroupNumber(0)).unwrap().inode_table;
    image.debugfs_write(&format!("freeb {} 8\n", table.0 + 3));
    let volume = open_for_writing(&image);
    let (start, _) = volume.allocate(table.0 + 3, 8, Purpose::Data).unwrap();
    assert_ne!(volume.geometry().group_of_block(start), Some(GroupNumber(0)));
    let damage = volume.writer().unwrap().allocator.groups[0].lock().damage.clone();
    assert!(matches!(problem::<()>(Err(damage.unwrap())), Problem::MarkedFree { count: 8 }));
    close(volume);
}

#[test]
fn wrong_counts_of_inodes_are_errors() {
    let image = Image::make(40, &["-t", "ext4", "-b", "1024"]);
    let number = {
        let volume = open_for_writing(&image);
        let allocate = |handle: &mut _| {
            volume.allocator().unwrap().allocate_inode(handle, crate::ROOT_INODE, true)
        };
        let number = volume.change(ALLOCATE_INODE_CREDITS, allocate).unwrap();
        close(volume);
        number
    };
    for (field, value) in [("used_dirs_count", 0), ("free_inodes_count", u32::MAX)] {
        for group in 0..5 {
            let set = format!("set_bg {group} {field} {value}\nset_bg {group} checksum calc\n");
            image.debugfs_write(&set);
        }
        let volume = open_for_writing(&image);
        let free = |handle: &mut _| volume.allocator().unwrap().free_inode(handle, number, true);
        problem(volume.change(FREE_INODE_CREDITS, free));
        if field == "free_inodes_count" {
            let allocate =
                |handle: &mut _| volume.allocator().unwrap().allocate_inode(handle, number, true);
            problem(volume.change(ALLOCATE_INODE_CREDITS, allocate));
            assert_eq!(volume.statfs().inodes_free, 0);
        }
        close(volume);
    }
}

/// Returns a volume whose first two groups share their bitmaps, with matching counts. It gets into
/// this state after it was opened, since such a volume cannot be opened for writing.
fn volume_with_shared_bitmaps() -> (Image, Arc<Volume>) {
    let options = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"];
    // The last of the three groups is shorter.
    let image = Image::make(24, &options);
    let volume = open_for_writing(&image);
    let [first, second] = [0, 1].map(|number| volume.group(GroupNumber(number)).unwrap());
    for descriptor in [&first, &second] {
        let (free_clusters, free_inodes) = (first.free_clusters, second.free_inodes);
        let counts = GroupDescriptor { free_clusters, free_inodes, ..descriptor.clone() };
        let (block, at) = volume.geometry().descriptor_position(descriptor.group);
        let bytes = at..at + volume.geometry().descriptor_size as usize;
        let store = |block: &mut [u8]| {
            let bytes = &mut block[bytes];
            counts.store(bytes, volume.geometry());
            // `store` does not write the locations of bitmaps.
            for (at, bitmap) in [(0, first.block_bitmap), (4, second.inode_bitmap)] {
                bytes[at..at + 4].copy_from_slice(&(bitmap.0 as u32).to_le_bytes());
            }
        };
        let location = base::Location::block(block);
        volume.metadata().change(block, "group descriptor", location, store).unwrap();
    }
    (image, volume)
}

#[test]
fn groups_that_share_a_bitmap_are_not_written() {
    for kind in ["block_bitmap", "inode_bitmap"] {
        let image = Image::make(24, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
        let first = image.open().group(GroupNumber(0)).unwrap();
        let block = if kind == "block_bitmap" { first.block_bitmap } else { first.inode_bitmap };
        image.debugfs_write(&format!("set_bg 1 {kind} {}\nset_bg 1 checksum calc\n", block.0));
        let opened = common::open_device_for_writing(image.device(false));
        assert!(matches!(problem(opened), Problem::Shared { blocks: 1 }), "{kind}");
        image.open();
    }
}

/// Returns a block in the middle of each of the first two groups. The groups' indexes are loaded by
/// this.
fn middles(volume: &Volume) -> [u64; 2] {
    [0, 1].map(|number| {
        let middle = volume.geometry().group_start(GroupNumber(number)).0 + 4000;
        let found = problem(volume.free((FsBlock(middle), 1)));
        assert!(matches!(found, Problem::MarkedFree { .. }), "{found:?}");
        middle
    })
}

#[test]
fn allocation_in_groups_that_share_a_block_bitmap_is_an_error() {
    let (_image, volume) = volume_with_shared_bitmaps();
    let [first, second] = middles(&volume);
    let group_of = |goal| {
        let (start, _) = volume.allocate(goal, 8, Purpose::Data).unwrap();
        volume.geometry().group_of_block(start).unwrap().0
    };
    assert_eq!(group_of(first), 0);
    // The index of the second group has the blocks that were just allocated as free.
    assert_ne!(group_of(second), 1);
    let damage =
        |number: usize| volume.writer().unwrap().allocator.groups[number].lock().damage.clone();
    assert!(matches!(problem::<()>(Err(damage(1).unwrap())), Problem::Shared { .. }));
    assert_eq!(damage(0), None);
    problem(volume.free((FsBlock(second), 1)));
    close(volume);
}

#[test]
fn blocks_that_another_group_allocated_in_a_shared_bitmap_are_not_freed() {
    let (_image, volume) = volume_with_shared_bitmaps();
    let [first, second] = middles(&volume);
    let (start, count) = volume.allocate(first, 8, Purpose::Data).unwrap();
    assert_eq!(start.0, first);
    assert!(matches!(problem(volume.free((FsBlock(second), count))), Problem::Shared { .. }));
    volume.free((start, count)).unwrap();
    volume.sync().unwrap();
    close(volume);
}

#[test]
fn groups_that_share_an_inode_bitmap_allocate_no_inode_twice() {
    let (_image, volume) = volume_with_shared_bitmaps();
    let mut numbers = Vec::new();
    let allocate = |parent, is_directory| {
        let allocate = |handle: &mut _| {
            volume.allocator().unwrap().allocate_inode(handle, parent, is_directory)
        };
        volume.change(ALLOCATE_INODE_CREDITS, allocate)
    };
    for round in 0..2 * volume.geometry().inodes_per_group {
        match allocate(InodeNumber(u64::from(round % 2 * 1000 + 20)), round % 3 == 0) {
            Ok(number) => numbers.push(number),
            Err(error) => {
                assert!(matches!(error, Error::NoSpace | Error::Corrupt(_)), "{error}");
                break;
            }
        }
    }
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(count > 100 && numbers.len() == count);
    close(volume);
}

/// Flips the bit of a cluster without the allocator.
fn flip(volume: &Volume, group: u32, bit: usize) {
    let block = volume.group(GroupNumber(group)).unwrap().block_bitmap;
    let flip = |bytes: &mut [u8]| bytes[bit / 8] ^= 1 << (bit % 8);
    volume.metadata().change(block, "bitmap", base::Location::block(block), flip).unwrap();
}

#[test]
fn a_bitmap_that_was_changed_by_other_code_does_not_get_a_valid_checksum() {
    for options in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O ^64bit"] {
        let image = Image::make(40, &options.split_whitespace().collect::<Vec<_>>());
        let volume = open_for_writing(&image);
        let start = |group| volume.geometry().group_start(GroupNumber(group)).0;
        let group_of = |block| volume.geometry().group_of_block(block).unwrap().0;
        // Case 1: the group is loaded, but the checksum of its bitmap was not computed yet.
        let allocator = &volume.writer().unwrap().allocator;
        volume
            .allocator()
            .unwrap()
            .load_group(GroupNumber(2), &mut allocator.groups[2].lock())
            .unwrap();
        flip(&volume, 2, 4000);
        let blocks = volume.allocate(start(2) + 100, 1, Purpose::Data).unwrap();
        assert_ne!(group_of(blocks.0), 2, "{options}");
        let damage = allocator.groups[2].lock().damage.clone();
        assert!(matches!(problem::<()>(Err(damage.unwrap())), Problem::Checksum { .. }));
        // Case 2: the checksum is known.
        let blocks = volume.allocate(start(4) + 100, 1, Purpose::Data).unwrap();
        assert_eq!(group_of(blocks.0), 4, "{options}");
        flip(&volume, 4, 4000);
        volume.allocate(start(4) + 100, 1, Purpose::Data).unwrap();
        close(volume);
        let volume = image.open();
        let descriptor = volume.group(GroupNumber(4)).unwrap();
        let read = volume.block_bitmap(&descriptor);
        assert!(matches!(problem(read), Problem::Checksum { .. }), "{options}");
    }
}
