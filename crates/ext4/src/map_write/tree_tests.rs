//! Tests of extent trees against a model: random changes, with nodes so small that trees become
//! deep.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use base::Error;
use proptest::prelude::*;

use super::super::node::{ROOT_ENTRIES, empty_root};
use super::*;
use crate::extent::{DEPTH_MAX, ENTRY_BYTES, HEADER_BYTES};
use crate::layout::geometry::tests::plain;

/// Nodes in memory.
pub(in crate::map_write) struct Nodes {
    pub blocks: BTreeMap<FsBlock, Vec<u8>>,
    pub allocated: BTreeSet<FsBlock>,
    next: u64,
    /// The number of blocks that can still be allocated.
    pub left: Cell<usize>,
    pub changes: usize,
}

impl Nodes {
    pub fn new() -> Self {
        let (blocks, allocated) = (BTreeMap::new(), BTreeSet::new());
        Self { blocks, allocated, next: NODES_START, left: Cell::new(usize::MAX), changes: 0 }
    }
}

/// The first block for nodes. Data blocks have lower numbers.
pub(in crate::map_write) const NODES_START: u64 = 30_000;

impl NodeStore for Nodes {
    type Bytes = Vec<u8>;

    fn read(&self, block: FsBlock, _location: Location) -> Result<Vec<u8>> {
        Ok(self.blocks[&block].clone())
    }

    fn edit(&mut self, block: FsBlock, _: Location, change: impl FnOnce(&mut [u8])) -> Result<()> {
        self.changes += 1;
        change(self.blocks.get_mut(&block).unwrap());
        Ok(())
    }

    fn create(&mut self, block: FsBlock, bytes: Vec<u8>) {
        self.changes += 1;
        assert!(self.allocated.remove(&block));
        assert!(self.blocks.insert(block, bytes).is_none());
    }

    fn allocate_node(&mut self, _goal: FsBlock) -> Result<FsBlock> {
        let left = self.left.get().checked_sub(1).ok_or(Error::NoSpace)?;
        self.left.set(left);
        self.next = if self.next >= 39_999 { NODES_START } else { self.next + 1 };
        while self.blocks.contains_key(&FsBlock(self.next)) {
            self.next += 1;
        }
        self.allocated.insert(FsBlock(self.next));
        Ok(FsBlock(self.next))
    }

    fn release_unused(&mut self, block: FsBlock) -> Result<()> {
        assert!(self.allocated.remove(&block));
        Ok(())
    }

    fn free(&mut self, block: FsBlock) -> Result<()> {
        self.changes += 1;
        assert!(self.blocks.remove(&block).is_some());
        Ok(())
    }
}

/// A tree, and the expected block and state of each file block.
struct Subject<'g> {
    tree: Tree<'g>,
    nodes: Nodes,
    model: BTreeMap<u64, (u64, bool)>,
}

impl<'g> Subject<'g> {
    fn new(geometry: &'g Geometry, node_entries: usize) -> Self {
        let tree = Tree {
            area: empty_root(),
            validity: BlockValidity::of_any_block(geometry),
            inode: InodeNumber(12),
            checksum_seed: Some(7),
            node_bytes: HEADER_BYTES + node_entries * ENTRY_BYTES + 4,
        };
        Self { tree, nodes: Nodes::new(), model: BTreeMap::new() }
    }

    fn insert(&mut self, run: Run) -> Result<()> {
        let path = self.tree.path(&self.nodes, run.start)?;
        self.tree.insert(&mut self.nodes, path, run)?;
        for index in 0..run.length {
            self.model.insert(run.start.0 + index, (run.block.0 + index, run.unwritten));
        }
        Ok(())
    }

