//! The overlay: nodes and directory blocks that have changed since the last checkpoint, in memory.
//! Readers look them up here before they read them from the device, and a checkpoint finds here
//! what it has to write.

mod undo;

use std::collections::{BTreeSet, HashMap, HashSet};

use base::{FileBlock, FsBlock, InodeNumber, Result, Unsupported};
use iomap::{BlockContents, MetadataBuffer};
use zerocopy::FromBytes;

pub(crate) use self::undo::ChangedNode;
use self::undo::Undo;
use crate::nat::Nid;
use crate::node::FLAG_BITS;
use crate::ondisk::node::RawNodeFooter;

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
    /// Whether these contents were written after the last checkpoint, so that a recovery finds
    /// them.
    pub(crate) is_synced: bool,
}

impl OverlayNode {
    /// Returns the node's position in its file.
    pub(crate) fn position(&self) -> u32 {
        let footer_at = self.contents.len() - size_of::<RawNodeFooter>();
        let footer = RawNodeFooter::ref_from_bytes(&self.contents[footer_at..]);
        footer.expect("of this size").flags.get() >> FLAG_BITS
    }

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

/// The changes since the last checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    nodes: HashMap<Nid, Change>,
    /// All nodes whose contents were not synced, by inode. May have others, too.
    unsynced: BTreeSet<(InodeNumber, Nid)>,
    /// Blocks of directories and of long symbolic links with changed contents, which have an
    /// address only if they are not new.
    directory_blocks: HashMap<(InodeNumber, FileBlock), BlockContents>,
    /// Inodes that have no name, and are in use.
    orphans: BTreeSet<InodeNumber>,
    /// Inodes with changes that only a checkpoint makes durable.
    unsyncable: HashSet<InodeNumber>,
    /// Directories in which a name was removed, or names another inode now.
    with_removed_names: HashSet<InodeNumber>,
    /// Whether a directory was moved, and with it the files below.
    has_directory_moved: bool,
    /// New files whose names a recovery would not find, in the order of their creation.
    unsynced_names: Vec<InodeNumber>,
    /// Whether names have changed in other ways than by new files.
    has_other_names: bool,
    /// Data blocks whose use has changed. Those of freed nodes are not listed. `None` once a
    /// checkpoint was written: only a recovery needs them.
    blocks: Option<HashMap<FsBlock, BlockUse>>,
    pub(crate) counts: Counts,
    bytes: u64,
    /// What the operation that is under way has changed, if one is.
    undo: Option<Undo>,
}

impl Overlay {
    /// Returns an overlay for a recovery, which records how the use of data blocks changes.
    pub(crate) fn for_recovery() -> Self {
        Self { blocks: Some(HashMap::new()), ..Self::default() }
    }

    /// Forgets all changes, which a checkpoint has written.
    pub(crate) fn clear(&mut self) {
        let orphans = std::mem::take(&mut self.orphans);
        *self = Self { orphans, ..Self::default() };
    }

