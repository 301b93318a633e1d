//! The tree of one mapping: a radix tree from page indices to the frames of its folios, with 64
//! slots in a node. Lookups take no lock; changes are made under the lock of the mapping. Not here:
//! the allocation of nodes, and the check that a found frame still heads the folio.
//!
//! Invariants (`T` for tree):
//!
//! - **T1.** Nodes are type-stable: memory that was a node once stays a node as long as the cache,
//!   and its slots only ever contain entries. So a lookup during concurrent changes may walk
//!   through nodes that belong to another tree by now, but still finds entries. It ends, since each
//!   node is a level below the last. Its result is a guess: `Frame::try_get` verifies a frame, and
//!   `insert` verifies under the lock that there is none.
//! - **T2.** A folio of order `n` fills 2^n slots of a leaf, or, from order 6 on, 2^(n-6) slots of
//!   a node one level above.
//! - **T3.** A node in a tree is not empty.

use smallvec::SmallVec;

use crate::frame::Span;
use crate::node::{NodeId, Nodes};
use base::sync::{AtomicU64, Ordering};

/// log2 of the number of slots in a node. Fewer in models, where every access takes time.
const BITS: u32 = if cfg!(loom) { 2 } else { 6 };
/// The number of slots in a node.
pub(crate) const SLOTS: usize = 1 << BITS;
/// The number of levels of the tallest tree: enough for files of 2^63 bytes.
const HEIGHT_MAX: usize = 9;

/// The packed contents of a slot: nothing, a frame, or a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry(pub(crate) u32);

/// An unpacked [`Entry`].
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

/// The root: an entry, and the number of levels of nodes below it. A tree of height `h` has room
/// for 64^h pages. With height 0, the root itself is the slot of page 0.
#[derive(Clone, Copy)]
struct Root {
    entry: Entry,
    height: u32,
}

/// The reason why a folio cannot be inserted.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum InsertError {
    /// This frame's folio contains some of the pages.
    Exists(u32),
    /// There is no memory for nodes.
    NoNodes,
}

/// The tree of one mapping.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    root: AtomicU64,
}

/// Returns the level of the slots that a folio of `order` fills (T2). Leaves are level 0.
fn level(order: u8) -> u32 {
    u32::from(order) / BITS
}

/// Returns whether a tree of `height` has room for page `index`.
#[inline]
fn covers(height: u32, index: u64) -> bool {
    index >> (BITS * height) == 0
}

/// Returns the slot of page `index` in a node of `level`.
#[inline]
fn slot(index: u64, level: u32) -> usize {
    (index >> (BITS * level)) as usize & (SLOTS - 1)
}

impl Tree {
    #[inline]
    fn root(&self) -> Root {
        let packed = self.root.load(Ordering::Acquire);
        // At most HEIGHT_MAX, since `grow` stores no more.
        Root { entry: Entry(packed as u32), height: (packed >> 32) as u32 }
    }

    fn set_root(&self, root: Root) {
        let packed = u64::from(root.height) << 32 | u64::from(root.entry.0);
        self.root.store(packed, Ordering::Release);
    }

    /// Returns the frame of page `index`. A guess, unless the caller holds the lock (T1).
    #[inline]
    pub(crate) fn find(&self, nodes: &impl Nodes, index: u64) -> Option<u32> {
        self.walk(nodes, index).ok()
    }

    /// Returns the frame of page `index`. If there is none, the error is the log2 of the number of
    /// pages that its empty slot covers. All of these are absent.
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

    /// Returns the first page of `from..end` that is in the tree, and its frame. A guess, unless
    /// the caller holds the lock (T1).
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

