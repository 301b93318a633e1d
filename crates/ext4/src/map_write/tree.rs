//! An extent tree that is being changed: the paths to its leaves, and changes of one leaf. Not
//! here: the extents of a leaf (`leaf.rs`), nodes that overflow or become empty (`rewrite.rs`), and
//! allocation of nodes.

use std::ops::Range;

use base::{FileBlock, FsBlock, InodeNumber, Location, Result};
use fs::Run;

use super::leaf;
use super::node::{PathNode, parse};
use crate::block_validity::BlockValidity;
use crate::extent::{self, Expected};
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::layout::geometry::Geometry;

/// Storage of a tree's nodes, and allocation of blocks for new ones.
pub(super) trait NodeStore {
    /// A node's bytes.
    type Bytes: std::ops::Deref<Target = [u8]>;
    /// Reads a node.
    fn read(&self, block: FsBlock, location: Location) -> Result<Self::Bytes>;
    /// Runs `verify`, unless these bytes have passed it before, or were written by this store.
    fn verify_once(
        &self,
        bytes: &Self::Bytes,
        verify: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        verify(bytes)
    }
    /// Changes a node.
    fn edit(
        &mut self,
        block: FsBlock,
        location: Location,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()>;
    /// Writes a new node to a block that was allocated.
    fn create(&mut self, block: FsBlock, bytes: Vec<u8>);
    /// Allocates a block near `goal`. After an error, nothing was changed.
    fn allocate_node(&mut self, goal: FsBlock) -> Result<FsBlock>;
    /// Frees a block that was allocated, but not written.
    fn release_unused(&mut self, block: FsBlock) -> Result<()>;
    /// Frees a node.
    fn free(&mut self, block: FsBlock) -> Result<()>;
}

/// An extent tree that is being changed: its root, and the parameters for parsing its nodes.
pub(super) struct Tree<'g> {
    /// The root, in the inode.
    pub area: [u8; 60],
    pub validity: BlockValidity<'g>,
    pub inode: InodeNumber,
    pub checksum_seed: Option<u32>,
    /// The size of a node that is a block.
    pub node_bytes: usize,
}

/// The path from the root to a leaf.
pub(super) struct Path {
    /// The nodes, the root first.
    pub(super) nodes: Vec<PathNode>,
}

impl Path {
    pub(super) fn leaf(&self) -> &PathNode {
        self.nodes.last().expect("a path has a root")
    }

    /// Returns the blocks of the nodes below the root.
    pub(super) fn blocks(&self) -> impl Iterator<Item = FsBlock> {
        self.nodes.iter().filter_map(|node| node.block)
    }

    /// Returns the extents of the leaf.
    pub(super) fn extents(&self) -> Vec<Run> {
        self.leaf().entries.iter().map(|entry| entry.extent()).collect()
    }

    /// Returns the file blocks that the leaf may map.
    pub(super) fn range(&self) -> Range<FileBlock> {
        self.leaf().range.clone()
    }
}

impl<'g> Tree<'g> {
    pub(super) fn geometry(&self) -> &'g Geometry {
        self.validity.geometry
    }
}

