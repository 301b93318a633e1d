//! Delayed allocation: the blocks of a file that have data in the cache but none on the device, and
//! the clusters that are reserved for them. Not here: the volume's count of free clusters.

use std::ops::Range;

use base::{FileBlock, Ranges};

/// The delayed blocks of one inode.
#[derive(Debug, Default)]
pub struct Delayed {
    blocks: Ranges,
    /// The clusters of the file for which a cluster of the volume is reserved. If a cluster is one
    /// block, these are the ranges of `blocks`.
    clusters: Ranges,
    /// The number of `clusters`.
    reserved: u64,
}

/// A range of a file's blocks that are either all delayed or all not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Around {
    /// The blocks.
    pub range: Range<FileBlock>,
    /// Whether they are delayed.
    pub is_delayed: bool,
}

impl Delayed {
    /// Returns the number of reserved clusters.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the delayed blocks from `at` on, up to the first one that is not delayed. Returns
    /// `None` if `at` is not delayed.
    pub fn run_at(&self, at: FileBlock) -> Option<Range<FileBlock>> {
        self.blocks.containing(at.0).map(|range| at..FileBlock(range.end))
    }

    /// Returns whether any block from `at` on is delayed.
    pub fn has_from(&self, at: FileBlock) -> bool {
        self.blocks.next_from(at.0).is_some()
    }

    /// Returns the longest range around `at` whose blocks are either all delayed or all not.
    pub fn around(&self, at: FileBlock) -> Around {
        let (range, is_delayed) = match self.blocks.containing(at.0) {
            Some(range) => (range, true),
            None => (self.blocks.gap_around(at.0), false),
        };
        Around { range: FileBlock(range.start)..FileBlock(range.end), is_delayed }
    }

    /// Returns the number of clusters that must be reserved for `blocks` in addition to the
    /// reserved ones. Calls `has_cluster` for the first and the last cluster of the range, to find
    /// whether the file has it already. The file has none of the clusters between them.
    pub fn clusters_wanted(
        &self,
        blocks: &Range<FileBlock>,
        cluster_shift: u32,
        has_cluster: impl Fn(u64) -> bool,
    ) -> u64 {
        let clusters = clusters_of(blocks, cluster_shift);
        if clusters.is_empty() {
            return 0;
        }
        let ends = [clusters.start, clusters.end - 1];
        let distinct = if ends[0] == ends[1] { 1 } else { 2 };
        let existing = ends[..distinct]
            .iter()
            .filter(|&&cluster| !self.clusters.contains(cluster) && has_cluster(cluster))
            .count() as u64;
        self.clusters.missing(&clusters) - existing
    }

    /// Adds blocks, and reserved clusters for them except those that the file has already. The
    /// caller has reserved [`clusters_wanted`](Self::clusters_wanted).
    pub fn insert(
        &mut self,
        blocks: &Range<FileBlock>,
        cluster_shift: u32,
        has_cluster: impl Fn(u64) -> bool,
    ) {
        self.blocks.insert(blocks.start.0..blocks.end.0);
        let mut clusters = clusters_of(blocks, cluster_shift);
        let skip = |cluster: u64| !self.clusters.contains(cluster) && has_cluster(cluster);
        if skip(clusters.start) {
            clusters.start += 1;
        }
        if clusters.start < clusters.end && skip(clusters.end - 1) {
            clusters.end -= 1;
        }
        self.reserved += self.clusters.missing(&clusters);
        self.clusters.insert(clusters);
    }

    /// Removes blocks that were allocated, and the reserved clusters that the allocation has used.
    pub fn remove_allocated(&mut self, blocks: &Range<FileBlock>, cluster_shift: u32) {
        self.blocks.remove(blocks.start.0..blocks.end.0);
        self.reserved -= self.clusters.remove(clusters_of(blocks, cluster_shift));
    }

    /// Removes blocks whose data was dropped. Returns the number of clusters whose reservation the
    /// caller releases.
    pub fn remove(&mut self, blocks: &Range<FileBlock>, cluster_shift: u32) -> u64 {
        self.blocks.remove(blocks.start.0..blocks.end.0);
        let mut clusters = clusters_of(blocks, cluster_shift);
        // A cluster stays reserved if another of its blocks is still delayed.
        let keeps = |cluster: u64| {
            let first = cluster << cluster_shift;
            self.blocks.next_from(first).is_some_and(|next| next >> cluster_shift == cluster)
        };
        if clusters.start < clusters.end && keeps(clusters.start) {
            clusters.start += 1;
        }
        if clusters.start < clusters.end && keeps(clusters.end - 1) {
            clusters.end -= 1;
        }
        let removed = self.clusters.remove(clusters);
        self.reserved -= removed;
        removed
    }
}

fn clusters_of(blocks: &Range<FileBlock>, cluster_shift: u32) -> Range<u64> {
    if blocks.start >= blocks.end {
        return 0..0;
    }
    blocks.start.0 >> cluster_shift..((blocks.end.0 - 1) >> cluster_shift) + 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, length: u64) -> Range<FileBlock> {
        FileBlock(start)..FileBlock(start + length)
    }

    proptest! {
        #[test]
        fn blocks_and_reservations_agree_with_sets(
            steps in prop::collection::vec((any::<bool>(), 0..60_u64, 1..20_u64), 1..60),
            shift in 0..4_u32,
            mapped in prop::collection::btree_set(0..10_u64, 0..4),
        ) {
            let mut delayed = Delayed::default();
            let (mut blocks, mut reserved) = (BTreeSet::new(), BTreeSet::<u64>::new());
            // As in a real file, only the first and the last cluster of a written range may exist
            // already.
            for (is_insert, start, length) in steps {
                let range = range(start, length);
                let all: Vec<u64> = (start..start + length).collect();
                let clusters: BTreeSet<u64> = all.iter().map(|at| at >> shift).collect();
                let ends = [*clusters.first().unwrap(), *clusters.last().unwrap()];
                let has = |cluster: u64| ends.contains(&cluster) && mapped.contains(&cluster);
                if is_insert {
                    let wanted = clusters
                        .iter()
                        .filter(|&&one| !reserved.contains(&one) && !has(one))
                        .count() as u64;
                    prop_assert_eq!(delayed.clusters_wanted(&range, shift, has), wanted);
                    delayed.insert(&range, shift, has);
                    blocks.extend(all);
                    reserved.extend(clusters.into_iter().filter(|&one| !has(one)));
                } else {
                    for at in &all {
                        blocks.remove(at);
                    }
                    let before = reserved.len();
                    reserved.retain(|one| {
                        !clusters.contains(one) || blocks.iter().any(|at| at >> shift == *one)
                    });
                    let freed = (before - reserved.len()) as u64;
                    prop_assert_eq!(delayed.remove(&range, shift), freed);
                }
                prop_assert_eq!(delayed.reserved(), reserved.len() as u64);
                for at in 0..80 {
                    prop_assert_eq!(delayed.clusters.contains(at), reserved.contains(&at));
                    prop_assert_eq!(delayed.run_at(FileBlock(at)).is_some(), blocks.contains(&at));
                    let around = delayed.around(FileBlock(at));
                    prop_assert_eq!(around.is_delayed, blocks.contains(&at));
                    let FileBlock(end) = around.range.end;
                    let same = (at..end.min(80)).all(|one| blocks.contains(&one) == around.is_delayed);
                    prop_assert!(same && (end >= 80 || blocks.contains(&end) != around.is_delayed));
                }
            }
        }
    }
}
