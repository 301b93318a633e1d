//! The table of nodes in memory. Each inode is loaded once, and unused nodes stay until the table
//! is full. Nodes without a name are in the table only while they are in use: the last user deletes
//! the inode. Not here: loading, which the caller does without the table's lock, and deletion.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use base::InodeNumber;
use base::locks::{Rank, RankedMutex};

use crate::node::Node;

/// The maximum number of entries that a trim examines. Each new node trims the table once, so this
/// bounds its cost while all nodes are in use. The table grows only if all examined nodes are in
/// use.
const SCAN_MAX: usize = 8;
/// The number of stale entries that the clock may always have. With fewer, a sweep costs more than
/// it frees.
const STALE_MIN: usize = 64;

/// The inode table. Entries are in the order of a second-chance clock.
#[derive(Debug)]
pub(crate) struct NodeTable {
    inner: RankedMutex<Inner>,
    nodes_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: HashMap<InodeNumber, Entry>,
    clock: VecDeque<(InodeNumber, Serial)>,
    serial: Serial,
}

/// A number that distinguishes an entry from earlier ones of the same inode number.
pub(crate) type Serial = u64;

#[derive(Debug)]
struct Entry {
    node: Reference,
    referenced: bool,
    serial: Serial,
}

#[derive(Debug)]
enum Reference {
    /// A node with a name, which the table keeps while it is unused.
    Named(Arc<Node>),
    /// A node without a name, which its last user drops.
    Nameless(Weak<Node>),
    /// A thread loads the node. If the number has had another entry since the load began, the
    /// thread loads the node again: in between, the inode may have been changed and its node
    /// dropped.
    Loading,
}

impl Reference {
    fn node(&self) -> Option<Arc<Node>> {
        match self {
            Self::Named(node) => Some(Arc::clone(node)),
            Self::Nameless(node) => node.upgrade(),
            Self::Loading => None,
        }
    }
}

impl NodeTable {
    /// Returns a table for about `nodes_max` nodes, or more while they are in use.
    pub(crate) fn new(nodes_max: usize) -> Self {
        Self { inner: RankedMutex::new(Rank::InodeTable, Inner::default()), nodes_max }
    }

    /// Returns the node if it is in memory.
    pub(crate) fn find(&self, number: InodeNumber) -> Option<Arc<Node>> {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get_mut(&number)?;
        entry.referenced = true;
        entry.node.node()
    }

    /// Returns the node. If it is not in memory, returns a serial number. The caller then loads the
    /// node, and passes the number to [`loaded`](Self::loaded) or [`not_loaded`](Self::not_loaded).
    pub(crate) fn get(&self, number: InodeNumber) -> Result<Arc<Node>, Serial> {
        let mut inner = self.inner.lock();
        if let Some(entry) = inner.nodes.get_mut(&number) {
            entry.referenced = true;
            if let Some(node) = entry.node.node() {
                return Ok(node);
            }
            if matches!(entry.node, Reference::Loading) {
                return Err(entry.serial);
            }
        }
        inner.put(number, Reference::Loading);
        Err(inner.serial)
    }

    /// Adds a node that was just loaded, and returns it. If another thread has added the node
    /// first, returns that one. Returns `None` if the loaded node may be stale.
    pub(crate) fn loaded(&self, node: Arc<Node>, serial: Serial) -> Option<Arc<Node>> {
        let mut dropped = Vec::new();
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get(&node.number())?;
        if let Some(existing) = entry.node.node() {
            return Some(existing);
        }
        if entry.serial != serial {
            return None;
        }
        inner.trim(self.nodes_max, &mut dropped);
        inner.put(node.number(), Reference::Named(Arc::clone(&node)));
        drop(inner);
        // Without the lock, since each node frees its cached data.
        drop(dropped);
        Some(node)
    }

    /// Removes the entry of a node that could not be loaded.
    pub(crate) fn not_loaded(&self, number: InodeNumber, serial: Serial) {
        let mut inner = self.inner.lock();
        if inner.nodes.get(&number).is_some_and(|entry| entry.serial == serial) {
            inner.nodes.remove(&number);
        }
    }

