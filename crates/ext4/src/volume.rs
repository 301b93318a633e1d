//! A volume: from a device to inodes.

use std::sync::{Arc, OnceLock};

use base::attributes::StatFs;
use base::{Error, FsBlock, GroupNumber, InodeNumber, Patience, Place, Problem, Result};
use device::SharedDevice;
use iomap::{MetadataBuffer, MetadataCache, PageCache};

use crate::features::Feature;
use crate::geometry::Geometry;
use crate::group::GroupDescriptor;
use crate::inode::Inode;
use crate::inode_record::{InodeFlags, InodeRecord};
use crate::mmp::MmpBlock;
use crate::recovery::RecoveryReport;
use crate::superblock::Superblock;
use crate::writer::Writer;

/// How to open a volume.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Look at the volume as it lies, even when its journal must be replayed.
    pub no_recovery: bool,
    /// Tell the device of blocks that were freed, once that is durable.
    pub discard: bool,
    /// The device of the journal, when the volume has it outside.
    pub journal_device: Option<SharedDevice>,
    /// Asked while another host may have the volume.
    pub patience: Patience,
}

/// What [`Volume::probe`] found.
#[derive(Debug)]
pub enum Probed {
    /// The volume can be used.
    Ready(Arc<Volume>),
    /// The journal has transactions that the volume lacks.
    NeedsRecovery(Unrecovered),
}

/// A volume whose journal must be replayed before its metadata can be trusted.
#[derive(Debug)]
pub struct Unrecovered {
    volume: Arc<Volume>,
}

