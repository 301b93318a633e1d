//! The checksum of an inode's block.

use std::mem::offset_of;

use base::checksum::crc32_le;
use zerocopy::FromBytes;

use super::record::inline;
use crate::features::Feature;
use crate::geometry::{Geometry, WORD_BYTES};
use crate::nat::Nid;
use crate::ondisk::node::{RawExtraAttributes, RawInode};

/// The byte of the checksum in an inode's block.
const AT: usize = size_of::<RawInode>() + offset_of!(RawExtraAttributes, checksum);

/// Returns the checksum of the block of the inode `nid`, in which the checksum itself counts as
/// zero.
pub(crate) fn checksum(block: &[u8], nid: Nid, generation: u32, geometry: &Geometry) -> u32 {
    let (before, rest) = block.split_at(AT);
    let mut computed = crc32_le(u32::MAX, &geometry.uuid);
    computed = crc32_le(computed, &nid.0.to_le_bytes());
    computed = crc32_le(computed, &generation.to_le_bytes());
    for part in [before, &[0; WORD_BYTES], &rest[WORD_BYTES..]] {
        computed = crc32_le(computed, part);
    }
    computed
}

/// Stores the checksum of a valid inode's block, if the inode has one. Nothing in the block may
/// change after that.
pub(crate) fn seal(block: &mut [u8], nid: Nid, geometry: &Geometry) {
    let (raw, rest) = RawInode::ref_from_prefix(block).expect("a block is larger");
    let generation = raw.generation.get();
    // The attributes begin with their size.
    let size = u16::from_le_bytes([rest[0], rest[1]]);
    let end = offset_of!(RawExtraAttributes, checksum) + WORD_BYTES;
    let has_checksum = geometry.features.has(Feature::InodeChecksum)
        && raw.inline & inline::EXTRA != 0
        && usize::from(size) >= end;
    if has_checksum {
        let computed = checksum(block, nid, generation, geometry);
        block[AT..AT + WORD_BYTES].copy_from_slice(&computed.to_le_bytes());
    }
}
