//! An open volume: its superblock, descriptors and inodes.

pub(crate) mod clock;
pub(crate) mod error_log;
pub(crate) mod info;
pub(crate) mod label;
mod large_files;
pub mod mmp;
pub(crate) mod statfs;
pub(crate) mod use_mark;
pub(crate) mod writer;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::attributes::{FileType, StatFs};
use base::{
    BlockSize, Error, FsBlock, GroupNumber, InodeNumber, Location, Problem, Result, Unsupported,
    WaitCallback,
};
use device::{OverlayDevice, SharedDevice};
use fs::ErrorPolicy;
use fscrypt::Keys;
use iomap::{MetadataBuffer, MetadataCache, PageCache};

use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::inode::times;
use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;
use crate::layout::system_zones::Zones;
use crate::ondisk::superblock::STATE_VALID;
use crate::recovery::{RecoveryReport, untorn};
use crate::superblock::copy::{SuperblockCopy, SuperblockLocation};
use crate::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use crate::volume::mmp::MmpBlock;
use crate::volume::writer::Writer;

/// The number of inode table blocks that are read together, as in the kernel (`inode_readahead_blks`).
const INODE_READAHEAD_BLOCKS: u64 = 32;

/// Options for opening a volume.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Whether to read the volume without recovery, even if its journal must be replayed.
    pub no_recovery: bool,
    /// Whether to discard freed blocks on the device once their freeing is durable, instead of the superblock's default.
    pub discard: Option<bool>,
    /// The reaction to corruption, instead of the superblock's.
    pub errors: Option<ErrorPolicy>,
    /// The age at which changes are committed without a sync. Zero means the default of 5 s.
    pub commit_interval: Duration,
    /// The device of the journal, if that is external.
    pub journal_device: Option<SharedDevice>,
    /// The location of the superblock to use instead of the first one.
    pub superblock: Option<SuperblockLocation>,
    /// The keys of encrypted files.
    pub keys: Arc<Keys>,
    /// Called while another host may have the volume open, to decide whether to continue the wait.
    pub wait_callback: WaitCallback,
}

/// The result of [`Volume::probe`].
#[derive(Debug)]
pub enum Probed {
    /// The volume can be used.
    Ready(Arc<Volume>),
    /// The journal has transactions that are not yet in the volume's metadata.
    NeedsRecovery(Unrecovered),
}

/// A volume whose journal must be replayed before its metadata can be trusted.
#[derive(Debug)]
pub struct Unrecovered {
    volume: Arc<Volume>,
}

impl Unrecovered {
    /// Returns the volume without recovery. It is inconsistent if it was being changed when writing ended.
    pub fn without_recovery(self) -> Arc<Volume> {
        self.volume
    }
}

