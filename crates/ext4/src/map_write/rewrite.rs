//! Rewrites of one leaf of an extent tree. Nodes that overflow are split, nodes that become empty
//! are freed, and the entries in their parents are updated. Not here: the leaf's extents
//! (`tree.rs`), and allocation of nodes.
//!
//! All changes are prepared in memory, and the blocks for new nodes are allocated, before the first
//! node is changed. So the tree stays unchanged if there is no space.

use base::{Error, FsBlock, Result};
use fs::Run;

use super::node::{Entry, NodeImage, ROOT_ENTRIES, room};
use super::tree::{NodeStore, Path, Tree};
use crate::extent::{DEPTH_MAX, Expected};

/// Changes of a tree that are decided, but not made.
#[derive(Default)]
struct Draft {
    writes: Vec<NodeWrite>,
    freed: Vec<FsBlock>,
    allocated: Vec<FsBlock>,
}

/// A prepared change of one leaf, with the blocks that are allocated for it.
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

impl Tree<'_> {
    /// Replaces the extents of the leaf at the end of `path`. The number of extents may grow by at
    /// most the number of entries in two nodes. Errors: `NoSpace` and `FileTooLarge`; nothing is
    /// changed.
    pub(super) fn rewrite(
        &mut self,
        store: &mut impl NodeStore,
        path: Path,
        extents: &[Run],
    ) -> Result<()> {
        let rewrite = self.prepare(store, path, extents)?;
        self.carry_out(store, rewrite)
    }

    /// Does the first half of [`rewrite`](Self::rewrite): everything that can fail for lack of
    /// space.
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
                release_nodes(store, draft)?;
                Err(error)
            }
        }
    }

    /// Cancels a prepared rewrite. The tree stays unchanged.
    pub(super) fn cancel(store: &mut impl NodeStore, rewrite: Rewrite) -> Result<()> {
        release_nodes(store, rewrite.draft)
    }

    /// Does the second half of [`rewrite`](Self::rewrite). The tree must not have changed since the
    /// first half.
    pub(super) fn carry_out(&mut self, store: &mut impl NodeStore, rewrite: Rewrite) -> Result<()> {
        self.apply(store, rewrite.draft, &rewrite.root)?;
        if rewrite.may_collapse { self.collapse(store) } else { Ok(()) }
    }

    /// Prepares the changes, from the leaf up. Returns the new root.
    fn draft(
        &self,
        store: &mut impl NodeStore,
        path: Path,
        extents: &[Run],
        draft: &mut Draft,
    ) -> Result<NodeImage> {
        let mut nodes = path.nodes;
        let mut node = nodes.pop().expect("a path has a root");
        let new: Vec<Entry> = extents.iter().map(Entry::of_extent).collect();
        let old_last = node.entries.last().map(|entry| entry.start());
        let mut at_end = new.iter().rev().nth(1).map(|entry| entry.start()) >= old_last;
        node.entries = new;
        while let Some(block) = node.block {
            let mut parent = nodes.pop().expect("a node that is a block has a parent");
            let pieces = self.pieces(node.entries, at_end);
            if pieces.is_empty() {
                draft.freed.push(block);
            }
            let children = self.assign_blocks(store, draft, node.depth, Some(block), pieces)?;
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
        let entries = self.assign_blocks(store, draft, node.depth, None, pieces)?;
        Ok(NodeImage { depth: node.depth + 1, entries })
    }

    fn root_image(&self) -> Result<NodeImage> {
        let root = self.root()?;
        Ok(NodeImage { depth: root.depth, entries: root.entries })
    }

    /// Distributes entries over nodes, if they do not fit in one. At the end of the file, the first
    /// node is filled, since files mostly grow there. Elsewhere, all nodes get the same number.
    fn pieces(&self, entries: Vec<Entry>, at_end: bool) -> Vec<Vec<Entry>> {
        let room = room(self.node_bytes);
        let count = entries.len().div_ceil(room).max(1);
        let most = if at_end { room } else { entries.len().div_ceil(count).max(1) };
        entries.chunks(most).map(<[_]>::to_vec).collect()
    }

    /// Allocates a block for each piece. The first piece keeps `block`, if there is one. Returns
    /// the entries for the parent.
    fn assign_blocks(
        &self,
        store: &mut impl NodeStore,
        draft: &mut Draft,
        depth: u16,
        block: Option<FsBlock>,
        pieces: Vec<Vec<Entry>>,
    ) -> Result<Vec<Entry>> {
        let mut kept = block;
        // Near the node that overflows, or if that is the root, near the first block that it refers
        // to.
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
                    let block = store.allocate_node(goal)?;
                    draft.allocated.push(block);
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
                let location = self.location(write.block);
                store
                    .edit(write.block, location, |bytes| image.store(bytes, self.checksum_seed))?;
            }
        }
        root.store(&mut self.area, None);
        draft.freed.into_iter().try_for_each(|block| store.free(block))
    }

    /// Removes levels of the tree, as far as no extents must be moved between leaves.
    fn collapse(&mut self, store: &mut impl NodeStore) -> Result<()> {
        // The depth falls in each iteration.
        loop {
            let root = self.root()?;
            let (Some(depth), [entry]) = (root.depth.checked_sub(1), &root.entries[..]) else {
                return Ok(());
            };
            let range = entry.start()..root.range.end;
            let expected = Expected { depth: Some(depth), range };
            let child = match self.node(store, entry.child(), expected) {
                // That this node cannot be read is no reason to fail, since the caller removes
                // blocks.
                Err(Error::Corrupt(_) | Error::Io(_)) => return Ok(()),
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

/// Releases the blocks that were allocated for a draft.
fn release_nodes(store: &mut impl NodeStore, draft: Draft) -> Result<()> {
    draft.allocated.into_iter().try_for_each(|block| store.release_unused(block))
}
