//! Changes an extent tree in place: replaces the extents of a leaf, splits nodes that overflow, frees
//! those that become empty, and keeps what their parents say of them right.
//! Not here: which extents (`leaf.rs`), and where blocks for nodes come from.
//!
//! Everything is decided on copies in memory, with the blocks for new nodes already taken, before
//! the first node is changed: running out of space leaves the tree as it was.

use std::ops::Range;

use base::{Error, FileBlock, FsBlock, InodeNumber, Place, Result};
use zerocopy::IntoBytes;

use super::leaf;
use crate::block_validity::BlockValidity;
use crate::extent::{self, DEPTH_MAX, ENTRY_BYTES, Expected, HEADER_BYTES, Node};
use crate::geometry::Geometry;
use crate::map::{FILE_BLOCKS_MAX, Run};
use crate::ondisk::extent::{MAGIC, RawExtent, RawExtentHeader, RawExtentIndex, WRITTEN_MAX};

/// Entries in an inode.
pub(super) const ROOT_ENTRIES: usize = 4;

/// Where the nodes of a tree are, and the blocks for new ones.
pub(super) trait NodeStore {
    /// A node's bytes.
    type Bytes: std::ops::Deref<Target = [u8]>;
    /// Reads a node.
    fn read(&self, block: FsBlock, place: Place) -> Result<Self::Bytes>;
    /// Runs `verify`, unless it has passed before for these bytes, or they were made here.
    fn verify_once(
        &self,
        bytes: &Self::Bytes,
        verify: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        verify(bytes)
    }
    /// Changes a node.
    fn edit(&mut self, block: FsBlock, place: Place, change: impl FnOnce(&mut [u8])) -> Result<()>;
    /// Makes a block that was taken a node.
    fn create(&mut self, block: FsBlock, bytes: Vec<u8>);
    /// Allocates a block near `goal`. An error is found before anything was changed.
    fn take(&mut self, goal: FsBlock) -> Result<FsBlock>;
    /// Gives a block back that was taken, and not made a node.
    fn give_back(&mut self, block: FsBlock) -> Result<()>;
    /// Frees a node.
    fn free(&mut self, block: FsBlock) -> Result<()>;
}

/// An extent tree that is being changed: its root, and what is needed to understand its nodes.
pub(super) struct Tree<'g> {
    /// The root, in the inode.
    pub area: [u8; 60],
    pub validity: BlockValidity<'g>,
    pub inode: InodeNumber,
    pub checksum_seed: Option<u32>,
    /// The size of a node that is a block.
    pub node_bytes: usize,
}

/// An entry of a node, as on disk. Those of leaves and of inner nodes begin with the file block.
#[derive(Clone, Copy)]
pub(super) struct Entry(pub [u8; ENTRY_BYTES]);

impl Entry {
    pub(super) fn of_extent(run: &Run) -> Self {
        let mark = if run.unwritten { WRITTEN_MAX } else { 0 };
        Self(zerocopy::transmute!(RawExtent {
            // File blocks have 32 bits, and lists keep extents as short as the format wants.
            block: (run.start.0 as u32).into(),
            len: (run.length as u16 + mark).into(),
            start_hi: ((run.block.0 >> 32) as u16).into(),
            start_lo: (run.block.0 as u32).into(),
        }))
    }

    fn of_child(start: FileBlock, block: FsBlock) -> Self {
        Self(zerocopy::transmute!(RawExtentIndex {
            block: (start.0 as u32).into(),
            leaf_lo: (block.0 as u32).into(),
            leaf_hi: ((block.0 >> 32) as u16).into(),
            unused: 0.into(),
        }))
    }

    fn extent(self) -> Run {
        let raw: RawExtent = zerocopy::transmute!(self.0);
        let length = raw.len.get();
        let unwritten = length > WRITTEN_MAX;
        Run {
            start: self.start(),
            length: u64::from(if unwritten { length - WRITTEN_MAX } else { length }),
            block: FsBlock(u64::from(raw.start_hi.get()) << 32 | u64::from(raw.start_lo.get())),
            unwritten,
        }
    }

    fn child(self) -> FsBlock {
        let raw: RawExtentIndex = zerocopy::transmute!(self.0);
        FsBlock(u64::from(raw.leaf_hi.get()) << 32 | u64::from(raw.leaf_lo.get()))
    }

    fn start(self) -> FileBlock {
        let raw: RawExtentIndex = zerocopy::transmute!(self.0);
        FileBlock(raw.block.get().into())
    }
}

