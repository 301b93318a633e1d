//! Claimed clusters: those that the check has found in use. Not here: the clusters of one group
//! (`group_claims`).

use std::collections::HashMap;
use std::ops::Range;

use base::{FsBlock, GroupNumber};

use super::group_claims::GroupClaims;
use crate::layout::geometry::Geometry;

pub(crate) struct Claims {
    first_data_block: u64,
    blocks_per_group: u64,
    cluster_shift: u32,
    groups: HashMap<GroupNumber, GroupClaims>,
    /// The number of claims of clusters that were claimed already.
    shared: u64,
}

/// Clusters of one group.
struct Part {
    group: GroupNumber,
    clusters: Range<u32>,
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

    /// Claims the clusters of `blocks` blocks from `start` on, which are in the volume. If some of
    /// them were claimed already, returns the first block of the first of these, and their number.
    pub(crate) fn claim(&mut self, start: FsBlock, blocks: u64) -> Option<(FsBlock, u64)> {
        let length = (self.blocks_per_group >> self.cluster_shift) as u32;
        let (mut shared, mut first_shared) = (0, None);
        for Part { group, clusters } in self.parts(start, blocks) {
            let claims = self.groups.entry(group).or_default();
            if let Some((first, count)) = claims.claim(clusters, length) {
                shared += u64::from(count);
                first_shared.get_or_insert((group, first.into()));
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

    /// Sets the bits of the claimed clusters of a group in `words`, which have 64 bits each.
    pub(crate) fn copy_group(&self, group: GroupNumber, words: &mut [u64]) {
        if let Some(claims) = self.groups.get(&group) {
            claims.copy_to(words);
        }
    }

    /// Returns the number of claimed clusters.
    pub(crate) fn count(&self) -> u64 {
        self.groups.values().map(GroupClaims::count).sum()
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
            // Groups have less than 2^32 blocks.
            let (first, last) = ((within >> shift) as u32, ((within + length - 1) >> shift) as u32);
            Some(Part { group: GroupNumber(group as u32), clusters: first..last + 1 })
        })
    }
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
            runs in prop_oneof![
                proptest::collection::vec((1_u64..39_000, 1_u64..900), 1..20),
                // So many that groups are no longer kept as runs.
                proptest::collection::vec((1_u64..39_900, 1_u64..30), 1..200),
            ],
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
                let mut words = vec![0; (per_group as usize).div_ceil(64)];
                claims.copy_group(GroupNumber(group), &mut words);
                let bits = words.iter().flat_map(|word| (0..64).map(move |bit| word >> bit & 1));
                for (is_set, cluster) in bits.zip(u64::from(group) * per_group..) {
                    prop_assert_eq!(is_set == 1, set.contains(&cluster));
                }
            }
        }
    }
}
