//! Rewrites of one leaf of an extent tree: splits nodes that overflow, frees nodes that become empty, and
//! updates the entries in their parents. Not here: the leaf's extents (`tree.rs`), and allocation of nodes.
//!
//! Everything is prepared on copies in memory, with the blocks for new nodes allocated, before the first node
//! is changed: if there is no space, the tree stays as it was.

use base::{Error, FsBlock, Result};
use fs::Run;

use super::node::{Entry, NodeImage, ROOT_ENTRIES, room};
use super::tree::{NodeStore, Path, Tree};
use crate::extent::{DEPTH_MAX, Expected};

/// Changes of a tree that were decided, but not made.
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

impl Tree<'_> {
    /// Replaces the extents of the leaf at the end of `path`. `extents` has at most as many more than before as two
    /// nodes have room for. Errors: `NoSpace` and `FileTooLarge`, without a change.
    pub(super) fn rewrite(
        &mut self,
        store: &mut impl NodeStore,
        path: Path,
        extents: &[Run],
    ) -> Result<()> {
        let rewrite = self.prepare(store, path, extents)?;
        self.carry_out(store, rewrite)
    }

    /// Does the first half of [`rewrite`](Self::rewrite): all that can fail for lack of space.
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

    /// Drops a prepared rewrite: the tree stays as it is.
    pub(super) fn cancel(store: &mut impl NodeStore, rewrite: Rewrite) -> Result<()> {
        give_back(store, rewrite.draft)
    }

    /// Does the second half. The tree has not changed since the first one.
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

    /// Allocates a block for each piece; `block`, if any, is that of the first. Returns the entries of their parent.
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
                let location = self.location(write.block);
                store
                    .edit(write.block, location, |bytes| image.store(bytes, self.checksum_seed))?;
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

/// Frees the blocks that a draft has taken.
fn give_back(store: &mut impl NodeStore, draft: Draft) -> Result<()> {
    draft.taken.into_iter().try_for_each(|block| store.give_back(block))
}