/// A node on the way to a leaf.
struct Step {
    /// `None` for the root.
    block: Option<FsBlock>,
    depth: u16,
    entries: Vec<Entry>,
    /// The entry that the way goes on with; of no meaning in a leaf.
    index: usize,
    range: Range<FileBlock>,
}

/// The way from the root to a leaf.
pub(super) struct Path {
    /// The root first.
    steps: Vec<Step>,
}

impl Path {
    fn leaf(&self) -> &Step {
        self.steps.last().expect("a path has a root")
    }

    /// The extents of the leaf.
    pub(super) fn extents(&self) -> Vec<Run> {
        self.leaf().entries.iter().map(|entry| entry.extent()).collect()
    }

    /// The file blocks that the leaf may speak of.
    pub(super) fn range(&self) -> Range<FileBlock> {
        self.leaf().range.clone()
    }
}

/// What is to be done to a tree.
#[derive(Default)]
struct Draft {
    writes: Vec<NodeWrite>,
    freed: Vec<FsBlock>,
    taken: Vec<FsBlock>,
}

/// A change of one leaf that only has to be carried out, with the blocks that it takes.
pub(super) struct Rewrite {
    draft: Draft,
    root: NodeImage,
    may_collapse: bool,
}

struct NodeWrite {
    block: FsBlock,
    is_new: bool,
    depth: u16,
    entries: Vec<Entry>,
}

impl<'g> Tree<'g> {
    pub(super) fn geometry(&self) -> &'g Geometry {
        self.validity.geometry
    }
}

