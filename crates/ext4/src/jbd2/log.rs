//! The writer of transactions to a journal's circular log. Not here: the contents of transactions, and
//! checkpoints, which free space in the log.

use std::sync::Arc;

use base::{DeviceOffset, Error, FsBlock, Result, TransactionId, Unsupported};
use iomap::BlockContents;

use super::Journal;
use super::encode::Encoder;
use super::ondisk::BLOCKS_MIN;
use super::superblock::{JournalFeatures, LogState, write_errno, write_state};
use crate::volume::clock;

/// A transaction takes at most one part in so many of the log, so that there is room for one more
/// while the ones before it are being put in place.
const SHARE: u32 = 4;

/// A log that is being written.
#[derive(Debug)]
pub(crate) struct LogWriter {
    journal: Journal,
    encoder: Encoder,
    /// The superblock's block as it was written last.
    superblock: Vec<u8>,
    /// The journal block that the next transaction begins with.
    head: u32,
    /// Blocks of the log that hold transactions which may have to be replayed.
    used: u32,
    /// The maximum of `used`.
    room: u32,
    /// The id of the next transaction.
    next: TransactionId,
    /// Whether the superblock says that there is nothing to replay.
    is_empty_on_disk: bool,
}

impl LogWriter {
    /// Begins to write the log of `journal`, all of whose transactions are in place and which ends
    /// before transaction `next`. The features for writing are set. If fast commits that follow the
    /// log are in place only after transaction `next`, `is_recovering`: then the journal goes on to
    /// say that there may be something to replay.
    pub(crate) fn begin(
        journal: Journal,
        next: TransactionId,
        wanted: JournalFeatures,
        is_recovering: bool,
    ) -> Result<Self> {
        if journal.superblock.version < 2 {
            let operation = "writing a journal of version 1";
            return Err(Unsupported::Operation(operation).into());
        }
        let block_size = journal.blocks.block_size();
        let mut superblock = vec![0; block_size.len()];
        journal.blocks.read(journal.blocks.superblock(), &mut superblock)?;
        let mut journal = journal;
        journal.superblock.features = wanted;
        let encoder = Encoder::new(&journal.superblock, block_size);
        let head = journal.superblock.log.start;
        let is_empty_on_disk = !is_recovering;
        let room = journal.superblock.log.end - journal.superblock.log.start;
        let mut log =
            Self { journal, encoder, superblock, head, used: 0, room, next, is_empty_on_disk };
        let start = is_recovering.then_some(head);
        log.write_superblock(LogState { start, sequence: next })?;
        if !is_recovering {
            log.forget_fast_commits()?;
        }
        // Before anything is written over what a recovery would still have started with.
        log.flush()?;
        Ok(log)
    }

    /// Overwrites the beginning of the fast-commit area, which is obsolete: e2fsck 1.47 replays no log with fast
    /// commits there that do not follow the log. Durable with the next flush.
    pub(crate) fn forget_fast_commits(&self) -> Result<()> {
        let area = &self.journal.superblock.fast_commit;
        if area.is_empty() {
            return Ok(());
        }
        let (offset, size) = (self.journal.blocks.offset(area.start), self.superblock.len());
        self.journal.blocks.device().write_zeroes(offset, size as u64)
    }

    /// Blocks in the log.
    fn capacity(&self) -> u32 {
        self.journal.superblock.log.end - self.journal.superblock.log.start
    }

