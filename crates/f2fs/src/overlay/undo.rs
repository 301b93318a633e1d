//! Operations on the overlay: the state before one, for an operation that fails, and for what an
//! operation is charged.

use std::collections::HashMap;

use base::{FileBlock, InodeNumber};
use iomap::BlockContents;

use super::{Change, Counts, Overlay};
use crate::nat::Nid;

/// The state before an operation of all that it has changed.
#[derive(Debug, Default)]
pub(super) struct Undo {
    nodes: HashMap<Nid, Option<Change>>,
    directory_blocks: HashMap<(InodeNumber, FileBlock), Option<BlockContents>>,
    /// Orphans, and whether they were listed.
    pub(super) orphans: Vec<(InodeNumber, bool)>,
    counts: Counts,
    bytes: u64,
}

/// A node that an operation has changed.
#[derive(Debug)]
pub(crate) struct ChangedNode {
    pub(crate) nid: Nid,
    /// The change before the operation. `None` if it was that of the checkpoint.
    pub(crate) before: Option<Change>,
    pub(crate) after: Change,
}

impl Overlay {
    /// Begins an operation, whose changes can be taken back.
    pub(crate) fn begin(&mut self) {
        let (counts, bytes) = (self.counts, self.bytes);
        self.undo = Some(Undo { counts, bytes, ..Undo::default() });
    }

    /// Ends an operation. Takes its changes back, unless it has succeeded.
    pub(crate) fn end(&mut self, has_succeeded: bool) {
        let Some(undo) = self.undo.take().filter(|_| !has_succeeded) else { return };
        for (nid, before) in undo.nodes {
            match before {
                Some(change) => drop(self.nodes.insert(nid, change)),
                None => drop(self.nodes.remove(&nid)),
            }
        }
        for (at, before) in undo.directory_blocks {
            match before {
                Some(contents) => drop(self.directory_blocks.insert(at, contents)),
                None => drop(self.directory_blocks.remove(&at)),
            }
        }
        for (inode, was_listed) in undo.orphans.into_iter().rev() {
            match was_listed {
                true => self.orphans.insert(inode),
                false => self.orphans.remove(&inode),
            };
        }
        (self.counts, self.bytes) = (undo.counts, undo.bytes);
    }

    /// Records the state of a node before it changes.
    pub(super) fn save_node(&mut self, nid: Nid) {
        if let Some(undo) = &mut self.undo {
            undo.nodes.entry(nid).or_insert_with(|| self.nodes.get(&nid).cloned());
        }
    }

    /// Records the contents of a directory's block before they change.
    pub(super) fn save_directory_block(&mut self, at: (InodeNumber, FileBlock)) {
        if let Some(undo) = &mut self.undo {
            let blocks = &self.directory_blocks;
            undo.directory_blocks.entry(at).or_insert_with(|| blocks.get(&at).cloned());
        }
    }

    /// Returns the nodes that the operation under way has changed.
    pub(crate) fn changed_by_operation(&self) -> Vec<ChangedNode> {
        let saved = self.undo.iter().flat_map(|undo| &undo.nodes);
        let changed = saved.filter_map(|(nid, before)| {
            let after = self.nodes.get(nid)?.clone();
            Some(ChangedNode { nid: *nid, before: before.clone(), after })
        });
        changed.collect()
    }
}
