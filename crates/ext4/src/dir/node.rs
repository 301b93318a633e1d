//! Changes of a directory's hash index blocks: bytes in, bytes out. The blocks were parsed before.
//! Not here: which blocks, and reading them (`index.rs`).

use base::FileBlock;
use base::checksum::crc32c;
use zerocopy::{FromBytes, IntoBytes};

use super::hash::HashAlgorithm;
use super::index::{
    BLOCK_MASK, ENTRY_BYTES, IndexFormat, NODE_SLOTS_AT, ROOT_INFO_AT, ROOT_SLOTS_AT,
};
use super::leaf::NewEntry;
use crate::ondisk::dir::{RawIndexCount, RawIndexEntry, RawIndexInfo, RawIndexTail};

/// Number of a directory's blocks that an index can refer to.
pub(crate) const INDEXED_BLOCKS_MAX: u64 = BLOCK_MASK as u64 + 1;

/// The kind of an index block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeKind {
    /// Block 0, with "." and "..".
    Root,
    /// Any other block.
    Inner,
}

impl NodeKind {
    pub(crate) fn of(block: FileBlock) -> Self {
        if block == FileBlock(0) { Self::Root } else { Self::Inner }
    }

    fn slots_at(self) -> usize {
        match self {
            Self::Root => ROOT_SLOTS_AT,
            Self::Inner => NODE_SLOTS_AT,
        }
    }
}

impl IndexFormat {
    /// Returns the number of slots that fit in an index block.
    pub(crate) fn slots_max(&self, kind: NodeKind) -> usize {
        self.limit(self.dir.block_size.len(), kind.slots_at())
    }

