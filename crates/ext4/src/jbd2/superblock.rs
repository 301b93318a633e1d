//! The journal superblock: its verification, and the range, state and features of the log.
//! Not here: where the journal's blocks are, and what the log contains.

use std::ops::Range;

use base::checksum::crc32c;
use base::view::view_at;
use base::{BlockSize, Error, Location, Problem, Result, TransactionId, Unsupported};
use zerocopy::{FromBytes, IntoBytes};

use super::ondisk::{self, RawSuperblock};

const STRUCTURE: &str = "journal superblock";

/// The features that change the format of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalFeatures {
    /// Checksum version 1: a commit block has a checksum of the whole transaction.
    pub checksum_v1: bool,
    /// Whether the log may have revoke blocks.
    pub revoke: bool,
    /// Whether block numbers have 64 bits.
    pub block_numbers_64: bool,
    /// Whether commit blocks are written without waiting for the blocks before them.
    pub async_commit: bool,
    /// Checksum version 2: every block has a checksum, which has 16 bits for data.
    pub checksum_v2: bool,
    /// Checksum version 3: every block has a checksum of 32 bits.
    pub checksum_v3: bool,
    /// Whether an area at the journal's end is for fast commits.
    pub fast_commit: bool,
}

impl JournalFeatures {
    /// Returns whether each block of the log has its own checksum.
    pub fn has_block_checksums(self) -> bool {
        self.checksum_v2 || self.checksum_v3
    }

    /// Returns the names of the features, as dumpe2fs prints them.
    pub fn names(self) -> Vec<&'static str> {
        [
            (self.checksum_v1, "journal_checksum"),
            (self.revoke, "journal_incompat_revoke"),
            (self.block_numbers_64, "journal_64bit"),
            (self.async_commit, "journal_async_commit"),
            (self.checksum_v2, "journal_checksum_v2"),
            (self.checksum_v3, "journal_checksum_v3"),
            (self.fast_commit, "fast_commit"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
        .collect()
    }

    /// Returns the bits of `s_feature_incompat`.
    fn incompatible(self) -> u32 {
        [
            self.revoke,
            self.block_numbers_64,
            self.async_commit,
            self.checksum_v2,
            self.checksum_v3,
            self.fast_commit,
        ]
        .into_iter()
        .zip(0..)
        .fold(0, |bits, (set, bit)| bits | u32::from(set) << bit)
    }

    fn parse(compat: u32, incompat: u32, read_only_compat: u32) -> Result<Self> {
        let names: Vec<String> = (6..32)
            .filter(|bit| incompat >> bit & 1 == 1)
            .map(|bit| format!("journal incompat {:#x}", 1u32 << bit))
            .chain(
                (0..32)
                    .filter(|bit| read_only_compat >> bit & 1 == 1)
                    .map(|bit| format!("journal ro_compat {:#x}", 1u32 << bit)),
            )
            .collect();
        if !names.is_empty() {
            return Err(Unsupported::Features { names }.into());
        }
        let set = |bits: u32, bit: u32| bits >> bit & 1 == 1;
        Ok(Self {
            checksum_v1: set(compat, 0),
            revoke: set(incompat, 0),
            block_numbers_64: set(incompat, 1),
            async_commit: set(incompat, 2),
            checksum_v2: set(incompat, 3),
            checksum_v3: set(incompat, 4),
            fast_commit: set(incompat, 5),
        })
    }
}

/// A verified journal superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalSuperblock {
    /// The version: 1 or 2. Only version 2 has features.
    pub version: u8,
    /// The number of blocks in the journal, with all of its areas.
    pub blocks: u32,
    /// The journal blocks of the circular log.
    pub log: Range<u32>,
    /// The journal blocks for fast commits; empty without the feature.
    pub fast_commit: Range<u32>,
    /// The id of the first transaction to replay, or else of the next transaction.
    pub sequence: TransactionId,
    /// The journal block where the log starts; `None` if there is nothing to replay.
    pub start: Option<u32>,
    /// The error number with which the journal was aborted, or 0.
    pub errno: u32,
    /// The features in use.
    pub features: JournalFeatures,
    /// The journal's UUID.
    pub uuid: [u8; 16],
    /// The number of file systems that share the journal.
    pub users: u32,
    /// The seed of the checksums of the log's blocks.
    pub checksum_seed: u32,
}

