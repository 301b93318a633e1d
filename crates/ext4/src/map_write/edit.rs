//! Framework of a change of one inode's map: it holds the map's lock, allocates and frees blocks,
//! and finally updates the inode and the cached extents. Not here: the changes themselves.

use std::sync::Arc;

use base::{Error, FsBlock, GroupNumber, Location, Result};
use fs::MapChange;
use iomap::MetadataBuffer;

use super::pointers::{POINTED_END, Pointers};
use super::tree::{NodeStore, Tree};
use crate::alloc::{ALLOCATE_CREDITS, FREE_METADATA_CREDITS, Goal, Preallocation, Purpose};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::journal::Handle;
use crate::layout::geometry::Geometry;
use crate::volume::Volume;

const STRUCTURE: &str = "map of a file";
/// Maximum number of map blocks that one change adds.
const NODES_ADDED_MAX: u64 = 8;

/// Returns the credits for a change within one leaf of a tree of `depth` levels below the root. The
/// change writes the nodes on the path to the leaf, and may split each of them and the root, or
/// free each.
pub(super) fn tree_credits(depth: u16) -> u32 {
    let depth = u32::from(depth);
    let split = depth + (depth + 1) * (1 + ALLOCATE_CREDITS);
    split.max(depth * FREE_METADATA_CREDITS)
}

/// Returns the credits for a change of pointers in one block, at the end of a path of `levels`
/// blocks. Each block may be added or freed.
pub(super) fn map_credits(levels: u32) -> u32 {
    levels * (1 + ALLOCATE_CREDITS).max(FREE_METADATA_CREDITS)
}

/// A change of a map in progress.
pub(super) struct MapEdit<'e, 'h, 'j> {
    pub inode: &'e Inode,
    /// The record before the change.
    pub record: Arc<InodeRecord>,
    pub map: Map<'e>,
    pub blocks: MapBlocks<'e, 'h, 'j>,
    pub change: MapChange<'e>,
    /// The new size in bytes, if it changes.
    pub size: Option<u64>,
}

/// A map of one of the two kinds.
pub(super) enum Map<'e> {
    Extents(Tree<'e>),
    Pointers(Pointers<'e>),
}

/// Access to the blocks of a map: its nodes, and data blocks.
pub(super) struct MapBlocks<'e, 'h, 'j> {
    pub volume: &'e Volume,
    pub handle: &'h mut Handle<'j>,
    /// The purpose for which nodes are allocated.
    pub purpose: Purpose,
    /// The number of allocated clusters, minus that of freed ones.
    pub clusters: i64,
    /// Whether a node was changed, or a block in use was freed.
    pub is_touched: bool,
    /// The number of groups, from the first one on, whose blocks the map can refer to.
    pub groups: u32,
}

impl Inode {
    /// Runs `operation` with the inode's map; nodes are allocated for `purpose`.
    pub(super) fn edit_map<'j, R>(
        &self,
        handle: &mut Handle<'j>,
        purpose: Purpose,
        operation: impl FnOnce(&mut MapEdit<'_, '_, 'j>) -> Result<R>,
    ) -> Result<R> {
        self.edit_locked_map(handle, purpose, self.map.change(), operation)
    }

    /// [`edit_map`](Self::edit_map) for callers that hold the map's lock.
    pub(super) fn edit_locked_map<'j, R>(
        &self,
        handle: &mut Handle<'j>,
        purpose: Purpose,
        change: MapChange<'_>,
        operation: impl FnOnce(&mut MapEdit<'_, '_, 'j>) -> Result<R>,
    ) -> Result<R> {
        if self.has(InodeFlags::INLINE_DATA) || !self.has_map() {
            return Err(Error::WrongType("files of this type have no data blocks"));
        }
        let (had_changes, changes) = (handle.has_changes(), handle.changes());
        let (volume, record) = (&**self.volume(), self.record());
        let groups = match self.has(InodeFlags::EXTENTS) {
            true => u32::MAX,
            false => volume.geometry().groups_before(POINTED_END),
        };
        let blocks = MapBlocks { volume, handle, purpose, clusters: 0, is_touched: false, groups };
        let map = Map::new(volume, &record);
        let mut edit = MapEdit { inode: self, record, map, blocks, change, size: None };
        match operation(&mut edit) {
            Ok(result) => {
                if edit.blocks.handle.changes() != changes {
                    // Needed if only nodes outside of the inode were changed.
                    self.note_change(edit.blocks.handle);
                }
                edit.finish()?;
                Ok(result)
            }
            Err(error) => {
                if !edit.blocks.is_touched {
                    // All allocations were undone, and the map is unchanged.
                    if !had_changes {
                        edit.blocks.handle.mark_undone();
                    }
                    edit.change.finish();
                }
                Err(error)
            }
        }
    }
}