impl Tree<'_> {
    /// Returns the number of levels below the root.
    pub(super) fn depth(&self) -> Result<u16> {
        Ok(self.root()?.depth)
    }

    /// Returns the path to the leaf that covers `at`, or to the first leaf if `at` is before all
    /// leaves.
    pub(super) fn path(&self, store: &impl NodeStore, at: FileBlock) -> Result<Path> {
        let mut nodes = vec![self.root()?];
        loop {
            let node = nodes.last_mut().expect("a path has a root");
            // The depth falls by one in each iteration, and `parse` bounds it in the root.
            let Some(depth) = node.depth.checked_sub(1) else { break };
            let after = node.entries.partition_point(|entry| entry.start() <= at);
            node.index = after.saturating_sub(1);
            let entry = node.entries[node.index];
            let end = node.entries.get(node.index + 1).map_or(node.range.end, |next| next.start());
            let expected = Expected { depth: Some(depth), range: entry.start()..end };
            nodes.push(self.node(store, entry.child(), expected)?);
        }
        Ok(Path { nodes })
    }

    pub(super) fn root(&self) -> Result<PathNode> {
        parse(&self.area, self.validity, Expected::of_root(), None, self.root_location())
    }

    pub(super) fn node(
        &self,
        store: &impl NodeStore,
        block: FsBlock,
        expected: Expected,
    ) -> Result<PathNode> {
        let (bytes, location) = self.read(store, block, &expected)?;
        parse(&bytes, self.validity, expected, Some(block), location)
    }

    /// Reads and verifies a node. Returns its bytes and its location.
    pub(super) fn read<S: NodeStore>(
        &self,
        store: &S,
        block: FsBlock,
        expected: &Expected,
    ) -> Result<(S::Bytes, Location)> {
        let location = self.location(block).at_file_block(expected.range.start);
        let bytes = store.read(block, location)?;
        store.verify_once(&bytes, |bytes| {
            extent::verify_block(bytes, self.validity, expected, self.checksum_seed, location)
        })?;
        Ok((bytes, location))
    }

    pub(super) fn root_location(&self) -> Location {
        Location::inode(self.inode)
    }

    pub(super) fn location(&self, block: FsBlock) -> Location {
        self.root_location().at_block(block)
    }

    /// Returns the first extent that ends after `at`.
    pub(super) fn extent_from(&self, store: &impl NodeStore, at: FileBlock) -> Result<Option<Run>> {
        let mut path = self.path(store, at)?;
        loop {
            let found = path.leaf().entries.iter().map(|entry| entry.extent());
            if let Some(extent) = found.into_iter().find(|extent| extent.end() > at) {
                return Ok(Some(extent));
            }
            // Each leaf is behind the last, since ranges of leaves are never empty.
            let end = path.range().end;
            if end.0 >= FILE_BLOCKS_MAX {
                return Ok(None);
            }
            path = self.path(store, end)?;
        }
    }

    /// Returns the last extent that begins before `end`, and the path to it.
    pub(super) fn extent_before(
        &self,
        store: &impl NodeStore,
        mut end: FileBlock,
    ) -> Result<Option<(Run, Path)>> {
        while let Some(before) = end.0.checked_sub(1) {
            let path = self.path(store, FileBlock(before))?;
            let found = path.leaf().entries.iter().rev().map(|entry| entry.extent());
            if let Some(extent) = found.into_iter().find(|extent| extent.start < end) {
                return Ok(Some((extent, path)));
            }
            // Each leaf is before the last. Only the first leaf of the tree may begin behind `end`.
            let start = path.range().start;
            if start >= end {
                break;
            }
            end = start;
        }
        Ok(None)
    }

    /// Maps a run, not longer than an extent can be, into a hole of the leaf at the end of `path`.
    pub(super) fn insert(
        &mut self,
        store: &mut impl NodeStore,
        path: Path,
        run: Run,
    ) -> Result<()> {
        let mut extents = path.extents();
        leaf::insert(&mut extents, run);
        self.rewrite(store, path, &extents)
    }

    /// Marks allocated blocks in `range` as written or unwritten, up to the end of the first leaf.
    /// Returns the runs that changed, and the end of that leaf.
    pub(super) fn convert(
        &mut self,
        store: &mut impl NodeStore,
        range: &Range<FileBlock>,
        unwritten: bool,
    ) -> Result<(Vec<Run>, FileBlock)> {
        let convert = |extents: &mut Vec<Run>| leaf::convert(extents, range, unwritten);
        if let Some(patched) = self.patch(store, range, convert)? {
            return Ok(patched);
        }
        let path = self.path(store, range.start)?;
        let end = path.range().end;
        let mut extents = path.extents();
        let converted = convert(&mut extents);
        if !converted.is_empty() {
            self.rewrite(store, path, &extents)?;
        }
        Ok((converted, end))
    }

    /// Removes the part of `range` that is in the leaf at the end of `path` from the map. Returns
    /// the runs that were mapped.
    pub(super) fn remove(
        &mut self,
        store: &mut impl NodeStore,
        path: Path,
        range: &Range<FileBlock>,
    ) -> Result<Vec<Run>> {
        let mut extents = path.extents();
        let removed = leaf::remove(&mut extents, range);
        self.rewrite(store, path, &extents)?;
        Ok(removed)
    }

    /// Splits extents at both ends of `range`, if that takes no node and the range is in one leaf.
    /// Returns whether they were split.
    pub(super) fn split_ends(
        &mut self,
        store: &mut impl NodeStore,
        range: &Range<FileBlock>,
    ) -> Result<bool> {
        let split = |extents: &mut Vec<Run>| {
            leaf::split(extents, range.start);
            leaf::split(extents, range.end);
        };
        let patched = self.patch(store, range, split)?;
        Ok(patched.is_some_and(|((), end)| range.end <= end))
    }

    /// Splits the extent that has blocks on both sides of `at`, if there is one.
    pub(super) fn split(&mut self, store: &mut impl NodeStore, at: FileBlock) -> Result<()> {
        let path = self.path(store, at)?;
        let mut extents = path.extents();
        if leaf::split(&mut extents, at) { self.rewrite(store, path, &extents) } else { Ok(()) }
    }

    /// Shifts the extents from `from` on, in the leaf at the end of `path`, to the blocks that
    /// `target` returns, which keeps their order. Adds no nodes.
    pub(super) fn shift(
        &mut self,
        store: &mut impl NodeStore,
        path: Path,
        from: FileBlock,
        target: impl Fn(FileBlock) -> FileBlock,
    ) -> Result<()> {
        let mut extents = path.extents();
        leaf::shift(&mut extents, from, target);
        self.rewrite(store, path, &extents)
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
pub(super) mod tests;
