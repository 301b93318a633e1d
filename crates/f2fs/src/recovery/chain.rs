//! The chain of nodes that were written after the last checkpoint. It begins at the next block of
//! the log of warm nodes, and each node's footer has the block of the next one. Not here: which of
//! the nodes count (`plan`).

use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};

use super::STRUCTURE;
use crate::checkpoint::Checkpoint;
use crate::nat::Nid;
use crate::node::FLAG_BITS;
use crate::ondisk::checkpoint::{CRC_RECOVERY, NO_CRC_RECOVERY};
use crate::ondisk::node::RawNodeFooter;

/// The maximum number of nodes in a chain: 16 GiB of blocks of 4 KiB.
const NODES_MAX: u64 = 1 << 22;
/// Bits in a footer's flags.
pub(crate) mod mark {
    /// An inode or direct node of a file that is not a directory.
    pub(crate) const COLD: u32 = 1;
    /// The last node that a call of fsync(2) wrote.
    pub(crate) const FSYNC: u32 = 2;
    /// An inode that is new, and whose name is to be recovered.
    pub(crate) const DENTRY: u32 = 4;
}

/// A node of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChainNode {
    pub(crate) block: FsBlock,
    pub(crate) nid: Nid,
    pub(crate) inode: InodeNumber,
    /// The node's position in its file.
    pub(crate) position: u32,
    /// Whether the node is the last one that a call of fsync(2) wrote.
    pub(crate) is_fsynced: bool,
    /// Whether the node has the dentry mark.
    pub(crate) has_name: bool,
}

impl ChainNode {
    pub(crate) fn new(block: FsBlock, footer: &RawNodeFooter) -> Self {
        let flags = footer.flags.get();
        Self {
            block,
            nid: Nid(footer.nid.get()),
            inode: InodeNumber(footer.inode.get().into()),
            position: flags >> FLAG_BITS,
            is_fsynced: flags & mark::FSYNC != 0,
            has_name: flags & mark::DENTRY != 0,
        }
    }

    pub(crate) fn is_inode(&self) -> bool {
        self.inode.0 == u64::from(self.nid.0)
    }

    pub(crate) fn location(&self) -> Location {
        Location::inode(self.inode).at_block(self.block)
    }
}

/// The version in the footers of nodes that were written after a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainVersion {
    value: u64,
    mask: u64,
}

impl ChainVersion {
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        let version = checkpoint.raw.version.get();
        if checkpoint.has(NO_CRC_RECOVERY) {
            return Self { value: version, mask: u32::MAX.into() };
        }
        let crc =
            if checkpoint.has(CRC_RECOVERY) { u64::from(checkpoint.checksum) << 32 } else { 0 };
        Self { value: version | crc, mask: u64::MAX }
    }

    /// Returns the version for a node's footer.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }

    pub(crate) fn matches(&self, found: u64) -> bool {
        (found ^ self.value) & self.mask == 0
    }
}

/// Returns the nodes of the chain that begins at `start`. `read` returns the node in a block and
/// the block of the next node, or `None` if the block is not in the chain.
///
/// # Errors
///
/// `Corrupt` if the chain is a loop, or has too many nodes, and errors of `read`.
pub(crate) fn scan(
    start: FsBlock,
    mut read: impl FnMut(FsBlock) -> Result<Option<(ChainNode, FsBlock)>>,
) -> Result<Vec<ChainNode>> {
    let mut chain = Vec::new();
    let mut at = start;
    // Brent's algorithm: a loop comes back to a block that is remembered for ever longer times.
    let (mut remembered, mut steps, mut steps_max) = (start, 0_u64, 1_u64);
    while let Some((node, next)) = read(at)? {
        chain.push(node);
        if chain.len() as u64 > NODES_MAX {
            let (found, max) = (chain.len() as u64, NODES_MAX);
            let problem = Problem::Range { field: "nodes", found, min: 0, max };
            return Err(Error::corrupt(STRUCTURE, Location::block(start), problem));
        }
        at = next;
        if at == remembered {
            return Err(Error::corrupt(STRUCTURE, Location::block(at), Problem::Cycle));
        }
        steps += 1;
        if steps == steps_max {
            (remembered, steps, steps_max) = (at, 0, steps_max * 2);
        }
    }
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(block: u64) -> ChainNode {
        ChainNode {
            block: FsBlock(block),
            nid: Nid(4),
            inode: InodeNumber(4),
            position: 0,
            is_fsynced: false,
            has_name: false,
        }
    }

    /// Scans blocks from 0 on. `next[block]` is the next block; blocks past the end are not in the
    /// chain.
    fn scan_from_zero(next: &[u64]) -> Result<Vec<u64>> {
        let mut reads = 0;
        let read = |block: FsBlock| {
            reads += 1;
            assert!(reads <= 4 * next.len() + 4, "the scan does not end");
            Ok(next.get(block.0 as usize).map(|next| (node(block.0), FsBlock(*next))))
        };
        let chain = scan(FsBlock(0), read)?;
        Ok(chain.iter().map(|node| node.block.0).collect())
    }

    #[test]
    fn a_chain_ends_before_the_first_block_that_is_not_in_it() {
        assert_eq!(scan_from_zero(&[]).unwrap(), [0; 0]);
        assert_eq!(scan_from_zero(&[1, 2, 99]).unwrap(), [0, 1, 2]);
        assert_eq!(scan_from_zero(&[3, 99, 1, 2]).unwrap(), [0, 3, 2, 1]);
    }

    #[test]
    fn every_loop_is_found() {
        for length in 1..70 {
            for back_to in 0..length {
                let mut next: Vec<u64> = (1..=length).collect();
                next[length as usize - 1] = back_to;
                let error = scan_from_zero(&next).unwrap_err().to_string();
                assert!(error.contains("leads back into itself"), "{length} {back_to}: {error}");
            }
        }
    }

    #[test]
    fn errors_of_reads_are_returned() {
        assert_eq!(scan(FsBlock(0), |_| Err(Error::NotFound)), Err(Error::NotFound));
    }

    #[test]
    fn versions_match_with_or_without_the_upper_half() {
        let whole = ChainVersion { value: 7 | 9 << 32, mask: u64::MAX };
        assert!(whole.matches(7 | 9 << 32));
        assert!(!whole.matches(7) && !whole.matches(8 | 9 << 32));
        let half = ChainVersion { value: 7 | 9 << 32, mask: u32::MAX.into() };
        assert!(half.matches(7) && half.matches(7 | 5 << 32) && !half.matches(8 | 9 << 32));
    }
}
