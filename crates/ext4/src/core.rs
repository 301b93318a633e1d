//! What all parts of a volume share: its device, superblock and metadata.
//! Not here: the state for writing (`volume/writer.rs`), and inodes in memory (`inode/`).

use std::sync::{Arc, OnceLock};

use base::{Error, FsBlock, GroupNumber, InodeNumber, Location, Problem, Result};
use device::SharedDevice;
use iomap::{MetadataBuffer, MetadataCache, PageCache};

use crate::inode::record::InodeRecord;
use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;
use crate::layout::zones::Zones;
use crate::superblock::Superblock;

/// The number of inode table blocks that are read together, as in the kernel
/// (`inode_readahead_blks`).
const INODE_READAHEAD_BLOCKS: u64 = 32;

/// The device, superblock and metadata of an open volume.
pub struct Core {
    device: SharedDevice,
    superblock: Superblock,
    metadata: Arc<MetadataCache>,
    /// The zones of `system_zones.rs`, from their first use on.
    pub(crate) fixed_zones: OnceLock<Zones>,
    pub(crate) journal_zones: OnceLock<Zones>,
}

impl Core {
    /// Returns the core of the volume that `superblock` describes.
    pub(crate) fn new(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        superblock: Superblock,
    ) -> Self {
        let block_size = superblock.geometry.block_size;
        Self {
            metadata: Arc::new(MetadataCache::new(cache, Arc::clone(&device), block_size)),
            device,
            superblock,
            fixed_zones: OnceLock::new(),
            journal_zones: OnceLock::new(),
        }
    }

    /// Returns the device that file data is read from.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Returns the cache of metadata blocks.
    pub(crate) fn metadata(&self) -> &Arc<MetadataCache> {
        &self.metadata
    }

    /// Returns the superblock, as it was when the volume was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the geometry of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// Reads a block of metadata that `structure` at `location` refers to. Errors: `Corrupt` if the
    /// block is outside the volume.
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

    /// Reads the record of an inode, reserved or not, linked or not. Errors: `NotFound` if it was
    /// never used or was cleared.
    pub fn inode_record(&self, number: InodeNumber) -> Result<InodeRecord> {
        let (buffer, at, location) = self.raw_inode(number)?;
        let geometry = self.geometry();
        let bytes = &buffer[at..at + geometry.inode_size as usize];
        InodeRecord::parse(bytes, geometry, number, location)
    }

    /// Reads the block with an inode. Returns the block's current contents, the inode's byte
    /// position in it, and the location for errors.
    pub(crate) fn raw_inode(
        &self,
        number: InodeNumber,
    ) -> Result<(MetadataBuffer, usize, Location)> {
        let (block, at, location) = self.inode_location(number)?;
        self.read_inodes_ahead(number, block)?;
        Ok((self.read_metadata(block, "inode", location)?, at, location))
    }

    /// Starts readahead of the inode table around `block`, which has the inode `number`, if that
    /// block is not in memory. Inodes of one directory are adjacent. Inodes that were never used
    /// are not read.
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

    /// Returns the block with an inode, the inode's byte position in it, and the location for
    /// errors.
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

    /// Checks that a reference of `structure` names no file that the format uses itself: the
    /// journal, the orphan file, or a quota file. Such a file may have an ordinary number. Its
    /// blocks are in use while the volume is open, so nothing else may change it.
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
}
