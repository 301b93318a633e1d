//! The map of a file: from its blocks to addresses, through direct, indirect and double indirect
//! nodes.

use std::ops::Range;

use base::{Error, FileBlock, FsBlock, Location, Problem, Result};

use super::Inode;
use crate::node::Node;
use crate::ondisk::node::{NEW_ADDRESS, NULL_ADDRESS};

const STRUCTURE: &str = "block map";
/// The end of the hole behind the last block that a map can have.
pub(crate) const END: FileBlock = FileBlock(u64::MAX >> 16);

/// The state of adjacent blocks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockState {
    Hole,
    /// The blocks are allocated, but read as zeroes. They have no address yet.
    Reserved,
    /// The blocks are adjacent on the device, from this one on.
    Mapped(FsBlock),
    /// The blocks are one compressed cluster, whose data begins in this block of the device.
    Compressed(FsBlock),
}

/// A range of a file, and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) start: FileBlock,
    pub(crate) end: FileBlock,
    pub(crate) state: BlockState,
}

/// The node with the addresses of a range of a file, or none if the range is a hole.
pub(crate) struct Leaf {
    pub(crate) node: Option<Node>,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Byte of the first address in the node.
    pub(super) addresses_at: usize,
}

impl Piece {
    /// Returns whether no block behind the piece can be allocated.
    pub(crate) fn is_last(&self) -> bool {
        self.end >= END
    }

    /// Returns whether the next node's blocks can belong to the piece, although they have no
    /// address.
    fn goes_on(&self) -> bool {
        matches!(self.state, BlockState::Hole | BlockState::Reserved)
    }
}

impl Leaf {
    fn hole(start: u64, length: u64) -> Self {
        Self { node: None, start, end: start + length, addresses_at: 0 }
    }

    /// Returns the hole that begins at `at` and has the rest of the file.
    fn without_node(at: FileBlock) -> Self {
        Self { node: None, start: at.0, end: END.0.max(at.0 + 1), addresses_at: 0 }
    }
}

/// A step from a node to one of its children.
pub(crate) struct Step {
    /// Index of the child in the parent.
    pub(crate) index: u64,
    /// The child's position in the file.
    pub(crate) position: u64,
    /// The number of blocks that the child maps.
    pub(crate) span: u64,
}

impl Inode {
    /// Returns the piece that contains `at`. It begins there, unless it is a compressed cluster. It
    /// ends at `wanted_end` or before, unless it is a hole or a compressed cluster.
    pub(crate) fn piece_at(&self, at: FileBlock, wanted_end: FileBlock) -> Result<Piece> {
        let mut piece = self.piece_in_leaf(at, wanted_end)?;
        while piece.goes_on() && piece.end < wanted_end && piece.end < END {
            let next = self.piece_in_leaf(piece.end, wanted_end)?;
            if next.state != piece.state {
                break;
            }
            piece.end = next.end;
        }
        Ok(piece)
    }

    /// Returns the piece that contains `at`, at most up to the end of the node that maps it.
    fn piece_in_leaf(&self, at: FileBlock, wanted_end: FileBlock) -> Result<Piece> {
        let leaf = self.leaf_at(at)?;
        let Some(node) = &leaf.node else {
            // The size of a damaged inode can be larger than any map. Callers must not look block
            // by block for its end.
            let end = if at < END { leaf.end } else { leaf.end.max(wanted_end.0) };
            return Ok(Piece { start: at, end: FileBlock(end), state: BlockState::Hole });
        };
        let mut wanted_end = wanted_end;
        if let Some(compression) = self.record().compression {
            let size = compression.cluster_size;
            if let Some(piece) = self.piece_of_cluster(&leaf, size, at)? {
                return Ok(piece);
            }
            let cluster_end = size.first_block(at).0 + u64::from(size.blocks());
            wanted_end = wanted_end.min(FileBlock(cluster_end));
        }
        // A leaf has at most some thousand addresses.
        let first = (at.0 - leaf.start) as u32;
        let limit = wanted_end.0.clamp(at.0 + 1, leaf.end.max(at.0 + 1));
        let count = (limit - at.0) as u32;
        let mut words = node.words(leaf.addresses_at, first, count);
        let address = words.next().ok_or_else(|| {
            let (needed, available) = (u64::from(first) + 1, u64::from(first));
            Error::corrupt(STRUCTURE, node.location(), Problem::Truncated { needed, available })
        })?;
        let state = self.state_of(address, node.location().at_file_block(at))?;
        let mut end = at.0 + 1;
        for (distance, address) in (1..).zip(words) {
            let is_next = match state {
                BlockState::Hole => address == NULL_ADDRESS,
                BlockState::Reserved => address == NEW_ADDRESS,
                BlockState::Compressed(_) => false,
                BlockState::Mapped(first) => {
                    let next = FsBlock(first.0 + distance);
                    u64::from(address) == next.0 && self.volume().geometry().main.contains(&next)
                }
            };
            if !is_next {
                break;
            }
            end += 1;
        }
        Ok(Piece { start: at, end: FileBlock(end), state })
    }

