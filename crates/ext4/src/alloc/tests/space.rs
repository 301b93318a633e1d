//! Running out of space: who may have the last of it, and when. Not here: which blocks those are.

use std::process::Command;

use base::FileOffset;
use base::space::set_privilege;
use iomap::{FinishedRange, IomapKind, MapWrite};

use super::common::{Image, new_file};
use super::*;
use crate::ROOT_INODE;

/// Takes all that there is for this purpose; how many clusters that was.
fn fill(volume: &Volume, purpose: Purpose, privilege: Privilege) -> u64 {
    let _acting = set_privilege(privilege);
    let mut taken = 0;
    loop {
        let found = volume.change(ALLOCATE_CREDITS, |handle| {
            volume.allocate_blocks(handle, FsBlock(0), 5000, purpose, None)
        });
        match found {
            Ok((_, count)) => taken += volume.geometry().clusters_for(count),
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                return taken;
            }
        }
    }
}

const KINDS: &[&str] = &["-t ext4 -b 1024 -m 5", "-t ext4 -O bigalloc,^resize_inode -C 16384 -m 5"];

#[test]
fn the_last_clusters_are_for_those_they_are_kept_for() {
    for options in KINDS {
        let image = Image::make(40, &options.split_whitespace().collect::<Vec<_>>());
        let volume = open_for_writing(&image);
        let shift = volume.geometry().cluster_shift;
        let counts = volume.statfs();
        volume.reserve(30, Privilege::None).unwrap();
        assert_eq!(volume.statfs().blocks_free, counts.blocks_free - (30 << shift), "{options}");
        let available = volume.statfs().blocks_available >> shift;
        assert_eq!(volume.reserve(available + 1, Privilege::None), Err(Error::NoSpace));
        assert_eq!(fill(&volume, Purpose::Data, Privilege::None), available, "{options}");
        assert_eq!(volume.statfs().blocks_available, 0);
        assert_eq!(volume.reserve(1, Privilege::None), Err(Error::NoSpace));
        let for_root = volume.superblock().counts.blocks_reserved >> shift;
        assert_eq!(fill(&volume, Purpose::Metadata, Privilege::Root), for_root, "{options}");
        let for_splitting = kernel_reserve(volume.geometry()) >> shift;
        assert_eq!(fill(&volume, Purpose::EndOfIo, Privilege::None), for_splitting, "{options}");
        assert_eq!(fill(&volume, Purpose::ReservedData, Privilege::None), 30, "{options}");
        assert_eq!(volume.statfs().blocks_free, 0);
        close(volume);
        assert!(free(&image).clusters.is_empty(), "{options}");
    }
}

#[test]
fn a_promise_that_is_taken_back_is_for_everybody() {
    let image = Image::make(16, &["-t", "ext4", "-m", "0"]);
    let volume = open_for_writing(&image);
    let available = volume.statfs().blocks_available;
    volume.reserve(available, Privilege::None).unwrap();
    assert_eq!(volume.take(0, 1, Purpose::Data), Err(Error::NoSpace));
    volume.unreserve(available).unwrap();
    assert!(volume.take(0, 1, Purpose::Data).is_ok());
    close(volume);
}

#[test]
fn freed_blocks_count_at_once_and_are_used_again_only_when_that_is_durable() {
    for options in ["-t ext4 -b 1024", "-t ext2 -b 1024"] {
        let image = Image::make(16, &options.split_whitespace().collect::<Vec<_>>());
        let volume = open_for_writing(&image);
        let kept = volume.take(0, 50, Purpose::Data).unwrap();
        fill(&volume, Purpose::Data, Privilege::Root);
        volume.sync().unwrap();
        let before = volume.statfs();
        volume.give(kept).unwrap();
        assert_eq!(volume.statfs().blocks_free, before.blocks_free + kept.1, "{options}");
        assert!(volume.has_deferred_space());
        let take = || {
            volume.change(ALLOCATE_CREDITS, |handle| {
                volume.allocate_blocks(handle, kept.0, 50, Purpose::Data, None)
            })
        };
        assert_eq!(take(), Err(Error::NoSpace), "{options}");
        assert_eq!(volume.with_space(take), Ok(kept), "{options}");
        assert!(!volume.has_deferred_space());
        assert_eq!(volume.with_space(take), Err(Error::NoSpace), "{options}");
        close(volume);
    }
}

#[test]
fn what_was_promised_can_be_had_from_what_others_freed() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024"]);
    let volume = open_for_writing(&image);
    let kept = volume.take(0, 50, Purpose::Data).unwrap();
    fill(&volume, Purpose::Data, Privilege::Root);
    volume.give(kept).unwrap();
    volume.reserve(kept.1, Privilege::Root).unwrap();
    let had = volume.with_space(|| volume.take(0, 50, Purpose::ReservedData));
    assert_eq!(had.unwrap().1, kept.1);
    close(volume);
}

#[test]
fn the_end_of_io_gets_what_others_freed() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024"]);
    let volume = open_for_writing(&image);
    let inode = new_file(&volume, "file");
    inode.preallocate(FileOffset(0)..FileOffset(16 << 10)).unwrap();
    let kept = volume.take(0, 50, Purpose::Data).unwrap();
    // Nothing is left for splitting extents either.
    fill(&volume, Purpose::EndOfIo, Privilege::Root);
    volume.give(kept).unwrap();
    // They make seven extents of one, for which the map needs a block.
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
fn the_last_inode_can_be_had() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-N", "64", "-g", "4096"]);
    let volume = open_for_writing(&image);
    let there = volume.statfs().inodes_free;
    let take = |is_directory| {
        volume.change(ALLOCATE_INODE_CREDITS, |handle| {
            volume.allocate_inode(handle, ROOT_INODE, is_directory)
        })
    };
    let mut taken: Vec<_> = (0..there).map(|index| take(index % 2 == 0).unwrap()).collect();
    assert_eq!(take(false), Err(Error::NoSpace));
    assert_eq!(take(true), Err(Error::NoSpace));
    assert_eq!(volume.statfs().inodes_free, 0);
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len() as u64, there);
    assert!(taken.iter().all(|&number| !volume.geometry().is_reserved_inode(number)));
    close(volume);
    assert!(free(&image).inodes.is_empty());
}

#[test]
fn root_and_those_whom_the_superblock_names_may_have_what_is_kept_back() {
    for (arguments, user, group) in
        [(&[][..], 0, None), (&["-u", "1000"], 1000, None), (&["-u", "7", "-g", "70"], 7, Some(70))]
    {
        let image = Image::make(16, &["-t", "ext4"]);
        if !arguments.is_empty() {
            common::run(Command::new("tune2fs").args(arguments).arg(&image.path));
        }
        let volume = open_for_writing(&image);
        let may = |uid, groups: &[u32]| {
            volume.privilege_of(uid, |gid| groups.contains(&gid)) == Privilege::Root
        };
        assert!(may(0, &[0]) && may(0, &[5]) && may(user, &[5]), "{arguments:?}");
        assert!(!may(1, &[0]) && !may(1, &[5]), "{arguments:?}");
        assert!(group.is_none_or(|group| may(1, &[5, group])), "{arguments:?}");
        close(volume);
    }
}
