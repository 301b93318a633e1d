//! Positions of buckets: the blocks that can have a name with a hash.
//! Not here: reading them.
//!
//! Source: kernel documentation, `filesystems/f2fs.rst`, "Directory Structure".

use std::ops::Range;

use base::FileBlock;

/// Maximum number of levels.
pub(crate) const DEPTH_MAX: u32 = 63;
/// From this level on, a bucket has 4 blocks and the number of buckets does not grow.
const LARGE_LEVEL: u32 = DEPTH_MAX / 2;
/// Maximum number of buckets of a level.
const BUCKETS_MAX: u64 = 1 << (LARGE_LEVEL - 1);

/// Returns the number of buckets of a level.
pub(crate) fn bucket_count(level: u32, dir_level: u8) -> u64 {
    match level + u32::from(dir_level) {
        shift if shift < LARGE_LEVEL => 1 << shift,
        _ => BUCKETS_MAX,
    }
}

/// Returns the number of blocks of each bucket of a level.
pub(crate) fn bucket_blocks(level: u32) -> u64 {
    if level < LARGE_LEVEL { 2 } else { 4 }
}

/// Returns the blocks of the bucket for `hash` in each of the first `depth` levels.
pub(crate) fn buckets(
    hash: u32,
    depth: u32,
    dir_level: u8,
) -> impl Iterator<Item = Range<FileBlock>> {
    let mut level_start = 0;
    (0..depth.min(DEPTH_MAX)).map(move |level| {
        // No overflow: the blocks of all levels are fewer than 2^38.
        let (count, blocks) = (bucket_count(level, dir_level), bucket_blocks(level));
        let start = level_start + u64::from(hash) % count * blocks;
        level_start += count * blocks;
        FileBlock(start)..FileBlock(start + blocks)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(hash: u32, depth: u32, dir_level: u8, expected: &[Range<u64>]) {
        let found: Vec<_> =
            buckets(hash, depth, dir_level).map(|blocks| blocks.start.0..blocks.end.0).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn buckets_of_a_level_follow_those_of_lower_levels() {
        check(6, 0, 0, &[]);
        check(6, 4, 0, &[0..2, 2..4, 6 + 4..6 + 6, 14 + 12..14 + 14]);
        check(6, 2, 2, &[4..6, 8 + 12..8 + 14]);
    }

    #[test]
    fn the_number_of_buckets_stops_growing_and_buckets_become_larger() {
        assert_eq!(bucket_count(30, 0), 1 << 30);
        assert_eq!(bucket_count(31, 0), 1 << 30);
        assert_eq!(bucket_count(0, 255), 1 << 30);
        assert_eq!((bucket_blocks(30), bucket_blocks(31)), (2, 4));
        assert_eq!(buckets(u32::MAX, u32::MAX, 255).count(), 63);
        let last = buckets(u32::MAX, 63, 255).last().unwrap();
        assert!(last.end.0 <= super::super::BLOCKS_MAX, "{last:?}");
    }
}
