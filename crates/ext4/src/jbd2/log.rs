//! The writer of transactions to a journal's circular log. Not here: the contents of transactions,
//! and checkpoints, which free space in the log.

use std::sync::Arc;

use base::{DeviceOffset, Error, FsBlock, Result, TransactionId, Unsupported};
use iomap::BlockContents;

use super::Journal;
use super::encode::Encoder;
use super::ondisk::BLOCKS_MIN;
use super::superblock::{JournalFeatures, LogState, write_errno, write_state};
use crate::clock;

/// The number of transactions of the maximum size that fit into the log. So there is room for
/// another transaction while earlier ones are checkpointed.
const TRANSACTIONS_MIN: u32 = 4;

/// A log that is being written.
#[derive(Debug)]
pub(crate) struct LogWriter {
    journal: Journal,
    encoder: Encoder,
    /// The block with the superblock, as it was written last.
    superblock: Vec<u8>,
    /// The first journal block of the next transaction.
    head: u32,
    /// The number of log blocks with transactions that are not known to be checkpointed.
    used: u32,
    /// The maximum of `used`.
    room: u32,
    /// The id of the next transaction.
    next: TransactionId,
    /// Whether the superblock on the device says that there is nothing to replay.
    is_empty_on_disk: bool,
}

impl LogWriter {
    /// Prepares `journal` for writing, with the features `wanted` and with `next` as the id of the
    /// next transaction. All earlier transactions are checkpointed. `is_recovering` means that
    /// transaction `next` will contain the changes of fast commits that follow the log. Then the
    /// superblock still says that there may be something to replay, and the fast commits are kept.
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
            log.clear_fast_commits()?;
        }
        // Before any block is overwritten that a recovery with the old superblock would read.
        log.flush()?;
        Ok(log)
    }

    /// Clears the first block of the fast-commit area, which is obsolete. e2fsck 1.47 does not
    /// replay a log if the area has fast commits that do not follow the log. The next flush makes
    /// the change durable.
    pub(crate) fn clear_fast_commits(&self) -> Result<()> {
        let area = &self.journal.superblock.fast_commit;
        if area.is_empty() {
            return Ok(());
        }
        let (offset, size) = (self.journal.blocks.offset(area.start), self.superblock.len());
        self.journal.blocks.device().write_zeroes(offset, size as u64)
    }

    /// Returns the number of blocks in the log.
    fn capacity(&self) -> u32 {
        self.journal.superblock.log.end - self.journal.superblock.log.start
    }

    /// Limits the use of the log to `blocks`, or to the size of the smallest log if that is larger.
    /// The limit bounds memory, since changed blocks stay in memory until they are checkpointed.
    pub(crate) fn limit(&mut self, blocks: u64) {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).max(BLOCKS_MIN);
        self.room = self.capacity().min(blocks);
    }

    /// Returns the maximum number of blocks that one transaction may change.
    pub(crate) fn blocks_max(&self) -> u64 {
        // Descriptor, revoke and commit blocks take less than an eighth of a transaction.
        u64::from(self.room / TRANSACTIONS_MIN) * 7 / 8
    }

    /// Returns whether the log is on a device of its own.
    pub(crate) fn is_external(&self) -> bool {
        self.journal.blocks.is_external()
    }

    /// Returns the id of the next transaction.
    pub(crate) fn next(&self) -> TransactionId {
        self.next
    }

    /// Returns whether there is room for a transaction that changes `blocks` and revokes `revoked`
    /// blocks.
    pub(crate) fn has_room(&self, blocks: usize, revoked: usize) -> bool {
        let length = self.encoder.length(blocks, revoked);
        // Never all of the log: a full log could not be distinguished from an empty one.
        (self.used as usize).saturating_add(length) < self.room as usize
    }

    /// Returns whether more than half of the log is used, so that a checkpoint is due.
    pub(crate) fn is_half_full(&self) -> bool {
        self.used > self.room / 2
    }

    /// Makes the next transaction durable. The caller has made data durable that the transaction
    /// refers to on devices other than the log's. Errors: `NoSpace` if the log has no room.
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
            // Durable before the commit block, by the flush between them.
            self.write_superblock(LogState { start: Some(self.head), sequence: id })?;
            self.is_empty_on_disk = false;
        }
        let time = clock::since_1970();
        let encoded = self.encoder.encode(id, blocks, revoked, time);
        let length = encoded.body.len() as u32;
        let device = Arc::clone(self.journal.blocks.device());
        device.write_all(self.split_into_runs(self.head, encoded.body))?;
        // The data that the transaction refers to, and its other blocks, are durable before its
        // commit block.
        self.flush()?;
        let commit_at = self.after(self.head, length);
        device.write_all(self.split_into_runs(commit_at, vec![encoded.commit]))?;
        device.flush()?;
        self.head = self.after(commit_at, 1);
        self.used += length + 1;
        self.next = id.next();
        Ok(())
    }

    /// Releases the log space of all transactions so far. The caller has checkpointed them durably.
    pub(crate) fn release_checkpointed(&mut self) -> Result<()> {
        if self.used == 0 {
            return Ok(());
        }
        self.write_superblock(LogState { start: Some(self.head), sequence: self.next })?;
        // Before any block is overwritten that a recovery with the old superblock would read.
        self.journal.blocks.device().flush()?;
        self.used = 0;
        Ok(())
    }

    /// Marks the log as empty. The caller has called
    /// [`release_checkpointed`](Self::release_checkpointed) after the last transaction.
    pub(crate) fn finish(&mut self) -> Result<()> {
        debug_assert_eq!(self.used, 0, "the log has transactions");
        self.write_superblock(LogState { start: None, sequence: self.next })?;
        self.is_empty_on_disk = true;
        self.journal.blocks.device().flush()
    }

    /// Returns the error number with which the journal was aborted, or 0.
    pub(crate) fn errno(&self) -> u32 {
        self.journal.superblock.errno
    }

    /// Records in the superblock that the journal was aborted with the error number `errno`, or
    /// with 0 that it was not. Does not flush the device.
    pub(crate) fn set_errno(&mut self, errno: u32) -> Result<()> {
        write_errno(&mut self.superblock, self.journal.superblock.features, errno);
        let offset = self.journal.blocks.offset(self.journal.blocks.superblock());
        self.journal.blocks.device().write_at(offset, &self.superblock)?;
        self.journal.superblock.errno = errno;
        Ok(())
    }

    /// Returns the journal block `distance` after `block`. The log is circular.
    fn after(&self, block: u32, distance: u32) -> u32 {
        let log = &self.journal.superblock.log;
        log.start + (block - log.start + distance) % self.capacity()
    }

    /// Splits blocks, which are adjacent in the log from `at` on, into runs. Returns the device
    /// offset and the blocks of each run.
    fn split_into_runs(
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
