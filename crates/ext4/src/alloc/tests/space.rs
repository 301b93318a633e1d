//! Tests of running out of space: the purposes and users that may allocate the last clusters. Not
//! here: the choice of clusters.

use std::process::Command;

use base::FileOffset;
use base::space::set_reserve_access;
use iomap::{FinishedRange, IomapKind, MapWrite};

use super::common::{Image, new_file};
use super::*;
use crate::ROOT_INODE;

/// Allocates all clusters that are available for a purpose. Returns their number.
fn fill(volume: &Volume, purpose: Purpose, access: ReserveAccess) -> u64 {
    let _guard = set_reserve_access(access);
    let mut allocated = 0;
    loop {
        let found = volume.change(ALLOCATE_CREDITS, |handle| {
            let goal = Goal::in_any_group(FsBlock(0));
            volume.allocator().unwrap().allocate_blocks(handle, goal, 5000, purpose, None)
        });
        match found {
            Ok((_, count)) => allocated += volume.geometry().clusters_for(count),
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                return allocated;
            }
        }
    }
}

const KINDS: &[&str] = &["-t ext4 -b 1024 -m 5", "-t ext4 -O bigalloc,^resize_inode -C 16384 -m 5"];

#[test]
fn the_last_clusters_are_only_for_the_purposes_they_are_reserved_for() {
    for options in KINDS {
        let image = Image::make(40, &options.split_whitespace().collect::<Vec<_>>());
        let volume = open_for_writing(&image);
        let shift = volume.geometry().cluster_shift;
        let counts = volume.statfs();
        volume.allocator().unwrap().reserve(30, ReserveAccess::None).unwrap();
        assert_eq!(volume.statfs().blocks_free, counts.blocks_free - (30 << shift), "{options}");
        let available = volume.statfs().blocks_available >> shift;
        assert_eq!(
            volume.allocator().unwrap().reserve(available + 1, ReserveAccess::None),
            Err(Error::NoSpace)
        );
        assert_eq!(fill(&volume, Purpose::Data, ReserveAccess::None), available, "{options}");
        assert_eq!(volume.statfs().blocks_available, 0);
        assert_eq!(
            volume.allocator().unwrap().reserve(1, ReserveAccess::None),
            Err(Error::NoSpace)
        );
        let for_root = volume.superblock().counts.blocks_reserved >> shift;
        assert_eq!(fill(&volume, Purpose::Metadata, ReserveAccess::Root), for_root, "{options}");
        let for_splitting = kernel_reserve(volume.geometry()) >> shift;
        assert_eq!(
            fill(&volume, Purpose::EndOfIo, ReserveAccess::None),
            for_splitting,
            "{options}"
        );
        assert_eq!(fill(&volume, Purpose::ReservedData, ReserveAccess::None), 30, "{options}");
        assert_eq!(volume.statfs().blocks_free, 0);
        close(volume);
        assert!(free(&image).clusters.is_empty(), "{options}");
    }
}

#[test]
fn clusters_of_a_released_reservation_can_be_allocated() {
    let image = Image::make(16, &["-t", "ext4", "-m", "0"]);
    let volume = open_for_writing(&image);
    let available = volume.statfs().blocks_available;
    volume.allocator().unwrap().reserve(available, ReserveAccess::None).unwrap();
    assert_eq!(volume.allocate(0, 1, Purpose::Data), Err(Error::NoSpace));
    volume.allocator().unwrap().unreserve(available);
    assert!(volume.allocate(0, 1, Purpose::Data).is_ok());
    close(volume);
}