impl<'e> Map<'e> {
    pub(super) fn new(volume: &'e Volume, record: &InodeRecord) -> Self {
        let validity = volume.block_validity(record.number);
        let (area, inode) = (record.block_area, record.number);
        if record.flags.contains(InodeFlags::EXTENTS) {
            let (checksum_seed, node_bytes) =
                (record.checksum_seed, volume.geometry().block_size.len());
            Self::Extents(Tree { area, validity, inode, checksum_seed, node_bytes })
        } else {
            Self::Pointers(Pointers { area, validity, inode })
        }
    }

    pub(super) fn tree(&mut self) -> Result<&mut Tree<'e>> {
        match self {
            Self::Extents(tree) => Ok(tree),
            Self::Pointers(_) => Err(super::pointers::NEEDS_EXTENTS.into()),
        }
    }

    fn area(&self) -> &[u8; 60] {
        match self {
            Self::Extents(tree) => &tree.area,
            Self::Pointers(pointers) => &pointers.area,
        }
    }
}

impl<'e, 'h, 'j> MapEdit<'e, 'h, 'j> {
    /// Returns the map as an extent tree, and its blocks.
    pub(super) fn tree(&mut self) -> Result<(&mut Tree<'e>, &mut MapBlocks<'e, 'h, 'j>)> {
        Ok((self.map.tree()?, &mut self.blocks))
    }
}

impl MapEdit<'_, '_, '_> {
    pub(super) fn geometry(&self) -> &Geometry {
        self.blocks.volume.geometry()
    }

    /// Returns whether the file's blocks are metadata, which is written through the journal.
    pub(super) fn holds_metadata(&self) -> bool {
        let flags = self.record.flags;
        self.record.kind != base::attributes::FileType::Regular
            || flags.contains(InodeFlags::JOURNAL_DATA)
            || flags.contains(InodeFlags::EA_INODE)
    }

    /// Returns the number of clusters that the inode can still get, besides those for nodes.
    pub(super) fn clusters_left(&self) -> u64 {
        let geometry = self.geometry();
        let counted = if !geometry.features.has(Feature::HugeFile) {
            u64::from(u32::MAX)
        } else {
            // The count has 48 bits. Its unit is a block if 512 bytes are too small a unit.
            ((1 << 48) - 1) << (geometry.block_size.shift() - 9)
        };
        let left = counted.saturating_sub(self.record.blocks) / units_per_cluster(geometry);
        left.saturating_sub(NODES_ADDED_MAX)
    }

    /// Updates the inode. The cached extents are already up to date.
    fn finish(self) -> Result<()> {
        let (area, clusters) = (*self.map.area(), self.blocks.clusters);
        let is_same = area == self.record.block_area && clusters == 0 && self.size.is_none();
        if !is_same {
            let units = units_per_cluster(self.blocks.volume.geometry());
            self.inode.update(self.blocks.handle, |record| {
                let changed = units.saturating_mul(clusters.unsigned_abs());
                record.blocks = match clusters {
                    ..0 => record.blocks.saturating_sub(changed),
                    0.. => record.blocks.saturating_add(changed),
                };
                record.block_area = area;
                record.size = self.size.unwrap_or(record.size);
            })?;
        }
        self.change.finish();
        Ok(())
    }
}

/// Returns the number of units of an inode's block count in a cluster.
pub(crate) fn units_per_cluster(geometry: &Geometry) -> u64 {
    1 << (geometry.cluster_shift + geometry.block_size.shift() - 9)
}

