//! The overlay: what a recovery has changed, in memory. Readers look up nodes and directory blocks here before they read
//! them from the device, and a writer finds here what it has to write.

use std::collections::HashMap;

use base::{FileBlock, FsBlock, InodeNumber, Result, Unsupported};
use iomap::{BlockContents, MetadataBuffer};

use crate::nat::Nid;

/// The maximum memory for changed nodes and directory blocks, in bytes.
const BYTES_MAX: u64 = 1 << 30;
/// The approximate memory for an entry of a map, in bytes.
const ENTRY_BYTES: u64 = 64;

/// A node in memory.
#[derive(Clone, Debug)]
pub(crate) struct OverlayNode {
    pub(crate) inode: InodeNumber,
    /// The block that the contents come from, for messages.
    pub(crate) block: FsBlock,
    pub(crate) contents: BlockContents,
}

impl OverlayNode {
    pub(crate) fn buffer(&self) -> MetadataBuffer {
        MetadataBuffer::with_contents(self.block, self.contents.clone())
    }
}

/// The change of a node.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The number is free.
    Freed,
    /// The node has these contents.
    Contents(OverlayNode),
}

/// The address that refers to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) nid: Nid,
    /// The index of the address in the node. In inodes, counted from the first address.
    pub(crate) index: u16,
}

/// The change of a block's use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockUse {
    Free,
    Owned(Owner),
}

/// How many more blocks, nodes and inodes are in use than in the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) blocks: i64,
    pub(crate) nodes: i64,
    pub(crate) inodes: i64,
}

/// The changes of a recovery.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    nodes: HashMap<Nid, Change>,
    /// Blocks of directories with changed contents, which have an address only if they are not new.
    directory_blocks: HashMap<(InodeNumber, FileBlock), BlockContents>,
    /// Data blocks whose use has changed. Those of freed nodes are not listed.
    blocks: HashMap<FsBlock, BlockUse>,
    pub(crate) counts: Counts,
    bytes: u64,
}

impl Overlay {
    /// Returns all changes of nodes, in the order of their numbers.
    pub(crate) fn nodes(&self) -> Vec<(Nid, Change)> {
        let mut nodes: Vec<_> =
            self.nodes.iter().map(|(nid, change)| (*nid, change.clone())).collect();
        nodes.sort_by_key(|(nid, _)| *nid);
        nodes
    }

    /// Returns all changed blocks of directories, in the order of the directories' numbers.
    pub(crate) fn directory_blocks(&self) -> Vec<((InodeNumber, FileBlock), BlockContents)> {
        let mut blocks: Vec<_> =
            self.directory_blocks.iter().map(|(at, contents)| (*at, contents.clone())).collect();
        blocks.sort_by_key(|(at, _)| *at);
        blocks
    }

    /// Returns the change of a node. `None` if it is that of the checkpoint.
    pub(crate) fn node(&self, nid: Nid) -> Option<&Change> {
        self.nodes.get(&nid)
    }

    /// Adds or replaces a node.
    pub(crate) fn put_node(&mut self, nid: Nid, node: OverlayNode) -> Result<()> {
        if !matches!(self.node(nid), Some(Change::Contents(_))) {
            self.charge(node.contents.len() as u64)?;
        }
        self.nodes.insert(nid, Change::Contents(node));
        Ok(())
    }

    /// Changes the contents of a node in the overlay. `None` if it is not here.
    pub(crate) fn edit_node<R>(
        &mut self,
        nid: Nid,
        edit: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        match self.nodes.get_mut(&nid)? {
            Change::Contents(node) => Some(edit(node.contents.to_mut())),
            Change::Freed => None,
        }
    }

    /// Makes the number of a node free.
    pub(crate) fn free_node(&mut self, nid: Nid) -> Result<()> {
        if self.node(nid).is_none() {
            self.charge(0)?;
        }
        self.nodes.insert(nid, Change::Freed);
        Ok(())
    }

    /// Returns the contents of a directory's block, if they have changed.
    pub(crate) fn directory_block(
        &self,
        directory: InodeNumber,
        at: FileBlock,
    ) -> Option<&BlockContents> {
        self.directory_blocks.get(&(directory, at))
    }

    /// Adds or replaces the contents of a directory's block.
    pub(crate) fn put_directory_block(
        &mut self,
        directory: InodeNumber,
        at: FileBlock,
        contents: Vec<u8>,
    ) -> Result<()> {
        if self.directory_block(directory, at).is_none() {
            self.charge(contents.len() as u64)?;
        }
        self.directory_blocks.insert((directory, at), contents.into());
        Ok(())
    }

    /// Forgets the contents of a directory's block, which is a hole now.
    pub(crate) fn remove_directory_block(&mut self, directory: InodeNumber, at: FileBlock) {
        self.directory_blocks.remove(&(directory, at));
    }

    /// Returns the change of a data block's use.
    pub(crate) fn block_use(&self, block: FsBlock) -> Option<BlockUse> {
        self.blocks.get(&block).copied()
    }

    /// Records the use of a data block.
    pub(crate) fn set_block_use(&mut self, block: FsBlock, block_use: BlockUse) -> Result<()> {
        if self.block_use(block).is_none() {
            self.charge(0)?;
        }
        self.blocks.insert(block, block_use);
        Ok(())
    }

    /// Counts the memory of a new entry, and what belongs to it.
    fn charge(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes + ENTRY_BYTES;
        if self.bytes > BYTES_MAX {
            return Err(Unsupported::Operation(
                "recovering more than 1 GiB of changes in memory (--no-recovery reads the checkpoint)",
            )
            .into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(byte: u8) -> OverlayNode {
        OverlayNode {
            inode: InodeNumber(9),
            block: FsBlock(100),
            contents: vec![byte; 4096].into(),
        }
    }

    #[test]
    fn edits_do_not_change_buffers_that_readers_have() {
        let mut overlay = Overlay::default();
        overlay.put_node(Nid(9), node(1)).unwrap();
        let buffer = node(1).buffer();
        let Some(Change::Contents(found)) = overlay.node(Nid(9)).cloned() else { panic!() };
        overlay.edit_node(Nid(9), |bytes| bytes[0] = 2).unwrap();
        assert_eq!(found.buffer()[..], buffer[..]);
        let Some(Change::Contents(changed)) = overlay.node(Nid(9)) else { panic!() };
        assert_eq!(changed.buffer()[0], 2);
    }

    #[test]
    fn free_and_unknown_nodes_cannot_be_edited() {
        let mut overlay = Overlay::default();
        overlay.put_node(Nid(9), node(1)).unwrap();
        overlay.free_node(Nid(9)).unwrap();
        assert!(overlay.edit_node(Nid(9), |_| ()).is_none());
        assert!(overlay.edit_node(Nid(8), |_| ()).is_none());
    }

    #[test]
    fn memory_is_limited() {
        let mut overlay = Overlay { bytes: BYTES_MAX - 5000, ..Overlay::default() };
        overlay.put_node(Nid(9), node(1)).unwrap();
        let error = overlay.put_node(Nid(10), node(1)).unwrap_err();
        assert!(matches!(error, base::Error::Unsupported(_)), "{error}");
    }
}
