//! Location of a volume's journal: in an inode, in the superblock's copy of that inode's block map,
//! or on an external device. Not here: the contents of the journal.

use std::sync::Arc;

use base::attributes::FileType;
use base::view::view_at;
use base::{
    DeviceOffset, Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result, Unsupported,
};
use device::SharedDevice;
use fs::Piece;

use crate::core::Core;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;
use crate::jbd2::ondisk::BLOCKS_MAX;
use crate::jbd2::{Journal, JournalBlocks, JournalRun};
use crate::journal_map::{RUNS_MAX, backup_record};
use crate::ondisk::superblock::{RawSuperblock, SUPERBLOCK_OFFSET};
use crate::superblock::SUPERBLOCK_BYTES;
use crate::volume::Volume;

const STRUCTURE: &str = "journal";
/// The usual inode of a journal.
const JOURNAL_INODE: InodeNumber = InodeNumber(8);

impl Volume {
    /// Returns the volume's journal, if it has one. `journal_device` is the device of an external
    /// journal.
    pub fn journal(
        self: &Arc<Self>,
        journal_device: Option<&SharedDevice>,
    ) -> Result<Option<Journal>> {
        if !self.superblock().has(Feature::HasJournal) {
            return Ok(None);
        }
        let raw = self.superblock().raw();
        if raw.journal_uuid != [0; 16]
            || (raw.journal_inum.get() == 0 && raw.journal_dev.get() != 0)
        {
            let Some(device) = journal_device else {
                return Err(Unsupported::Operation(
                    "recovery from an external journal whose device was not given (--journal)",
                )
                .into());
            };
            return open_external(self, device).map(Some);
        }
        let location = Location::byte(SUPERBLOCK_OFFSET.0);
        let Some(inode) = self.superblock().inodes.journal else {
            return Err(Error::corrupt(STRUCTURE, location, Problem::Missing("inode")));
        };
        self.check_journal_number(inode)?;
        open_internal(self, inode).map(Some)
    }
}

impl Volume {
    /// Returns an error if the inode `number`, which the superblock names as the journal, has
    /// another use. The superblock's copy of the journal's map is not used then: Linux does not
    /// mount such a volume.
    fn check_journal_number(&self, number: InodeNumber) -> Result<()> {
        let named = self.superblock().inodes;
        let others = [named.user_quota, named.group_quota, named.project_quota, named.orphan_file];
        let is_reserved = number.0 < self.geometry().first_inode.into();
        if (is_reserved && number != JOURNAL_INODE) || others.contains(&Some(number)) {
            let problem = Problem::Invalid { field: "journal inode", found: number.0 };
            return Err(Error::corrupt("superblock", Location::byte(SUPERBLOCK_OFFSET.0), problem));
        }
        Ok(())
    }

    /// Opens the internal journal without the superblock's copy of its map, as Linux does.
    pub(crate) fn check_journal_inode(self: &Arc<Self>, number: InodeNumber) -> Result<()> {
        let record = self.inode_record(number)?;
        open_in_inode(self, record).map(|_| ())
    }
}

/// Opens the journal in the inode `number`, or else in the superblock's copy of its map.
fn open_internal(volume: &Arc<Volume>, number: InodeNumber) -> Result<Journal> {
    let found = volume.inode_record(number).and_then(|record| open_in_inode(volume, record));
    found.or_else(|error| {
        // The superblock has a copy of the map in case the inode is damaged.
        match backup_record(volume, number) {
            Some(record) => open_in_inode(volume, record).map_err(|_| error),
            None => Err(error),
        }
    })
}

fn open_in_inode(volume: &Arc<Volume>, record: InodeRecord) -> Result<Journal> {
    let number = record.number;
    let location = Location::inode(number);
    if record.kind != FileType::Regular || record.links == 0 {
        return Err(Error::corrupt(STRUCTURE, location, Problem::Missing("regular file")));
    }
    let inode = Inode::new(Arc::clone(volume), record);
    inode.check_readable()?;
    let runs = runs_of(&inode)?;
    let block_size = volume.geometry().block_size;
    let blocks = JournalBlocks::of_inode(Arc::clone(volume.device()), block_size, number, runs)?;
    Journal::open(blocks)
}

/// Returns the runs of the whole file, which must not have holes.
fn runs_of(inode: &Inode) -> Result<Vec<JournalRun>> {
    let block_size = inode.volume().geometry().block_size;
    // A journal has only whole blocks, and at most BLOCKS_MAX.
    let blocks = (inode.size() >> block_size.shift()).min(BLOCKS_MAX.into());
    let mut runs: Vec<JournalRun> = Vec::new();
    let mut next = FileBlock(0);
    while next.0 < blocks {
        let Piece::Run(run) = inode.piece_at(next, FileBlock(blocks))? else {
            let location = Location::inode(inode.number()).at_file_block(next);
            return Err(Error::corrupt(STRUCTURE, location, Problem::Missing("block")));
        };
        if runs.len() == RUNS_MAX {
            return Err(Unsupported::Operation("a journal with more than a million runs").into());
        }
        let end = run.end().0.min(blocks);
        // Both ends are at most BLOCKS_MAX, and `next` lies in the run.
        runs.push(JournalRun {
            first: next.0 as u32,
            physical: FsBlock(run.block.0 + (next.0 - run.start.0)),
            length: (end - next.0) as u32,
        });
        next = FileBlock(end);
    }
    Ok(runs)
}

/// Opens the journal on `device`. Errors: `Corrupt` if its UUID is not the one in the volume's
/// superblock.
fn open_external(volume: &Core, device: &SharedDevice) -> Result<Journal> {
    const STRUCTURE: &str = "superblock of the journal device";
    let location = Location::byte(SUPERBLOCK_OFFSET.0);
    let fault = |problem| Error::corrupt(STRUCTURE, location, problem);
    let block_size = volume.geometry().block_size;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let raw: &RawSuperblock = view_at(&bytes, 0, STRUCTURE, location)?;
    let (magic, expected) = (raw.magic.get().into(), 0xEF53);
    if magic != expected {
        return Err(fault(Problem::Magic { found: magic, expected }));
    }
    if raw.feature_incompat.get() >> Feature::JournalDev.position().1 & 1 == 0 {
        return Err(fault(Problem::Missing("feature journal_dev")));
    }
    if raw.uuid != volume.superblock().raw().journal_uuid {
        return Err(fault(Problem::Missing("the UUID that the volume's superblock contains")));
    }
    let available = device.size() >> block_size.shift();
    let blocks = u64::from(raw.blocks_count_lo.get()).min(available);
    // The journal's superblock is in the block after the device's superblock.
    let first = block_size
        .device_offset(FsBlock(1))
        .map_or(1, |DeviceOffset(second)| if second <= SUPERBLOCK_OFFSET.0 { 2 } else { 1 });
    let blocks = JournalBlocks::of_device(
        Arc::clone(device),
        block_size,
        first,
        u32::try_from(blocks).unwrap_or(u32::MAX),
    )?;
    let journal = Journal::open(blocks)?;
    let users = journal.superblock().users;
    if users != 1 {
        return Err(Unsupported::Operation("a journal shared by several file systems").into());
    }
    Ok(journal)
}
