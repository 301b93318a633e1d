//! The tree of one mapping: from page indices to the frames of its folios, 64 ways at a time.
//! Lookups take no lock; changes are made under the lock of the mapping.
//! Not here: where nodes come from, and whether the frame that was found is still what it was.
//!
//! Invariants (`T` for tree):
//!
//! - **T1.** Nodes are type-stable: memory that was a node once stays a node as long as the cache,
//!   and its slots only ever hold entries. So a lookup that is overtaken by changes, and walks
//!   through nodes that belong to another tree by now, meets entries all the same. It ends, since
//!   it descends, and what it finds is a guess: `Frame::try_get` proves or refutes a frame, and
//!   "nothing" is made sure under the lock by `insert`.
//! - **T2.** A folio of order `n` fills 2^n slots of a leaf, or, from order 6 on, 2^(n-6) slots of a
//!   node one level above.
//! - **T3.** A node in a tree is not empty.

use smallvec::SmallVec;

use crate::frame::Place;
use crate::node::{NodeId, Nodes};
use crate::sync::{AtomicU64, Ordering};

/// log2 of the slots of a node. Fewer in models, where every access counts.
const BITS: u32 = if cfg!(loom) { 2 } else { 6 };
/// Slots of a node.
pub(crate) const SLOTS: usize = 1 << BITS;
/// Levels of the tallest tree: enough for files of 2^63 bytes.
const HEIGHT_MAX: usize = 9;

/// What a slot holds: nothing, a frame, or a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry(pub(crate) u32);

/// An [`Entry`], taken apart.
enum Target {
    Nothing,
    Folio(u32),
    Node(NodeId),
}

impl Entry {
    pub(crate) const EMPTY: Self = Self(0);
    const FOLIO: u32 = 1;
    const NODE: u32 = 2;

    fn folio(frame: u32) -> Self {
        Self(frame << 2 | Self::FOLIO)
    }

    fn node(id: NodeId) -> Self {
        Self(id.0 << 2 | Self::NODE)
    }

    #[inline]
    fn target(self) -> Target {
        match self.0 & 3 {
            Self::FOLIO => Target::Folio(self.0 >> 2),
            Self::NODE => Target::Node(NodeId(self.0 >> 2)),
            _ => Target::Nothing,
        }
    }
}

/// The root: an entry, and how many levels of nodes lie below it. A tree of height `h` has room for
/// 64^h pages; one of height 0 holds page 0 in the root itself.
#[derive(Clone, Copy)]
struct Root {
    entry: Entry,
    height: u32,
}

/// Why a folio cannot be inserted.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// This frame's folio has some of the pages.
    Exists(u32),
    /// No memory for nodes.
    NoNodes,
}

/// One mapping's tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    root: AtomicU64,
}

/// The level of the slots that a folio of `order` fills (T2); leaves are level 0.
fn level(order: u8) -> u32 {
    u32::from(order) / BITS
}

/// Whether a tree of `height` has room for page `index`.
#[inline]
fn covers(height: u32, index: u64) -> bool {
    index >> (BITS * height) == 0
}

/// The slot for `index` in a node of `level`.
#[inline]
fn slot(index: u64, level: u32) -> usize {
    (index >> (BITS * level)) as usize & (SLOTS - 1)
}

impl Tree {
    #[inline]
    fn root(&self) -> Root {
        let packed = self.root.load(Ordering::Acquire);
        // Not above HEIGHT_MAX, since `set_root` stores no such thing.
        Root { entry: Entry(packed as u32), height: (packed >> 32) as u32 }
    }

    fn set_root(&self, root: Root) {
        let packed = u64::from(root.height) << 32 | u64::from(root.entry.0);
        self.root.store(packed, Ordering::Release);
    }

    /// The frame that the tree holds for page `index`. A guess, unless the caller holds the lock
    /// (T1).
    #[inline]
    pub(crate) fn find(&self, nodes: &impl Nodes, index: u64) -> Option<u32> {
        self.walk(nodes, index).ok()
    }

