//! What all parts of a volume share: its device, superblock, checkpoint and nodes.
//! Not here: the state for writing (`write/writer.rs`), and inodes in memory (`inode/`, `live/`).

use std::sync::{Arc, OnceLock};

use base::locks::RankedRwLock;
use base::{Error, InodeNumber, Location, Problem, Result};
use device::SharedDevice;
use fscrypt::Keys;
use iomap::{DecodePool, MetadataBuffer, MetadataCache, PageCache};

use crate::checkpoint::Checkpoint;
use crate::compress::{CompressedNames, NewCompression};
use crate::geometry::Geometry;
use crate::nat::{self, Nid, NodeAddress};
use crate::node::Node;
use crate::ondisk::nat::RawNatEntry;
use crate::overlay::{Change, Counts, Overlay};
use crate::ranks;
use crate::residents::Residents;
use crate::superblock::Superblock;

/// The device, superblock, checkpoint and nodes of an open volume.
#[derive(Debug)]
pub struct Core {
    superblock: Superblock,
    /// The last checkpoint.
    checkpoint: RankedRwLock<Arc<Checkpoint>>,
    metadata: MetadataCache,
    device: SharedDevice,
    /// The threads that decompress clusters.
    decode_pool: Arc<DecodePool>,
    /// The keys of encrypted files.
    keys: Arc<Keys>,
    /// The changes since the last checkpoint: those of the recovery, if there was anything to
    /// recover, and of operations.
    overlay: OnceLock<RankedRwLock<Overlay>>,
    /// The inodes in memory of a volume that is open for writing.
    residents: Residents,
    /// How the data of new files is compressed, if the volume is open for writing.
    new_files: OnceLock<(NewCompression, CompressedNames)>,
}

impl Core {
    /// Returns the core of the volume that `superblock` and `checkpoint` describe.
    pub(crate) fn new(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        superblock: Superblock,
        checkpoint: Checkpoint,
        keys: Arc<Keys>,
    ) -> Self {
        let block_size = superblock.geometry.block_size;
        Self {
            superblock,
            checkpoint: RankedRwLock::new(ranks::CHECKPOINT, Arc::new(checkpoint)),
            metadata: MetadataCache::new(cache, Arc::clone(&device), block_size),
            device,
            decode_pool: Arc::default(),
            keys,
            overlay: OnceLock::new(),
            residents: Residents::default(),
            new_files: OnceLock::new(),
        }
    }

    /// Sets how the data of new files is compressed whose directory says so, and the names that
    /// decide otherwise. Only the first call has an effect.
    pub(crate) fn set_new_files(&self, compression: NewCompression, names: CompressedNames) {
        let _ = self.new_files.set((compression, names));
    }

    /// Returns how the data of new files is compressed, if it is.
    pub(crate) fn new_compression(&self) -> NewCompression {
        self.new_files.get().map_or_else(NewCompression::default, |new| new.0)
    }

    /// Returns the names of new files that decide whether these are compressed.
    pub(crate) fn compressed_names(&self) -> Option<&CompressedNames> {
        self.new_files.get().map(|new| &new.1)
    }

    /// Returns the inodes in memory of a volume that is open for writing.
    pub(crate) fn residents(&self) -> &Residents {
        &self.residents
    }

    /// Calls `read`, which looks up the address of a block and reads the block, until no checkpoint
    /// was installed during a call. A block that the last checkpoint or a change since then refers
    /// to is not used for anything else before the next checkpoint, so the block was the one that
    /// was looked up.
    pub(crate) fn read_stably<R>(&self, mut read: impl FnMut() -> Result<R>) -> Result<R> {
        loop {
            let before = self.checkpoint().raw.version;
            let result = read();
            if self.checkpoint().raw.version == before {
                return result;
            }
        }
    }

    /// Returns the shape of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the last checkpoint.
    pub fn checkpoint(&self) -> Arc<Checkpoint> {
        Arc::clone(&self.checkpoint.read())
    }

