//! Claimed clusters: those that the check has found in use. One bit for each cluster, in groups with claimed clusters.

use std::collections::HashMap;

use base::{FsBlock, GroupNumber};

use crate::layout::geometry::Geometry;

const WORD_BITS: u64 = u64::BITS as u64;

pub(crate) struct Claims {
    first_data_block: u64,
    blocks_per_group: u64,
    cluster_shift: u32,
    groups: HashMap<GroupNumber, Box<[u64]>>,
    /// The number of claims of clusters that were claimed already.
    shared: u64,
}

/// Clusters of one group.
struct Part {
    group: GroupNumber,
    first: u64,
    count: u64,
}

impl Claims {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            first_data_block: geometry.first_data_block.0,
            blocks_per_group: geometry.blocks_per_group.into(),
            cluster_shift: geometry.cluster_shift,
            groups: HashMap::new(),
            shared: 0,
        }
    }

    /// Claims the clusters of `blocks` blocks from `start` on, which are in the volume. If some of them were claimed
    /// already, returns the first block of the first of these, and their number.
    pub(crate) fn claim(&mut self, start: FsBlock, blocks: u64) -> Option<(FsBlock, u64)> {
        let words = (self.blocks_per_group >> self.cluster_shift).div_ceil(WORD_BITS) as usize;
        let (mut shared, mut first_shared) = (0, None);
        for part in self.parts(start, blocks) {
            let group_words =
                self.groups.entry(part.group).or_insert_with(|| vec![0; words].into());
            for (index, mask) in masks(part.first, part.count) {
                let Some(word) = group_words.get_mut(index) else { continue };
                let before = *word & mask;
                *word |= mask;
                if before != 0 {
                    shared += u64::from(before.count_ones());
                    let cluster = index as u64 * WORD_BITS + u64::from(before.trailing_zeros());
                    first_shared.get_or_insert((part.group, cluster));
                }
            }
        }
        self.shared += shared;
        first_shared.map(|(group, cluster)| (self.block(group, cluster), shared))
    }

    /// Claims blocks of the format's own structures, which may share clusters.
    pub(crate) fn claim_structure(&mut self, start: FsBlock, blocks: u64) {
        let shared = self.shared;
        self.claim(start, blocks);
        self.shared = shared;
    }

    /// Returns the bits of a group, 64 in each word; `None` if no cluster of it is claimed.
    pub(crate) fn group(&self, group: GroupNumber) -> Option<&[u64]> {
        self.groups.get(&group).map(|words| &**words)
    }

    /// Returns the number of claimed clusters.
    pub(crate) fn count(&self) -> u64 {
        let words = self.groups.values().flat_map(|words| words.iter());
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the number of claims of clusters that were claimed already.
    pub(crate) fn shared(&self) -> u64 {
        self.shared
    }

    /// Returns the first block of a group's cluster.
    pub(crate) fn block(&self, group: GroupNumber, cluster: u64) -> FsBlock {
        let start = self.first_data_block + u64::from(group.0) * self.blocks_per_group;
        FsBlock(start + (cluster << self.cluster_shift))
    }

    fn parts(&self, start: FsBlock, blocks: u64) -> impl Iterator<Item = Part> + use<> {
        let (per_group, shift) = (self.blocks_per_group, self.cluster_shift);
        // The end is in the volume, whose size in bytes fits in 64 bits.
        let mut at = start.0.saturating_sub(self.first_data_block);
        let end = at + blocks;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (group, within) = (at / per_group, at % per_group);
            let length = (end - at).min(per_group - within);
            at += length;
            let (first, last) = (within >> shift, (within + length - 1) >> shift);
            Some(Part { group: GroupNumber(group as u32), first, count: last - first + 1 })
        })
    }
}

/// Returns the words that contain `count` bits from `first` on, each with a mask of these bits.
fn masks(first: u64, count: u64) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / WORD_BITS..end.div_ceil(WORD_BITS)).map(move |word| {
        let low = first.saturating_sub(word * WORD_BITS);
        let high = (end - word * WORD_BITS).min(WORD_BITS);
        (word as usize, (u64::MAX >> (WORD_BITS - (high - low))) << low)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::layout::geometry::tests::plain;

    proptest! {
        #[test]
        fn claims_equal_a_set_of_clusters(
            runs in proptest::collection::vec((1_u64..39_000, 1_u64..900), 1..20),
            cluster_shift in 0_u32..5,
        ) {
            let mut claims = Claims::new(&Geometry { cluster_shift, ..plain() });
            let mut set = BTreeSet::new();
            for (start, blocks) in runs {
                let clusters = start >> cluster_shift..=(start + blocks - 1) >> cluster_shift;
                let shared: Vec<u64> = clusters.clone().filter(|at| set.contains(at)).collect();
                let expected = shared
                    .first()
                    .map(|first| (FsBlock(first << cluster_shift), shared.len() as u64));
                prop_assert_eq!(claims.claim(FsBlock(start), blocks), expected);
                set.extend(clusters);
            }
            prop_assert_eq!(claims.count(), set.len() as u64);
            let per_group = 32_768 >> cluster_shift;
            for group in 0..2 {
                let words = claims.group(GroupNumber(group)).unwrap_or_default();
                let bits = words.iter().flat_map(|word| (0..64).map(move |bit| word >> bit & 1));
                for (is_set, cluster) in bits.zip(u64::from(group) * per_group..) {
                    prop_assert_eq!(is_set == 1, set.contains(&cluster));
                }
            }
        }
    }
}
