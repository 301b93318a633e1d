//! The blocks of a journal on its device.
//! Not here: how the journal is found, and what the blocks mean.

use base::{
    BlockSize, DeviceOffset, Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result,
};
use device::SharedDevice;

const STRUCTURE: &str = "journal";

/// A run of journal blocks that are adjacent on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalRun {
    /// The first block, counted from the journal's start.
    pub first: u32,
    /// The first block on the journal's device.
    pub physical: FsBlock,
    /// The number of blocks.
    pub length: u32,
}

/// The device and the runs of a journal. The runs have no gaps and no overlaps, so the size of the
/// device bounds the memory that a log can take.
#[derive(Clone, Debug)]
pub struct JournalBlocks {
    device: SharedDevice,
    block_size: BlockSize,
    /// The inode that contains the journal; `None` if the journal has a device of its own.
    inode: Option<InodeNumber>,
    /// The journal block with the superblock.
    superblock: u32,
    /// The runs in the order of the journal.
    runs: Vec<JournalRun>,
    /// The runs in the order of the device.
    runs_by_physical: Vec<JournalRun>,
}

impl JournalBlocks {
    /// Describes the journal in the file `inode` of the volume on `device`. `runs` are the file's
    /// runs, in order.
    pub fn of_inode(
        device: SharedDevice,
        block_size: BlockSize,
        inode: InodeNumber,
        runs: Vec<JournalRun>,
    ) -> Result<Self> {
        Self::new(device, block_size, Some(inode), runs)
    }

    /// Describes the journal in the first `length` blocks of a device of its own, with its
    /// superblock in block `superblock`.
    pub fn of_device(
        device: SharedDevice,
        block_size: BlockSize,
        superblock: u32,
        length: u32,
    ) -> Result<Self> {
        let run = JournalRun { first: 0, physical: FsBlock(0), length };
        Ok(Self { superblock, ..Self::new(device, block_size, None, vec![run])? })
    }

    fn new(
        device: SharedDevice,
        block_size: BlockSize,
        inode: Option<InodeNumber>,
        runs: Vec<JournalRun>,
    ) -> Result<Self> {
        let location = inode.map(Location::inode).unwrap_or_default();
        let device_blocks = device.size() >> block_size.shift();
        let mut next = 0u32;
        for run in &runs {
            let location =
                location.at_file_block(FileBlock(run.first.into())).at_block(run.physical);
            if run.first != next || run.length == 0 {
                let (found, expected) = (run.first.into(), next.into());
                let problem = Problem::Mismatch { field: "journal block", found, expected };
                return Err(Error::corrupt(STRUCTURE, location, problem));
            }
            let range = |field, found, min, max| {
                Error::corrupt(STRUCTURE, location, Problem::Range { field, found, min, max })
            };
            let end = run.physical.checked_add(run.length.into());
            if (run.physical.0 == 0 && inode.is_some())
                || end.is_none_or(|end| end.0 > device_blocks)
            {
                let max = device_blocks.saturating_sub(run.length.into());
                return Err(range("block", run.physical.0, 1, max));
            }
            next = next.checked_add(run.length).ok_or_else(|| {
                range("length", run.length.into(), 1, (u32::MAX - run.first).into())
            })?;
        }
        if next == 0 {
            return Err(Error::corrupt(STRUCTURE, location, Problem::Missing("first block")));
        }
        let mut runs_by_physical = runs.clone();
        runs_by_physical.sort_unstable_by_key(|run| run.physical);
        for pair in runs_by_physical.windows(2) {
            if pair[0].physical.0 + u64::from(pair[0].length) > pair[1].physical.0 {
                let location = location
                    .at_file_block(FileBlock(pair[1].first.into()))
                    .at_block(pair[1].physical);
                let (previous, found) = (pair[0].physical.0, pair[1].physical.0);
                let problem = Problem::Disorder { field: "block", previous, found };
                return Err(Error::corrupt(STRUCTURE, location, problem));
            }
        }
        Ok(Self { device, block_size, inode, superblock: 0, runs, runs_by_physical })
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.first + run.length)
    }

    /// Returns the size of a block.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Returns whether the journal has a device of its own.
    pub fn is_external(&self) -> bool {
        self.inode.is_none()
    }

    /// Returns the journal block with the superblock.
    pub(super) fn superblock(&self) -> u32 {
        self.superblock
    }

    /// Returns whether `block` of the volume belongs to the journal.
    pub(super) fn contains(&self, block: FsBlock) -> bool {
        if self.is_external() {
            return false;
        }
        let after = self.runs_by_physical.partition_point(|run| run.physical <= block);
        after.checked_sub(1).and_then(|index| self.runs_by_physical.get(index)).is_some_and(|run| {
            block.checked_distance_from(run.physical).is_some_and(|at| at < run.length.into())
        })
    }

    /// Returns the location of journal block `block` on the device, as a block number.
    pub(super) fn physical(&self, block: u32) -> Option<FsBlock> {
        let after = self.runs.partition_point(|run| run.first <= block);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let at = block - run.first;
        (at < run.length).then(|| FsBlock(run.physical.0 + u64::from(at)))
    }

    /// Returns the device that contains the journal.
    pub(super) fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Returns the location of journal block `block` on the device. Panics if the journal has no
    /// such block.
    pub(super) fn offset(&self, block: u32) -> DeviceOffset {
        let physical = self.physical(block).expect("a block of the journal");
        self.block_size.device_offset(physical).expect("the journal lies on its device")
    }

    /// Returns the location of journal block `block` for errors.
    pub(super) fn location(&self, block: u32) -> Location {
        let location = self.inode.map(Location::inode).unwrap_or_default();
        let location = location.at_file_block(FileBlock(block.into()));
        self.physical(block).map_or(location, |physical| location.at_block(physical))
    }

    /// Reads journal block `block` into `buffer`, which has the size of a block. Errors: `Corrupt`
    /// if the journal has no such block.
    pub(super) fn read(&self, block: u32, buffer: &mut [u8]) -> Result<()> {
        let offset =
            self.physical(block).and_then(|physical| self.block_size.device_offset(physical));
        let Some(offset) = offset else {
            let (found, max) = (block.into(), self.count().saturating_sub(1).into());
            let problem = Problem::Range { field: "journal block", found, min: 0, max };
            return Err(Error::corrupt(STRUCTURE, self.location(block), problem));
        };
        self.device.read_at(offset, buffer)
    }
}
