//! Changes the metadata of a volume that nobody uses yet, in memory, so that recovery can end in
//! a consistent state. Not here: which changes, and their order on a device that may fail.

pub(crate) mod blocks;
pub(crate) mod directory;
pub(crate) mod groups;
pub(crate) mod inode;
pub(crate) mod map;

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{FsBlock, InodeNumber, Result};
use device::SharedDevice;

use self::blocks::Blocks;
use self::groups::{Groups, clusters_of};
use self::map::FileMap;
use crate::inode::record::InodeRecord;
use crate::layout::geometry::Geometry;
use crate::ondisk::superblock::RawSuperblock;
use crate::volume::Volume;

/// Runs and nodes of all maps that are read, at most. Maps of several inodes can share their nodes
/// on a hostile volume, so that the volume's size is no bound.
const MAP_ENTRIES_MAX: usize = 1 << 23;

/// Reads maps, all of which together have no more than so many runs and nodes.
#[derive(Clone, Copy)]
pub(crate) struct MapReader {
    entries_left: usize,
}

impl MapReader {
    pub(crate) fn new() -> Self {
        Self { entries_left: MAP_ENTRIES_MAX }
    }

    /// The map of a file as it lies. `OutOfMemory` when all maps together are too large.
    pub(crate) fn read(&mut self, volume: &Volume, record: &InodeRecord) -> Result<FileMap> {
        let map = FileMap::read(volume, record, self.entries_left)?;
        self.entries_left = self.entries_left.saturating_sub(map.entries().max(1));
        Ok(map)
    }
}

/// The changes to one volume, none of which is written before [`Editor::write`].
pub(crate) struct Editor {
    pub volume: Arc<Volume>,
    pub blocks: Blocks,
    pub groups: Groups,
    pub maps: MapReader,
}

impl Editor {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        let (blocks, groups) = (Blocks::new(Arc::clone(&volume)), Groups::new(Arc::clone(&volume)));
        Self { volume, blocks, groups, maps: MapReader::new() }
    }

    /// The map of a file, as it was before any change.
    pub(crate) fn read_map(&mut self, record: &InodeRecord) -> Result<FileMap> {
        self.maps.read(&self.volume, record)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    /// The clusters that a map takes, with those of `others`.
    pub(crate) fn clusters(&self, map: &FileMap, others: &[FsBlock]) -> BTreeSet<(u64, u64)> {
        let geometry = self.geometry();
        let runs = map.runs.values().map(|run| clusters_of(geometry, run.block, run.length));
        let nodes = map.nodes.iter().map(|&(_, block)| block);
        let single = nodes.chain(others.iter().copied());
        let single = single.map(|block| clusters_of(geometry, block, 1));
        runs.chain(single).map(|clusters| (clusters.start, clusters.end)).collect()
    }

    /// The clusters that what is mapped takes.
    pub(crate) fn data_clusters(&self, map: &FileMap) -> BTreeSet<(u64, u64)> {
        let geometry = self.geometry();
        let runs = map.runs.values().map(|run| clusters_of(geometry, run.block, run.length));
        runs.map(|clusters| (clusters.start, clusters.end)).collect()
    }

    /// How many clusters these ranges cover.
    pub(crate) fn count(clusters: &BTreeSet<(u64, u64)>) -> u64 {
        let mut counted = 0;
        let mut reached = 0;
        // In ascending order of their starts.
        for &(start, end) in clusters {
            counted += end.saturating_sub(start.max(reached));
            reached = reached.max(end);
        }
        counted
    }

    /// Marks ranges of clusters as in use or not.
    pub(crate) fn mark(&mut self, clusters: &BTreeSet<(u64, u64)>, in_use: bool) -> Result<()> {
        clusters.iter().try_for_each(|&(start, end)| self.groups.set_clusters(start..end, in_use))
    }

    /// A block for metadata: the next of `spare`, which are not in use, if any is left.
    pub(crate) fn take_block(&mut self, spare: &mut Vec<FsBlock>) -> Result<FsBlock> {
        while let Some(block) = spare.pop() {
            let clusters = clusters_of(self.geometry(), block, 1);
            if !self.groups.is_cluster_set(clusters.start)? {
                self.groups.set_clusters(clusters, true)?;
                return Ok(block);
            }
        }
        let cluster = self.groups.allocate_cluster()?;
        let geometry = self.geometry();
        Ok(FsBlock(geometry.first_data_block.0 + (cluster << geometry.cluster_shift)))
    }

    /// Takes an inode out of use.
    pub(crate) fn free_inode(&mut self, number: InodeNumber, is_directory: bool) -> Result<()> {
        if self.groups.is_inode_set(number)? {
            self.groups.set_inode(number, false)?;
            if is_directory {
                self.groups.count_directory(number, false)?;
            }
        }
        Ok(())
    }

    /// Puts an inode into use.
    pub(crate) fn use_inode(&mut self, number: InodeNumber, is_directory: bool) -> Result<()> {
        if !self.groups.is_inode_set(number)? {
            self.groups.set_inode(number, true)?;
            if is_directory {
                self.groups.count_directory(number, true)?;
            }
        }
        Ok(())
    }

    /// The blocks that were changed, and what they hold now.
    pub(crate) fn into_changes(self) -> Result<Vec<(FsBlock, Box<[u8]>)>> {
        let Self { mut blocks, groups, .. } = self;
        groups.write(&mut blocks, |_| ())?;
        Ok(blocks.into_changes())
    }

    /// Writes everything to `target`, with `finish`'s changes to the superblock.
    pub(crate) fn write(
        self,
        target: &SharedDevice,
        finish: impl FnOnce(&mut RawSuperblock),
    ) -> Result<()> {
        let Self { mut blocks, groups, .. } = self;
        groups.write(&mut blocks, finish)?;
        blocks.write(target)
    }
}