    /// Returns a root with one slot, which refers to a leaf.
    pub(crate) fn new_root(
        &self,
        [own, parent]: [NewEntry<'_>; 2],
        algorithm: HashAlgorithm,
        leaf: FileBlock,
    ) -> Box<[u8]> {
        let mut root = vec![0; self.dir.block_size.len()].into_boxed_slice();
        self.dir.pack(&mut root, [own, parent]);
        let info = RawIndexInfo {
            reserved: 0.into(),
            hash_version: algorithm.to_disk(),
            info_length: size_of::<RawIndexInfo>() as u8,
            indirect_levels: 0,
            unused_flags: 0,
        };
        root[ROOT_INFO_AT..ROOT_SLOTS_AT].copy_from_slice(info.as_bytes());
        self.write_slots(&mut root, NodeKind::Root, leaf, &[]);
        root
    }

    /// Adds a slot after slot `after` of a block that is not full. `hash` is the least hash of
    /// `block`, with the mark of continued hashes. Returns false and changes nothing if the block
    /// is no longer as it was parsed: a corrupt volume can use a block twice.
    #[must_use]
    pub(crate) fn insert_slot(
        &self,
        node: &mut [u8],
        kind: NodeKind,
        after: usize,
        hash: u32,
        block: FileBlock,
    ) -> bool {
        let (at, count) = (kind.slots_at(), count_in(node, kind));
        if after >= count || count >= self.slots_max(kind) {
            return false;
        }
        let (start, end) = (at + (after + 1) * ENTRY_BYTES, at + count * ENTRY_BYTES);
        node.copy_within(start..end, start + ENTRY_BYTES);
        let entry = RawIndexEntry { hash: hash.into(), block: raw_block(block).into() };
        node[start..start + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
        head_of(node, kind).count = (count as u16 + 1).into();
        self.seal_node(node, kind);
        true
    }

    /// Moves the upper half of the slots of a block below the root to a new block. Returns the new
    /// block and its least hash.
    pub(crate) fn split_node(&self, node: &mut [u8]) -> (Box<[u8]>, u32) {
        let kind = NodeKind::Inner;
        let remaining = count_in(node, kind) / 2;
        assert!(remaining > 0, "only a full block is split");
        let moved = slots_from(node, kind, remaining);
        head_of(node, kind).count = (remaining as u16).into();
        let end = kind.slots_at() + (remaining + moved.len()) * ENTRY_BYTES;
        node[kind.slots_at() + remaining * ENTRY_BYTES..end].fill(0);
        self.seal_node(node, kind);
        let (hash, first) = moved[0];
        (self.new_node(first, &moved[1..]), hash)
    }

    /// Adds a level: moves all slots of the root to a new block, whose number is `block`, and lets
    /// the root refer to that block only. Returns the new block.
    pub(crate) fn deepen_root(&self, root: &mut [u8], block: FileBlock) -> Box<[u8]> {
        let slots = slots_from(root, NodeKind::Root, 0);
        root[ROOT_SLOTS_AT..].fill(0);
        match RawIndexInfo::mut_from_prefix(&mut root[ROOT_INFO_AT..]) {
            Ok((info, _)) => info.indirect_levels += 1,
            Err(_) => unreachable!("it was parsed before"),
        }
        self.write_slots(root, NodeKind::Root, block, &[]);
        self.new_node(slots[0].1, &slots[1..])
    }

    /// Returns a block below the root.
    fn new_node(&self, first: FileBlock, rest: &[(u32, FileBlock)]) -> Box<[u8]> {
        let mut node = vec![0; self.dir.block_size.len()].into_boxed_slice();
        // One unused entry hides the slots.
        self.dir.pack(&mut node, []);
        self.write_slots(&mut node, NodeKind::Inner, first, rest);
        node
    }

    fn write_slots(
        &self,
        node: &mut [u8],
        kind: NodeKind,
        first: FileBlock,
        rest: &[(u32, FileBlock)],
    ) {
        let head = RawIndexCount {
            limit: (self.slots_max(kind) as u16).into(),
            count: (rest.len() as u16 + 1).into(),
            block: raw_block(first).into(),
        };
        let at = kind.slots_at();
        node[at..at + ENTRY_BYTES].copy_from_slice(head.as_bytes());
        let slots = node[at + ENTRY_BYTES..].chunks_exact_mut(ENTRY_BYTES);
        for (slot, &(hash, block)) in slots.zip(rest) {
            let entry = RawIndexEntry { hash: hash.into(), block: raw_block(block).into() };
            slot.copy_from_slice(entry.as_bytes());
        }
        self.seal_node(node, kind);
    }

    /// Writes the checksum of an index block, if the volume has checksums.
    pub(crate) fn seal_node(&self, node: &mut [u8], kind: NodeKind) {
        let Some(seed) = self.dir.checksum_seed else { return };
        let used = kind.slots_at() + count_in(node, kind) * ENTRY_BYTES;
        let checksum = crc32c(
            crc32c(seed, node.get(..used).unwrap_or_default()),
            &[0; size_of::<RawIndexTail>()],
        );
        let tail = RawIndexTail { reserved: 0.into(), checksum: checksum.into() };
        let at = kind.slots_at() + self.slots_max(kind) * ENTRY_BYTES;
        node[at..at + size_of_val(&tail)].copy_from_slice(tail.as_bytes());
    }
}

fn raw_block(block: FileBlock) -> u32 {
    assert!(block.0 < INDEXED_BLOCKS_MAX, "an index names blocks with 28 bits");
    block.0 as u32
}

fn head_of(node: &mut [u8], kind: NodeKind) -> &mut RawIndexCount {
    match RawIndexCount::mut_from_prefix(&mut node[kind.slots_at()..]) {
        Ok((head, _)) => head,
        Err(_) => unreachable!("it was parsed before"),
    }
}

fn count_in(node: &[u8], kind: NodeKind) -> usize {
    let at = kind.slots_at() + std::mem::offset_of!(RawIndexCount, count);
    u16::from_le_bytes([node[at], node[at + 1]]).into()
}

/// Returns the slots from `first` on. The hash of slot 0 is meaningless.
fn slots_from(node: &[u8], kind: NodeKind, first: usize) -> Vec<(u32, FileBlock)> {
    let at = |slot: usize| kind.slots_at() + slot * ENTRY_BYTES;
    let bytes = &node[at(first)..at(count_in(node, kind))];
    let slots = bytes.chunks_exact(ENTRY_BYTES).map(|bytes| {
        let raw = RawIndexEntry::read_from_bytes(bytes).expect("a chunk has a slot's size");
        (raw.hash.get(), FileBlock((raw.block.get() & BLOCK_MASK).into()))
    });
    slots.collect()
}

#[cfg(test)]
mod tests {
    use base::{InodeNumber, Location};
    use proptest::prelude::*;

    use super::super::block::DirFormat;
    use super::super::block::tests::format;
    use super::*;

    fn index_format(shift: u32, checksum_seed: Option<u32>) -> IndexFormat {
        IndexFormat {
            dir: DirFormat { checksum_seed, ..format(1 << shift) },
            is_large: true,
            hash_seed: [0; 4],
            is_hash_unsigned: false,
        }
    }

    fn slots(format: &IndexFormat, node: &[u8], kind: NodeKind) -> Vec<(u32, u64)> {
        let location = Location::default();
        format.verify(node, kind == NodeKind::Root, location).unwrap();
        let node = match kind {
            NodeKind::Root => format.parse_root(node, location).unwrap().node,
            NodeKind::Inner => format.parse_node(node, location).unwrap(),
        };
        let slot = |slot| (node.hash(slot).unwrap_or(0), node.block(slot).unwrap().0);
        (0..node.len()).map(slot).collect()
    }

    proptest! {
        #[test]
        fn index_blocks_keep_their_slots_in_order_through_splits(
            hashes in prop::collection::vec(2_u32.., 1..400),
            shift in 10_u32..=16,
            checksum_seed in prop::option::of(any::<u32>()),
        ) {
            let format = index_format(shift, checksum_seed);
            let mut node = format.new_root(
                format.dir.dot_entries(InodeNumber(2)),
                HashAlgorithm::Tea,
                FileBlock(7),
            );
            let (mut kind, mut model) = (NodeKind::Root, vec![(0, 7)]);
            for (block, hash) in (1..).zip(hashes) {
                if model.len() == format.slots_max(kind) {
                    // First, a level is added. Then the block is split, and the test continues with
                    // the lower half.
                    if kind == NodeKind::Root {
                        let lower = format.deepen_root(&mut node, FileBlock(99));
                        prop_assert_eq!(slots(&format, &node, kind), [(0, 99)]);
                        let location = Location::default();
                        prop_assert_eq!(format.parse_root(&node, location).unwrap().levels, 1);
                        (node, kind) = (lower, NodeKind::Inner);
                    } else {
                        let (upper, hash) = format.split_node(&mut node);
                        let moved = model.split_off(model.len() / 2);
                        prop_assert_eq!(hash, moved[0].0);
                        let found = slots(&format, &upper, NodeKind::Inner);
                        prop_assert_eq!(found[0].1, moved[0].1);
                        prop_assert_eq!(&found[1..], &moved[1..]);
                    }
                } else {
                    let after = model.partition_point(|&(other, _)| other <= hash) - 1;
                    let block_at = FileBlock(block);
                    prop_assert!(format.insert_slot(&mut node, kind, after, hash, block_at));
                    model.insert(after + 1, (hash, block));
                }
                prop_assert_eq!(&slots(&format, &node, kind), &model);
            }
        }
    }
}