impl MapBlocks<'_, '_, '_> {
    /// Allocates contiguous blocks as [`Volume::allocate_blocks`] does. Returns the first one and
    /// their number.
    pub(super) fn allocate(
        &mut self,
        goal: FsBlock,
        wanted: u64,
        purpose: Purpose,
        preallocation: Option<Preallocation>,
    ) -> Result<(FsBlock, u64)> {
        let changes = self.handle.changes();
        let goal = Goal { block: goal, groups: self.groups };
        let found = self.volume.allocator()?.allocate_blocks(
            self.handle,
            goal,
            wanted,
            purpose,
            preallocation,
        );
        self.is_touched |= found.is_err() && self.handle.changes() != changes;
        let (start, count) = found?;
        self.clusters += self.volume.geometry().clusters_for(count) as i64;
        Ok((start, count))
    }

    /// Reads the bitmaps that change when these blocks are freed, given as first blocks and counts.
    /// So an unreadable bitmap is found before any change. Errors: `Io`. Corruption is found when
    /// the blocks are freed.
    pub(super) fn read_bitmaps(&self, runs: impl Iterator<Item = (FsBlock, u64)>) -> Result<()> {
        let geometry = self.volume.geometry();
        let group_of = |block: u64| {
            (block - geometry.first_data_block.0) / u64::from(geometry.blocks_per_group)
        };
        let mut last_read = None;
        for (start, count) in runs {
            for group in group_of(start.0)..=group_of(start.0 + count - 1) {
                if last_read == Some(group) {
                    continue;
                }
                // The map's verification has checked that the blocks are in the volume.
                let descriptor = self.volume.group(GroupNumber(group as u32));
                match descriptor.and_then(|group| self.volume.block_bitmap(&group)) {
                    Err(error @ Error::Io(_)) => return Err(error),
                    _ => last_read = Some(group),
                }
            }
        }
        Ok(())
    }

    /// Frees the clusters of some data blocks. Clusters that are already free or belong to the
    /// format are skipped and reported to the volume as corruption, as in the kernel. Returns
    /// whether there were no such clusters.
    pub(super) fn free_data(&mut self, start: FsBlock, count: u64) -> Result<bool> {
        self.is_touched = true;
        let geometry = self.volume.geometry();
        let per_group = u64::from(geometry.blocks_per_group);
        let (mut at, end, mut is_sound) = (start.0, start.0 + count, true);
        // Each group is freed separately, since each may have such clusters.
        while at < end {
            let in_group = (at - geometry.first_data_block.0) % per_group;
            let next = end.min(at - in_group + per_group);
            let changes = self.handle.changes();
            match self.free_clusters(FsBlock(at), next - at) {
                Err(error @ Error::Corrupt(_)) if self.handle.changes() == changes => {
                    self.volume.apply_error_policy(&error);
                    let clusters = geometry.clusters_of(FsBlock(at), next - at);
                    self.clusters -= (clusters.end - clusters.start) as i64;
                    is_sound = false;
                }
                freed => freed?,
            }
            at = next;
        }
        Ok(is_sound)
    }

    /// Frees blocks that [`allocate`](Self::allocate) has allocated, and restores their
    /// reservation.
    pub(super) fn undo_allocation(
        &mut self,
        start: FsBlock,
        count: u64,
        purpose: Purpose,
    ) -> Result<()> {
        if purpose == Purpose::ReservedData {
            let clusters = self.volume.geometry().clusters_for(count);
            // First, so that no other thread can allocate them.
            self.volume.allocator()?.restore_reservation(clusters);
        }
        self.free_clusters(start, count)
    }

    fn free_clusters(&mut self, start: FsBlock, count: u64) -> Result<()> {
        let freed = self.volume.allocator()?.free_blocks(self.handle, start, count);
        // After an error, the blocks are still allocated.
        self.is_touched |= freed.is_err();
        freed?;
        let clusters = self.volume.geometry().clusters_of(start, count);
        self.clusters -= (clusters.end - clusters.start) as i64;
        Ok(())
    }
}

impl NodeStore for MapBlocks<'_, '_, '_> {
    type Bytes = MetadataBuffer;

    fn read(&self, block: FsBlock, location: Location) -> Result<MetadataBuffer> {
        self.volume.read_metadata(block, STRUCTURE, location)
    }

    fn verify_once(
        &self,
        bytes: &MetadataBuffer,
        verify: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        bytes.verify_once(verify)
    }

    fn edit(
        &mut self,
        block: FsBlock,
        location: Location,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        self.is_touched = true;
        self.handle.edit(block, STRUCTURE, location, change)
    }

    fn create(&mut self, block: FsBlock, bytes: Vec<u8>) {
        self.is_touched = true;
        self.handle.replace(block, bytes);
    }

    fn allocate_node(&mut self, goal: FsBlock) -> Result<FsBlock> {
        Ok(self.allocate(goal, 1, self.purpose, None)?.0)
    }

    fn release_unused(&mut self, block: FsBlock) -> Result<()> {
        self.undo_allocation(block, 1, self.purpose)
    }

    fn free(&mut self, block: FsBlock) -> Result<()> {
        self.is_touched = true;
        self.volume.allocator()?.free_metadata_block(self.handle, block)?;
        self.clusters -= 1;
        Ok(())
    }
}
