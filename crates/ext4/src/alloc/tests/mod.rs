//! Tests of allocating and freeing on real images. e2fsprogs judges the bitmaps and counts.

mod damage;
mod inodes;
mod permitted;
mod preallocation;
mod random;
mod space;

use std::collections::BTreeSet;

use base::FsBlock;

use super::*;
use crate::common::{self, Image, open_for_writing};
use crate::volume::Volume;

fn close(volume: Arc<Volume>) {
    volume.close().unwrap();
    assert_eq!(Arc::strong_count(&volume), 1, "the device is still in use");
}

impl Volume {
    /// Allocates blocks in a transaction of its own.
    fn allocate(&self, goal: u64, wanted: u64, purpose: Purpose) -> Result<(FsBlock, u64)> {
        self.allocate_with_preallocation(goal, wanted, purpose, None)
    }

    /// Allocates blocks in a transaction of its own, with a preallocation.
    fn allocate_with_preallocation(
        &self,
        goal: u64,
        wanted: u64,
        purpose: Purpose,
        preallocation: Option<Preallocation>,
    ) -> Result<(FsBlock, u64)> {
        self.change(ALLOCATE_CREDITS, |handle| {
            let goal = Goal::in_any_group(FsBlock(goal));
            self.allocator()?.allocate_blocks(handle, goal, wanted, purpose, preallocation)
        })
    }

    /// Frees blocks that were allocated by one call.
    fn free(&self, (start, count): (FsBlock, u64)) -> Result<()> {
        // Such blocks are in one group.
        self.change(FREE_CREDITS, |handle| self.allocator()?.free_blocks(handle, start, count))
    }
}

/// The free clusters, by their first blocks, and the free inodes of an image.
#[derive(PartialEq, Eq, Debug)]
struct Free {
    clusters: BTreeSet<u64>,
    inodes: BTreeSet<u64>,
}

/// Returns the free clusters and inodes that dumpe2fs lists. Checks that its counts, of groups and
/// of the volume, match the lists. dumpe2fs refuses bitmaps with wrong checksums.
fn free(image: &Image) -> Free {
    let text = image.dumpe2fs(&[]);
    let (header, groups) = text.split_once("\nGroup 0:").unwrap();
    let list = |label: &str, step: u64| {
        let lines = groups.lines().filter_map(|line| line.trim().strip_prefix(label));
        let ranges = lines.flat_map(|line| line.split(',')).filter(|part| !part.trim().is_empty());
        let numbers = ranges.flat_map(|range| {
            let (first, last) = range.trim().split_once('-').unwrap_or((range, range));
            let last = last.trim().parse().unwrap();
            (first.trim().parse::<u64>().unwrap()..=last).step_by(step as usize)
        });
        numbers.collect::<BTreeSet<u64>>()
    };
    let in_header = |label| common::number_after(header, label);
    let cluster =
        in_header("Cluster size:").map_or(1, |size| size / in_header("Block size:").unwrap());
    // As the end of a range of clusters, it prints the first block of the last cluster.
    let clusters = list("Free blocks: ", cluster);
    let inodes = list("Free inodes: ", 1);
    let counts = groups.lines().map(str::trim).filter_map(|line| {
        [" free blocks, ", " free clusters, "].iter().find_map(|middle| line.split_once(middle))
    });
    let (mut free_clusters, mut free_inodes) = (0, 0);
    for (count, rest) in counts {
        free_clusters += count.parse::<u64>().unwrap();
        free_inodes += common::number_after(rest, "").unwrap();
    }
    assert_eq!(Some(free_clusters * cluster), in_header("Free blocks:"));
    assert_eq!(free_clusters, clusters.len() as u64);
    assert_eq!(Some(free_inodes), in_header("Free inodes:"));
    assert_eq!(free_inodes, inodes.len() as u64);
    Free { clusters, inodes }
}