    fn convert(&mut self, range: Range<FileBlock>, unwritten: bool) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (converted, end) =
                self.tree.convert(&mut self.nodes, &(at..range.end), unwritten)?;
            for run in converted {
                for index in run.start.0..run.end().0 {
                    let (_, state) = self.model.get_mut(&index).unwrap();
                    assert_ne!(std::mem::replace(state, unwritten), unwritten);
                }
            }
            assert!(end > at);
            at = end;
        }
        Ok(())
    }

    fn split_ends(&mut self, range: Range<FileBlock>) {
        let nodes = self.nodes.blocks.len();
        if self.tree.split_ends(&mut self.nodes, &range).unwrap() {
            for at in [range.start, range.end] {
                let mut extents = self.tree.path(&self.nodes, at).unwrap().extents();
                assert!(!leaf::split(&mut extents, at), "an extent crosses {at:?}");
            }
        }
        assert_eq!(self.nodes.blocks.len(), nodes);
    }

    fn remove(&mut self, range: Range<FileBlock>) -> Result<()> {
        while let Some((last, path)) = self.tree.extent_before(&self.nodes, range.end)? {
            if last.end() <= range.start {
                break;
            }
            let removed = self.tree.remove(&mut self.nodes, path, &range)?;
            assert!(!removed.is_empty());
            for run in removed {
                for index in 0..run.length {
                    let was = self.model.remove(&(run.start.0 + index));
                    assert_eq!(was, Some((run.block.0 + index, run.unwritten)));
                }
            }
        }
        Ok(())
    }

    /// Parses the tree, compares it with the model, and checks the rules of e2fsck.
    fn check(&self) {
        let mut ahead = vec![(None, Expected::of_root())];
        let (mut found, mut seen) = (BTreeMap::new(), BTreeSet::new());
        while let Some((block, expected)) = ahead.pop() {
            let bytes = match block {
                None => self.tree.area.to_vec(),
                Some(block) => {
                    assert!(seen.insert(block));
                    self.nodes.blocks[&block].clone()
                }
            };
            let location = Location::default();
            if block.is_some() {
                extent::verify_checksum(&bytes, self.tree.checksum_seed, location).unwrap();
            }
            let node =
                parse(&bytes, self.tree.validity, expected.clone(), block, location).unwrap();
            if block.is_some() {
                assert_eq!(
                    node.entries[0].start(),
                    expected.range.start,
                    "a key must be the start of its child"
                );
            }
            if node.depth == 0 {
                for run in node.entries.iter().map(|entry| entry.extent()) {
                    for index in 0..run.length {
                        found.insert(run.start.0 + index, (run.block.0 + index, run.unwritten));
                    }
                }
                continue;
            }
            let starts = node.entries.iter().map(|entry| entry.start());
            let ends = starts.clone().skip(1).chain([node.range.end]);
            for (entry, end) in node.entries.iter().zip(ends) {
                let (depth, range) = (Some(node.depth - 1), entry.start()..end);
                ahead.push((Some(entry.child()), Expected { depth, range }));
            }
        }
        assert_eq!(found, self.model);
        assert!(seen.iter().eq(self.nodes.blocks.keys()), "nodes are unreachable");
        assert!(self.nodes.allocated.is_empty(), "allocated blocks are not in use");
    }

    /// Returns the hole around `at` in the tree, if there is one.
    fn hole(&self, at: FileBlock) -> Option<Range<FileBlock>> {
        let next = self.tree.extent_from(&self.nodes, at).unwrap();
        let before = self.tree.extent_before(&self.nodes, FileBlock(at.0 + 1)).unwrap();
        let start = before.map_or(FileBlock(0), |(run, _)| run.end());
        let end = next.map_or(FileBlock(FILE_BLOCKS_MAX), |run| run.start);
        (start <= at && at < end).then_some(start..end)
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Insert { at: u64, length: u64, unwritten: bool, joins: bool },
    Convert { at: u64, length: u64, unwritten: bool },
    SplitEnds { at: u64, length: u64 },
    Remove { at: u64, length: u64 },
}

fn changes(file_blocks: u64) -> impl Strategy<Value = Vec<Change>> {
    let at = 0..file_blocks;
    let insert = (at.clone(), 1..6_u64, any::<bool>(), any::<bool>())
        .prop_map(|(at, length, unwritten, joins)| Change::Insert { at, length, unwritten, joins });
    let convert = (at.clone(), 1..40_u64, any::<bool>())
        .prop_map(|(at, length, unwritten)| Change::Convert { at, length, unwritten });
    let split_ends =
        (at.clone(), 1..40_u64).prop_map(|(at, length)| Change::SplitEnds { at, length });
    let remove = (at, 1..60_u64).prop_map(|(at, length)| Change::Remove { at, length });
    prop::collection::vec(
        prop_oneof![8 => insert, 3 => convert, 2 => split_ends, 1 => remove],
        1..400,
    )
}

