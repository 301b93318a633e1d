//! The locks of several inodes at once, in one order.
//!
//! The order is that of the inodes' numbers, not that of the tree: an image whose directories
//! contain each other must not make two threads wait for each other. What a name stands for is
//! therefore looked up first, and looked at again once everything is locked ([`NodeState::changes`]
//! says whether that is needed).

use std::sync::Arc;

use base::locks::RankedWriteGuard;
use base::{Error, InodeNumber, Result};
use smallvec::SmallVec;

use crate::node::{Life, Node, NodeState};

/// Inodes that are locked to be changed.
pub(crate) struct Locked<'a> {
    guards: SmallVec<[(InodeNumber, RankedWriteGuard<'a, NodeState>); 4]>,
}

impl<'a> Locked<'a> {
    /// Locks the nodes. One that is given twice is locked once.
    pub(crate) fn new<const N: usize>(nodes: [Option<&'a Arc<Node>>; N]) -> Self {
        let mut nodes: SmallVec<[&Arc<Node>; 4]> = nodes.into_iter().flatten().collect();
        nodes.sort_unstable_by_key(|node| node.number());
        nodes.dedup_by_key(|node| node.number());
        let mut guards = SmallVec::new();
        for (index, node) in nodes.into_iter().enumerate() {
            let guard = if index == 0 { node.lock() } else { node.lock_nested() };
            guards.push((node.number(), guard));
        }
        Self { guards }
    }

    /// What the lock of `node`, which is one of those locked, protects.
    pub(crate) fn state(&mut self, node: &Node) -> &mut NodeState {
        let found = self.guards.iter_mut().find(|(number, _)| *number == node.number());
        &mut found.expect("only nodes that were locked are asked for").1
    }

    /// Begins a change of the names in `directory`, which must not have been removed itself.
    pub(crate) fn begin_change(&mut self, directory: &Node) -> Result<()> {
        let state = self.state(directory);
        state.changes += 1;
        if state.life == Life::Named { Ok(()) } else { Err(Error::NotFound) }
    }
}
