//! Model checks of lookups during concurrent changes of the tree.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;
use crate::frame::{Frame, Put};
use crate::node::Node;

/// The page whose folio is inserted and removed. It needs two levels of nodes.
const FAR: u64 = 5;

/// Two mappings, whose owners are 0 and 1, with a folio of one page each, and the nodes that both
/// use in turn.
struct World {
    trees: [Tree; 2],
    frames: [Frame; 2],
    nodes: Vec<Node>,
    free: Mutex<Vec<u32>>,
}

impl Nodes for World {
    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn allocate_node(&self) -> Option<NodeId> {
        self.free.lock().expect("no panic").pop().map(NodeId)
    }

    fn free_node(&self, id: NodeId) {
        assert!(self.node(id).is_empty(), "a node that is not empty");
        self.free.lock().expect("no panic").push(id.0);
    }
}

impl World {
    fn new() -> Arc<Self> {
        let count = 3;
        Arc::new(Self {
            trees: Default::default(),
            frames: Default::default(),
            nodes: (0..count).map(|_| Node::default()).collect(),
            free: Mutex::new((0..count).collect()),
        })
    }

    /// Adds the folio of `number`, at page `index` of the mapping of the same number. One thread
    /// makes all changes, so the trees need no lock.
    fn insert(&self, number: u32, index: u64) {
        let span = Span { index, order: 0 };
        self.tree(number).insert(self, span, number).expect("nodes");
        self.frame(number).make_live(number.into(), span);
        assert_eq!(self.frame(number).put(), Put::Held, "the tree holds a reference");
    }

    /// Removes the folio of `number`. Returns whether no reader has a reference.
    fn remove(&self, number: u32) -> bool {
        self.tree(number).remove(self, self.frame(number).span());
        self.frame(number).uncache() == Put::Last
    }

    fn tree(&self, number: u32) -> &Tree {
        &self.trees[number as usize]
    }

    fn frame(&self, number: u32) -> &Frame {
        &self.frames[number as usize]
    }

    /// Looks page `index` up in the mapping `owner`, as readers do, and returns the frame of its
    /// folio.
    fn look_up(&self, owner: u32, index: u64) -> Option<u32> {
        let number = self.tree(owner).find(self, index)?;
        match self.frame(number).try_get(owner.into(), index) {
            Ok(()) => {
                let _ = self.frame(number).put();
                Some(number)
            }
            Err(_) => None,
        }
    }
}

/// Checks a lookup that is concurrent with `change`.
fn check(prepare: fn(&World), look_up: fn(&World), change: fn(&World)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let world = World::new();
        prepare(&world);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || look_up(&world)
        });
        change(&world);
        reader.join().expect("no panic");
    });
}

#[test]
fn a_folio_is_found_while_other_folios_are_inserted_and_removed() {
    check(
        |world| world.insert(0, 0),
        |world| assert_eq!(world.tree(0).find(world, 0), Some(0)),
        |world| {
            let far = Span { index: FAR, order: 0 };
            world.tree(0).insert(world, far, 1).expect("nodes");
            world.tree(0).remove(world, far);
            assert_eq!(world.tree(0).find(world, 0), Some(0));
        },
    );
}

#[test]
fn a_lookup_that_walks_into_another_tree_finds_no_folio_of_that_tree() {
    check(
        |world| world.insert(0, FAR),
        |world| {
            let found = world.look_up(0, FAR);
            assert!(found.is_none_or(|number| number == 0), "a folio of another file");
        },
        |world| {
            world.remove(0);
            world.insert(1, FAR);
            assert_eq!(world.look_up(1, FAR), Some(1));
        },
    );
}

#[test]
fn a_lookup_finds_a_replaced_folio_or_its_replacement() {
    check(
        |world| world.insert(0, FAR),
        |world| assert!(matches!(world.tree(0).find(world, FAR), Some(0 | 1))),
        |world| world.tree(0).replace(world, Span { index: FAR, order: 0 }, 1),
    );
}

#[test]
fn a_folio_is_found_after_its_insertion() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new();
        let inserted = Arc::new(base::sync::AtomicU32::new(0));
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            let inserted = Arc::clone(&inserted);
            move || {
                if inserted.load(Ordering::Acquire) == 1 {
                    assert_eq!(world.look_up(0, FAR), Some(0));
                }
            }
        });
        world.insert(0, FAR);
        inserted.store(1, Ordering::Release);
        reader.join().expect("no panic");
    });
}
