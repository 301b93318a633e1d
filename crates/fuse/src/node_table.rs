//! The table of nodes that the kernel knows, with their lookup counts. A node stays in memory until
//! the kernel has forgotten all of its lookups (FORGET).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use base::{InodeNumber, Result};
use parking_lot::Mutex;

use crate::kernel_cache::KernelCache;
use crate::protocol::ROOT_NODE;

/// A node that the kernel knows.
#[derive(Debug)]
pub struct KnownNode {
    /// The node.
    pub node: Arc<vfs::Node>,
    file: OnceLock<Arc<vfs::File>>,
    /// The reads of the contents that fill the kernel's cache.
    pub kernel_cache: KernelCache,
    /// Whether the kernel may have cached contents, and answer reads from them.
    is_cached: AtomicBool,
}

impl KnownNode {
    fn new(node: Arc<vfs::Node>) -> Arc<Self> {
        Arc::new(Self {
            node,
            file: OnceLock::new(),
            kernel_cache: KernelCache::default(),
            is_cached: AtomicBool::new(false),
        })
    }

    /// Records that the kernel may have cached contents.
    pub fn mark_cached(&self) {
        if !self.is_cached.load(Ordering::Relaxed) {
            self.is_cached.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the kernel may answer reads from its cache. The kernel always answers reads
    /// of empty files itself.
    pub fn is_cached(&self) -> bool {
        self.is_cached.load(Ordering::Relaxed)
    }

    /// Returns the regular file of the node. It is opened once and shared by all readers. Reads
    /// through it do not count as accesses.
    pub fn file(&self) -> Result<Arc<vfs::File>> {
        if let Some(file) = self.file.get() {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(self.node.open()?.without_access_time());
        Ok(Arc::clone(self.file.get_or_init(|| file)))
    }

    /// Records that a reader has closed the file.
    pub fn stop_reading(&self) {
        if let Some(file) = self.file.get() {
            file.stop_reading();
        }
    }
}

impl AsRef<KernelCache> for KnownNode {
    fn as_ref(&self) -> &KernelCache {
        &self.kernel_cache
    }
}

/// The table of known nodes.
#[derive(Debug)]
pub struct NodeTable {
    root: InodeNumber,
    entries: Mutex<HashMap<u64, Entry>>,
}

#[derive(Debug)]
struct Entry {
    known: Arc<KnownNode>,
    lookups: u64,
}

impl NodeTable {
    /// Creates a table with the root, which is never removed.
    pub fn new(root: Arc<vfs::Node>) -> Self {
        let number = root.number();
        // This lookup is never removed: see `forget`.
        let entry = Entry { known: KnownNode::new(root), lookups: 1 };
        Self { root: number, entries: Mutex::new(HashMap::from([(ROOT_NODE, entry)])) }
    }

    /// Returns the node id of an inode: its number, except that the root's number and 1 are
    /// exchanged.
    pub fn id(&self, inode: InodeNumber) -> u64 {
        match inode.0 {
            number if number == self.root.0 => ROOT_NODE,
            ROOT_NODE => self.root.0,
            number => number,
        }
    }

    /// Returns the inode number of an id. The kernel need not know the node.
    pub fn number(&self, id: u64) -> InodeNumber {
        // The exchange is its own inverse.
        InodeNumber(self.id(InodeNumber(id)))
    }

    /// Returns the node of an id, if the kernel knows it.
    pub fn get(&self, id: u64) -> Option<Arc<KnownNode>> {
        self.entries.lock().get(&id).map(|entry| Arc::clone(&entry.known))
    }

    /// Counts one lookup of `node`. Returns its id.
    pub fn count_lookup(&self, node: &Arc<vfs::Node>) -> u64 {
        let id = self.id(node.number());
        let mut entries = self.entries.lock();
        let entry = entries
            .entry(id)
            .or_insert_with(|| Entry { known: KnownNode::new(Arc::clone(node)), lookups: 0 });
        entry.lookups = entry.lookups.saturating_add(1);
        id
    }

    /// Replaces each node by the one that `load` returns for its number, without a change of what
    /// the kernel knows of it. No request may be served meanwhile. Replaces none if one cannot be
    /// loaded.
    pub fn replace(&self, load: impl Fn(InodeNumber) -> Result<Arc<vfs::Node>>) -> Result<()> {
        let mut entries = self.entries.lock();
        let is_unused = |entry: &mut Entry| Arc::get_mut(&mut entry.known).is_some();
        assert!(entries.values_mut().all(is_unused), "a request is served");
        let loaded = entries.keys().map(|id| load(self.number(*id)).map(|node| (*id, node)));
        let loaded = loaded.collect::<Result<Vec<_>>>()?;
        for (id, node) in loaded {
            let entry = entries.get_mut(&id);
            if let Some(known) = entry.and_then(|entry| Arc::get_mut(&mut entry.known)) {
                known.node = node;
                known.file = OnceLock::new();
            }
        }
        Ok(())
    }

    /// Removes all lookups of all nodes but the root's.
    pub fn clear(&self) {
        let mut entries = self.entries.lock();
        let root = entries.remove(&ROOT_NODE);
        let others = std::mem::take(&mut *entries);
        entries.extend(root.map(|root| (ROOT_NODE, root)));
        drop(entries);
        drop(others);
    }

    /// Removes lookups of a node. If none are left, releases the node.
    pub fn forget(&self, id: u64, lookups: u64) {
        if id == ROOT_NODE {
            return;
        }
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&id) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups == 0 {
            let released = entries.remove(&id);
            drop(entries);
            // Dropped without the lock, since this may free the node's cached data.
            drop(released);
        }
    }
}