    /// The frame for page `index`, or how many pages from the beginning of the empty slot it fell
    /// into are absent, as a power of two.
    #[inline]
    fn walk(&self, nodes: &impl Nodes, index: u64) -> Result<u32, u32> {
        let Root { mut entry, mut height } = self.root();
        if !covers(height, index) {
            return Err(u64::BITS);
        }
        loop {
            match entry.target() {
                Target::Folio(frame) => return Ok(frame),
                Target::Node(id) if height > 0 => {
                    height -= 1;
                    entry = nodes.node(id).load(slot(index, height));
                }
                _ => return Err(BITS * height),
            }
        }
    }

    /// The first page of `from..end` that the tree holds, and its frame. A guess, unless the caller
    /// holds the lock.
    pub(crate) fn first_present(
        &self,
        nodes: &impl Nodes,
        from: u64,
        end: u64,
    ) -> Option<(u64, u32)> {
        let mut index = from;
        while index < end {
            match self.walk(nodes, index) {
                Ok(frame) => return Some((index, frame)),
                Err(absent) => index = ((index.checked_shr(absent)? + 1).checked_shl(absent))?,
            }
        }
        None
    }

    /// Puts `frame`'s folio at `place`. The caller holds the lock.
    pub(crate) fn insert(
        &self,
        nodes: &impl Nodes,
        place: Place,
        frame: u32,
    ) -> Result<(), Refusal> {
        debug_assert!(place.index % place.pages() == 0 && covers(HEIGHT_MAX as u32, place.end()));
        if let Some((_, existing)) = self.first_present(nodes, place.index, place.end()) {
            return Err(Refusal::Exists(existing));
        }
        self.grow(nodes, place)?;
        let mut path = Path::new();
        if self.make_way(nodes, place, &mut path).is_none() {
            self.prune(nodes, &path);
            return Err(Refusal::NoNodes);
        }
        self.set(nodes, &path, slots(place.order), Entry::folio(frame));
        Ok(())
    }

    /// Takes the folio at `place` out. The caller holds the lock and knows that it is there.
    pub(crate) fn remove(&self, nodes: &impl Nodes, place: Place) {
        let mut path = Path::new();
        let made = self.make_way(nodes, place, &mut path);
        debug_assert_eq!(made, Some(0), "the way to a folio exists");
        self.set(nodes, &path, slots(place.order), Entry::EMPTY);
        self.prune(nodes, &path);
    }

    /// Has the folio at `place` be `frame`'s from now on. The caller holds the lock and knows that
    /// there is one.
    pub(crate) fn replace(&self, nodes: &impl Nodes, place: Place, frame: u32) {
        let mut path = Path::new();
        let made = self.make_way(nodes, place, &mut path);
        debug_assert_eq!(made, Some(0), "the way to a folio exists");
        self.set(nodes, &path, slots(place.order), Entry::folio(frame));
    }

    /// Makes the tree tall enough for `place`.
    fn grow(&self, nodes: &impl Nodes, place: Place) -> Result<(), Refusal> {
        loop {
            let Root { entry, height } = self.root();
            let tall_enough = covers(height, place.end() - 1)
                && (height > level(place.order) || place.order == 0 && height == 0);
            if tall_enough {
                return Ok(());
            }
            let mut root = Root { entry, height: height + 1 };
            if entry != Entry::EMPTY {
                let id = nodes.take_node().ok_or(Refusal::NoNodes)?;
                nodes.node(id).fill(0, 1, entry);
                root.entry = Entry::node(id);
            }
            self.set_root(root);
        }
    }

    /// Walks to the level of `place`'s slots and makes the nodes that are not there; gives how many
    /// it made, or `None` when there was no memory for one. The way down to there is in `path`.
    fn make_way(&self, nodes: &impl Nodes, place: Place, path: &mut Path) -> Option<usize> {
        let Root { mut entry, height } = self.root();
        let mut made = 0;
        for level in (level(place.order)..height).rev() {
            let id = match entry.target() {
                Target::Node(id) => id,
                _ => {
                    let id = nodes.take_node()?;
                    self.set(nodes, path, 1, Entry::node(id));
                    made += 1;
                    id
                }
            };
            let slot = slot(place.index, level);
            path.push((id, slot));
            entry = nodes.node(id).load(slot);
        }
        Some(made)
    }

