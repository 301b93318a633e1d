//! The first blocks of the segment information table and of the node address table of a new volume.

use f2fs::ondisk::nat::RawNatEntry;
use zerocopy::IntoBytes;

use super::areas::Areas;
use super::files::Files;
use super::{LOGS, MakeOptions};

/// Bytes of an entry of the segment information table: type and number of valid blocks, bitmap of them, time.
pub(super) const SIT_ENTRY_BYTES: usize = 74;
/// The bits of the number of valid blocks, before those of the type.
const COUNT_BITS: u32 = 10;
/// The inodes that stand for all nodes, and for all other metadata. fsck.f2fs wants entries for them, with this address.
const META_INODES: [u32; 2] = [1, 2];
const META_ADDRESS: u32 = 1;

/// Returns the blocks of the segment information table with the current segments of the logs.
pub(super) fn segments(options: &MakeOptions, areas: &Areas, files: &Files) -> Vec<u8> {
    let block_bytes = options.block_size.len();
    let per_block = block_bytes / SIT_ENTRY_BYTES;
    let last = areas.log_segments.into_iter().max().unwrap_or_default() as usize;
    let mut table = vec![0; (last / per_block + 1) * block_bytes];
    for (log, segment) in (0..LOGS).zip(areas.log_segments) {
        let segment = segment as usize;
        let at = segment / per_block * block_bytes + segment % per_block * SIT_ENTRY_BYTES;
        let entry = &mut table[at..at + SIT_ENTRY_BYTES];
        let count = files.blocks_in(log);
        entry[..2].copy_from_slice(&((log as u16) << COUNT_BITS | count).to_le_bytes());
        for block in 0..usize::from(count) {
            entry[2 + block / 8] |= 0x80 >> (block % 8);
        }
    }
    table
}

/// Returns the first block of the node address table.
pub(super) fn nodes(options: &MakeOptions, files: &Files) -> Vec<u8> {
    let mut block = vec![0; options.block_size.len()];
    let meta = META_INODES.map(|number| (number, META_ADDRESS));
    for (number, address) in meta.iter().chain(files.inodes()) {
        let entry = RawNatEntry { version: 0, inode: (*number).into(), block: (*address).into() };
        let at = *number as usize * size_of::<RawNatEntry>();
        block[at..at + size_of::<RawNatEntry>()].copy_from_slice(entry.as_bytes());
    }
    block
}
