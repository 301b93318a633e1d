//! Replay of the complete transactions of a log.
//! Not here: which transactions are complete.

use std::collections::HashMap;

use base::checksum::crc32c;
use base::{BlockSize, DeviceOffset, Error, FsBlock, Problem, Result, TransactionId};
use device::SharedDevice;

use super::LoggedVolume;
use super::blocks::JournalBlocks;
use super::ondisk;
use super::scan::{LogContents, LoggedBlock};
use super::superblock::JournalSuperblock;
use super::tags::revoked_blocks;

/// The result of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Replayed {
    /// The number of blocks of the volume whose contents changed.
    pub blocks_changed: u64,
    /// The number of blocks in the log that were not replayed because they were revoked.
    pub blocks_revoked: u64,
}

/// A block of the volume of which the log has copies.
#[derive(Default)]
struct Target {
    /// The last transaction that revokes the block. Copies in it and in earlier transactions are
    /// not replayed.
    revoked: Option<TransactionId>,
    /// The last copy to replay, as an index into [`LogContents::blocks`].
    last: Option<usize>,
}

impl Target {
    fn is_revoked(&self, transaction: TransactionId) -> bool {
        self.revoked.is_some_and(|revoked| revoked.is_at_or_after(transaction))
    }
}

/// Writes the last copy of each block to `target`. As in Linux, verifies every copy that was not
/// revoked, including earlier ones.
///
/// Copies of blocks behind the volume's end are not written, since they would change what follows
/// the volume on the device. Linux writes the blocks of new groups before the superblock that adds
/// them, so they are no damage.
pub(super) fn replay(
    journal: &JournalBlocks,
    superblock: &JournalSuperblock,
    log: &LogContents,
    target: &SharedDevice,
    volume: LoggedVolume,
) -> Result<Replayed> {
    let targets = collect_targets(journal, superblock, log)?;
    let end = volume_end(journal, log, &targets, target, volume)?;
    let block_size = journal.block_size();
    let mut replayed = Replayed::default();
    let mut data = vec![0; block_size.len()];
    let mut current = vec![0; block_size.len()];
    for (index, logged) in log.blocks.iter().enumerate() {
        let Some(entry) = targets.get(&logged.tag.target) else { continue };
        if entry.is_revoked(logged.transaction) {
            replayed.blocks_revoked += 1;
            continue;
        }
        let offset = target_offset(journal, logged, target, block_size)?;
        journal.read(logged.journal_block, &mut data)?;
        verify_data(journal, superblock, logged, &data)?;
        if entry.last != Some(index) || logged.tag.target >= end {
            continue;
        }
        unescape(logged, &mut data);
        // Many blocks of a log are checkpointed already. An overlay does not need copies of them.
        let is_current = match target.read_at(offset, &mut current) {
            Ok(()) => current == data,
            // The write of the block may have been cut off. The log has its contents.
            Err(Error::Io(error)) => {
                tracing::warn!(%error, "a block that the log replaces cannot be read");
                false
            }
            Err(error) => return Err(error),
        };
        if !is_current {
            target.write_at(offset, &data)?;
            replayed.blocks_changed += 1;
        }
    }
    Ok(replayed)
}

fn collect_targets(
    journal: &JournalBlocks,
    superblock: &JournalSuperblock,
    log: &LogContents,
) -> Result<HashMap<FsBlock, Target>> {
    let mut targets: HashMap<FsBlock, Target> =
        log.blocks.iter().map(|logged| (logged.tag.target, Target::default())).collect();
    let mut buffer = vec![0; journal.block_size().len()];
    for &(block, transaction) in &log.revokes {
        journal.read(block, &mut buffer)?;
        for revoked in revoked_blocks(&buffer, superblock.features, journal.location(block))? {
            // A revoke of a block without copies in the log has no effect and takes no memory.
            let Some(entry) = targets.get_mut(&revoked) else { continue };
            if entry.revoked.is_none_or(|earlier| transaction.is_at_or_after(earlier)) {
                entry.revoked = Some(transaction);
            }
        }
    }
    for (index, logged) in log.blocks.iter().enumerate() {
        if let Some(entry) = targets.get_mut(&logged.tag.target) {
            if !entry.is_revoked(logged.transaction) {
                entry.last = Some(index);
            }
        }
    }
    Ok(targets)
}

/// Returns the end of the volume: by its superblock on the disk or by the last one in the log,
/// whichever is later. The log of a volume that was just enlarged has its new superblock.
fn volume_end(
    journal: &JournalBlocks,
    log: &LogContents,
    targets: &HashMap<FsBlock, Target>,
    target: &SharedDevice,
    volume: LoggedVolume,
) -> Result<FsBlock> {
    let last = targets.get(&volume.superblock).and_then(|entry| entry.last);
    let Some(logged) = last.map(|index| &log.blocks[index]) else {
        return Ok(FsBlock(volume.block_count));
    };
    let mut data = vec![0; journal.block_size().len()];
    journal.read(logged.journal_block, &mut data)?;
    unescape(logged, &mut data);
    let count = (volume.block_count_in)(&data, target.size());
    Ok(FsBlock(count.unwrap_or(0).max(volume.block_count)))
}

/// Restores the first bytes of a copy, if the log replaces them because they look like the header
/// of its own blocks.
fn unescape(logged: &LoggedBlock, data: &mut [u8]) {
    if logged.tag.escaped {
        data[..4].copy_from_slice(&ondisk::MAGIC.to_be_bytes());
    }
}

/// Returns the home location of a logged block, which must lie on the device.
fn target_offset(
    journal: &JournalBlocks,
    logged: &LoggedBlock,
    target: &SharedDevice,
    block_size: BlockSize,
) -> Result<DeviceOffset> {
    const STRUCTURE: &str = "journal tag";
    let block = logged.tag.target;
    let blocks = target.size() >> block_size.shift();
    let location = journal.location(logged.journal_block);
    let offset = block_size.device_offset(block).filter(|_| block.0 < blocks).ok_or_else(|| {
        let (found, max) = (block.0, blocks.saturating_sub(1));
        Error::corrupt(STRUCTURE, location, Problem::Range { field: "block", found, min: 0, max })
    })?;
    if journal.contains(block) {
        let problem = Problem::Invalid { field: "block in the journal itself", found: block.0 };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    Ok(offset)
}

fn verify_data(
    journal: &JournalBlocks,
    superblock: &JournalSuperblock,
    logged: &LoggedBlock,
    data: &[u8],
) -> Result<()> {
    let features = superblock.features;
    if !features.has_block_checksums() {
        return Ok(());
    }
    let seed = crc32c(superblock.checksum_seed, &logged.transaction.0.to_be_bytes());
    let mut computed = crc32c(seed, data);
    if features.checksum_v2 {
        computed &= 0xFFFF;
    }
    let stored = logged.tag.checksum;
    if stored == computed {
        return Ok(());
    }
    let location = journal.location(logged.journal_block);
    Err(Error::corrupt("journal data block", location, Problem::Checksum { stored, computed }))
}
