//! Open volumes: the superblock, the checkpoint, and nodes by number.

use std::sync::{Arc, OnceLock};

use base::attributes::StatFs;
use base::locks::RankedRwLock;
use base::{Error, InodeNumber, Location, Problem, Result};
use device::{LatchDevice, SharedDevice};
use fs::FormatOptions;
use fscrypt::Keys;
use iomap::{DecodePool, MetadataBuffer, MetadataCache, PageCache};

use crate::checkpoint::Checkpoint;
use crate::compress::{CompressedNames, NewCompression};
use crate::edit::{Change, Counts, Overlay};
use crate::features::Feature;
use crate::file_system::Format;
use crate::geometry::Geometry;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;
use crate::live::LiveInodes;
use crate::nat::{self, Nid, NodeAddress};
use crate::node::Node;
use crate::ondisk::nat::RawNatEntry;
use crate::ondisk::node::NAME_BYTES_MAX;
use crate::ranks;
use crate::recovery::{self, RecoveryReport};
use crate::summaries::Log;
use crate::superblock::Superblock;
use crate::write::Writer;

/// The node numbers that are never in use: 0, and those of the inodes for nodes and other metadata.
const RESERVED_NIDS: u64 = 3;

/// An open volume.
#[derive(Debug)]
pub struct Volume {
    superblock: Superblock,
    /// The last checkpoint.
    checkpoint: RankedRwLock<Arc<Checkpoint>>,
    metadata: MetadataCache,
    device: SharedDevice,
    /// The threads that decompress clusters.
    decode_pool: Arc<DecodePool>,
    /// The keys of encrypted files.
    keys: Arc<Keys>,
    /// The changes since the last checkpoint: those of the recovery, if there was anything to recover, and of operations.
    overlay: OnceLock<RankedRwLock<Overlay>>,
    recovery: OnceLock<RecoveryReport>,
    /// The writing side, if the volume is open for writing.
    writer: OnceLock<Writer>,
    /// The inodes in memory of a volume that is open for writing.
    live_inodes: LiveInodes,
}

impl Volume {
    /// Opens the volume on `device`. Unless the options have `no_recovery`, recovers in memory what was synced after the
    /// last checkpoint. Metadata is cached in `cache`.
    pub fn open(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &FormatOptions,
    ) -> Result<Arc<Self>> {
        let superblock = Superblock::read(&device)?;
        let checkpoint = Checkpoint::read(&device, &superblock.geometry)?;
        // An older checkpoint than the last one may refer to blocks that have other data by now.
        if !options.no_recovery {
            checkpoint.check_reads()?;
        }
        let block_size = superblock.geometry.block_size;
        let metadata = MetadataCache::new(cache, Arc::clone(&device), block_size);
        let volume = Arc::new(Self {
            superblock,
            checkpoint: RankedRwLock::new(ranks::CHECKPOINT, Arc::new(checkpoint)),
            metadata,
            device,
            decode_pool: Arc::default(),
            keys: Arc::clone(&options.keys),
            overlay: OnceLock::new(),
            recovery: OnceLock::new(),
            writer: OnceLock::new(),
            live_inodes: LiveInodes::default(),
        });
        // The logs of a volume that is never written are not those of the checkpoint.
        let has_logs = !volume.geometry().features.has(Feature::ReadOnly);
        if has_logs && !options.no_recovery {
            if let Some(report) = recovery::recover(&volume)? {
                let _ = volume.recovery.set(report);
            }
        }
        Ok(volume)
    }

    /// Checks that there is a root directory. Without one, other inodes are found by their numbers, and can be read.
    fn check_root(self: &Arc<Self>) -> Result<()> {
        const STRUCTURE: &str = "root directory";
        let number = self.geometry().root;
        let corrupt = |problem| Error::corrupt(STRUCTURE, Location::inode(number), problem);
        let root = self.inode(number).map_err(|error| match error {
            Error::NotFound => corrupt(Problem::Missing("inode")),
            error => error,
        })?;
        match root.attributes().mode() {
            _ if root.attributes().is_dir() => Ok(()),
            mode => Err(corrupt(Problem::Invalid { field: "mode", found: mode.into() })),
        }
    }

