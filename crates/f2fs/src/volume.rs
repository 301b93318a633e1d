//! Open volumes: their opening, and what is composed of their parts.

use std::sync::{Arc, OnceLock};

use base::attributes::StatFs;
use base::{Error, InodeNumber, Location, Problem, Result};
use device::{LatchDevice, SharedDevice};
use fs::FormatOptions;
use iomap::PageCache;

use crate::checkpoint::Checkpoint;
use crate::core::Core;
use crate::features::Feature;
use crate::format::Format;
use crate::inode::Inode;
use crate::nat;
use crate::ondisk::node::NAME_BYTES_MAX;
use crate::recovery::{self, RecoveryReport};
use crate::summaries::Log;
use crate::superblock::Superblock;
use crate::write::Writer;

/// The node numbers that are never in use: 0, and those of the inodes for nodes and other metadata.
const RESERVED_NIDS: u64 = 3;

/// An open volume.
#[derive(Debug)]
pub struct Volume {
    core: Arc<Core>,
    recovery: OnceLock<RecoveryReport>,
    /// The writing side, if the volume is open for writing.
    writer: OnceLock<Writer>,
}

impl std::ops::Deref for Volume {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Volume {
    /// Opens the volume on `device`. Unless the options have `no_recovery`, recovers in memory what
    /// was synced after the last checkpoint. Metadata is cached in `cache`.
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
        let keys = Arc::clone(&options.keys);
        let volume = Arc::new(Self {
            core: Arc::new(Core::new(device, cache, superblock, checkpoint, keys)),
            recovery: OnceLock::new(),
            writer: OnceLock::new(),
        });
        // The logs of a volume that is never written are not those of the checkpoint.
        let has_logs = !volume.geometry().features.has(Feature::ReadOnly);
        if has_logs && !options.no_recovery {
            if let Some(report) = recovery::recover(volume.core())? {
                let _ = volume.recovery.set(report);
            }
        }
        Ok(volume)
    }

    /// Checks that there is a root directory. Without one, other inodes are found by their numbers,
    /// and can be read.
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

    /// Opens the volume on `device` for writing. What was synced after the last checkpoint is
    /// recovered, and becomes a new checkpoint.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and:
    ///
    /// - `Unsupported` for volumes that are read-only by their format, zoned, or have device
    ///   aliases or disabled checkpoints.
    /// - `Corrupt` if the tables of segments are too short for the main area, a log has no segment
    ///   of it alone, or one with blocks of the other kind, the counts of blocks and nodes are not
    ///   possible, the journal of the node address table has a number that the table does not have,
    ///   the checkpoint's checksum is among its version bits, or a later checkpoint was lost.
    /// - Those of an orphan that cannot be deleted completely.
    /// - `NoSpace` if there are too few free blocks for what was recovered.
    pub fn open_for_writing(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &FormatOptions,
        format: &Format,
    ) -> Result<Arc<Self>> {
        // After a failed flush, no later one may succeed: the host may have dropped what it could
        // not write.
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
        volume.core.set_new_files(format.compression, format.compressed_names.clone());
        let failure = volume.recovery().and_then(|report| report.quota_failure.clone());
        let writer = Writer::new(&volume, options, format.mode, failure)?;
        volume.checkpoint().restore_first_block(volume.device(), volume.geometry())?;
        if let Some(report) = volume.recovery() {
            if let Some(failure) = report.orphan_failure.clone() {
                return Err(failure);
            }
            // The chain must stay intact until the new checkpoint is durable, and its data after
            // that.
            let kept = recovery::blocks_to_keep(&volume)?;
            writer.keep(&volume, kept.into_iter());
            writer.checkpoint(volume.core())?;
        }
        // From now on, operations find the overlay.
        volume.overlay_or_new().write().clear();
        let _ = volume.writer.set(writer);
        Ok(volume)
    }

    /// Returns what all parts of the volume share.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Loads an inode. Errors: `NotFound` if the inode is not in use.
    pub fn inode(&self, number: InodeNumber) -> Result<Inode> {
        self.core.inode(number)
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

    /// Returns the report of the recovery, if there was anything to recover.
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.recovery.get()
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
