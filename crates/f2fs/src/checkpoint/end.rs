//! The last block of a pack that is not valid. It tells damage from a power cut.
//!
//! A writer makes all other blocks of a pack durable before it writes the last one, which is a copy
//! of the first one. So a valid last block of the version after that of the other pack shows that
//! the pack was complete. Any other version is that of an older pack, or of an older volume.

use base::{Error, FsBlock};
use device::SharedDevice;
use zerocopy::FromBytes;

use super::{PACK_BLOCKS_MIN, Pack, read_block, read_header};
use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::ondisk::checkpoint::RawCheckpoint;

/// The state of a pack that is not valid.
pub(super) enum End {
    /// It is older than the other one, or was never complete.
    Torn,
    /// It was complete, and is later. Only its first block is known to be damaged, which its last
    /// block replaces.
    Copied(Box<Pack>),
    /// It was complete, and is later. More than its first block is missing.
    Lost,
}

/// Returns the state of the pack at `start`, which is not valid. `version` is the one after that of
/// the other pack.
pub(super) fn of_invalid(
    device: &SharedDevice,
    geometry: &Geometry,
    start: FsBlock,
    version: u64,
) -> End {
    match read_header(device, geometry, start) {
        // A power cut after the first block was written.
        Ok((raw, _, _)) if raw.version.get() == version => End::Torn,
        // Blocks that were written before the last one are those of an older pack. Most states
        // after power cuts look like that but for the last block, so that only its likely place is
        // read.
        Ok((raw, _, _)) => {
            let blocks = u64::from(raw.pack_blocks.get());
            let end = read_end(device, geometry, (start, blocks), version);
            end.map_or(End::Torn, |_| End::Lost)
        }
        Err(Error::Corrupt(_)) => {
            let mut ends = (PACK_BLOCKS_MIN..=SEGMENT_BLOCKS)
                .filter_map(|blocks| read_end(device, geometry, (start, blocks), version));
            match (ends.next(), ends.next()) {
                (None, _) => End::Torn,
                (Some(pack), None) => End::Copied(Box::new(pack)),
                (Some(_), Some(_)) => End::Lost,
            }
        }
        // The device does not say what the block has.
        Err(_) => End::Torn,
    }
}

/// Reads the last block of a pack of `blocks` blocks at `start`. Returns the pack if the block is
/// valid, and of this version.
fn read_end(
    device: &SharedDevice,
    geometry: &Geometry,
    (start, blocks): (FsBlock, u64),
    version: u64,
) -> Option<Pack> {
    if !(PACK_BLOCKS_MIN..=SEGMENT_BLOCKS).contains(&blocks) {
        return None;
    }
    let end = FsBlock(start.0 + blocks - 1);
    let block = read_block(device, geometry, end).ok()?;
    let (raw, _) = RawCheckpoint::read_from_prefix(&block).ok()?;
    // Most blocks are none that need their checksum verified.
    if raw.version.get() != version || u64::from(raw.pack_blocks.get()) != blocks {
        return None;
    }
    let (raw, checksum, header) = read_header(device, geometry, end).ok()?;
    Some(Pack { start, raw, checksum, header })
}
