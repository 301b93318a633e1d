//! Space and inode counts, computed as the Linux kernel computes those of `statfs(2)`.

use base::attributes::StatFs;
use base::{GroupNumber, Result};

use crate::features::Feature;
use crate::layout::geometry::Geometry;
use crate::volume::Volume;

/// With more groups, the superblock's counts must do: a sum would read too much.
const GROUPS_SUMMED_MAX: u32 = 1 << 22;
/// The kernel keeps this part of the clusters, and no more than this many, for its own use.
const KERNEL_RESERVE_DIVISOR: u64 = 50;
const KERNEL_RESERVE_MAX: u64 = 4096;
/// The longest name, in bytes.
pub(crate) const NAME_BYTES_MAX: u32 = 255;

/// What the descriptors of all groups add up to.
struct Sums {
    free_clusters: u64,
    free_inodes: u64,
    /// Clusters that bitmaps, inode tables and descriptors take up.
    metadata_clusters: u64,
}

impl Volume {
    /// Space and inode counts, as they are now. Where the group descriptors cannot be read, the
    /// superblock's counts stand in for their sums.
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

    /// The counts as they were when they were first asked for.
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
                        metadata_clusters: counts.overhead_clusters.into(),
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

    /// Clusters that the format itself uses: metadata, the journal, what precedes group 0.
    fn overhead_clusters(&self, metadata_clusters: u64) -> u64 {
        let geometry = self.geometry();
        let recorded = u64::from(self.superblock().counts.overhead_clusters);
        // The kernel trusts the recorded number only where its own sum would be slow.
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

    fn sum_groups(&self) -> Result<Option<Sums>> {
        let geometry = self.geometry();
        if geometry.group_count > GROUPS_SUMMED_MAX {
            return Ok(None);
        }
        let mut sums = Sums { free_clusters: 0, free_inodes: 0, metadata_clusters: 0 };
        // With clusters larger than blocks, structures share clusters: count each only once.
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let table_blocks = u64::from(geometry.inode_table_blocks());
        for group in (0..geometry.group_count).map(GroupNumber) {
            let descriptor = self.group(group)?;
            let clusters = geometry.clusters_for(geometry.blocks_in_group(group));
            sums.free_clusters += u64::from(descriptor.free_clusters).min(clusters);
            sums.free_inodes += u64::from(descriptor.free_inodes.min(geometry.inodes_per_group));
            if geometry.cluster_shift == 0 {
                let leading = geometry.leading_metadata_blocks(group);
                sums.metadata_clusters += leading + 2 + table_blocks;
                continue;
            }
            // Here the kernel leaves out the blocks kept for more descriptors.
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
            sums.metadata_clusters = covered(&mut ranges);
        }
        Ok(Some(sums))
    }
}

/// How many numbers the inclusive `ranges` cover together.
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

/// Blocks that the kernel keeps back when it mounts, so that extents can always be split.
pub(crate) fn kernel_reserve(geometry: &Geometry) -> u64 {
    if !geometry.features.has(Feature::Extent) {
        return 0;
    }
    let clusters = geometry.block_count >> geometry.cluster_shift;
    (clusters / KERNEL_RESERVE_DIVISOR).min(KERNEL_RESERVE_MAX) << geometry.cluster_shift
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