impl Tree<'_> {
    /// The levels below the root.
    pub(super) fn depth(&self) -> Result<u16> {
        Ok(self.root()?.depth)
    }

    /// The way to the leaf that speaks of `at`, or the first one if `at` lies before all leaves.
    pub(super) fn path(&self, store: &impl NodeStore, at: FileBlock) -> Result<Path> {
        let mut steps = vec![self.root()?];
        loop {
            let step = steps.last_mut().expect("a path has a root");
            // The depth falls by one with each step, and `Node::parse` bounds the first.
            let Some(depth) = step.depth.checked_sub(1) else { break };
            let after = step.entries.partition_point(|entry| entry.start() <= at);
            step.index = after.saturating_sub(1);
            let entry = step.entries[step.index];
            let end = step.entries.get(step.index + 1).map_or(step.range.end, |next| next.start());
            let expected = Expected { depth: Some(depth), range: entry.start()..end };
            steps.push(self.node(store, entry.child(), expected)?);
        }
        Ok(Path { steps })
    }

    fn root(&self) -> Result<Step> {
        parse(&self.area, self.validity, Expected::of_root(), None, self.root_place())
    }

    fn node(&self, store: &impl NodeStore, block: FsBlock, expected: Expected) -> Result<Step> {
        let (bytes, place) = self.read(store, block, &expected)?;
        parse(&bytes, self.validity, expected, Some(block), place)
    }

    /// A sound node, and its place.
    pub(super) fn read<S: NodeStore>(
        &self,
        store: &S,
        block: FsBlock,
        expected: &Expected,
    ) -> Result<(S::Bytes, Place)> {
        let place = self.place(block).at_file_block(expected.range.start);
        let bytes = store.read(block, place)?;
        store.verify_once(&bytes, |bytes| {
            extent::verify_block(bytes, self.validity, expected, self.checksum_seed, place)
        })?;
        Ok((bytes, place))
    }

    pub(super) fn root_place(&self) -> Place {
        Place::inode(self.inode)
    }

    fn place(&self, block: FsBlock) -> Place {
        self.root_place().at_block(block)
    }

    /// The first extent that ends after `at`.
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

    /// The last extent that begins before `end`, and the way to it.
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

    /// Marks what is allocated in `range` written, or unwritten, as far as the first leaf there goes:
    /// what was not so before, and where that leaf ends.
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

    /// Takes `range`, as far as it lies in the leaf at the end of `path`, out of the map: what was
    /// allocated there.
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

    /// Sees to it that no extent has blocks both in `range` and outside, if that takes no node and all of it
    /// is in one leaf; whether that was so.
    pub(super) fn cut_out(
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

    /// Sees to it that no extent has blocks both before `at` and from there on.
    pub(super) fn split(&mut self, store: &mut impl NodeStore, at: FileBlock) -> Result<()> {
        let path = self.path(store, at)?;
        let mut extents = path.extents();
        if leaf::split(&mut extents, at) { self.rewrite(store, path, &extents) } else { Ok(()) }
    }

    /// Moves what the leaf at the end of `path` has from `from` on to where `place` says, which keeps
    /// the order in the tree. Adds no nodes.
    pub(super) fn shift(
        &mut self,
        store: &mut impl NodeStore,
        path: Path,
        from: FileBlock,
        place: impl Fn(FileBlock) -> FileBlock,
    ) -> Result<()> {
        let mut extents = path.extents();
        leaf::shift(&mut extents, from, place);
        self.rewrite(store, path, &extents)
    }

    /// Makes `extents` what the leaf at the end of `path` says. Not longer than before by more
    /// than what two nodes have room for. `NoSpace` and `FileTooLarge` leave everything as it was.
    fn rewrite(&mut self, store: &mut impl NodeStore, path: Path, extents: &[Run]) -> Result<()> {
        let rewrite = self.prepare(store, path, extents)?;
        self.carry_out(store, rewrite)
    }

    /// The first half of [`rewrite`](Self::rewrite): all of it that can fail for want of space.
    pub(super) fn prepare(
        &self,
        store: &mut impl NodeStore,
        path: Path,
        extents: &[Run],
    ) -> Result<Rewrite> {
        let mut draft = Draft::default();
        let may_collapse = extents.len() <= ROOT_ENTRIES && path.leaf().block.is_some();
        match self.draft(store, path, extents, &mut draft) {
            Ok(root) => Ok(Rewrite { draft, root, may_collapse }),
            Err(error) => {
                give_back(store, draft)?;
                Err(error)
            }
        }
    }

    /// Leaves the tree as it is after all.
    pub(super) fn give_up(store: &mut impl NodeStore, rewrite: Rewrite) -> Result<()> {
        give_back(store, rewrite.draft)
    }

    /// The second half. Nothing has changed the tree in between.
    pub(super) fn carry_out(&mut self, store: &mut impl NodeStore, rewrite: Rewrite) -> Result<()> {
        self.apply(store, rewrite.draft, &rewrite.root)?;
        if rewrite.may_collapse { self.collapse(store) } else { Ok(()) }
    }

    /// Decides what changes, from the leaf up; the root as it will be.
    fn draft(
        &self,
        store: &mut impl NodeStore,
        path: Path,
        extents: &[Run],
        draft: &mut Draft,
    ) -> Result<NodeImage> {
        let mut steps = path.steps;
        let mut node = steps.pop().expect("a path has a root");
        let new: Vec<Entry> = extents.iter().map(Entry::of_extent).collect();
        let old_last = node.entries.last().map(|entry| entry.start());
        let mut at_end = new.iter().rev().nth(1).map(|entry| entry.start()) >= old_last;
        node.entries = new;
        while let Some(block) = node.block {
            let mut parent = steps.pop().expect("a node that is a block has a parent");
            let pieces = self.pieces(node.entries, at_end);
            if pieces.is_empty() {
                draft.freed.push(block);
            }
            let children = self.place_pieces(store, draft, node.depth, Some(block), pieces)?;
            let old = parent.entries[parent.index];
            if let [child] = children[..] {
                if (child.start(), child.child()) == (old.start(), old.child()) {
                    return self.root_image();
                }
            }
            at_end = parent.index + 1 == parent.entries.len();
            parent.entries.splice(parent.index..=parent.index, children);
            node = parent;
        }
        if node.entries.len() <= ROOT_ENTRIES {
            let depth = if node.entries.is_empty() { 0 } else { node.depth };
            return Ok(NodeImage { depth, entries: node.entries });
        }
        if node.depth >= DEPTH_MAX {
            return Err(Error::FileTooLarge);
        }
        let pieces = self.pieces(node.entries, at_end);
        let entries = self.place_pieces(store, draft, node.depth, None, pieces)?;
        Ok(NodeImage { depth: node.depth + 1, entries })
    }

    fn root_image(&self) -> Result<NodeImage> {
        let root = self.root()?;
        Ok(NodeImage { depth: root.depth, entries: root.entries })
    }

    /// Entries that a node has no room for, as those of several nodes. At the end of the file the
    /// first stays full: files mostly grow there. Elsewhere all get the same.
    fn pieces(&self, entries: Vec<Entry>, at_end: bool) -> Vec<Vec<Entry>> {
        let room = room(self.node_bytes);
        let count = entries.len().div_ceil(room).max(1);
        let most = if at_end { room } else { entries.len().div_ceil(count).max(1) };
        entries.chunks(most).map(<[_]>::to_vec).collect()
    }

    /// Gives each piece a block, the first one `block` if there is one; their parent's entries.
    fn place_pieces(
        &self,
        store: &mut impl NodeStore,
        draft: &mut Draft,
        depth: u16,
        block: Option<FsBlock>,
        pieces: Vec<Vec<Entry>>,
    ) -> Result<Vec<Entry>> {
        let mut kept = block;
        // Near the node that overflows, or the first thing that an overflowing root leads to.
        let goal = match (block, pieces.first().and_then(|piece| piece.first())) {
            (Some(block), _) => block,
            (None, Some(first)) if depth > 0 => first.child(),
            (None, Some(first)) => first.extent().block,
            (None, None) => FsBlock(0),
        };
        let mut entries = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (block, is_new) = match kept.take() {
                Some(block) => (block, false),
                None => {
                    let block = store.take(goal)?;
                    draft.taken.push(block);
                    (block, true)
                }
            };
            entries.push(Entry::of_child(piece[0].start(), block));
            draft.writes.push(NodeWrite { block, is_new, depth, entries: piece });
        }
        Ok(entries)
    }

    fn apply(&mut self, store: &mut impl NodeStore, draft: Draft, root: &NodeImage) -> Result<()> {
        for write in draft.writes {
            let image = NodeImage { depth: write.depth, entries: write.entries };
            if write.is_new {
                let mut bytes = vec![0; self.node_bytes];
                image.store(&mut bytes, self.checksum_seed);
                store.create(write.block, bytes);
            } else {
                let place = self.place(write.block);
                store.edit(write.block, place, |bytes| image.store(bytes, self.checksum_seed))?;
            }
        }
        root.store(&mut self.area, None);
        draft.freed.into_iter().try_for_each(|block| store.free(block))
    }

    /// Makes the tree as shallow as it can be without moving extents from leaf to leaf.
    fn collapse(&mut self, store: &mut impl NodeStore) -> Result<()> {
        // The depth falls with each step.
        loop {
            let root = self.root()?;
            let (Some(depth), [entry]) = (root.depth.checked_sub(1), &root.entries[..]) else {
                return Ok(());
            };
            let range = entry.start()..root.range.end;
            let expected = Expected { depth: Some(depth), range };
            let child = match self.node(store, entry.child(), expected) {
                // Damage of this node is no reason to fail: the caller is removing blocks.
                Err(Error::Corrupt(_)) => return Ok(()),
                child => child?,
            };
            if child.entries.len() > ROOT_ENTRIES {
                return Ok(());
            }
            let image = NodeImage { depth: child.depth, entries: child.entries };
            image.store(&mut self.area, None);
            store.free(entry.child())?;
        }
    }
}

