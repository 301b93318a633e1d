//! The jbd2 journal on disk: its state, the recovery of what is complete in its log but not yet in
//! place, and writing a log. Not here: transactions in memory (`journal`); fast commits
//! (`fast_commit`).

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

use base::{Error, Result, TransactionId};
use device::SharedDevice;

/// A journal with a sound superblock.
#[derive(Clone, Debug)]
pub struct Journal {
    blocks: JournalBlocks,
    superblock: JournalSuperblock,
}

/// What the recovery of a log did.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// The id of the first transaction replayed.
    pub first: TransactionId,
    /// The id after the last one; fast commits that follow carry it.
    pub end: TransactionId,
    /// How many transactions were replayed.
    pub transactions: u32,
    /// Blocks of the volume that got another content.
    pub blocks_changed: u64,
    /// Blocks in the log that were not replayed because they were revoked.
    pub blocks_revoked: u64,
    /// Set when the log ends early, because a complete transaction in it is damaged. What was
    /// replayed is a consistent state, but an older one.
    pub damage: Option<Error>,
}

impl Journal {
    /// The journal in `blocks`.
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

    /// What the journal says of itself.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Where the journal is.
    pub fn blocks(&self) -> &JournalBlocks {
        &self.blocks
    }

    /// Replays the complete transactions of the log onto `target`, which is the volume or an
    /// overlay over it. An error leaves `target` partly replayed.
    pub fn recover(&self, target: &SharedDevice) -> Result<Recovery> {
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
        let replayed = replay::replay(&self.blocks, &self.superblock, &log, target)?;
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

    /// Writes to `target`, which is the device that holds the journal or an overlay over it, that
    /// nothing is left to replay and that the next transaction is the one after `end`.
    pub fn mark_empty(&self, end: TransactionId, target: &SharedDevice) -> Result<()> {
        let mut buffer = vec![0; self.blocks.block_size().len()];
        self.blocks.read(self.blocks.superblock(), &mut buffer)?;
        let state = superblock::LogState { start: None, sequence: end.next() };
        superblock::write_state(&mut buffer, self.superblock.features, state);
        target.write_at(self.blocks.offset(self.blocks.superblock()), &buffer)
    }
}
