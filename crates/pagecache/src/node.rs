//! The nodes that trees are made of. Not here: where they lie (pool.rs), what their entries mean
//! (tree.rs).

use crate::sync::{AtomicU32, Ordering};
use crate::tree::{Entry, SLOTS};

/// A node's number: 16 times that of the frame it lies in, plus its place there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeId(pub(crate) u32);

impl NodeId {
    pub(crate) fn new(frame: u32, place: u32) -> Self {
        Self(frame << 4 | place)
    }

    pub(crate) fn frame(self) -> u32 {
        self.0 >> 4
    }

    pub(crate) fn place(self) -> u32 {
        self.0 & 15
    }
}

/// One node. All zeroes is an empty one.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Node {
    /// How many slots are not empty. Belongs to the lock of the tree, like every change of a slot.
    used: AtomicU32,
    /// The next free node; belongs to the pool's lock.
    pub(crate) next_free: AtomicU32,
    slots: [AtomicU32; SLOTS],
}

/// A store of nodes.
pub(crate) trait Nodes {
    /// Returns the node `id`.
    fn node(&self, id: NodeId) -> &Node;

    /// Takes an empty node out of the store.
    fn take_node(&self) -> Option<NodeId>;

    /// Puts a node, which must be empty, back into the store.
    fn give_node(&self, id: NodeId);
}

/// How many nodes a frame holds.
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
    /// What `slot` holds. Acquire: a node that is found this way can be looked into.
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

    /// Whether all slots are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }
}