fn run_changes(node_entries: usize, changes: &[Change], nodes_left: usize) -> u16 {
    let geometry = plain();
    let mut subject = Subject::new(&geometry, node_entries);
    subject.nodes.left.set(nodes_left);
    let mut depth_max = 0;
    for (index, change) in changes.iter().enumerate() {
        let before = (subject.tree.area, subject.nodes.changes);
        let result = match *change {
            Change::Insert { at, length, unwritten, joins } => {
                let Some(hole) = subject.hole(FileBlock(at)) else { continue };
                let length = length.min(hole.end.0 - at);
                // The run continues other runs that join, or none.
                let block = if joins { 10 + at } else { 10_000 + (index as u64 * 11) % 19_000 };
                let (start, block) = (FileBlock(at), FsBlock(block));
                subject.insert(Run { start, length, block, unwritten })
            }
            Change::Convert { at, length, unwritten } => {
                subject.convert(FileBlock(at)..FileBlock(at + length), unwritten)
            }
            Change::SplitEnds { at, length } => {
                subject.split_ends(FileBlock(at)..FileBlock(at + length));
                Ok(())
            }
            Change::Remove { at, length } => subject.remove(FileBlock(at)..FileBlock(at + length)),
        };
        match result {
            Ok(()) => {}
            Err(Error::NoSpace | Error::FileTooLarge) => {
                if matches!(change, Change::Insert { .. }) {
                    assert_eq!(before, (subject.tree.area, subject.nodes.changes));
                }
            }
            Err(error) => panic!("{error}"),
        }
        subject.check();
        depth_max = depth_max.max(subject.tree.depth().unwrap());
    }
    subject.nodes.left.set(usize::MAX);
    subject.remove(FileBlock(0)..FileBlock(FILE_BLOCKS_MAX)).unwrap();
    assert_eq!((subject.tree.area, subject.nodes.blocks.len()), (empty_root(), 0));
    depth_max
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn extent_trees_match_the_model(
        node_entries in prop_oneof![Just(2_usize), Just(3), Just(4), Just(5), Just(84), Just(340)],
        changes in changes(600),
    ) {
        run_changes(node_entries, &changes, usize::MAX);
    }

    #[test]
    fn running_out_of_blocks_or_levels_changes_nothing(
        node_entries in 2..5_usize,
        changes in changes(300),
        nodes_left in 0..40_usize,
    ) {
        run_changes(node_entries, &changes, nodes_left);
    }
}

#[test]
fn trees_grow_up_to_the_maximum_depth() {
    let geometry = plain();
    let mut subject = Subject::new(&geometry, 2);
    let run = |at: u64| {
        let (start, block) = (FileBlock(at * 2), FsBlock(10 + at * 2));
        Run { start, length: 1, block, unwritten: false }
    };
    let error = (0..10_000).find_map(|at| subject.insert(run(at)).err());
    assert_eq!(error, Some(Error::FileTooLarge));
    assert_eq!(subject.tree.depth().unwrap(), DEPTH_MAX);
    subject.check();
    // All nodes are full.
    assert_eq!(subject.model.len(), ROOT_ENTRIES << DEPTH_MAX);
    subject.remove(FileBlock(9)..FileBlock(FILE_BLOCKS_MAX)).unwrap();
    subject.check();
    assert!(subject.tree.depth().unwrap() < DEPTH_MAX);
}

#[test]
fn a_file_that_grows_at_its_end_has_full_leaves() {
    let geometry = plain();
    let mut subject = Subject::new(&geometry, 10);
    for at in 0..101_u64 {
        let (start, block) = (FileBlock(at * 2), FsBlock(10 + at * 2));
        subject.insert(Run { start, length: 1, block, unwritten: false }).unwrap();
    }
    subject.check();
    // Eleven leaves and two nodes above them.
    assert_eq!(subject.nodes.blocks.len(), 13);
}