    /// Inserts `frame`'s folio at `span`. The caller holds the lock.
    pub(crate) fn insert(
        &self,
        nodes: &impl Nodes,
        span: Span,
        frame: u32,
    ) -> Result<(), InsertError> {
        debug_assert!(span.index % span.pages() == 0 && covers(HEIGHT_MAX as u32, span.end()));
        if let Some((_, existing)) = self.first_present(nodes, span.index, span.end()) {
            return Err(InsertError::Exists(existing));
        }
        self.grow(nodes, span)?;
        let mut path = Path::new();
        if self.create_path(nodes, span, &mut path).is_none() {
            self.prune(nodes, &path);
            return Err(InsertError::NoNodes);
        }
        self.set(nodes, &path, slots(span.order), Entry::folio(frame));
        Ok(())
    }

    /// Removes the folio at `span`. The caller holds the lock and knows that there is one.
    pub(crate) fn remove(&self, nodes: &impl Nodes, span: Span) {
        let mut path = Path::new();
        let created = self.create_path(nodes, span, &mut path);
        debug_assert_eq!(created, Some(0), "the path to a folio exists");
        self.set(nodes, &path, slots(span.order), Entry::EMPTY);
        self.prune(nodes, &path);
    }

    /// Replaces the folio at `span` by `frame`'s. The caller holds the lock and knows that there is
    /// one.
    pub(crate) fn replace(&self, nodes: &impl Nodes, span: Span, frame: u32) {
        let mut path = Path::new();
        let created = self.create_path(nodes, span, &mut path);
        debug_assert_eq!(created, Some(0), "the path to a folio exists");
        self.set(nodes, &path, slots(span.order), Entry::folio(frame));
    }

    /// Makes the tree tall enough for `span`.
    fn grow(&self, nodes: &impl Nodes, span: Span) -> Result<(), InsertError> {
        loop {
            let Root { entry, height } = self.root();
            let tall_enough = covers(height, span.end() - 1)
                && (height > level(span.order) || span.order == 0 && height == 0);
            if tall_enough {
                return Ok(());
            }
            let mut root = Root { entry, height: height + 1 };
            if entry != Entry::EMPTY {
                let id = nodes.allocate_node().ok_or(InsertError::NoNodes)?;
                nodes.node(id).fill(0, 1, entry);
                root.entry = Entry::node(id);
            }
            self.set_root(root);
        }
    }

    /// Walks to the slots of `span`, and creates missing nodes. Stores the path to the first slot
    /// in `path`. Returns the number of nodes created, or `None` if there is no memory for one.
    fn create_path(&self, nodes: &impl Nodes, span: Span, path: &mut Path) -> Option<usize> {
        let Root { mut entry, height } = self.root();
        let mut created = 0;
        for level in (level(span.order)..height).rev() {
            let id = match entry.target() {
                Target::Node(id) => id,
                _ => {
                    let id = nodes.allocate_node()?;
                    self.set(nodes, path, 1, Entry::node(id));
                    created += 1;
                    id
                }
            };
            let slot = slot(span.index, level);
            path.push((id, slot));
            entry = nodes.node(id).load(slot);
        }
        Some(created)
    }

    /// Stores `entry` in `count` slots from the end of `path` on: in its last node, or the root.
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
            nodes.free_node(id);
        }
    }

    /// Empties the tree. Calls `removed` with the frame of each folio that was in it. The caller
    /// holds the lock.
    pub(crate) fn clear(&self, nodes: &impl Nodes, removed: &mut dyn FnMut(u32)) {
        let Root { entry, .. } = self.root();
        self.set_root(Root { entry: Entry::EMPTY, height: 0 });
        clear_below(nodes, entry, removed);
    }
}

/// The path from the root to a slot: nodes, and the slot in each. Empty for the root itself.
type Path = SmallVec<[(NodeId, usize); HEIGHT_MAX]>;

/// Returns the number of slots that a folio of `order` fills (T2).
fn slots(order: u8) -> usize {
    1 << (u32::from(order) % BITS)
}