impl JournalSuperblock {
    /// Parses the superblock in `block`, which is at `location`, of a journal with
    /// `blocks_available` blocks of `block_size` bytes.
    pub fn parse(
        block: &[u8],
        block_size: BlockSize,
        blocks_available: u32,
        location: Location,
    ) -> Result<Self> {
        let corrupt = |problem| Error::corrupt(STRUCTURE, location, problem);
        let raw: &RawSuperblock = view_at(block, 0, STRUCTURE, location)?;
        let version = verify_header(raw, location)?;
        let features = if version == 1 {
            JournalFeatures::default()
        } else {
            JournalFeatures::parse(
                raw.s_feature_compat.get(),
                raw.s_feature_incompat.get(),
                raw.s_feature_ro_compat.get(),
            )?
        };
        verify_checksum(raw, features, location)?;

        let size = raw.s_blocksize.get();
        if size != block_size.bytes() {
            let (found, expected) = (size.into(), block_size.bytes().into());
            return Err(corrupt(Problem::Mismatch { field: "s_blocksize", found, expected }));
        }
        let within = |field, found: u32, min: u32, max: u32| {
            if (min..=max).contains(&found) {
                return Ok(found);
            }
            let (found, min, max) = (found.into(), min.into(), max.into());
            Err(corrupt(Problem::Range { field, found, min, max }))
        };
        let most = blocks_available.min(ondisk::BLOCKS_MAX);
        let blocks = within("s_maxlen", raw.s_maxlen.get(), 2, most)?;
        let first = within("s_first", raw.s_first.get(), 1, blocks - 1)?;
        let (end, fast_commit) = if features.fast_commit {
            let reserved = match raw.s_num_fc_blks.get() {
                0 => ondisk::FAST_COMMIT_BLOCKS_DEFAULT,
                blocks => blocks,
            };
            let most = blocks.saturating_sub(ondisk::BLOCKS_MIN).min(blocks - first - 1);
            let end = blocks - within("s_num_fc_blks", reserved, 1, most)?;
            // Linux leaves the block between the log and the fast commits unused.
            (end, end + 1..blocks)
        } else {
            (blocks, blocks..blocks)
        };
        let start = match raw.s_start.get() {
            0 => None,
            start => Some(within("s_start", start, first, end - 1)?),
        };
        let v2 = version == 2;
        Ok(Self {
            version,
            blocks,
            log: first..end,
            fast_commit,
            sequence: TransactionId(raw.s_sequence.get()),
            start,
            errno: (raw.s_errno.get() as i32).unsigned_abs(),
            features,
            uuid: if v2 { raw.s_uuid } else { [0; 16] },
            users: if v2 { raw.s_nr_users.get() } else { 1 },
            checksum_seed: crc32c(!0, &raw.s_uuid),
        })
    }
}

/// The state of the log in a journal superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogState {
    /// The journal block of the first transaction to replay; `None` if there is none.
    pub start: Option<u32>,
    /// The id of that transaction, or else of the next transaction.
    pub sequence: TransactionId,
}

/// Stores `state` and `features` in the superblock in `block`, which was parsed before.
pub(super) fn write_state(block: &mut [u8], features: JournalFeatures, state: LogState) {
    let Ok((raw, _)) = RawSuperblock::mut_from_prefix(block) else {
        unreachable!("a parsed superblock fits its block")
    };
    raw.s_start = state.start.unwrap_or(0).into();
    raw.s_sequence = state.sequence.0.into();
    if raw.s_header.h_blocktype.get() == ondisk::BLOCK_SUPERBLOCK_V2 {
        // The head of a clean log is obsolete once the log is written again.
        raw.s_head = 0.into();
        raw.s_feature_compat = u32::from(features.checksum_v1).into();
        raw.s_feature_incompat = features.incompatible().into();
    }
    raw.s_checksum_type = 0;
    raw.s_checksum = 0.into();
    if features.has_block_checksums() {
        raw.s_checksum_type = ondisk::CHECKSUM_CRC32C;
        raw.s_checksum = checksum(raw).into();
    }
}

/// Stores the error number with which the journal was aborted, or 0, in the superblock in `block`,
/// which was parsed before.
pub(super) fn write_errno(block: &mut [u8], features: JournalFeatures, errno: u32) {
    let Ok((raw, _)) = RawSuperblock::mut_from_prefix(block) else {
        unreachable!("a parsed superblock fits its block")
    };
    raw.s_errno = errno.wrapping_neg().into();
    if features.has_block_checksums() {
        raw.s_checksum = checksum(raw).into();
    }
}

fn verify_header(raw: &RawSuperblock, location: Location) -> Result<u8> {
    let magic = raw.s_header.h_magic.get();
    if magic != ondisk::MAGIC {
        let (found, expected) = (magic.into(), ondisk::MAGIC.into());
        return Err(Error::corrupt(STRUCTURE, location, Problem::Magic { found, expected }));
    }
    match raw.s_header.h_blocktype.get() {
        ondisk::BLOCK_SUPERBLOCK_V1 => Ok(1),
        ondisk::BLOCK_SUPERBLOCK_V2 => Ok(2),
        found => {
            let problem = Problem::Invalid { field: "h_blocktype", found: found.into() };
            Err(Error::corrupt(STRUCTURE, location, problem))
        }
    }
}

fn verify_checksum(
    raw: &RawSuperblock,
    features: JournalFeatures,
    location: Location,
) -> Result<()> {
    let corrupt = |problem| Err(Error::corrupt(STRUCTURE, location, problem));
    let versions = [features.checksum_v1, features.checksum_v2, features.checksum_v3];
    if versions.into_iter().filter(|&set| set).count() > 1 {
        let found = raw.s_feature_incompat.get().into();
        return corrupt(Problem::Invalid { field: "combination of checksum features", found });
    }
    if !features.has_block_checksums() {
        return Ok(());
    }
    if raw.s_checksum_type != ondisk::CHECKSUM_CRC32C {
        let found = raw.s_checksum_type.into();
        return corrupt(Problem::Invalid { field: "s_checksum_type", found });
    }
    let (stored, computed) = (raw.s_checksum.get(), checksum(raw));
    if stored != computed {
        return corrupt(Problem::Checksum { stored, computed });
    }
    Ok(())
}

fn checksum(raw: &RawSuperblock) -> u32 {
    let mut raw = *raw;
    raw.s_checksum = 0.into();
    crc32c(!0, raw.as_bytes())
}
