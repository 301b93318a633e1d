//! The contents of the segment information table and of the node address table of a new volume. As
//! with mkfs.f2fs, the entries that count are in the journals, and the tables are empty but for two
//! entries.

use f2fs::ondisk::nat::{RawNatEntry, RawNatJournalEntry};
use zerocopy::IntoBytes;

use super::areas::Areas;
use super::files::Files;
use super::{LOGS, MakeOptions};

/// Bytes of an entry of the segment information table: type and number of valid blocks, bitmap of
/// them, time.
pub(super) const SIT_ENTRY_BYTES: usize = 74;
/// The bits of the number of valid blocks, before those of the type.
const COUNT_BITS: u32 = 10;
/// The inodes that stand for all nodes, and for all other metadata. fsck.f2fs wants entries for
/// them, with this address.
const META_INODES: [u32; 2] = [1, 2];
const META_ADDRESS: u32 = 1;

/// Returns the first block of the node address table.
pub(super) fn nodes(options: &MakeOptions) -> Vec<u8> {
    let mut block = vec![0; options.block_size.len()];
    for number in META_INODES {
        let entry = RawNatEntry { version: 0, inode: number.into(), block: META_ADDRESS.into() };
        let at = number as usize * size_of::<RawNatEntry>();
        block[at..at + size_of::<RawNatEntry>()].copy_from_slice(entry.as_bytes());
    }
    block
}

/// Returns the journal of the node address table: the number of entries, and one for each inode.
pub(super) fn node_journal(files: &Files) -> Vec<u8> {
    let mut journal = (files.inodes().len() as u16).to_le_bytes().to_vec();
    for (number, block) in files.inodes() {
        let entry = RawNatEntry { version: 0, inode: (*number).into(), block: (*block).into() };
        journal.extend(RawNatJournalEntry { nid: (*number).into(), entry }.as_bytes());
    }
    journal
}

/// Returns the journal of the segment information table: the number of entries, and one for the
/// segment of each log.
pub(super) fn segment_journal(areas: &Areas, files: &Files) -> Vec<u8> {
    let mut journal = (LOGS as u16).to_le_bytes().to_vec();
    for (log, segment) in (0..LOGS).zip(areas.log_segments) {
        let count = files.blocks_in(log);
        let mut entry = [0; SIT_ENTRY_BYTES];
        entry[..2].copy_from_slice(&((log as u16) << COUNT_BITS | count).to_le_bytes());
        for block in 0..usize::from(count) {
            entry[2 + block / 8] |= 0x80 >> (block % 8);
        }
        journal.extend(segment.to_le_bytes());
        journal.extend(entry);
    }
    journal
}