/// Gives back what a draft has taken.
fn give_back(store: &mut impl NodeStore, draft: Draft) -> Result<()> {
    draft.taken.into_iter().try_for_each(|block| store.give_back(block))
}

/// What a node is to say.
struct NodeImage {
    depth: u16,
    entries: Vec<Entry>,
}

impl NodeImage {
    /// Writes the node over `bytes`. A node that is a block gets its checksum.
    fn store(&self, bytes: &mut [u8], checksum_seed: Option<u32>) {
        let header = RawExtentHeader {
            magic: MAGIC.into(),
            // At most the entries of a block of 64 KiB.
            entries: (self.entries.len() as u16).into(),
            max: (room(bytes.len()) as u16).into(),
            depth: self.depth.into(),
            generation: 0.into(),
        };
        let (head, table) = bytes.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        table.fill(0);
        for (place, entry) in table.chunks_exact_mut(ENTRY_BYTES).zip(&self.entries) {
            place.copy_from_slice(&entry.0);
        }
        extent::seal(bytes, checksum_seed);
    }
}

/// The root of a tree without extents.
pub(crate) fn empty_root() -> [u8; 60] {
    let mut area = [0; 60];
    NodeImage { depth: 0, entries: Vec::new() }.store(&mut area, None);
    area
}

/// The entries that a node has room for.
pub(super) fn room(node_bytes: usize) -> usize {
    (node_bytes - HEADER_BYTES) / ENTRY_BYTES
}

/// Verifies a node, and takes its entries as they are.
fn parse(
    bytes: &[u8],
    validity: BlockValidity<'_>,
    expected: Expected,
    block: Option<FsBlock>,
    place: Place,
) -> Result<Step> {
    let range = expected.range.clone();
    let (depth, table) = Node::verify(bytes, validity, &expected, place)?;
    let entries = table
        .chunks_exact(ENTRY_BYTES)
        .map(|entry| Entry(entry.try_into().expect("chunks have exactly the size of an entry")))
        .collect();
    Ok(Step { block, depth, entries, index: 0, range })
}

#[cfg(test)]
#[path = "tree_tests.rs"]
pub(super) mod tests;
