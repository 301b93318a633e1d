//! Locks of several inodes at once, taken in one order.
//!
//! The order is that of the inodes' numbers, not that of the tree: in a damaged image, directories
//! may contain each other, and two threads must not wait for each other. So a caller looks the
//! names up first, locks all inodes, and looks the names up again if [`NodeState::changes`] has
//! changed since.

use std::sync::Arc;

use base::locks::RankedWriteGuard;
use base::{Error, InodeNumber, Result};
use smallvec::SmallVec;

use crate::node::{Life, Node, NodeState};

/// Exclusive locks of several inodes.
pub(crate) struct Locked<'a> {
    guards: SmallVec<[(InodeNumber, RankedWriteGuard<'a, NodeState>); 4]>,
}

impl<'a> Locked<'a> {
    /// Locks the nodes. Locks a node once if it is given twice.
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

    /// Returns the state that the lock of `node` protects. Panics if the node is not locked.
    pub(crate) fn state(&mut self, node: &Node) -> &mut NodeState {
        let found = self.guards.iter_mut().find(|(number, _)| *number == node.number());
        &mut found.expect("the node is locked").1
    }

    /// Begins a change of the names in `directory`. Errors: `NotFound` if the directory was
    /// removed.
    pub(crate) fn begin_change(&mut self, directory: &Node) -> Result<()> {
        let state = self.state(directory);
        state.changes += 1;
        if state.life == Life::Named { Ok(()) } else { Err(Error::NotFound) }
    }
}