    /// Limits the use of the log to `blocks`, but not to fewer than the smallest log has: changed blocks stay in
    /// memory until they are checkpointed.
    pub(crate) fn limit(&mut self, blocks: u64) {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).max(BLOCKS_MIN);
        self.room = self.capacity().min(blocks);
    }

    /// Returns the most blocks that one transaction may change.
    pub(crate) fn blocks_max(&self) -> u64 {
        // What lists them takes less than an eighth more.
        u64::from(self.room / SHARE) * 7 / 8
    }

    /// Returns whether the log lies on a device of its own.
    pub(crate) fn is_external(&self) -> bool {
        self.journal.blocks.is_external()
    }

    /// Returns the id of the next transaction.
    pub(crate) fn next(&self) -> TransactionId {
        self.next
    }

    /// Returns whether there is room for a transaction that changes `blocks` and revokes `revoked` blocks.
    pub(crate) fn has_room(&self, blocks: usize, revoked: usize) -> bool {
        let length = self.encoder.length(blocks, revoked);
        // Never all of it: a full log would look like an empty one.
        (self.used as usize).saturating_add(length) < self.room as usize
    }

    /// Returns whether so much is used that making room is due.
    pub(crate) fn is_half_full(&self) -> bool {
        self.used > self.room / 2
    }

    /// Makes the next transaction durable. There is room for it. Data that it refers to on other devices than the
    /// log's is durable already.
    pub(crate) fn write(
        &mut self,
        blocks: &[(FsBlock, BlockContents)],
        revoked: &[FsBlock],
    ) -> Result<()> {
        let id = self.next;
        if !self.has_room(blocks.len(), revoked.len()) {
            return Err(Error::NoSpace);
        }
        if self.is_empty_on_disk {
            // Before the commit block, with what comes between: the flush below covers it.
            self.write_superblock(LogState { start: Some(self.head), sequence: id })?;
            self.is_empty_on_disk = false;
        }
        let time = clock::since_1970();
        let encoded = self.encoder.encode(id, blocks, revoked, time);
        let length = encoded.body.len() as u32;
        let device = Arc::clone(self.journal.blocks.device());
        device.write_all(self.location(self.head, encoded.body))?;
        // What the transaction speaks of, and all of it, is durable before it is complete.
        self.flush()?;
        let commit_at = self.after(self.head, length);
        device.write_all(self.location(commit_at, vec![encoded.commit]))?;
        device.flush()?;
        self.head = self.after(commit_at, 1);
        self.used += length + 1;
        self.next = id.next();
        Ok(())
    }

    /// Says that all transactions so far are in place, durably: their room can be used again.
    pub(crate) fn checkpointed(&mut self) -> Result<()> {
        if self.used == 0 {
            return Ok(());
        }
        self.write_superblock(LogState { start: Some(self.head), sequence: self.next })?;
        // Before anything is written over what a recovery would still have started with.
        self.journal.blocks.device().flush()?;
        self.used = 0;
        Ok(())
    }

    /// Ends the log: nothing is left to replay, as [`checkpointed`](Self::checkpointed) was told.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.write_superblock(LogState { start: None, sequence: self.next })?;
        self.is_empty_on_disk = true;
        self.journal.blocks.device().flush()
    }

    /// Returns the error number for which the journal was given up, or 0.
    pub(crate) fn errno(&self) -> u32 {
        self.journal.superblock.errno
    }

    /// Says that the journal is given up for the error number `errno`, or with 0 that the one it was
    /// given up for has been seen to. Nothing waits for this to be durable.
    pub(crate) fn set_errno(&mut self, errno: u32) -> Result<()> {
        write_errno(&mut self.superblock, self.journal.superblock.features, errno);
        let offset = self.journal.blocks.offset(self.journal.blocks.superblock());
        self.journal.blocks.device().write_at(offset, &self.superblock)?;
        self.journal.superblock.errno = errno;
        Ok(())
    }

    /// Returns the journal block `distance` after `block`, round the log.
    fn after(&self, block: u32, distance: u32) -> u32 {
        let log = &self.journal.superblock.log;
        log.start + (block - log.start + distance) % self.capacity()
    }

    /// Returns the device offsets of blocks that are adjacent in the log from `at` on.
    fn location(
        &self,
        at: u32,
        blocks: Vec<BlockContents>,
    ) -> Vec<(DeviceOffset, Vec<BlockContents>)> {
        let size = self.journal.blocks.block_size();
        let mut runs: Vec<(DeviceOffset, Vec<BlockContents>)> = Vec::new();
        for (index, contents) in (0..).zip(blocks) {
            let offset = self.journal.blocks.offset(self.after(at, index));
            match runs.last_mut() {
                Some((start, run))
                    if start.0 + ((run.len() as u64) << size.shift()) == offset.0 =>
                {
                    run.push(contents);
                }
                _ => runs.push((offset, vec![contents])),
            }
        }
        runs
    }

    fn flush(&self) -> Result<()> {
        self.journal.blocks.device().flush()
    }

    fn write_superblock(&mut self, state: LogState) -> Result<()> {
        write_state(&mut self.superblock, self.journal.superblock.features, state);
        let offset = self.journal.blocks.offset(self.journal.blocks.superblock());
        self.journal.blocks.device().write_at(offset, &self.superblock)
    }
}
