//! The search for the complete transactions of a log, in one pass over its control blocks.
//! Not here: reading the data (except for checksum version 1), revokes, and writing.
//!
//! The rules are those of Linux's recovery: the log ends at the first block that is not a control
//! block of the expected transaction. A transaction is complete if its commit block is found.

use base::checksum::{crc32_be, crc32c};
use base::view::view_at;
use base::{Error, Problem, Result, TransactionId, Unsupported};

use super::blocks::JournalBlocks;
use super::ondisk::{self, RawCommit, RawHeader};
use super::superblock::JournalSuperblock;
use super::tags::{Tag, descriptor_tags};

/// The maximum number of data blocks in a log: far more than any useful log contains. In a hostile
/// image the blocks may be holes of its file, which cost only time and memory.
const BLOCKS_MAX: usize = 1 << 22;
/// The maximum number of bytes in these blocks.
const BYTES_MAX: u64 = 16 << 30;

/// A data block of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LoggedBlock {
    /// The journal block with the data.
    pub journal_block: u32,
    /// The transaction that the block belongs to.
    pub transaction: TransactionId,
    /// The block's tag in its descriptor block.
    pub tag: Tag,
}

/// The complete transactions of a log.
#[derive(Debug)]
pub(super) struct LogContents {
    /// The data blocks, in the order of the log.
    pub blocks: Vec<LoggedBlock>,
    /// The journal blocks with revoke records, and their transactions.
    pub revokes: Vec<(u32, TransactionId)>,
    /// The number of complete transactions.
    pub transactions: u32,
    /// The id after the last complete transaction.
    pub end: TransactionId,
    /// The damage that ends the log early: the next transaction was complete once, and is damaged.
    pub damage: Option<Error>,
}

/// Scans the log from `start`.
pub(super) fn scan(
    journal: &JournalBlocks,
    superblock: &JournalSuperblock,
    start: u32,
) -> Result<LogContents> {
    let mut scanner = Scanner {
        journal,
        superblock,
        at: start,
        blocks_left: superblock.log.end - superblock.log.start,
        expected: superblock.sequence,
        transaction_checksum: !0,
        suspect: None,
        failed: None,
        last_commit_seconds: 0,
        complete: (0, 0),
        found: LogContents {
            blocks: Vec::new(),
            revokes: Vec::new(),
            transactions: 0,
            end: superblock.sequence,
            damage: None,
        },
    };
    let mut buffer = vec![0; journal.block_size().len()];
    while scanner.read_control_block(&mut buffer)? {}
    let Scanner { mut found, complete, .. } = scanner;
    found.blocks.truncate(complete.0);
    found.revokes.truncate(complete.1);
    Ok(found)
}

struct Scanner<'a> {
    journal: &'a JournalBlocks,
    superblock: &'a JournalSuperblock,
    /// The next journal block.
    at: u32,
    /// The number of log blocks that have not been passed yet. The scan never passes a block twice.
    blocks_left: u32,
    /// The id that the next control block must have.
    expected: TransactionId,
    /// The checksum of the transaction so far, for checksum version 1.
    transaction_checksum: u32,
    /// A checksum error of a control block of the current transaction. Only the commit block
    /// shows whether the control block is damaged or left over from an earlier use of the log.
    suspect: Option<Error>,
    /// A checksum error of a commit block. With async_commit, it means an interrupted commit
    /// unless another transaction follows.
    failed: Option<Error>,
    last_commit_seconds: u64,
    /// The numbers of `found`'s blocks and revokes that belong to complete transactions.
    complete: (usize, usize),
    found: LogContents,
}

