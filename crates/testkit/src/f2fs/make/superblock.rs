//! The superblock of a new volume.

use base::checksum::crc32_le;
use f2fs::Feature;
use f2fs::ondisk::superblock::RawSuperblock;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::areas::Areas;
use super::{MAGIC, MakeOptions, SEGMENT_BLOCKS};

/// The position of the superblock in its block.
const OFFSET: usize = 1024;
/// Exponent of the sector size.
const SECTOR_SHIFT: u32 = 9;
/// The number of the encoding of casefolded names: UTF-8.
const ENCODING_UTF8: u16 = 1;
/// The program that made the volume, in place of a kernel's version.
const MAKER: &[u8] = b"bifolio";

/// Returns a block with the superblock.
pub(super) fn block(options: &MakeOptions, areas: &Areas) -> Vec<u8> {
    let mut raw = RawSuperblock::new_zeroed();
    raw.magic = U32::new(MAGIC);
    raw.major_version = U16::new(1);
    raw.minor_version = U16::new(16);
    raw.log_sector_size = U32::new(SECTOR_SHIFT);
    raw.log_sectors_per_block = U32::new(options.block_size.shift() - SECTOR_SHIFT);
    raw.log_block_size = U32::new(options.block_size.shift());
    raw.log_blocks_per_segment = U32::new(SEGMENT_BLOCKS.ilog2());
    raw.segments_per_section = U32::new(options.segments_per_section);
    raw.sections_per_zone = U32::new(options.sections_per_zone);
    raw.block_count = U64::new(areas.block_count);
    raw.section_count = U32::new(areas.main_segments / options.segments_per_section);
    raw.segment_count = U32::new(areas.segments);
    raw.segment_count_checkpoint = U32::new((areas.sit - areas.checkpoint) / SEGMENT_BLOCKS);
    raw.segment_count_sit = U32::new(areas.sit_segments);
    raw.segment_count_nat = U32::new(areas.nat_segments);
    raw.segment_count_ssa = U32::new(areas.ssa_segments);
    raw.segment_count_main = U32::new(areas.main_segments);
    raw.segment0_block = U32::new(areas.checkpoint);
    raw.checkpoint_block = U32::new(areas.checkpoint);
    raw.sit_block = U32::new(areas.sit);
    raw.nat_block = U32::new(areas.nat);
    raw.ssa_block = U32::new(areas.ssa);
    raw.main_block = U32::new(areas.main);
    [raw.node_inode, raw.meta_inode, raw.root_inode] = [1, 2, 3].map(U32::new);
    raw.uuid = options.uuid;
    for (unit, value) in raw.label.iter_mut().zip(options.label.encode_utf16()) {
        *unit = U16::new(value);
    }
    raw.version[..MAKER.len()].copy_from_slice(MAKER);
    raw.initial_version[..MAKER.len()].copy_from_slice(MAKER);
    raw.features = U32::new(options.features);
    if options.has(Feature::Casefold) {
        raw.encoding = U16::new(ENCODING_UTF8);
    }
    if options.has(Feature::SuperblockChecksum) {
        let at = std::mem::offset_of!(RawSuperblock, checksum);
        raw.checksum_offset = U32::new(at as u32);
        raw.checksum = U32::new(crc32_le(MAGIC, &raw.as_bytes()[..at]));
    }
    let mut block = vec![0; options.block_size.len()];
    block[OFFSET..OFFSET + size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
    block
}