    /// Opens the volume on `device` for writing. What was synced after the last checkpoint is recovered, and becomes a new
    /// checkpoint.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and:
    ///
    /// - `Unsupported` for volumes that are read-only by their format, zoned, or have device aliases or disabled
    ///   checkpoints.
    /// - `Corrupt` if the tables of segments are too short for the main area, a log has no segment of it alone, or one with
    ///   blocks of the other kind, the counts of blocks and nodes are not possible, the journal of the node address table has
    ///   a number that the table does not have, the checkpoint's checksum is among its version bits, or a later
    ///   checkpoint was lost.
    /// - Those of an orphan that cannot be deleted completely.
    /// - `NoSpace` if there are too few free blocks for what was recovered.
    pub fn open_for_writing(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &FormatOptions,
        format: &Format,
    ) -> Result<Arc<Self>> {
        // After a failed flush, no later one may succeed: the host may have dropped what it could not write.
        let device = Arc::new(LatchDevice::new(device));
        let volume = Self::open(device, cache, options)?;
        volume.checkpoint().check_later()?;
        volume.check_root()?;
        if let Some(error) = volume.checkpoint().orphan_damage.clone() {
            return Err(error);
        }
        // A sound volume may not pass the checks of what is written.
        Writer::check_supported(&volume)?;
        volume.geometry().check_tables()?;
        Log::check_all(volume.geometry(), &volume.checkpoint())?;
        volume.checkpoint().check_counts(volume.geometry())?;
        volume.checkpoint().check_checksum(volume.geometry())?;
        nat::check_journal(volume.geometry(), &volume.checkpoint())?;
        let writer = Writer::new(&volume, options, format)?;
        volume.checkpoint().restore_first_block(volume.device(), volume.geometry())?;
        if let Some(report) = volume.recovery() {
            if let Some(failure) = report.orphan_failure.clone() {
                return Err(failure);
            }
            // The chain must stay intact until the new checkpoint is durable, and its data after that.
            let kept = recovery::blocks_to_keep(&volume)?;
            writer.keep(&volume, kept.into_iter());
            writer.checkpoint(&volume)?;
        }
        // From now on, operations find the overlay.
        volume.overlay_or_new().write().clear();
        let _ = volume.writer.set(writer);
        Ok(volume)
    }

    /// Returns how the data of new files is compressed, if it is.
    pub(crate) fn new_compression(&self) -> NewCompression {
        self.writer.get().map_or_else(NewCompression::default, Writer::new_compression)
    }

    /// Returns the names of new files that decide whether these are compressed.
    pub(crate) fn compressed_names(&self) -> Option<&CompressedNames> {
        self.writer.get().map(Writer::compressed_names)
    }

    /// Returns the writing side. Errors: `ReadOnly` if the volume is open for reading only.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.get().ok_or(Error::ReadOnly)
    }

    /// Reports an error of a read. A volume that is open for writing records corruption.
    pub(crate) fn found(&self, error: &Error) {
        if let Some(writer) = self.writer.get() {
            writer.health().found(error);
        }
    }

    /// Returns the inodes in memory of a volume that is open for writing.
    pub(crate) fn live_inodes(&self) -> &LiveInodes {
        &self.live_inodes
    }

    /// Calls `read`, which looks up the address of a block and reads the block, until no checkpoint was installed during a
    /// call. A block that the last checkpoint or a change since then refers to is not used for anything else before the
    /// next checkpoint, so the block was the one that was looked up.
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

    /// Returns the report of the recovery, if there was anything to recover.
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.recovery.get()
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

    /// Returns the entry of a node number in the checkpoint's node address table, which has the number.
    pub(crate) fn nat_entry(&self, nid: Nid) -> Result<RawNatEntry> {
        nat::read_entry(&self.metadata, self.geometry(), &self.checkpoint(), nid)
    }

    /// Returns the address of a node in the checkpoint. Errors: `NotFound` if its number is free.
    pub fn node_address(&self, nid: Nid) -> Result<NodeAddress> {
        nat::look_up(&self.metadata, self.geometry(), &self.checkpoint(), nid)
    }

    /// Returns the block of a node, and the inode that the node table assigns it to. Errors: `NotFound` if the number
    /// is free.
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

    /// Loads an inode. Errors: `NotFound` if the inode is not in use.
    pub fn inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        let node = self.inode_node(number)?;
        let record = InodeRecord::parse(&node, self.geometry())?;
        Ok(Inode::new(Arc::clone(self), record))
    }

    /// Returns the number of blocks in use, and the number that users can have. Those that are only reserved for data in the
    /// cache do not count.
    pub(crate) fn blocks_used(&self) -> (u64, u64) {
        let checkpoint = self.checkpoint();
        let used = checkpoint.raw.valid_block_count.get();
        let used = used.saturating_add_signed(self.changed_counts().blocks);
        (used, checkpoint.raw.user_block_count.get())
    }

    /// Returns counts of space and inodes, as the kernel computes them.
    pub fn statfs(&self) -> StatFs {
        let checkpoint = self.checkpoint();
        let raw = &checkpoint.raw;
        let geometry = self.geometry();
        let counts = self.changed_counts();
        let user_blocks = raw.user_block_count.get();
        let reserved = self.writer.get().map_or(0, Writer::reserved);
        let blocks_free = user_blocks.saturating_sub(self.blocks_used().0 + reserved);
        let nodes = geometry.nid_count().saturating_sub(RESERVED_NIDS);
        let nodes_used = u64::from(raw.valid_nodes.get()).saturating_add_signed(counts.nodes);
        let nodes_free = nodes.saturating_sub(nodes_used);
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