/// An open volume.
pub struct Volume {
    device: SharedDevice,
    superblock: Superblock,
    metadata: Arc<MetadataCache>,
    pub(crate) statfs: OnceLock<StatFs>,
    recovery: Option<RecoveryReport>,
    /// The copy that is used instead of the first superblock.
    copy: Option<SuperblockCopy>,
    pub(crate) fixed_zones: OnceLock<Zones>,
    pub(crate) journal_zones: OnceLock<Zones>,
    /// The keys of encrypted files. Volumes with such files are read-only.
    keys: Arc<Keys>,
    /// `None` on a read-only volume.
    pub(crate) writer: Option<Writer>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Volume {
    /// Opens the volume on `device`, with the changes in its journal. The device is not written. Metadata is cached in
    /// `cache`. If the first superblock is damaged, a copy of it is searched for.
    pub fn open(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let volume = match options.superblock {
            Some(location) => {
                let copy = SuperblockCopy::read_at(&device, location, device.size())?;
                Self::open_by_copy(device, cache, options, copy)?
            }
            None => Self::open_by_first(device, cache, options)?,
        };
        let volume = volume.with_keys(Arc::clone(&options.keys));
        match MmpBlock::of(&volume) {
            Ok(block) => block.iter().for_each(MmpBlock::warn_if_in_use),
            Err(error) => tracing::warn!("{error}"),
        }
        Ok(volume)
    }

    /// Opens the volume by its first superblock, or if that is damaged, by a reconstruction or a copy of it.
    fn open_by_first(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        match Self::probe(Arc::clone(&device), cache) {
            Ok(Probed::Ready(volume)) => Ok(volume),
            Ok(Probed::NeedsRecovery(volume)) if options.no_recovery => {
                Ok(volume.without_recovery())
            }
            Ok(Probed::NeedsRecovery(volume)) => {
                volume.recover(cache, options.journal_device.as_ref())
            }
            Err(error) => Self::open_damaged(device, cache, options, error),
        }
    }

    /// Opens a volume whose first superblock has `error`. Uses a reconstruction of the superblock if a power cut has
    /// torn it, or else a copy of it.
    fn open_damaged(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
        error: Error,
    ) -> Result<Arc<Self>> {
        let journal_device = options.journal_device.as_ref();
        if let Some(whole) = untorn(&device, cache, journal_device, &error) {
            let bytes = SUPERBLOCK_BYTES as u64;
            let unit = BlockSize::from_bytes(bytes).expect("a power of two");
            let overlay: SharedDevice = Arc::new(OverlayDevice::new(device, unit, bytes));
            overlay.write_at(SUPERBLOCK_OFFSET, &whole)?;
            return Self::open_by_first(overlay, cache, options);
        }
        match Self::copy_for(&device, cache, &error) {
            Some(copy) => Self::open_by_copy(device, cache, options, copy),
            None => Err(error),
        }
    }

    /// Searches for a copy of the superblock if `error` is corruption of the first one.
    fn copy_for(
        device: &SharedDevice,
        cache: &Arc<PageCache>,
        error: &Error,
    ) -> Option<SuperblockCopy> {
        match error {
            Error::Corrupt(corrupt) if corrupt.structure == "superblock" => {}
            _ => return None,
        }
        let mut copies = SuperblockCopy::find(device, device.size());
        // A copy that is a remnant of another file system rarely leads to a root directory.
        let leads_to_root = |copy: &SuperblockCopy| {
            let volume = Self::with_copy(Arc::clone(device), cache, copy.clone());
            let root = volume.inode_record(crate::ROOT_INODE);
            root.is_ok_and(|root| root.kind == FileType::Directory && root.links > 0)
        };
        let best = copies.iter().position(leads_to_root)?;
        Some(SuperblockCopy { reason: Some(error.clone()), ..copies.swap_remove(best) })
    }

    /// Returns the error for an attempt to write a volume whose first superblock has `error`. It names a copy of the
    /// superblock if there is one.
    pub(crate) fn refusal_for_copy(
        device: &SharedDevice,
        cache: &Arc<PageCache>,
        error: Error,
    ) -> Error {
        let Some(copy) = Self::copy_for(device, cache, &error) else { return error };
        let block_size = copy.superblock.geometry.block_size.bytes();
        Unsupported::DamagedSuperblock { copy: copy.block, block_size }.into()
    }

    /// Returns whether the first superblock of `device` is damaged or missing, and `device` has a copy of it.
    pub fn has_copy(device: &SharedDevice, cache: &Arc<PageCache>) -> bool {
        match Superblock::read(device) {
            Ok(_) => false,
            Err(error) => Self::copy_for(device, cache, &error).is_some(),
        }
    }

    /// Returns the volume that `copy` describes.
    pub(crate) fn with_copy(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        copy: SuperblockCopy,
    ) -> Arc<Self> {
        let superblock = copy.superblock.clone();
        Arc::new(Self { copy: Some(copy), ..Self::with_superblock(device, cache, superblock) })
    }

    /// Returns the volume with the information that it was opened through `copy`.
    pub(crate) fn opened_through(self: Arc<Self>, copy: SuperblockCopy) -> Arc<Self> {
        let mut volume =
            Arc::into_inner(self).expect("a volume that was just opened has one owner");
        volume.copy = Some(copy);
        Arc::new(volume)
    }

    /// Returns the copy that is used instead of the first superblock.
    pub(crate) fn copy(&self) -> Option<&SuperblockCopy> {
        self.copy.as_ref()
    }

    /// Returns the volume that `superblock` describes.
    pub(crate) fn with_superblock(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        superblock: Superblock,
    ) -> Self {
        let block_size = superblock.geometry.block_size;
        Self {
            metadata: Arc::new(MetadataCache::new(cache, Arc::clone(&device), block_size)),
            device,
            superblock,
            statfs: OnceLock::new(),
            recovery: None,
            copy: None,
            fixed_zones: OnceLock::new(),
            journal_zones: OnceLock::new(),
            keys: Arc::default(),
            writer: None,
        }
    }

    /// Reads the superblock of `device`. Returns whether the volume is ready or needs recovery.
    pub fn probe(device: SharedDevice, cache: &Arc<PageCache>) -> Result<Probed> {
        let superblock = Superblock::read(&device)?;
        // Without a journal, the flag has no meaning.
        let needs_recovery =
            superblock.has(Feature::NeedsRecovery) && superblock.has(Feature::HasJournal);
        let volume = Arc::new(Self::with_superblock(device, cache, superblock));
        Ok(if needs_recovery {
            Probed::NeedsRecovery(Unrecovered { volume })
        } else {
            Probed::Ready(volume)
        })
    }

    /// Returns the device that file data is read from.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Returns a report of the recovery in memory, if there was one.
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.recovery.as_ref()
    }