    /// Stores `entry` in `count` slots where `path` ends: in its last node, or the root.
    fn set(&self, nodes: &impl Nodes, path: &Path, count: usize, entry: Entry) {
        match path.last() {
            Some(&(id, slot)) => nodes.node(id).fill(slot, count, entry),
            None => self.set_root(Root { entry, ..self.root() }),
        }
    }

    /// Frees the nodes at the end of `path` that are empty (T3).
    fn prune(&self, nodes: &impl Nodes, path: &Path) {
        let mut path = path.clone();
        while let Some((id, _)) = path.pop() {
            if !nodes.node(id).is_empty() {
                return;
            }
            self.set(nodes, &path, 1, Entry::EMPTY);
            nodes.give_node(id);
        }
    }

    /// Empties the tree. Calls `removed` for the frame of each folio that was in it. The caller
    /// holds the lock.
    pub(crate) fn clear(&self, nodes: &impl Nodes, removed: &mut dyn FnMut(u32)) {
        let Root { entry, .. } = self.root();
        self.set_root(Root { entry: Entry::EMPTY, height: 0 });
        clear_below(nodes, entry, removed);
    }
}

/// The way from the root to a slot: nodes, and the slot in each. Empty for the root itself.
type Path = SmallVec<[(NodeId, usize); HEIGHT_MAX]>;

/// How many slots a folio of `order` fills (T2).
fn slots(order: u8) -> usize {
    1 << (u32::from(order) % BITS)
}

/// Frees `entry`'s node and all below it. As deep as the tree is tall.
fn clear_below(nodes: &impl Nodes, entry: Entry, removed: &mut dyn FnMut(u32)) {
    let id = match entry.target() {
        Target::Nothing => return,
        Target::Folio(frame) => return removed(frame),
        Target::Node(id) => id,
    };
    let node = nodes.node(id);
    let mut previous = Entry::EMPTY;
    for slot in 0..SLOTS {
        let entry = node.load(slot);
        // The slots of a folio follow one another.
        if entry != previous {
            clear_below(nodes, entry, removed);
        }
        previous = entry;
    }
    node.fill(0, SLOTS, Entry::EMPTY);
    nodes.give_node(id);
}

