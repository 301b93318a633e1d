//! Tree nodes. Not here: their allocation (`pool.rs`), and the meaning of their entries
//! (`tree.rs`).

use crate::tree::{Entry, SLOTS};
use base::sync::{AtomicU32, Ordering};

/// A node's number: 16 times the number of its frame, plus its index in the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeId(pub(crate) u32);

impl NodeId {
    pub(crate) fn new(frame: u32, index: u32) -> Self {
        Self(frame << 4 | index)
    }

    pub(crate) fn frame(self) -> u32 {
        self.0 >> 4
    }

    pub(crate) fn index(self) -> u32 {
        self.0 & 15
    }
}

/// A tree node. An empty node is all zeroes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Node {
    /// The number of slots that are not empty. Protected by the tree's lock, like all changes of
    /// slots.
    used: AtomicU32,
    /// The next free node. Protected by the pool's lock.
    pub(crate) next_free: AtomicU32,
    slots: [AtomicU32; SLOTS],
}

/// An allocator of nodes.
pub(crate) trait Nodes {
    /// Returns node `id`.
    fn node(&self, id: NodeId) -> &Node;

    /// Allocates an empty node. Returns `None` if there is no memory.
    fn allocate_node(&self) -> Option<NodeId>;

    /// Frees a node, which must be empty.
    fn free_node(&self, id: NodeId);
}

/// The number of nodes in a frame.
pub(crate) const NODES_PER_FRAME: u32 = 15;
#[cfg(not(loom))]
const _: () = assert!(size_of::<Node>() == 264);
#[cfg(not(loom))]
const _: () = assert!(size_of::<Node>() * NODES_PER_FRAME as usize <= crate::PAGE_SIZE);

#[cfg(all(test, loom))]
impl Default for Node {
    fn default() -> Self {
        let [used, next_free] = [(); 2].map(|()| AtomicU32::new(0));
        Self { used, next_free, slots: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

impl Node {
    /// Returns the entry in `slot`. Acquire: if it is a node, its slots can be read.
    #[inline]
    pub(crate) fn load(&self, slot: usize) -> Entry {
        Entry(self.slots[slot].load(Ordering::Acquire))
    }

    /// Stores `entry` in `count` slots from `slot` on. The caller holds the tree's lock.
    pub(crate) fn fill(&self, slot: usize, count: usize, entry: Entry) {
        let mut used = self.used.load(Ordering::Relaxed);
        for slot in &self.slots[slot..slot + count] {
            let before = Entry(slot.load(Ordering::Relaxed));
            used = used + u32::from(entry != Entry::EMPTY) - u32::from(before != Entry::EMPTY);
            slot.store(entry.0, Ordering::Release);
        }
        self.used.store(used, Ordering::Relaxed);
    }

    /// Returns whether all slots are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }
}
