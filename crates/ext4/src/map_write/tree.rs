//! An extent tree that is being changed: the paths to its leaves, and the changes of one leaf.
//! Not here: the extents of a leaf (`leaf.rs`), nodes that overflow or become empty (`rewrite.rs`), and
//! allocation of nodes.

use std::ops::Range;

use base::{FileBlock, FsBlock, InodeNumber, Location, Result};
use fs::Run;

use super::leaf;
use super::node::{PathNode, parse};
use crate::extent::{self, Expected};
use crate::layout::block_validity::BlockValidity;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::layout::geometry::Geometry;

/// Where the nodes of a tree are, and the blocks for new ones.
pub(super) trait NodeStore {
    /// A node's bytes.
    type Bytes: std::ops::Deref<Target = [u8]>;
    /// Reads a node.
    fn read(&self, block: FsBlock, location: Location) -> Result<Self::Bytes>;
    /// Runs `verify`, unless it has passed before for these bytes, or they were made here.
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
    /// Makes a block that was taken a node.
    fn create(&mut self, block: FsBlock, bytes: Vec<u8>);
    /// Allocates a block near `goal`. An error is found before anything was changed.
    fn take(&mut self, goal: FsBlock) -> Result<FsBlock>;
    /// Frees a block that was allocated, and not made a node.
    fn give_back(&mut self, block: FsBlock) -> Result<()>;
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

/// The way from the root to a leaf.
pub(super) struct Path {
    /// The root first.
    pub(super) nodes: Vec<PathNode>,
}

impl Path {
    pub(super) fn leaf(&self) -> &PathNode {
        self.nodes.last().expect("a path has a root")
    }

    /// Returns the extents of the leaf.
    pub(super) fn extents(&self) -> Vec<Run> {
        self.leaf().entries.iter().map(|entry| entry.extent()).collect()
    }

    /// Returns the file blocks that the leaf may speak of.
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
    /// Returns the levels below the root.
    pub(super) fn depth(&self) -> Result<u16> {
        Ok(self.root()?.depth)
    }

    /// Returns the way to the leaf that speaks of `at`, or the first one if `at` lies before all leaves.
    pub(super) fn path(&self, store: &impl NodeStore, at: FileBlock) -> Result<Path> {
        let mut nodes = vec![self.root()?];
        loop {
            let node = nodes.last_mut().expect("a path has a root");
            // The depth falls by one with each step, and `Node::parse` bounds the first.
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
        parse(&self.area, self.validity, Expected::of_root(), None, self.root_place())
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

    /// Returns a sound node, and its place.
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

    pub(super) fn root_place(&self) -> Location {
        Location::inode(self.inode)
    }

    pub(super) fn location(&self, block: FsBlock) -> Location {
        self.root_place().at_block(block)
    }

    /// Returns the first extent that ends after `at`.
    pub(super) fn extent_from(&self, store: &impl NodeStore, at: FileBlock) -> Result<Option<Run>> {
        let mut path = self.path(store, at)?;
        loop {
            let found = path.leaf().entries.iter().map(|entry| entry.extent());
            if let Some(extent) = found.into_iter().find(|extent| extent.end() > at) {
                return Ok(Some(extent));
            }
            // Ranges of leaves are never empty, so each is behind the last.
            let end = path.range().end;
            if end.0 >= FILE_BLOCKS_MAX {
                return Ok(None);
            }
            path = self.path(store, end)?;
        }
    }

    /// Returns the last extent that begins before `end`, and the way to it.
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
            // The first leaf can lie behind; else each is before the last.
            let start = path.range().start;
            if start >= end {
                break;
            }
            end = start;
        }
        Ok(None)
    }

    /// Maps a run, not longer than an extent can be, that lies in a hole of the leaf at the end of
    /// `path`.
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

    /// Marks allocated blocks in `range` as written or unwritten, as far as the first leaf there goes. Returns the
    /// runs that have changed, and the end of that leaf.
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

    /// Removes `range`, as far as it is in the leaf at the end of `path`, from the map. Returns the runs that were
    /// mapped.
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

    /// Splits extents at both ends of `range`, if that takes no node and all of it is in one leaf. Returns whether
    /// that was so.
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

    /// Splits the extent that has blocks both before `at` and from there on, if there is one.
    pub(super) fn split(&mut self, store: &mut impl NodeStore, at: FileBlock) -> Result<()> {
        let path = self.path(store, at)?;
        let mut extents = path.extents();
        if leaf::split(&mut extents, at) { self.rewrite(store, path, &extents) } else { Ok(()) }
    }

    /// Shifts the extents from `from` on, in the leaf at the end of `path`, to the blocks that `location` returns, which
    /// keeps their order. Adds no nodes.
    pub(super) fn shift(
        &mut self,
        store: &mut impl NodeStore,
        path: Path,
        from: FileBlock,
        location: impl Fn(FileBlock) -> FileBlock,
    ) -> Result<()> {
        let mut extents = path.extents();
        leaf::shift(&mut extents, from, location);
        self.rewrite(store, path, &extents)
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
pub(super) mod tests;