    /// Returns the device.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Returns the keys of encrypted files.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn decode_pool(&self) -> &Arc<DecodePool> {
        &self.decode_pool
    }

    pub(crate) fn metadata(&self) -> &MetadataCache {
        &self.metadata
    }

    /// Returns the changes since the last checkpoint, if there may be any.
    pub(crate) fn overlay(&self) -> Option<&RankedRwLock<Overlay>> {
        self.overlay.get()
    }

    /// Returns the changes since the last checkpoint. Creates an empty overlay if there is none.
    pub(crate) fn overlay_or_new(&self) -> &RankedRwLock<Overlay> {
        self.overlay.get_or_init(|| RankedRwLock::new(ranks::OVERLAY, Overlay::for_recovery()))
    }

    /// Replaces the last checkpoint by one with all changes of the overlay.
    pub(crate) fn install(&self, checkpoint: Checkpoint) {
        let mut overlay = self.overlay_or_new().write();
        *self.checkpoint.write() = Arc::new(checkpoint);
        overlay.clear();
    }

    /// Returns how many more blocks, nodes and inodes are in use than in the checkpoint.
    pub(crate) fn changed_counts(&self) -> Counts {
        self.overlay().map_or_else(Counts::default, |overlay| overlay.read().counts)
    }

    /// Returns the entry of a node number in the checkpoint's node address table, which has the
    /// number.
    pub(crate) fn nat_entry(&self, nid: Nid) -> Result<RawNatEntry> {
        nat::read_entry(&self.metadata, self.geometry(), &self.checkpoint(), nid)
    }

    /// Returns the address of a node in the checkpoint. Errors: `NotFound` if its number is free.
    pub fn node_address(&self, nid: Nid) -> Result<NodeAddress> {
        nat::look_up(&self.metadata, self.geometry(), &self.checkpoint(), nid)
    }

    /// Returns the block of a node, and the inode that the node table assigns it to. Errors:
    /// `NotFound` if the number is free.
    fn node_block(
        &self,
        nid: Nid,
        structure: &'static str,
        location: Location,
    ) -> Result<(InodeNumber, MetadataBuffer)> {
        // While the overlay is locked, no checkpoint makes the node's block free.
        let _overlay = match self.overlay() {
            Some(overlay) => {
                let overlay = overlay.read();
                match overlay.node(nid) {
                    Some(Change::Freed) => return Err(Error::NotFound),
                    Some(Change::Contents(node)) => return Ok((node.inode, node.buffer())),
                    None => Some(overlay),
                }
            }
            None => None,
        };
        let address = self.node_address(nid)?;
        Ok((address.inode, self.metadata.read(address.block, structure, location)?))
    }

    /// Reads the node `nid` of `inode`, which refers to it.
    pub(crate) fn node(&self, nid: Nid, inode: InodeNumber) -> Result<Node> {
        let location = Location::inode(inode);
        let buffer = match self.node_block(nid, "node", location) {
            Err(Error::NotFound) => {
                return Err(Error::corrupt("node", location, Problem::Missing("address")));
            }
            found => found?.1,
        };
        Node::new(buffer, nid, inode)
    }

    /// Reads the node `nid` of any inode. Errors: `NotFound` if the number is free.
    pub(crate) fn any_node(&self, nid: Nid) -> Result<Node> {
        let location = Location::inode(InodeNumber(nid.0.into()));
        let (inode, buffer) = self.node_block(nid, "node", location)?;
        Node::new(buffer, nid, inode)
    }

    /// Reads the block of an inode. Errors: `NotFound` if the inode is not in use.
    pub(crate) fn inode_node(&self, number: InodeNumber) -> Result<Node> {
        let max = self.geometry().nid_count().saturating_sub(1);
        let nid = match u32::try_from(number.0) {
            Ok(nid) if number.0 <= max => Nid(nid),
            _ => {
                let (found, min) = (number.0, self.geometry().root.0);
                let problem = Problem::Range { field: "inode number", found, min, max };
                return Err(Error::corrupt("inode", Location::inode(number), problem));
            }
        };
        // The reserved numbers have entries without blocks.
        if number.0 < self.geometry().root.0 {
            return Err(Error::NotFound);
        }
        let (inode, buffer) = self.node_block(nid, "inode", Location::inode(number))?;
        // A number of another node is not that of an inode.
        if inode != number {
            return Err(Error::NotFound);
        }
        Node::new(buffer, nid, number)?.at_position(0)
    }

    /// Returns the number of blocks in use, and the number that users can have. Those that are only
    /// reserved for data in the cache do not count.
    pub(crate) fn blocks_used(&self) -> (u64, u64) {
        let checkpoint = self.checkpoint();
        let used = checkpoint.raw.valid_block_count.get();
        let used = used.saturating_add_signed(self.changed_counts().blocks);
        (used, checkpoint.raw.user_block_count.get())
    }
}