    /// Returns the volume with the report of its recovery.
    pub(crate) fn with_recovery_report(self: Arc<Self>, report: RecoveryReport) -> Arc<Self> {
        let mut volume =
            Arc::into_inner(self).expect("a volume that was just opened has one owner");
        volume.recovery = Some(report);
        Arc::new(volume)
    }

    /// Returns the volume with the keys of its encrypted files.
    fn with_keys(self: Arc<Self>, keys: Arc<Keys>) -> Arc<Self> {
        let mut volume =
            Arc::into_inner(self).expect("a volume that was just opened has one owner");
        volume.keys = keys;
        Arc::new(volume)
    }

    /// Returns the keys of encrypted files.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the cache of metadata blocks.
    pub(crate) fn metadata(&self) -> &Arc<MetadataCache> {
        &self.metadata
    }

    /// Returns the superblock, as it was when the volume was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns whether the superblock's counts of free blocks and inodes are exact. The kernel, e2fsck and this crate update
    /// them when a volume is closed. Until then, and after a crash or a recovery in memory, they may be older than the groups'.
    pub(crate) fn has_exact_counts(&self) -> bool {
        let is_clean = self.superblock.raw().state.get() & STATE_VALID != 0;
        let needs_recovery = self.superblock.has(Feature::NeedsRecovery);
        is_clean
            && !needs_recovery
            && self.recovery.is_none()
            && self.copy.is_none()
            && self.writer.is_none()
    }

    /// Returns the geometry of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// Returns the granularity of inode times, in nanoseconds.
    pub fn time_granularity(&self) -> u32 {
        times::granularity(self.geometry().inode_size as usize)
    }

    /// Reads a block of metadata that `structure` at `location` refers to. Errors: `Corrupt` if the block is outside
    /// the volume.
    pub fn read_metadata(
        &self,
        block: FsBlock,
        structure: &'static str,
        location: Location,
    ) -> Result<MetadataBuffer> {
        let max = self.geometry().block_count - 1;
        if block.0 > max {
            let problem = Problem::Range { field: "block", found: block.0, min: 0, max };
            return Err(Error::corrupt(structure, location, problem));
        }
        self.metadata.read(block, structure, location)
    }

    /// Returns the descriptor of a group of this volume.
    pub fn group(&self, group: GroupNumber) -> Result<GroupDescriptor> {
        const STRUCTURE: &str = "group descriptor";
        let geometry = self.geometry();
        let max = geometry.group_count - 1;
        if group.0 > max {
            let (found, max) = (group.0.into(), max.into());
            let problem = Problem::Range { field: "group", found, min: 0, max };
            return Err(Error::corrupt(STRUCTURE, Location::group(group), problem));
        }
        let (block, at) = geometry.descriptor_position(group);
        let location = Location::group(group).at_block(block);
        let buffer = self.read_metadata(block, STRUCTURE, location)?;
        let location = location.at_byte(at as u64);
        // `at` is below the block size, of which the descriptor size is a divisor.
        let bytes = &buffer[at..at + geometry.descriptor_size as usize];
        let mut descriptor = GroupDescriptor::parse(bytes, geometry, group, location)?;
        if geometry.copy_in_use.is_some() {
            // Tables and bitmaps may have been initialized since the copy was made.
            descriptor.blocks_uninitialised = false;
            descriptor.inodes_uninitialised = false;
            descriptor.unused_inodes = 0;
        }
        Ok(descriptor)
    }

    /// Reads the record of an inode, reserved or not, linked or not. Errors: `NotFound` if it was never used or was
    /// cleared.
    pub fn inode_record(&self, number: InodeNumber) -> Result<InodeRecord> {
        let (buffer, at, location) = self.raw_inode(number)?;
        let geometry = self.geometry();
        let bytes = &buffer[at..at + geometry.inode_size as usize];
        InodeRecord::parse(bytes, geometry, number, location)
    }