impl Unrecovered {
    /// The volume without what the journal holds: inconsistent, unless nothing was being written.
    pub fn as_it_lies(self) -> Arc<Volume> {
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
    /// Set while the volume is open for writing.
    pub(crate) writer: Option<Writer>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Volume {
    /// Opens the volume on `device`. What its journal holds is seen, and the device not written.
    /// Metadata is kept in `cache`.
    pub fn open(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let volume = match Self::probe(device, cache)? {
            Probed::Ready(volume) => volume,
            Probed::NeedsRecovery(unrecovered) if options.no_recovery => unrecovered.as_it_lies(),
            Probed::NeedsRecovery(unrecovered) => {
                unrecovered.recover(cache, options.journal_device.as_ref())?
            }
        };
        match MmpBlock::of(&volume) {
            Ok(block) => block.iter().for_each(MmpBlock::look),
            Err(error) => tracing::warn!("{error}"),
        }
        Ok(volume)
    }

    /// Reads the superblock of `device` and says whether the volume can be used as it lies.
    pub fn probe(device: SharedDevice, cache: &Arc<PageCache>) -> Result<Probed> {
        let superblock = Superblock::read(&device)?;
        // Without a journal the mark has no meaning.
        let needs_recovery =
            superblock.has(Feature::NeedsRecovery) && superblock.has(Feature::HasJournal);
        let block_size = superblock.geometry.block_size;
        let metadata = Arc::new(MetadataCache::new(cache, Arc::clone(&device), block_size));
        let (statfs, recovery, writer) = (OnceLock::new(), None, None);
        let volume = Arc::new(Self { device, superblock, metadata, statfs, recovery, writer });
        Ok(if needs_recovery {
            Probed::NeedsRecovery(Unrecovered { volume })
        } else {
            Probed::Ready(volume)
        })
    }

    /// The device that file data is read from.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// What was done to the volume in memory before it could be read.
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.recovery.as_ref()
    }

    /// The same volume, with what was done to it.
    pub(crate) fn recovered(self: Arc<Self>, report: RecoveryReport) -> Arc<Self> {
        let mut volume = Arc::into_inner(self).expect("nobody else has a volume just opened");
        volume.recovery = Some(report);
        Arc::new(volume)
    }

    /// The cache of metadata blocks.
    pub(crate) fn metadata(&self) -> &Arc<MetadataCache> {
        &self.metadata
    }

    /// The superblock, as it was when the volume was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The shape of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// A block of metadata. A block outside the volume is a corrupt reference to `structure` from
    /// `place`.
    pub fn read_metadata(
        &self,
        block: FsBlock,
        structure: &'static str,
        place: Place,
    ) -> Result<MetadataBuffer> {
        let max = self.geometry().block_count - 1;
        if block.0 > max {
            let problem = Problem::Range { field: "block", found: block.0, min: 0, max };
            return Err(Error::corrupt(structure, place, problem));
        }
        self.metadata.read(block, structure, place)
    }

    /// The descriptor of a group of this volume.
    pub fn group(&self, group: GroupNumber) -> Result<GroupDescriptor> {
        const STRUCTURE: &str = "group descriptor";
        let geometry = self.geometry();
        let max = geometry.group_count - 1;
        if group.0 > max {
            let (found, max) = (group.0.into(), max.into());
            let problem = Problem::Range { field: "group", found, min: 0, max };
            return Err(Error::corrupt(STRUCTURE, Place::group(group), problem));
        }
        let (block, at) = geometry.descriptor_position(group);
        let place = Place::group(group).at_block(block);
        let buffer = self.read_metadata(block, STRUCTURE, place)?;
        let place = place.at_byte(at as u64);
        // `at` is below the block size, of which the descriptor size is a divisor.
        let bytes = &buffer[at..at + geometry.descriptor_size as usize];
        GroupDescriptor::parse(bytes, geometry, group, place)
    }

    /// What the inode says, reserved or not, linked or not. `NotFound` if it was never used or
    /// was cleared.
    pub fn inode_record(&self, number: InodeNumber) -> Result<InodeRecord> {
        let (buffer, at, place) = self.raw_inode(number)?;
        let geometry = self.geometry();
        let bytes = &buffer[at..at + geometry.inode_size as usize];
        let creator = self.superblock.raw().creator_os.get();
        InodeRecord::parse(bytes, geometry, creator, number, place)
    }

    /// The block that holds an inode, as it is now, where the inode lies in it, and its place for
    /// errors.
    pub(crate) fn raw_inode(&self, number: InodeNumber) -> Result<(MetadataBuffer, usize, Place)> {
        let (block, at, place) = self.inode_place(number)?;
        Ok((self.read_metadata(block, "inode", place)?, at, place))
    }

    /// The block that holds an inode, where the inode lies in it, and its place for errors.
    pub(crate) fn inode_place(&self, number: InodeNumber) -> Result<(FsBlock, usize, Place)> {
        let geometry = self.geometry();
        let (group, index) = geometry.inode_position(number)?;
        let table = self.group(group)?.inode_table;
        let per_block = geometry.block_size.bytes() / geometry.inode_size;
        // The table was checked to lie in the volume.
        let block = FsBlock(table.0 + u64::from(index / per_block));
        let at = (index % per_block * geometry.inode_size) as usize;
        let place = Place::group(group).in_inode(number).at_block(block).at_byte(at as u64);
        Ok((block, at, place))
    }

    /// An inode that a name may stand for. `NotFound` when it is not in use; corrupt when no name
    /// may stand for it.
    pub fn inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        let geometry = self.geometry();
        let fault = |problem| Error::corrupt("inode reference", Place::inode(number), problem);
        if geometry.is_reserved_inode(number) {
            let (min, max) = (geometry.first_inode.into(), geometry.inode_count.into());
            return Err(fault(Problem::Range { field: "inode number", found: number.0, min, max }));
        }
        let record = self.inode_record(number)?;
        if record.links == 0 {
            return Err(Error::NotFound);
        }
        if record.flags.contains(InodeFlags::EA_INODE) {
            let found = record.flags.0.into();
            return Err(fault(Problem::Invalid { field: "flags", found }));
        }
        let inode = Inode::new(Arc::clone(self), record);
        Ok(match &self.writer {
            Some(writer) => writer.orphans.recognise(inode),
            None => inode,
        })
    }

    /// An inode of the format's own: the journal, a quota file, an attribute's value.
    pub fn special_inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        Ok(Inode::new(Arc::clone(self), self.inode_record(number)?))
    }
}