#[cfg(all(test, loom))]
mod model;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pool::Pool;

    fn pool() -> Pool {
        Pool::new(512 << 10).expect("memory")
    }

    fn place(index: u64, order: u8) -> Place {
        Place { index, order }
    }

    /// Nodes that are in use: those that were ever made, less the free ones.
    fn nodes_in_use(pool: &Pool) -> usize {
        let mut free = Vec::new();
        let before = pool.stats().bytes_index;
        while pool.stats().bytes_index == before {
            free.extend(pool.take_node());
        }
        // The last one is the first of those made just now.
        let made = before as usize / crate::PAGE_SIZE * crate::node::NODES_PER_FRAME as usize;
        let in_use = made + 1 - free.len();
        free.into_iter().for_each(|id| pool.give_node(id));
        in_use
    }

    #[test]
    fn a_single_first_page_needs_no_node() {
        let (pool, tree) = (pool(), Tree::default());
        tree.insert(&pool, place(0, 0), 7).expect("room");
        assert_eq!(tree.find(&pool, 0), Some(7));
        assert_eq!(tree.find(&pool, 1), None);
        assert_eq!(pool.stats().bytes_index, 0);
        tree.insert(&pool, place(1, 0), 8).expect("room");
        assert_eq!((tree.find(&pool, 0), tree.find(&pool, 1)), (Some(7), Some(8)));
        tree.remove(&pool, place(0, 0));
        tree.remove(&pool, place(1, 0));
        assert_eq!((tree.find(&pool, 0), tree.find(&pool, 1)), (None, None));
    }

    #[test]
    fn every_order_fills_its_pages_and_no_others_anywhere_in_the_file() {
        for order in 0..=crate::ORDER_MAX {
            for index in [0, 1 << 9, 1 << 12, 3 << 18, 1 << 40, (1 << 51) - (1 << 9)] {
                let (pool, tree) = (pool(), Tree::default());
                tree.insert(&pool, place(index, order), 5).expect("room");
                let end = index + (1 << order);
                for (page, found) in
                    [(index, true), (end - 1, true), (end, false), (index.wrapping_sub(1), false)]
                {
                    let expected = found.then_some(5);
                    assert_eq!(
                        tree.find(&pool, page),
                        expected,
                        "order {order} at {index}: {page}"
                    );
                }
                assert_eq!(tree.first_present(&pool, 0, u64::MAX), Some((index, 5)));
                tree.remove(&pool, place(index, order));
                assert_eq!(tree.first_present(&pool, 0, u64::MAX), None);
                assert_eq!(tree.root().entry, Entry::EMPTY);
            }
        }
    }

    #[test]
    fn random_changes_agree_with_a_map_and_leave_no_node_behind() {
        let (pool, tree) = (pool(), Tree::default());
        let mut model: BTreeMap<u64, (u8, u32)> = BTreeMap::new();
        let mut random = 7_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random >> 33
        };
        let rounds = if cfg!(miri) { 300 } else { 20_000 };
        for round in 0..rounds {
            let order = next() as u8 % 10;
            let far = if next() % 4 == 0 { 1 << 30 } else { 0 };
            let index = (next() % 8192 + far) >> order << order;
            let end = index + (1 << order);
            let before = model.range(..end).next_back();
            let present = before.filter(|(at, (order, _))| *at + (1 << *order) > index);
            if next() % 2 == 0 {
                let overlaps = present.is_some();
                let frame = round as u32;
                let got = tree.insert(&pool, place(index, order), frame);
                assert_eq!(got.is_err(), overlaps, "order {order} at {index}");
                if got.is_ok() {
                    model.insert(index, (order, frame));
                }
            } else if let Some((&at, &(order, _))) = present {
                tree.remove(&pool, place(at, order));
                model.remove(&at);
            }
            let page = next() % 8192 + far;
            let before = model.range(..=page).next_back();
            let expected = before.filter(|(at, (order, _))| *at + (1 << *order) > page);
            assert_eq!(tree.find(&pool, page), expected.map(|(_, (_, frame))| *frame));
            let after = expected.map(|_| page).or(model.range(page..).next().map(|(at, _)| *at));
            let present = tree.first_present(&pool, page, u64::MAX).map(|(at, _)| at);
            assert_eq!(present, after, "from {page}");
        }
        let mut removed = Vec::new();
        tree.clear(&pool, &mut |frame| removed.push(frame));
        removed.sort_unstable();
        let mut expected: Vec<u32> = model.values().map(|(_, frame)| *frame).collect();
        expected.sort_unstable();
        assert_eq!(removed, expected);
        assert_eq!(nodes_in_use(&pool), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes all nodes of a pool, for minutes")]
    fn an_insertion_without_memory_for_nodes_leaves_nothing_behind() {
        let (pool, tree) = (pool(), Tree::default());
        tree.insert(&pool, place(0, 0), 1).expect("room");
        let mut nodes: Vec<NodeId> = std::iter::from_fn(|| pool.take_node()).collect();
        // The way to a far page takes four nodes above the first page, and three beside it.
        for spare in 0..6 {
            let refused = tree.insert(&pool, place(1 << 20, 0), 2);
            assert_eq!(refused, Err(Refusal::NoNodes), "{spare} nodes");
            assert_eq!(tree.find(&pool, 0), Some(1));
            assert_eq!(tree.find(&pool, 1 << 20), None);
            pool.give_node(nodes.pop().expect("many"));
        }
        pool.give_node(nodes.pop().expect("many"));
        tree.insert(&pool, place(1 << 20, 0), 2).expect("room by now");
        assert_eq!(tree.find(&pool, 1 << 20), Some(2));
        assert_eq!(pool.take_node(), None, "no more nodes than needed");
    }
}