    /// Reads the block with an inode. Returns the block's current contents, the inode's byte position in it, and the
    /// location for errors.
    pub(crate) fn raw_inode(
        &self,
        number: InodeNumber,
    ) -> Result<(MetadataBuffer, usize, Location)> {
        let (block, at, location) = self.inode_location(number)?;
        self.read_inodes_ahead(number, block)?;
        Ok((self.read_metadata(block, "inode", location)?, at, location))
    }

    /// Starts readahead of the inode table around `block`, which has the inode `number`, if that block is not in
    /// memory. Inodes of one directory are adjacent. Inodes that were never used are not read.
    pub(crate) fn read_inodes_ahead(&self, number: InodeNumber, block: FsBlock) -> Result<()> {
        let geometry = self.geometry();
        let (group, index) = geometry.inode_position(number)?;
        let descriptor = self.group(group)?;
        let unused = if geometry.has_group_checksums() { descriptor.unused_inodes } else { 0 };
        let used = geometry.inodes_per_group.saturating_sub(unused).max(index + 1);
        let per_block = geometry.block_size.bytes() / geometry.inode_size;
        let blocks = descriptor.inode_table.0
            ..descriptor.inode_table.0 + u64::from(used.div_ceil(per_block));
        let start = block.0 / INODE_READAHEAD_BLOCKS * INODE_READAHEAD_BLOCKS;
        let end = start + INODE_READAHEAD_BLOCKS;
        let around = FsBlock(start.max(blocks.start))..FsBlock(end.min(blocks.end));
        self.metadata.read_ahead(block, around);
        Ok(())
    }

    /// Returns the block with an inode, the inode's byte position in it, and the location for errors.
    pub(crate) fn inode_location(&self, number: InodeNumber) -> Result<(FsBlock, usize, Location)> {
        let geometry = self.geometry();
        let (group, index) = geometry.inode_position(number)?;
        let table = self.group(group)?.inode_table;
        let per_block = geometry.block_size.bytes() / geometry.inode_size;
        // `GroupDescriptor::parse` has checked that the table lies in the volume.
        let block = FsBlock(table.0 + u64::from(index / per_block));
        let at = (index % per_block * geometry.inode_size) as usize;
        let location = Location::group(group).in_inode(number).at_block(block).at_byte(at as u64);
        Ok((block, at, location))
    }

    /// Returns an inode as [`inode`](Self::inode) does, by a number that does not come from a name. Errors:
    /// `NotFound` also if the inode bitmap marks it free: a table that was never used may contain arbitrary records
    /// without checksums.
    pub fn marked_inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        let (group, index) = self.geometry().inode_position(number)?;
        if !self.inode_bitmap(&self.group(group)?)?.is_set(index) {
            return Err(Error::NotFound);
        }
        self.inode(number)
    }

    /// Returns an inode that a name may refer to. Errors: `NotFound` if it is not in use, `Corrupt` if no name may
    /// refer to it.
    pub fn inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        let geometry = self.geometry();
        let fault = |problem| Error::corrupt("inode reference", Location::inode(number), problem);
        if geometry.is_reserved_inode(number) {
            let (min, max) = (geometry.first_inode.into(), geometry.inode_count.into());
            return Err(fault(Problem::Range { field: "inode number", found: number.0, min, max }));
        }
        self.check_not_special("inode reference", number)?;
        let record = self.inode_record(number)?;
        if record.links == 0 {
            return Err(Error::NotFound);
        }
        if record.flags.contains(InodeFlags::EA_INODE) {
            let found = record.flags.0.into();
            return Err(fault(Problem::Invalid { field: "flags", found }));
        }
        let inode = Inode::new(Arc::clone(self), record);
        let Some(writer) = &self.writer else { return Ok(inode) };
        // A read-only volume changes and frees nothing that the record refers to, so its readable parts may be read.
        inode.check_block_references()?;
        Ok(writer.orphans.restore_orphan(inode))
    }

    /// Checks that a reference of `structure` names no file that the format uses itself: the journal, the orphan file, or
    /// a quota file. Such a file may have an ordinary number. Its blocks are in use while the volume is open, so nothing
    /// else may change it.
    pub(crate) fn check_not_special(
        &self,
        structure: &'static str,
        number: InodeNumber,
    ) -> Result<()> {
        if !self.superblock().inodes.is_special(number) {
            return Ok(());
        }
        let problem = Problem::Invalid { field: "number of a special file", found: number.0 };
        Err(Error::corrupt(structure, Location::inode(number), problem))
    }

    /// Returns an inode that the format uses itself: the journal, a quota file, or the value of an attribute.
    pub fn special_inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        Ok(Inode::new(Arc::clone(self), self.inode_record(number)?))
    }
}
