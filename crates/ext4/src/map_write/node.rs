//! In-memory nodes of an extent tree, and their conversion from and to bytes.
//! Not here: the choice of entries.

use std::ops::Range;

use base::{FileBlock, FsBlock, Location, Result};
use fs::Run;
use zerocopy::IntoBytes;

use crate::block_validity::BlockValidity;
use crate::extent::{self, ENTRY_BYTES, Expected, HEADER_BYTES, Node};
use crate::ondisk::extent::{MAGIC, RawExtent, RawExtentHeader, RawExtentIndex, WRITTEN_MAX};

/// Number of entries in an inode.
pub(super) const ROOT_ENTRIES: usize = 4;

/// A raw entry of a node. Entries of leaves and of inner nodes both begin with the file block.
#[derive(Clone, Copy)]
pub(super) struct Entry(pub [u8; ENTRY_BYTES]);

impl Entry {
    pub(super) fn of_extent(run: &Run) -> Self {
        let mark = if run.unwritten { WRITTEN_MAX } else { 0 };
        Self(zerocopy::transmute!(RawExtent {
            // File blocks have 32 bits, and lists limit the length of extents.
            block: (run.start.0 as u32).into(),
            len: (run.length as u16 + mark).into(),
            start_hi: ((run.block.0 >> 32) as u16).into(),
            start_lo: (run.block.0 as u32).into(),
        }))
    }

    pub(super) fn of_child(start: FileBlock, block: FsBlock) -> Self {
        Self(zerocopy::transmute!(RawExtentIndex {
            block: (start.0 as u32).into(),
            leaf_lo: (block.0 as u32).into(),
            leaf_hi: ((block.0 >> 32) as u16).into(),
            unused: 0.into(),
        }))
    }

    pub(super) fn extent(self) -> Run {
        let raw: RawExtent = zerocopy::transmute!(self.0);
        let length = raw.len.get();
        let unwritten = length > WRITTEN_MAX;
        Run {
            start: self.start(),
            length: u64::from(if unwritten { length - WRITTEN_MAX } else { length }),
            block: FsBlock(u64::from(raw.start_hi.get()) << 32 | u64::from(raw.start_lo.get())),
            unwritten,
        }
    }

    pub(super) fn child(self) -> FsBlock {
        let raw: RawExtentIndex = zerocopy::transmute!(self.0);
        FsBlock(u64::from(raw.leaf_hi.get()) << 32 | u64::from(raw.leaf_lo.get()))
    }

    pub(super) fn start(self) -> FileBlock {
        let raw: RawExtentIndex = zerocopy::transmute!(self.0);
        FileBlock(raw.block.get().into())
    }
}

/// A node on the path to a leaf.
pub(super) struct PathNode {
    /// `None` for the root.
    pub block: Option<FsBlock>,
    pub depth: u16,
    pub entries: Vec<Entry>,
    /// The entry that the path follows; meaningless in a leaf.
    pub index: usize,
    pub range: Range<FileBlock>,
}

/// The new contents of a node.
pub(super) struct NodeImage {
    pub depth: u16,
    pub entries: Vec<Entry>,
}

impl NodeImage {
    /// Writes the node over `bytes`. A node that is a block gets its checksum.
    pub(super) fn store(&self, bytes: &mut [u8], checksum_seed: Option<u32>) {
        let header = RawExtentHeader {
            magic: MAGIC.into(),
            // At most the number of entries in a block of 64 KiB.
            entries: (self.entries.len() as u16).into(),
            max: (room(bytes.len()) as u16).into(),
            depth: self.depth.into(),
            generation: 0.into(),
        };
        let (head, table) = bytes.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        table.fill(0);
        for (slot, entry) in table.chunks_exact_mut(ENTRY_BYTES).zip(&self.entries) {
            slot.copy_from_slice(&entry.0);
        }
        extent::seal(bytes, checksum_seed);
    }
}

/// Returns the root of a tree without extents.
pub(crate) fn empty_root() -> [u8; 60] {
    let mut area = [0; 60];
    NodeImage { depth: 0, entries: Vec::new() }.store(&mut area, None);
    area
}

/// Returns the number of entries that a node has room for.
pub(super) fn room(node_bytes: usize) -> usize {
    (node_bytes - HEADER_BYTES) / ENTRY_BYTES
}

/// Verifies a node, and returns it with its entries.
pub(super) fn parse(
    bytes: &[u8],
    validity: BlockValidity<'_>,
    expected: Expected,
    block: Option<FsBlock>,
    location: Location,
) -> Result<PathNode> {
    let range = expected.range.clone();
    let (depth, table) = Node::verify(bytes, validity, &expected, location)?;
    let entries = table
        .chunks_exact(ENTRY_BYTES)
        .map(|entry| Entry(entry.try_into().expect("chunks have exactly the size of an entry")))
        .collect();
    Ok(PathNode { block, depth, entries, index: 0, range })
}
