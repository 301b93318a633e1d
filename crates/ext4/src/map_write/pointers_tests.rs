//! Tests of block maps against a model, with blocks so small that three levels are used.

use std::collections::BTreeMap;

use base::{BlockSize, Error};
use proptest::prelude::*;

use super::super::tree::tests::{NODES_START, Nodes};
use super::*;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::layout::geometry::tests::plain;

/// Returns a geometry with 256 pointers in a block.
fn geometry() -> Geometry {
    Geometry { block_size: BlockSize::from_bytes(1024).unwrap(), ..plain() }
}

struct Subject<'g> {
    map: Pointers<'g>,
    nodes: Nodes,
    model: BTreeMap<u64, u64>,
}

impl<'g> Subject<'g> {
    fn new(geometry: &'g Geometry) -> Self {
        let map = Pointers {
            area: [0; 60],
            validity: BlockValidity::of_any_block(geometry),
            inode: InodeNumber(12),
        };
        Self { map, nodes: Nodes::new(), model: BTreeMap::new() }
    }

    /// Maps blocks from `at` on, up to the end of the hole and of the block of pointers.
    fn insert(&mut self, at: u64, wanted: u64) -> Result<()> {
        let end = leaf_of(self.map.geometry(), FileBlock(at)).end.0.min(at + wanted);
        let end = self.model.range(at..end).next().map_or(end, |(&start, _)| start);
        if at == end {
            return Ok(());
        }
        let block = FsBlock(10 + at % (NODES_START / 2));
        let run = Run { start: FileBlock(at), length: end - at, block, unwritten: false };
        self.map.insert(&mut self.nodes, run)?;
        self.model.extend((at..end).map(|file_block| (file_block, block.0 + file_block - at)));
        Ok(())
    }

    fn remove(&mut self, range: Range<u64>) {
        let mut range = FileBlock(range.start)..FileBlock(range.end);
        while let Some(leaf) = self.map.leaf_before(&self.nodes, &range).unwrap() {
            let start = leaf.runs[0].start;
            for run in &leaf.runs {
                for index in 0..run.length {
                    let was = self.model.remove(&(run.start.0 + index));
                    assert_eq!(was, Some(run.block.0 + index));
                }
            }
            self.map.clear(&mut self.nodes, leaf, &(start..range.end)).unwrap();
            range.end = start;
        }
        assert_eq!(self.model.range(range.start.0..range.end.0).next(), None);
    }

    fn check(&self) {
        let mut found = BTreeMap::new();
        let mut seen = 0;
        for slot in 0..15 {
            let (level, start) = match slot {
                0..12 => (0, slot),
                12 => (1, 12),
                13 => (2, 12 + 256),
                _ => (3, 12 + 256 + 256 * 256),
            };
            self.walk(word(&self.map.area, slot as usize), level, start, &mut found, &mut seen);
        }
        assert_eq!(found, self.model);
        assert_eq!(seen, self.nodes.blocks.len(), "blocks of pointers are unreachable");
        assert!(self.nodes.allocated.is_empty(), "allocated blocks are not in use");
    }

    fn walk(
        &self,
        block: FsBlock,
        level: u32,
        start: u64,
        found: &mut BTreeMap<u64, u64>,
        seen: &mut usize,
    ) {
        if block.0 == 0 {
            return;
        }
        let Some(below) = level.checked_sub(1) else {
            found.insert(start, block.0);
            return;
        };
        *seen += 1;
        let bytes = &self.nodes.blocks[&block];
        assert!(bytes.iter().any(|&byte| byte != 0), "an empty block of pointers");
        for slot in 0..256 {
            let start = start + slot * 256_u64.pow(below);
            self.walk(word(bytes, slot as usize), below, start, found, seen);
        }
    }
}

/// Returns file blocks in all trees, in particular near the trees' ends.
fn file_blocks() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..300_u64,
        200..1000_u64,
        65_700..66_000_u64,
        66_000..200_000_u64,
        0..12 + 256 + 256 * 256 + 256 * 256 * 256_u64,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn block_maps_match_the_model(
        changes in prop::collection::vec((file_blocks(), 1..400_u64, 0..4_u8), 1..60),
        left in prop_oneof![Just(usize::MAX), 0..30_usize],
    ) {
        let geometry = geometry();
        let mut subject = Subject::new(&geometry);
        subject.nodes.left.set(left);
        let end = 12 + 256 + 256 * 256 + 256 * 256 * 256;
        for (at, length, kind) in changes {
            match kind {
                0 => subject.remove(at..(at + length * length).min(end)),
                _ => {
                    let before = (subject.map.area, subject.nodes.changes);
                    if let Err(error) = subject.insert(at, length) {
                        assert_eq!(error, Error::NoSpace);
                        assert_eq!(before, (subject.map.area, subject.nodes.changes));
                    }
                }
            }
            subject.check();
        }
        subject.remove(0..end.min(FILE_BLOCKS_MAX));
        assert_eq!((subject.map.area, subject.nodes.blocks.len()), ([0; 60], 0));
    }
}
