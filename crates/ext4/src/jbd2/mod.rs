//! The jbd2 journal on disk: its state, the replay of complete transactions, and the writing of the
//! log. Not here: transactions in memory (`journal`); fast commits (`fast_commit`).

mod blocks;
mod encode;
mod log;
pub mod ondisk;
mod replay;
mod scan;
mod superblock;
mod tags;

#[cfg(test)]
mod tests;

pub use blocks::{JournalBlocks, JournalRun};
pub(crate) use log::LogWriter;
pub use superblock::{JournalFeatures, JournalSuperblock};

use base::{Error, FsBlock, Result, TransactionId};
use device::SharedDevice;

/// A journal with a verified superblock.
#[derive(Clone, Debug)]
pub struct Journal {
    blocks: JournalBlocks,
    superblock: JournalSuperblock,
}

/// The volume that a log belongs to.
#[derive(Clone, Copy)]
pub(crate) struct LoggedVolume {
    /// The number of blocks by the superblock on the disk.
    pub block_count: u64,
    /// The block with the superblock.
    pub superblock: FsBlock,
    /// Returns the number of blocks by a copy of that block, if the copy is valid for a device of
    /// this many bytes.
    pub block_count_in: fn(&[u8], u64) -> Option<u64>,
}

/// The result of the recovery of a log.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The id of the first replayed transaction.
    pub first: TransactionId,
    /// The id after the last replayed transaction; fast commits that follow the log have this id.
    pub end: TransactionId,
    /// The number of replayed transactions.
    pub transactions: u32,
    /// The number of blocks of the volume whose contents changed.
    pub blocks_changed: u64,
    /// The number of blocks in the log that were not replayed because they were revoked.
    pub blocks_revoked: u64,
    /// The reason why the log ends early: a complete transaction in it is damaged. The volume is in
    /// a consistent, but older state.
    pub damage: Option<Error>,
}

impl Journal {
    /// Opens the journal in `blocks`, and verifies its superblock.
    pub fn open(blocks: JournalBlocks) -> Result<Self> {
        let mut buffer = vec![0; blocks.block_size().len()];
        blocks.read(blocks.superblock(), &mut buffer)?;
        let superblock = JournalSuperblock::parse(
            &buffer,
            blocks.block_size(),
            blocks.count(),
            blocks.location(blocks.superblock()),
        )?;
        Ok(Self { blocks, superblock })
    }

    /// Returns the superblock of the journal.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Returns the blocks of the journal.
    pub fn blocks(&self) -> &JournalBlocks {
        &self.blocks
    }

    /// Replays the complete transactions of the log onto `target`, which is the device of `volume`
    /// or an overlay over it. After an error, `target` may be partly replayed.
    pub(crate) fn recover(&self, target: &SharedDevice, volume: LoggedVolume) -> Result<Recovery> {
        let first = self.superblock.sequence;
        let mut recovery = Recovery {
            first,
            end: first,
            transactions: 0,
            blocks_changed: 0,
            blocks_revoked: 0,
            damage: None,
        };
        let Some(start) = self.superblock.start else { return Ok(recovery) };
        let mut log = scan::scan(&self.blocks, &self.superblock, start)?;
        let replayed = replay::replay(&self.blocks, &self.superblock, &log, target, volume)?;
        recovery.end = log.end;
        recovery.transactions = log.transactions;
        recovery.blocks_changed = replayed.blocks_changed;
        recovery.blocks_revoked = replayed.blocks_revoked;
        recovery.damage = log.damage.take();
        Ok(recovery)
    }

    /// Reads journal block `block` into `buffer`, which has the size of a block.
    pub fn read(&self, block: u32, buffer: &mut [u8]) -> Result<()> {
        self.blocks.read(block, buffer)
    }

    /// Marks the log as empty in the journal superblock on `target`, with the transaction after
    /// `end` as the next one. `target` is the device that contains the journal, or an overlay over
    /// it.
    pub fn mark_empty(&self, end: TransactionId, target: &SharedDevice) -> Result<()> {
        let mut buffer = vec![0; self.blocks.block_size().len()];
        self.blocks.read(self.blocks.superblock(), &mut buffer)?;
        let state = superblock::LogState { start: None, sequence: end.next() };
        superblock::write_state(&mut buffer, self.superblock.features, state);
        target.write_at(self.blocks.offset(self.blocks.superblock()), &buffer)
    }
}