    /// Adds the node of an inode that was just created. Replaces an entry of an earlier inode with
    /// the same number.
    pub(crate) fn insert_new(&self, node: &Arc<Node>, named: bool) {
        let mut dropped = Vec::new();
        let mut inner = self.inner.lock();
        inner.trim(self.nodes_max, &mut dropped);
        let reference = if named {
            Reference::Named(Arc::clone(node))
        } else {
            Reference::Nameless(Arc::downgrade(node))
        };
        dropped.extend(inner.put(node.number(), reference));
        drop(inner);
        drop(dropped);
    }

    /// Makes the table's reference to a node weak, since its inode has lost its last name: the last
    /// user drops the node.
    pub(crate) fn set_nameless(&self, node: &Arc<Node>) {
        let mut inner = self.inner.lock();
        let dropped = inner.put(node.number(), Reference::Nameless(Arc::downgrade(node)));
        drop(inner);
        drop(dropped);
    }

    /// Makes the table's reference to a node strong, since its inode has got its first name: unused
    /// nodes stay.
    pub(crate) fn set_named(&self, node: &Arc<Node>) {
        self.insert_new(node, true);
    }

    /// Removes a nameless node after its last use, before its number can be used again.
    pub(crate) fn remove_dead(&self, number: InodeNumber, node: *const Node) {
        let mut inner = self.inner.lock();
        let entry = inner.nodes.get(&number);
        if entry.is_some_and(
            |entry| matches!(&entry.node, Reference::Nameless(dead) if dead.as_ptr() == node),
        ) {
            inner.nodes.remove(&number);
        }
    }

    /// Returns all nodes in memory.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        let inner = self.inner.lock();
        inner.nodes.values().filter_map(|entry| entry.node.node()).collect()
    }

    /// Returns the nodes in memory without a name.
    pub(crate) fn nameless(&self) -> Vec<Arc<Node>> {
        let inner = self.inner.lock();
        let nodes = inner.nodes.values().filter_map(|entry| match &entry.node {
            Reference::Nameless(node) => node.upgrade(),
            Reference::Named(_) | Reference::Loading => None,
        });
        nodes.collect()
    }

    /// Drops all nodes.
    pub(crate) fn clear(&self) {
        let inner = std::mem::take(&mut *self.inner.lock());
        drop(inner);
    }
}

impl Inner {
    /// Adds an entry to the table. Returns the node that it replaces.
    fn put(&mut self, number: InodeNumber, node: Reference) -> Option<Arc<Node>> {
        self.serial += 1;
        let serial = self.serial;
        if matches!(node, Reference::Named(_)) {
            self.clock.push_back((number, serial));
        }
        let before = self.nodes.insert(number, Entry { node, referenced: false, serial });
        // Replaced entries stay in the clock until a sweep.
        if self.clock.len() > 2 * self.nodes.len() + STALE_MIN {
            let nodes = &self.nodes;
            self.clock.retain(|(number, serial)| {
                nodes.get(number).is_some_and(|entry| entry.serial == *serial)
            });
        }
        match before?.node {
            Reference::Named(node) => Some(node),
            Reference::Nameless(_) | Reference::Loading => None,
        }
    }

    /// Moves unused nodes into `dropped` while the table is full.
    fn trim(&mut self, nodes_max: usize, dropped: &mut Vec<Arc<Node>>) {
        for _ in 0..SCAN_MAX {
            if self.nodes.len() < nodes_max {
                return;
            }
            let Some((number, serial)) = self.clock.pop_front() else { return };
            let Some(entry) = self.nodes.get_mut(&number) else { continue };
            if entry.serial != serial {
                continue;
            }
            let Reference::Named(node) = &entry.node else { continue };
            // No thread can begin to use it now, since a lookup takes the table's lock.
            let in_use = Arc::strong_count(node) > 1 || node.has_direct_requests();
            if in_use || std::mem::take(&mut entry.referenced) {
                self.clock.push_back((number, serial));
            } else if let Some(Entry { node: Reference::Named(node), .. }) =
                self.nodes.remove(&number)
            {
                dropped.push(node);
            }
        }
    }
}