#[test]
fn freed_blocks_count_as_free_at_once_and_are_allocated_only_after_a_commit() {
    for options in ["-t ext4 -b 1024", "-t ext2 -b 1024"] {
        let image = Image::make(16, &options.split_whitespace().collect::<Vec<_>>());
        let volume = open_for_writing(&image);
        let blocks = volume.allocate(0, 50, Purpose::Data).unwrap();
        fill(&volume, Purpose::Data, ReserveAccess::Root);
        volume.sync().unwrap();
        let before = volume.statfs();
        volume.free(blocks).unwrap();
        assert_eq!(volume.statfs().blocks_free, before.blocks_free + blocks.1, "{options}");
        assert!(volume.allocator().unwrap().has_deferred_space());
        let allocate = || {
            volume.change(ALLOCATE_CREDITS, |handle| {
                let goal = Goal::in_any_group(blocks.0);
                volume.allocator().unwrap().allocate_blocks(handle, goal, 50, Purpose::Data, None)
            })
        };
        assert_eq!(allocate(), Err(Error::NoSpace), "{options}");
        assert_eq!(volume.allocator().unwrap().with_space(allocate), Ok(blocks), "{options}");
        assert!(!volume.allocator().unwrap().has_deferred_space());
        assert_eq!(
            volume.allocator().unwrap().with_space(allocate),
            Err(Error::NoSpace),
            "{options}"
        );
        close(volume);
    }
}

#[test]
fn reserved_data_is_allocated_in_blocks_freed_before() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024"]);
    let volume = open_for_writing(&image);
    let blocks = volume.allocate(0, 50, Purpose::Data).unwrap();
    fill(&volume, Purpose::Data, ReserveAccess::Root);
    volume.free(blocks).unwrap();
    volume.allocator().unwrap().reserve(blocks.1, ReserveAccess::Root).unwrap();
    let allocated =
        volume.allocator().unwrap().with_space(|| volume.allocate(0, 50, Purpose::ReservedData));
    assert_eq!(allocated.unwrap().1, blocks.1);
    close(volume);
}

#[test]
fn the_end_of_io_allocates_blocks_freed_before() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024"]);
    let volume = open_for_writing(&image);
    let inode = new_file(&volume, "file");
    inode.preallocate(FileOffset(0)..FileOffset(16 << 10)).unwrap();
    let blocks = volume.allocate(0, 50, Purpose::Data).unwrap();
    // No cluster is left, not even for splitting extents.
    fill(&volume, Purpose::EndOfIo, ReserveAccess::Root);
    volume.free(blocks).unwrap();
    // One extent becomes seven, for which the map needs a block.
    let finished = [2, 6, 10].map(|block| FinishedRange {
        offset: FileOffset(block << 10),
        length: 1 << 10,
        kind: IomapKind::Unwritten,
        token: None,
    });
    assert_eq!(inode.end_io(&finished, FileOffset(0)), Ok(()));
    drop(inode);
    close(volume);
}

#[test]
fn all_free_inodes_can_be_allocated() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-N", "64", "-g", "4096"]);
    let volume = open_for_writing(&image);
    let free_at_first = volume.statfs().inodes_free;
    let allocate = |is_directory| {
        volume.change(ALLOCATE_INODE_CREDITS, |handle| {
            volume.allocator().unwrap().allocate_inode(handle, ROOT_INODE, is_directory)
        })
    };
    let mut numbers: Vec<_> =
        (0..free_at_first).map(|index| allocate(index % 2 == 0).unwrap()).collect();
    assert_eq!(allocate(false), Err(Error::NoSpace));
    assert_eq!(allocate(true), Err(Error::NoSpace));
    assert_eq!(volume.statfs().inodes_free, 0);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len() as u64, free_at_first);
    assert!(numbers.iter().all(|&number| !volume.geometry().is_reserved_inode(number)));
    close(volume);
    assert!(free(&image).inodes.is_empty());
}

#[test]
fn root_and_the_user_and_group_in_the_superblock_may_allocate_reserved_blocks() {
    for (arguments, user, group) in
        [(&[][..], 0, None), (&["-u", "1000"], 1000, None), (&["-u", "7", "-g", "70"], 7, Some(70))]
    {
        let image = Image::make(16, &["-t", "ext4"]);
        if !arguments.is_empty() {
            common::run(Command::new("tune2fs").args(arguments).arg(&image.path));
        }
        let volume = open_for_writing(&image);
        let may = |uid, groups: &[u32]| {
            volume.reserve_access_of(uid, |gid| groups.contains(&gid)) == ReserveAccess::Root
        };
        assert!(may(0, &[0]) && may(0, &[5]) && may(user, &[5]), "{arguments:?}");
        assert!(!may(1, &[0]) && !may(1, &[5]), "{arguments:?}");
        assert!(group.is_none_or(|group| may(1, &[5, group])), "{arguments:?}");
        close(volume);
    }
}