impl Scanner<'_> {
    /// Reads the next control block, and passes the copies that belong to it. Returns false at the
    /// end of the log.
    fn read_control_block(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let at = self.at;
        if !self.advance(1) {
            return Ok(false);
        }
        self.journal.read(at, buffer)?;
        let header: &RawHeader = view_at(buffer, 0, "journal block", self.journal.location(at))?;
        if header.h_magic.get() != ondisk::MAGIC || header.h_sequence.get() != self.expected.0 {
            return Ok(false);
        }
        match header.h_blocktype.get() {
            ondisk::BLOCK_DESCRIPTOR => self.descriptor(at, buffer),
            ondisk::BLOCK_REVOKE => {
                self.verify_tail("journal revoke block", at, buffer);
                self.found.revokes.push((at, self.expected));
                Ok(true)
            }
            ondisk::BLOCK_COMMIT => self.commit(at, buffer),
            _ => Ok(false),
        }
    }

    /// Advances by `blocks` in the circular log. Returns false if fewer blocks are left.
    fn advance(&mut self, blocks: u32) -> bool {
        let Some(left) = self.blocks_left.checked_sub(blocks) else { return false };
        self.blocks_left = left;
        let log = &self.superblock.log;
        let until_end = log.end - self.at;
        self.at =
            if blocks < until_end { self.at + blocks } else { log.start + (blocks - until_end) };
        true
    }

    fn descriptor(&mut self, at: u32, buffer: &mut [u8]) -> Result<bool> {
        self.verify_tail("journal descriptor block", at, buffer);
        let features = self.superblock.features;
        let sum_data = features.checksum_v1 && self.failed.is_none();
        if sum_data {
            self.transaction_checksum = crc32_be(self.transaction_checksum, buffer);
        }
        let first = self.found.blocks.len();
        for tag in descriptor_tags(buffer, features) {
            let journal_block = self.at;
            if !self.advance(1) {
                return Ok(false);
            }
            self.check_length()?;
            let transaction = self.expected;
            self.found.blocks.push(LoggedBlock { journal_block, transaction, tag });
        }
        if sum_data {
            for block in &self.found.blocks[first..] {
                self.journal.read(block.journal_block, buffer)?;
                self.transaction_checksum = crc32_be(self.transaction_checksum, buffer);
            }
        }
        Ok(true)
    }

    fn check_length(&self) -> Result<()> {
        let blocks = self.found.blocks.len();
        if blocks < BLOCKS_MAX && (blocks as u64) < BYTES_MAX >> self.journal.block_size().shift() {
            return Ok(());
        }
        Err(Unsupported::Operation("a log of more than 16 GiB or 4194304 blocks").into())
    }

    fn commit(&mut self, at: u32, buffer: &mut [u8]) -> Result<bool> {
        const STRUCTURE: &str = "journal commit block";
        let raw = *view_at::<RawCommit>(buffer, 0, STRUCTURE, self.journal.location(at))?;
        let seconds = raw.h_commit_sec.get();
        // Blocks left over from an earlier journal at this location may have the expected id, but
        // their commit time is earlier than that of the transaction before.
        let stale = seconds < self.last_commit_seconds;
        if let Some(error) = self.suspect.take() {
            return if stale { Ok(false) } else { Err(error) };
        }
        if let Some(error) = self.failed.take() {
            self.found.damage = Some(error);
            return Ok(false);
        }
        if let Err(problem) = self.verify_commit(&raw, buffer) {
            if stale {
                return Ok(false);
            }
            let error = Error::corrupt(STRUCTURE, self.journal.location(at), problem);
            self.expected = self.expected.next();
            if self.superblock.features.async_commit {
                self.failed = Some(error);
                return Ok(true);
            }
            self.found.damage = Some(error);
            return Ok(false);
        }
        self.last_commit_seconds = seconds;
        self.transaction_checksum = !0;
        self.expected = self.expected.next();
        self.complete = (self.found.blocks.len(), self.found.revokes.len());
        self.found.transactions += 1;
        self.found.end = self.expected;
        Ok(true)
    }

    fn verify_commit(&self, raw: &RawCommit, buffer: &mut [u8]) -> Result<(), Problem> {
        let features = self.superblock.features;
        let stored = raw.h_chksum[0].get();
        if features.checksum_v1 {
            let computed = self.transaction_checksum;
            return match (raw.h_chksum_type, raw.h_chksum_size) {
                (ondisk::CHECKSUM_CRC32, 4) if stored == computed => Ok(()),
                (ondisk::CHECKSUM_CRC32, 4) => Err(Problem::Checksum { stored, computed }),
                (0, 0) if stored == 0 => Ok(()),
                (kind, _) => Err(Problem::Invalid { field: "h_chksum_type", found: kind.into() }),
            };
        }
        if !features.has_block_checksums() {
            return Ok(());
        }
        const CHECKSUM: std::ops::Range<usize> = 16..20;
        const _: () = assert!(std::mem::offset_of!(RawCommit, h_chksum) == 16);
        buffer[CHECKSUM].fill(0);
        let computed = crc32c(self.superblock.checksum_seed, buffer);
        if computed == stored {
            return Ok(());
        }
        // The commit is complete even if only the sector with the header is on the disk: the rest
        // is zeroes.
        buffer[size_of::<RawCommit>()..].fill(0);
        if crc32c(self.superblock.checksum_seed, buffer) == stored {
            return Ok(());
        }
        Err(Problem::Checksum { stored, computed })
    }

    /// Verifies the checksum at the end of a descriptor or revoke block. See `suspect`.
    fn verify_tail(&mut self, structure: &'static str, at: u32, buffer: &[u8]) {
        if !self.superblock.features.has_block_checksums() {
            return;
        }
        let Some((body, tail)) = buffer.split_last_chunk::<{ ondisk::BLOCK_TAIL_BYTES }>() else {
            return;
        };
        let stored = u32::from_be_bytes(*tail);
        let zeroes = [0; ondisk::BLOCK_TAIL_BYTES];
        let computed = crc32c(crc32c(self.superblock.checksum_seed, body), &zeroes);
        if stored != computed && self.suspect.is_none() {
            let problem = Problem::Checksum { stored, computed };
            self.suspect = Some(Error::corrupt(structure, self.journal.location(at), problem));
        }
    }
}
