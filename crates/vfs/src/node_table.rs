//! The inodes in memory: each is loaded once, and those in no use stay until room is needed.
//! Not here: loading (the caller does it, without the table's lock).

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

use base::InodeNumber;
use base::locks::{Rank, RankedMutex};

use crate::node::Node;

/// How many entries a trim looks at before it lets the table grow: all of them may be in use.
const SCAN_MAX: usize = 64;

/// The table. Entries are kept in the order of a second-chance clock.
#[derive(Debug)]
pub(crate) struct NodeTable {
    inner: RankedMutex<Inner>,
    nodes_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: HashMap<InodeNumber, Entry>,
    clock: VecDeque<InodeNumber>,
}

#[derive(Debug)]
struct Entry {
    node: Arc<Node>,
    referenced: bool,
}

impl NodeTable {
    /// A table that keeps about `nodes_max` nodes, and more only while they are in use.
    pub(crate) fn new(nodes_max: usize) -> Self {
        Self { inner: RankedMutex::new(Rank::InodeTable, Inner::default()), nodes_max }
    }

    pub(crate) fn get(&self, number: InodeNumber) -> Option<Arc<Node>> {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get_mut(&number)?;
        entry.referenced = true;
        Some(Arc::clone(&entry.node))
    }

    /// Adds a node that was just loaded, unless another thread was faster: then that one's.
    pub(crate) fn insert(&self, node: Arc<Node>) -> Arc<Node> {
        let number = node.number();
        let mut dropped = Vec::new();
        let mut inner = self.inner.lock();
        if let Some(entry) = inner.nodes.get(&number) {
            return Arc::clone(&entry.node);
        }
        inner.trim(self.nodes_max, &mut dropped);
        inner.nodes.insert(number, Entry { node: Arc::clone(&node), referenced: false });
        inner.clock.push_back(number);
        drop(inner);
        // Nodes are freed without the lock: each frees its cached data.
        drop(dropped);
        node
    }
}

impl Inner {
    fn trim(&mut self, nodes_max: usize, dropped: &mut Vec<Arc<Node>>) {
        for _ in 0..SCAN_MAX {
            if self.nodes.len() < nodes_max {
                return;
            }
            let Some(number) = self.clock.pop_front() else { return };
            let Some(entry) = self.nodes.get_mut(&number) else { continue };
            let in_use = Arc::strong_count(&entry.node) > 1;
            if in_use || std::mem::take(&mut entry.referenced) {
                self.clock.push_back(number);
            } else if let Some(entry) = self.nodes.remove(&number) {
                dropped.push(entry.node);
            }
        }
    }
}
