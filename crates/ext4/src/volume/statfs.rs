//! Space and inode counts, computed as the Linux kernel computes those of `statfs(2)`.

use base::attributes::StatFs;
use base::{GroupNumber, Result};

use crate::alloc::kernel_reserve;
use crate::features::Feature;
use crate::volume::Volume;

/// The maximum number of groups whose counts are summed. With more groups, the sum would read too
/// much, and the superblock's counts are used.
const GROUPS_SUMMED_MAX: u32 = 1 << 22;
/// The longest name, in bytes.
pub(crate) const NAME_BYTES_MAX: u32 = 255;

/// The sums over the descriptors of all groups.
struct Sums {
    free_clusters: u64,
    free_inodes: u64,
    /// The clusters of bitmaps, inode tables and descriptors. `None` if only the superblock's
    /// counts are known.
    metadata_clusters: Option<u64>,
}

impl Volume {
    /// Returns the current space and inode counts. If the group descriptors cannot be read, the
    /// superblock's counts are used instead of their sums.
    pub fn statfs(&self) -> StatFs {
        let opened = self.statfs_at_open();
        let Some(writer) = &self.writer else { return opened };
        let geometry = self.geometry();
        let blocks_free = writer.allocator.free_clusters() << geometry.cluster_shift;
        let reserved = self.superblock().counts.blocks_reserved;
        let reserved = reserved.saturating_add(kernel_reserve(geometry));
        StatFs {
            blocks_free,
            blocks_available: blocks_free.saturating_sub(reserved),
            inodes_free: writer.allocator.free_inodes(),
            ..opened
        }
    }

    /// Returns the counts as they were at the first call.
    fn statfs_at_open(&self) -> StatFs {
        *self.statfs.get_or_init(|| {
            let superblock = self.superblock();
            let geometry = self.geometry();
            let counts = &superblock.counts;
            let sums = match self.sum_groups() {
                Ok(Some(sums)) => sums,
                failed => {
                    if let Err(error) = failed {
                        tracing::warn!(%error, "counts are taken from the superblock");
                    }
                    Sums {
                        free_clusters: counts.blocks_free >> geometry.cluster_shift,
                        free_inodes: counts.inodes_free.into(),
                        metadata_clusters: None,
                    }
                }
            };
            let overhead = self.overhead_clusters(sums.metadata_clusters) << geometry.cluster_shift;
            let blocks_free = sums.free_clusters << geometry.cluster_shift;
            let reserved = counts.blocks_reserved.saturating_add(kernel_reserve(geometry));
            StatFs {
                block_size: geometry.block_size.bytes(),
                blocks: geometry.block_count.saturating_sub(overhead),
                blocks_free,
                blocks_available: blocks_free.saturating_sub(reserved),
                inodes: geometry.inode_count.into(),
                inodes_free: sums.free_inodes,
                name_bytes_max: NAME_BYTES_MAX,
            }
        })
    }

    /// Returns the number of clusters that the format itself uses: metadata, the journal, and the
    /// blocks before group 0.
    fn overhead_clusters(&self, metadata_clusters: Option<u64>) -> u64 {
        let geometry = self.geometry();
        let recorded = u64::from(self.superblock().counts.overhead_clusters);
        let Some(metadata_clusters) = metadata_clusters else { return recorded };
        // The kernel trusts the recorded number only if its own sum would be slow.
        if geometry.features.has(Feature::Bigalloc)
            && (1..=geometry.block_count).contains(&recorded)
        {
            return recorded;
        }
        let journal = self.superblock().inodes.journal;
        let journal_bytes = journal
            .and_then(|number| self.inode_record(number).ok())
            .map_or(0, |record| record.size);
        let journal_blocks = journal_bytes >> geometry.block_size.shift();
        let before = geometry.first_data_block.0 >> geometry.cluster_shift;
        let journal_clusters = geometry.clusters_for(journal_blocks);
        metadata_clusters.saturating_add(journal_clusters).saturating_add(before)
    }

    /// Returns the sums of free clusters and inodes over all groups, if their descriptors can be
    /// read.
    pub(crate) fn free_counts(&self) -> Option<(u64, u64)> {
        let sums = self.sum_groups().ok().flatten()?;
        Some((sums.free_clusters, sums.free_inodes))
    }

    fn sum_groups(&self) -> Result<Option<Sums>> {
        let geometry = self.geometry();
        if geometry.group_count > GROUPS_SUMMED_MAX {
            return Ok(None);
        }
        let mut sums = Sums { free_clusters: 0, free_inodes: 0, metadata_clusters: None };
        let mut metadata_clusters = 0;
        // If clusters are larger than blocks, structures share clusters. Each cluster is counted
        // once.
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let table_blocks = u64::from(geometry.inode_table_blocks());
        for group in (0..geometry.group_count).map(GroupNumber) {
            let descriptor = self.group(group)?;
            let clusters = geometry.clusters_for(geometry.blocks_in_group(group));
            sums.free_clusters += u64::from(descriptor.free_clusters).min(clusters);
            sums.free_inodes += u64::from(descriptor.free_inodes.min(geometry.inodes_per_group));
            if geometry.cluster_shift == 0 {
                let leading = geometry.leading_metadata_blocks(group);
                metadata_clusters += leading + 2 + table_blocks;
                continue;
            }
            // Here the kernel does not count the blocks that are reserved for further descriptors.
            let leading = u64::from(geometry.has_superblock(group))
                + u64::from(geometry.descriptor_blocks_in_group(group));
            for (start, blocks) in [
                (geometry.group_start(group), leading),
                (descriptor.block_bitmap, 1),
                (descriptor.inode_bitmap, 1),
                (descriptor.inode_table, table_blocks),
            ] {
                if blocks > 0 {
                    let last = start.0 + blocks - 1;
                    ranges
                        .push((start.0 >> geometry.cluster_shift, last >> geometry.cluster_shift));
                }
            }
        }
        if geometry.cluster_shift > 0 {
            metadata_clusters = covered(&mut ranges);
        }
        sums.metadata_clusters = Some(metadata_clusters);
        Ok(Some(sums))
    }
}

/// Returns how many numbers are in at least one of the inclusive `ranges`.
fn covered(ranges: &mut [(u64, u64)]) -> u64 {
    ranges.sort_unstable();
    let mut next = 0;
    let mut count = 0;
    for &(first, last) in &*ranges {
        let first = first.max(next);
        if last >= first {
            count += last - first + 1;
            next = last + 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_count_once() {
        assert_eq!(covered(&mut [(5, 7), (0, 0), (6, 9), (9, 9), (20, 20)]), 7);
        assert_eq!(covered(&mut []), 0);
    }
}
