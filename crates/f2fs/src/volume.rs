//! Open volumes: the superblock, the checkpoint, and nodes by number.

use std::sync::Arc;

use base::attributes::StatFs;
use base::{Error, InodeNumber, Location, Problem, Result, Unsupported};
use device::SharedDevice;
use fs::FormatOptions;
use fscrypt::Keys;
use iomap::{DecodePool, MetadataCache, PageCache};

use crate::checkpoint::Checkpoint;
use crate::features::Feature;
use crate::geometry::Geometry;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;
use crate::nat::{self, Nid, NodeAddress};
use crate::node::Node;
use crate::ondisk::node::NAME_BYTES_MAX;
use crate::superblock::Superblock;

/// The node numbers that are never in use: 0, and those of the inodes for nodes and other metadata.
const RESERVED_NIDS: u64 = 3;

/// A volume that is open for reading.
#[derive(Debug)]
pub struct Volume {
    superblock: Superblock,
    checkpoint: Checkpoint,
    metadata: MetadataCache,
    device: SharedDevice,
    /// The threads that decompress clusters.
    decode_pool: Arc<DecodePool>,
    /// The keys of encrypted files.
    keys: Arc<Keys>,
}

impl Volume {
    /// Opens the volume on `device`, in the state of its last checkpoint. Its metadata is cached in `cache`. Errors:
    /// `Unsupported` if files were synced after the checkpoint, unless the options have `no_recovery`.
    pub fn open(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &FormatOptions,
    ) -> Result<Arc<Self>> {
        let superblock = Superblock::read(&device)?;
        let checkpoint = Checkpoint::read(&device, &superblock.geometry)?;
        let block_size = superblock.geometry.block_size;
        let metadata = MetadataCache::new(cache, Arc::clone(&device), block_size);
        let volume = Arc::new(Self {
            superblock,
            checkpoint,
            metadata,
            device,
            decode_pool: Arc::default(),
            keys: Arc::clone(&options.keys),
        });
        // The logs of a volume that is never written are not those of the checkpoint.
        let has_logs = !volume.geometry().features.has(Feature::ReadOnly);
        if has_logs && !options.no_recovery && volume.has_synced_nodes()? {
            return Err(Unsupported::Operation(
                "recovering files that were synced after the last checkpoint (--no-recovery reads the checkpoint)",
            )
            .into());
        }
        let root = volume.inode(volume.geometry().root)?;
        if !root.attributes().is_dir() {
            let problem =
                Problem::Invalid { field: "mode", found: root.attributes().mode().into() };
            return Err(Error::corrupt("root directory", Location::inode(root.number()), problem));
        }
        Ok(volume)
    }

    /// Returns the shape of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
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

    /// Returns the address of a node. Errors: `NotFound` if its number is free.
    pub fn node_address(&self, nid: Nid) -> Result<NodeAddress> {
        nat::look_up(&self.metadata, self.geometry(), &self.checkpoint, nid)
    }

    /// Reads the node `nid` of `inode`, which refers to it.
    pub(crate) fn node(&self, nid: Nid, inode: InodeNumber) -> Result<Node> {
        let location = Location::inode(inode);
        let address = match self.node_address(nid) {
            Err(Error::NotFound) => {
                return Err(Error::corrupt("node", location, Problem::Missing("address")));
            }
            address => address?,
        };
        let buffer = self.metadata.read(address.block, "node", location)?;
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
        let address = self.node_address(nid)?;
        // A number of another node is not that of an inode.
        if address.inode != number || number.0 < self.geometry().root.0 {
            return Err(Error::NotFound);
        }
        let buffer = self.metadata.read(address.block, "inode", Location::inode(number))?;
        Node::new(buffer, nid, number)?.at_position(0)
    }

    /// Loads an inode. Errors: `NotFound` if the inode is not in use.
    pub fn inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        let node = self.inode_node(number)?;
        let record = InodeRecord::parse(&node, self.geometry())?;
        Ok(Inode::new(Arc::clone(self), record))
    }

    /// Returns counts of space and inodes, as the kernel computes them.
    pub fn statfs(&self) -> StatFs {
        let raw = &self.checkpoint.raw;
        let geometry = self.geometry();
        let user_blocks = raw.user_block_count.get();
        let blocks_free = user_blocks.saturating_sub(raw.valid_block_count.get());
        let nodes = geometry.nid_count().saturating_sub(RESERVED_NIDS);
        let nodes_free = nodes.saturating_sub(raw.valid_nodes.get().into());
        // An inode takes a block, too.
        let (inodes, inodes_free) = if nodes > user_blocks {
            (user_blocks, blocks_free)
        } else {
            (nodes, nodes_free.min(blocks_free))
        };
        StatFs {
            block_size: geometry.block_size.bytes(),
            blocks: geometry.block_count.saturating_sub(geometry.checkpoint.0),
            blocks_free,
            blocks_available: blocks_free,
            inodes,
            inodes_free,
            name_bytes_max: NAME_BYTES_MAX as u32,
        }
    }
}