    fn state_of(&self, address: u32, location: Location) -> Result<BlockState> {
        match address {
            NULL_ADDRESS => Ok(BlockState::Hole),
            NEW_ADDRESS => Ok(BlockState::Reserved),
            address => {
                let block = self.volume().geometry().main_block(address, STRUCTURE, location)?;
                Ok(BlockState::Mapped(block))
            }
        }
    }

    /// Returns whether there are nodes for the addresses of all of `blocks`.
    pub(crate) fn has_nodes(&self, blocks: &Range<FileBlock>) -> Result<bool> {
        let mut at = blocks.start;
        while at < blocks.end {
            let leaf = self.leaf_at(at)?;
            if leaf.node.is_none() {
                return Ok(false);
            }
            at = FileBlock(leaf.end);
        }
        Ok(true)
    }

    /// Returns the node with the address of a block.
    pub(crate) fn leaf_at(&self, at: FileBlock) -> Result<Leaf> {
        let record = self.record();
        let in_inode = u64::from(record.address_count);
        if !record.has_map() {
            return Ok(Leaf::without_node(at));
        }
        if at.0 < in_inode {
            let node = Some(self.volume().inode_node(self.number())?);
            return Ok(Leaf { node, start: 0, end: in_inode, addresses_at: record.addresses_at });
        }
        let Some((steps, start)) = self.path(at.0 - in_inode) else {
            return Ok(Leaf::without_node(at));
        };
        let mut start = in_inode + start;
        let mut node: Option<Node> = None;
        for step in &steps {
            let nid = match &node {
                // The first step leads from the inode.
                None => record.nodes.get(step.index as usize).copied().unwrap_or_default(),
                Some(node) => node.word(0, step.index as u32)?,
            };
            if node.is_some() {
                start += step.index * step.span;
            }
            if nid == 0 {
                return Ok(Leaf::hole(start, step.span));
            }
            let child = self.volume().node(crate::nat::Nid(nid), self.number())?;
            node = Some(child.at_position(step.position as u32)?);
        }
        let length = steps.last().map_or(0, |step| step.span);
        Ok(Leaf { node, start, end: start + length, addresses_at: 0 })
    }

    /// Returns the steps from the inode to the node with the address of `block`, which is counted
    /// from the first block whose address is not in the inode. Also returns the first block of the
    /// subtree. `None` for blocks behind the last possible one.
    pub(crate) fn path(&self, block: u64) -> Option<(Vec<Step>, u64)> {
        let direct = u64::from(self.record().addresses_per_node);
        let nids = u64::from(self.volume().geometry().addresses_per_node());
        let indirect = direct * nids;
        let step = |index, position, span| Step { index, position, span };
        let mut start = 0;
        // Positions count nodes in the order of the file (kernel documentation of f2fs, "Index
        // Structure").
        for (index, position) in [(0, 1), (1, 2)] {
            if block < start + direct {
                return Some((vec![step(index, position, direct)], start));
            }
            start += direct;
        }
        for (index, position) in [(2, 3), (3, 4 + nids)] {
            if block < start + indirect {
                let child = (block - start) / direct;
                let steps = vec![
                    step(index, position, indirect),
                    step(child, position + 1 + child, direct),
                ];
                return Some((steps, start));
            }
            start += indirect;
        }
        let double = indirect * nids;
        if block >= start + double {
            return None;
        }
        let position = 5 + 2 * nids;
        let first = (block - start) / indirect;
        let first_position = position + 1 + first * (nids + 1);
        let second = (block - start) % indirect / direct;
        Some((
            vec![
                step(4, position, double),
                step(first, first_position, indirect),
                step(second, first_position + 1 + second, direct),
            ],
            start,
        ))
    }
}
