//! Tests of the reservations for blocks of pointers, by random changes of files on a volume that
//! becomes full.

use std::sync::Arc;

use base::attributes::Timestamp;
use base::space::ReserveAccess;
use base::{Error, FileOffset};
use iomap::{FinishedRange, IomapKind, MapWrite};
use testkit::Random;

use super::*;
use crate::common::{Image, new_file, open_for_writing};
use crate::volume::Volume;

/// The number of blocks for all files.
const BLOCKS: u64 = 500;

/// Compares the reservations of all `files`, besides `others`, with what their delayed blocks need.
fn check(volume: &Volume, files: &[Arc<Inode>], others: u64) {
    let mut total = others;
    for inode in files {
        let reserved = inode.allocation_lock.lock();
        let mut expected = PointerBlocks::default();
        let mut at = FileBlock(0);
        while at < inode.map_end() {
            let around = inode.delayed.lock().around(at);
            if around.is_delayed {
                let missing = missing_pointer_blocks(volume, &inode.record(), &around.range);
                expected.insert_all(&missing.unwrap());
            }
            at = around.range.end;
        }
        let numbers = |of: &PointerBlocks| -> Vec<Vec<u64>> {
            (1..=LEVELS).map(|level| of.level(level).iter().flatten().collect()).collect()
        };
        assert_eq!(numbers(&reserved), numbers(&expected), "{inode:?}");
        assert_eq!(reserved.count(), numbers(&expected).concat().len() as u64);
        total += inode.delayed.lock().reserved() + reserved.count();
    }
    // Each allocation takes its blocks from the reservations, so that the sums differ if it takes
    // others.
    assert_eq!(volume.writer().unwrap().allocator.reserved_clusters(), total);
}

/// Returns a block in any of the trees, in particular near their ends.
fn any_block(random: &mut Random, per_block: u64, end: u64) -> u64 {
    let (first, second) = (12 + per_block, 12 + per_block + per_block * per_block);
    let (start, length) = match random.below(5) {
        0 => (0, 40),
        1 => (first - 20, 40),
        2 => (12, 3 * per_block),
        3 => (second.saturating_sub(3 * per_block), 6 * per_block),
        _ => (0, end),
    };
    (start + random.below(length)).min(end - 64)
}

/// Allocates delayed blocks from `at` on, and completes their write. Blocks that are not delayed
/// are skipped.
fn write_back(inode: &Inode, at: FileBlock, end: FileBlock) {
    let shift = inode.volume().geometry().block_size.shift();
    let mut at = at;
    while at < end {
        let around = inode.delayed.lock().around(at);
        let part = at..around.range.end.min(end);
        at = part.end;
        if !around.is_delayed {
            continue;
        }
        let mut next = part.start;
        while next < part.end {
            let offset = FileOffset(next.0 << shift);
            let left = (part.end.0 - next.0) << shift;
            let map = inode.map_writeback(offset, left).expect("space is reserved");
            let length = left.min(map.end() - offset.0);
            let done = FinishedRange { offset, length, kind: IomapKind::Mapped, token: None };
            inode.end_io(&[done], FileOffset(0)).unwrap();
            next = FileBlock(next.0 + (length >> shift));
        }
    }
}

fn change_at_random(options: &str, seed: u64) {
    let arguments: Vec<&str> = options.split_whitespace().collect();
    let image = Image::make(6, &arguments);
    let volume = open_for_writing(&image);
    let shift = volume.geometry().block_size.shift();
    let per_block = u64::from(volume.geometry().block_size.bytes()) / 4;
    let files: Vec<_> = ["a", "b"].map(|name| new_file(&volume, name)).into();
    let time = Timestamp { seconds: 1, nanoseconds: 0 };
    for inode in &files {
        // All blocks are before the end.
        inode.set_size(inode.size_max() & !((1 << shift) - 1), false, time).unwrap();
    }
    let others = volume.statfs().blocks_free - BLOCKS;
    volume.allocator().unwrap().reserve(others, ReserveAccess::Root).unwrap();
    let (mut random, mut shortages) = (Random(seed), 0);
    for step in 0..2500 {
        let inode = &files[random.below(2) as usize];
        let end = inode.size() >> shift;
        let at = any_block(&mut random, per_block, end);
        let count = 1 + random.below(60);
        let (offset, bytes) = (FileOffset(at << shift), count << shift);
        let blocks = FileBlock(at)..FileBlock(at + count);
        // Mostly writes, and sometimes almost everything is removed.
        match random.below(40) {
            0..20 => match inode.map_write(offset, bytes) {
                Ok(_) => {}
                Err(Error::NoSpace) => shortages += 1,
                Err(error) => panic!("{options}, seed {seed}, step {step}: {error}"),
            },
            20..24 => inode.end_write(offset..FileOffset(offset.0 + bytes)),
            24..31 => write_back(inode, blocks.start, blocks.end),
            31..33 => write_back(inode, FileBlock(0), FileBlock(end)),
            33..39 => inode.unmap_all(blocks).unwrap(),
            _ => inode.unmap_all(FileBlock(at / 2)..FileBlock(end)).unwrap(),
        }
        check(&volume, &files, others);
    }
    assert!(shortages > 10, "{options}: the volume was short of space {shortages} times");
    for inode in &files {
        write_back(inode, FileBlock(0), inode.map_end());
    }
    check(&volume, &files, others);
    assert_eq!(volume.writer().unwrap().allocator.reserved_clusters(), others);
    volume.allocator().unwrap().unreserve(others);
    drop(files);
    volume.close().unwrap();
    image.check_by_e2fsck();
}

#[test]
fn each_missing_block_of_pointers_that_delayed_blocks_need_is_reserved_once() {
    for (seed, options) in [
        (1, "-t ext3 -b 1024 -J size=1 -m 0"),
        (2, "-t ext2 -b 1024 -m 0"),
        (3, "-t ext2 -b 4096 -m 0"),
        (4, "-t ext4 -b 1024 -O ^extent,^64bit -J size=1 -m 0"),
    ] {
        change_at_random(options, seed);
    }
}