    /// Returns whether nothing has changed since the last checkpoint.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.directory_blocks.is_empty()
    }

    /// Returns the numbers of nodes, and of directory blocks, that a checkpoint writes for the
    /// changes at most.
    pub(crate) fn block_counts(&self) -> [u64; 2] {
        // A block of a directory changes a node, which may not be here yet.
        let nodes = self.nodes.len() + self.directory_blocks.len();
        [nodes as u64, self.directory_blocks.len() as u64]
    }

    /// Returns the approximate memory of the changes, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records a change of an inode that only a checkpoint makes durable, because a recovery would
    /// not find it.
    pub(crate) fn set_unsyncable(&mut self, inode: InodeNumber) {
        self.unsyncable.insert(inode);
    }

    /// Records that a directory has a name for a new file, or that names have changed in another
    /// way.
    pub(crate) fn note_name(&mut self, new_file: Option<InodeNumber>) {
        match new_file {
            Some(inode) => self.unsynced_names.push(inode),
            None => self.has_other_names = true,
        }
    }

    /// Returns whether a recovery would find all changes of names that were made before the name of
    /// a new file, if it also found those of the files in `named`.
    pub(crate) fn keeps_order_of_names(
        &self,
        new_file: InodeNumber,
        named: &BTreeSet<InodeNumber>,
    ) -> bool {
        let own = self.unsynced_names.iter().position(|inode| *inode == new_file);
        // Without a place, its own name is found already.
        let before = &self.unsynced_names[..own.unwrap_or_default()];
        !self.has_other_names && before.iter().all(|inode| named.contains(inode))
    }

    /// Returns the places of new files in the order of their creation, of those whose names a
    /// recovery would not find.
    pub(crate) fn places_of_names(&self) -> HashMap<InodeNumber, usize> {
        let names = self.unsynced_names.iter().enumerate();
        names.map(|(place, inode)| (*inode, place)).collect()
    }

    /// Records that a name in a directory was removed, or names another inode now.
    pub(crate) fn note_removed_name(&mut self, directory: InodeNumber) {
        self.with_removed_names.insert(directory);
    }

    /// Returns the directories in which names were removed, or name other inodes now.
    pub(crate) fn with_removed_names(&self) -> &HashSet<InodeNumber> {
        &self.with_removed_names
    }

    /// Records that a directory was moved.
    pub(crate) fn set_directory_moved(&mut self) {
        self.has_directory_moved = true;
    }

    /// Returns whether only a checkpoint makes the changes of an inode durable.
    pub(crate) fn is_unsyncable(&self, inode: InodeNumber) -> bool {
        self.has_directory_moved || self.unsyncable.contains(&inode)
    }

    /// Returns the changed nodes of an inode that a recovery would not find, in the order of their
    /// numbers, but the inode's own node last.
    pub(crate) fn unsynced_nodes(&self, inode: InodeNumber) -> Vec<(Nid, OverlayNode)> {
        let nids = self.unsynced.range((inode, Nid(0))..=(inode, Nid(u32::MAX)));
        let changed = nids.filter_map(|(_, nid)| match self.nodes.get(nid)? {
            Change::Contents(node) if node.inode == inode && !node.is_synced => {
                Some((*nid, node.clone()))
            }
            _ => None,
        });
        let mut nodes: Vec<_> = changed.collect();
        nodes.sort_by_key(|(nid, node)| (u64::from(nid.0) == node.inode.0, *nid));
        nodes
    }

    /// Records that `written` nodes are durable. Those that have changed meanwhile stay unsynced: a
    /// change is made to a copy of contents that have clones, so contents in the same memory are
    /// those that were written.
    pub(crate) fn set_synced<'n>(&mut self, written: impl Iterator<Item = &'n (Nid, OverlayNode)>) {
        let mut inodes = HashSet::new();
        for (nid, written) in written {
            match self.nodes.get_mut(nid) {
                Some(Change::Contents(node)) if node.contents.is_same(&written.contents) => {
                    node.is_synced = true;
                    self.unsynced.remove(&(node.inode, *nid));
                    inodes.insert(node.inode);
                }
                _ => {}
            }
        }
        self.unsynced_names.retain(|inode| !inodes.contains(inode));
    }

    /// Returns the inodes that have no name, and are in use.
    pub(crate) fn orphans(&self) -> &BTreeSet<InodeNumber> {
        &self.orphans
    }

    /// Adds an inode to those without a name, or removes it.
    pub(crate) fn set_orphan(&mut self, inode: InodeNumber, is_orphan: bool) {
        let has_changed = match is_orphan {
            true => self.orphans.insert(inode),
            false => self.orphans.remove(&inode),
        };
        if let Some(undo) = self.undo.as_mut().filter(|_| has_changed) {
            undo.orphans.push((inode, !is_orphan));
        }
    }

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
        self.save_node(nid);
        self.unsynced.insert((node.inode, nid));
        self.nodes.insert(nid, Change::Contents(node));
        Ok(())
    }

    /// Changes the contents of a node in the overlay. `None` if it is not here.
    pub(crate) fn edit_node<R>(
        &mut self,
        nid: Nid,
        edit: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        self.save_node(nid);
        match self.nodes.get_mut(&nid)? {
            Change::Contents(node) => {
                node.is_synced = false;
                self.unsynced.insert((node.inode, nid));
                Some(edit(node.contents.to_mut()))
            }
            Change::Freed => None,
        }
    }

    /// Makes the number of a node free.
    pub(crate) fn free_node(&mut self, nid: Nid) -> Result<()> {
        if self.node(nid).is_none() {
            self.charge(0)?;
        }
        self.save_node(nid);
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
        self.save_directory_block((directory, at));
        self.directory_blocks.insert((directory, at), contents.into());
        Ok(())
    }

    /// Forgets the contents of a directory's block, which is a hole now.
    pub(crate) fn remove_directory_block(&mut self, directory: InodeNumber, at: FileBlock) {
        self.save_directory_block((directory, at));
        self.directory_blocks.remove(&(directory, at));
    }

    /// Returns the change of a data block's use. Only a recovery records it.
    pub(crate) fn block_use(&self, block: FsBlock) -> Option<BlockUse> {
        self.blocks.as_ref()?.get(&block).copied()
    }

    /// Returns the data blocks that a recovery has given to an address.
    pub(crate) fn owned_blocks(&self) -> Vec<FsBlock> {
        let is_owned = |block_use: &BlockUse| matches!(block_use, BlockUse::Owned(_));
        let blocks = self.blocks.iter().flatten();
        blocks.filter(|(_, block_use)| is_owned(block_use)).map(|(block, _)| *block).collect()
    }

    /// Records the use of a data block, in a recovery.
    pub(crate) fn set_block_use(&mut self, block: FsBlock, block_use: BlockUse) -> Result<()> {
        let Some(blocks) = &mut self.blocks else { return Ok(()) };
        if blocks.insert(block, block_use).is_none() {
            self.charge(0)?;
        }
        Ok(())
    }

    /// Counts the memory of a new entry, and what belongs to it.
    fn charge(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes + ENTRY_BYTES;
        if self.bytes > BYTES_MAX {
            let is_recovery = self.blocks.is_some();
            return Err(Unsupported::Operation(if is_recovery {
                "recovering more than 1 GiB of changes in memory (--no-recovery reads the checkpoint)"
            } else {
                "changing more than 1 GiB of nodes in one operation"
            })
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
            is_synced: false,
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
    fn only_nodes_that_have_not_changed_since_they_were_written_become_synced() {
        let mut overlay = Overlay::default();
        let inode = InodeNumber(9);
        overlay.put_node(Nid(9), node(1)).unwrap();
        overlay.put_node(Nid(10), node(2)).unwrap();
        let written = overlay.unsynced_nodes(inode);
        // The inode comes last.
        assert_eq!(written.iter().map(|(nid, _)| nid.0).collect::<Vec<_>>(), [10, 9]);
        overlay.edit_node(Nid(10), |bytes| bytes[0] = 3).unwrap();
        overlay.set_synced(written.iter());
        let unsynced = overlay.unsynced_nodes(inode);
        assert_eq!(unsynced.iter().map(|(nid, _)| nid.0).collect::<Vec<_>>(), [10]);
        overlay.set_synced(unsynced.iter());
        assert!(overlay.unsynced_nodes(inode).is_empty());
        // A change that is taken back leaves the node synced.
        overlay.begin();
        overlay.edit_node(Nid(9), |bytes| bytes[0] = 4).unwrap();
        assert_eq!(overlay.unsynced_nodes(inode).len(), 1);
        overlay.end(false);
        assert!(overlay.unsynced_nodes(inode).is_empty());
    }

    #[test]
    fn new_names_become_durable_in_the_order_of_their_creation() {
        let (first, second) = (InodeNumber(9), InodeNumber(8));
        let mut overlay = Overlay::default();
        overlay.note_name(Some(first));
        overlay.note_name(Some(second));
        let keeps = |overlay: &Overlay, inode, named: &[InodeNumber]| {
            overlay.keeps_order_of_names(inode, &named.iter().copied().collect())
        };
        assert!(keeps(&overlay, first, &[]));
        assert!(!keeps(&overlay, second, &[]));
        assert!(keeps(&overlay, second, &[first]));
        assert_eq!(overlay.places_of_names(), [(first, 0), (second, 1)].into());
        overlay.put_node(Nid(9), node(1)).unwrap();
        let written = overlay.unsynced_nodes(first);
        overlay.set_synced(written.iter());
        assert!(keeps(&overlay, second, &[]));
        overlay.note_name(None);
        assert!(!keeps(&overlay, second, &[]) && !keeps(&overlay, first, &[]));
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