/// Frees `entry`'s node and all nodes below it. Recurses as deep as the tree is tall.
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
        // The slots of a folio are adjacent.
        if entry != previous {
            clear_below(nodes, entry, removed);
        }
        previous = entry;
    }
    node.fill(0, SLOTS, Entry::EMPTY);
    nodes.free_node(id);
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

    fn span(index: u64, order: u8) -> Span {
        Span { index, order }
    }

    /// Returns the number of nodes in use: all nodes that were created, less the free ones.
    fn nodes_in_use(pool: &Pool) -> usize {
        let mut free = Vec::new();
        let before = pool.stats().bytes_index;
        while pool.stats().bytes_index == before {
            free.extend(pool.allocate_node());
        }
        // The last allocation created further nodes, and its node is one of these.
        let created = before as usize / crate::PAGE_SIZE * crate::node::NODES_PER_FRAME as usize;
        let in_use = created + 1 - free.len();
        free.into_iter().for_each(|id| pool.free_node(id));
        in_use
    }

    #[test]
    fn a_single_first_page_needs_no_node() {
        let (pool, tree) = (pool(), Tree::default());
        tree.insert(&pool, span(0, 0), 7).expect("room");
        assert_eq!(tree.find(&pool, 0), Some(7));
        assert_eq!(tree.find(&pool, 1), None);
        assert_eq!(pool.stats().bytes_index, 0);
        tree.insert(&pool, span(1, 0), 8).expect("room");
        assert_eq!((tree.find(&pool, 0), tree.find(&pool, 1)), (Some(7), Some(8)));
        tree.remove(&pool, span(0, 0));
        tree.remove(&pool, span(1, 0));
        assert_eq!((tree.find(&pool, 0), tree.find(&pool, 1)), (None, None));
    }

    #[test]
    fn a_folio_of_any_order_is_found_at_its_pages_only() {
        for order in 0..=crate::ORDER_MAX {
            for index in [0, 1 << 9, 1 << 12, 3 << 18, 1 << 40, (1 << 51) - (1 << 9)] {
                let (pool, tree) = (pool(), Tree::default());
                tree.insert(&pool, span(index, order), 5).expect("room");
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
                tree.remove(&pool, span(index, order));
                assert_eq!(tree.first_present(&pool, 0, u64::MAX), None);
                assert_eq!(tree.root().entry, Entry::EMPTY);
            }
        }
    }

    #[test]
    fn a_tree_under_random_changes_agrees_with_a_map_and_frees_all_nodes() {
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
                let got = tree.insert(&pool, span(index, order), frame);
                assert_eq!(got.is_err(), overlaps, "order {order} at {index}");
                if got.is_ok() {
                    model.insert(index, (order, frame));
                }
            } else if let Some((&at, &(order, _))) = present {
                tree.remove(&pool, span(at, order));
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
    #[cfg_attr(miri, ignore = "allocates all nodes of a pool, which takes minutes")]
    fn an_insertion_without_memory_for_nodes_changes_nothing() {
        let (pool, tree) = (pool(), Tree::default());
        tree.insert(&pool, span(0, 0), 1).expect("room");
        let mut nodes: Vec<NodeId> = std::iter::from_fn(|| pool.allocate_node()).collect();
        // The path to a far page needs four nodes above the first page, and three beside it.
        for spare in 0..6 {
            let refused = tree.insert(&pool, span(1 << 20, 0), 2);
            assert_eq!(refused, Err(InsertError::NoNodes), "{spare} nodes");
            assert_eq!(tree.find(&pool, 0), Some(1));
            assert_eq!(tree.find(&pool, 1 << 20), None);
            pool.free_node(nodes.pop().expect("many"));
        }
        pool.free_node(nodes.pop().expect("many"));
        tree.insert(&pool, span(1 << 20, 0), 2).expect("room by now");
        assert_eq!(tree.find(&pool, 1 << 20), Some(2));
        assert_eq!(pool.allocate_node(), None, "no more nodes than needed");
    }
}
