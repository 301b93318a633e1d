//! Bitmaps, counts and references that lie. Not here: what the checks of other structures find.

use base::{InodeNumber, Problem};

use super::common::Image;
use super::*;

fn problem<T: std::fmt::Debug>(result: Result<T>) -> Problem {
    match result {
        Err(Error::Corrupt(corrupt)) => corrupt.problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_free_or_the_formats_own_is_not_freed() {
    for options in ["-t ext4 -b 1024", "-t ext4 -O bigalloc,^resize_inode -C 16384"] {
        let image = Image::make(40, &options.split_whitespace().collect::<Vec<_>>());
        let at_first = free(&image);
        let volume = open(&image);
        let (start, count) = volume.take(9000, 8, Purpose::Data).unwrap();
        volume.give((start, count)).unwrap();
        assert!(matches!(problem(volume.give((start, 1))), Problem::MarkedFree { count: 1 }));
        let descriptor = volume.group(GroupNumber(0)).unwrap();
        for block in [descriptor.block_bitmap, descriptor.inode_bitmap, descriptor.inode_table] {
            assert!(matches!(problem(volume.give((block, 1))), Problem::Shared { .. }));
        }
        let outside = FsBlock(volume.geometry().block_count);
        assert!(matches!(problem(volume.give((outside, 1))), Problem::Range { .. }));
        assert!(matches!(problem(volume.give((FsBlock(0), 1))), Problem::Range { .. }));
        let free_inode = |number| {
            let free = |handle: &mut _| volume.free_inode(handle, InodeNumber(number), false);
            volume.change(FREE_INODE_CREDITS, free)
        };
        assert!(matches!(problem(free_inode(40)), Problem::MarkedFree { count: 1 }));
        assert!(matches!(problem(free_inode(2)), Problem::Range { .. }));
        // None of this has changed anything, and the volume can be written.
        volume.take(0, 1, Purpose::Data).and_then(|taken| volume.give(taken)).unwrap();
        close(volume);
        assert!(free(&image) == at_first, "{options}");
        e2fsck(&image);
    }
}

#[test]
fn a_group_whose_counts_lie_is_left_alone() {
    let image = Image::make(40, &["-t", "ext4", "-b", "1024"]);
    image.debugfs_write("set_bg 2 free_blocks_count 77\nset_bg 2 checksum calc\n");
    let volume = open(&image);
    let geometry = volume.geometry();
    let goal = geometry.group_start(GroupNumber(2)).0 + 100;
    let before = volume.statfs().blocks_free;
    let (start, count) = volume.take(goal, 20, Purpose::Data).unwrap();
    assert_ne!(geometry.group_of_block(start), Some(GroupNumber(2)));
    assert_eq!(volume.statfs().blocks_free, before - count - 77);
    assert!(matches!(problem(volume.give((FsBlock(goal), 1))), Problem::Mismatch { .. }));
    close(volume);
}

#[test]
fn a_bitmap_that_gives_away_an_inode_table_is_not_believed() {
    // Without checksums, so that nothing else is wrong with it.
    let image = Image::make(40, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let table = open(&image).group(GroupNumber(0)).unwrap().inode_table;
    image.debugfs_write(&format!("freeb {} 8\n", table.0 + 3));
    let volume = open(&image);
    let (start, _) = volume.take(table.0 + 3, 8, Purpose::Data).unwrap();
    assert_ne!(volume.geometry().group_of_block(start), Some(GroupNumber(0)));
    let damage = volume.writer().unwrap().allocator.groups[0].lock().damage.clone();
    assert!(matches!(problem::<()>(Err(damage.unwrap())), Problem::MarkedFree { count: 8 }));
    close(volume);
}

#[test]
fn counts_of_inodes_that_lie_are_met_with_errors() {
    let image = Image::make(40, &["-t", "ext4", "-b", "1024"]);
    let number = {
        let volume = open(&image);
        let take = |handle: &mut _| volume.allocate_inode(handle, crate::ROOT_INODE, true);
        let number = volume.change(ALLOCATE_INODE_CREDITS, take).unwrap();
        close(volume);
        number
    };
    for (field, value) in [("used_dirs_count", 0), ("free_inodes_count", u32::MAX)] {
        for group in 0..5 {
            let set = format!("set_bg {group} {field} {value}\nset_bg {group} checksum calc\n");
            image.debugfs_write(&set);
        }
        let volume = open(&image);
        let free = |handle: &mut _| volume.free_inode(handle, number, true);
        problem(volume.change(FREE_INODE_CREDITS, free));
        if field == "free_inodes_count" {
            let take = |handle: &mut _| volume.allocate_inode(handle, number, true);
            problem(volume.change(ALLOCATE_INODE_CREDITS, take));
            assert_eq!(volume.statfs().inodes_free, 0);
        }
        close(volume);
    }
}
