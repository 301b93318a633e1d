//! Copies of the superblock in other groups, for reading a volume whose first superblock is
//! damaged. Not here: opening through a copy (`recovery/copy.rs`).
//!
//! The position of a copy depends on the block size and the group size, which only a superblock
//! has. As in e2fsck, the positions that mke2fs chooses by default are tried; users give other
//! positions (`OpenOptions::superblock`). This takes at most [`CANDIDATES_MAX`] reads of 1 KiB.

use base::{BlockSize, DeviceOffset, Error, FsBlock, GroupNumber, Location, Problem, Result};
use device::SharedDevice;

use crate::ondisk::superblock::SUPERBLOCK_OFFSET;
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};

/// log2 of the block sizes that a volume can have.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u32> = 10..=16;
/// The first groups with copies under `sparse_super`. Under `sparse_super2`, group 1 and the last
/// group have copies.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 9, 25, 27, 49];
/// Maximum of log2 of the blocks in a cluster.
const CLUSTER_SHIFT_MAX: u32 = 6;
/// Maximum number of clusters in a group, in volumes that mke2fs creates.
const CLUSTERS_PER_GROUP_MAX: u64 = 65_528;
/// Maximum number of positions that are tried.
pub(crate) const CANDIDATES_MAX: usize =
    7 * (GROUPS.len() + 1) + 7 * 2 * CLUSTER_SHIFT_MAX as usize;

/// The location of a superblock, as in `e2fsck -b` and `-B`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuperblockLocation {
    /// The number of the block that it is in.
    pub block: u64,
    /// The block size. Without it, all block sizes are tried.
    pub block_size: Option<BlockSize>,
}

/// A valid superblock that is not the first one.
#[derive(Clone, Debug)]
pub(crate) struct SuperblockCopy {
    pub superblock: Superblock,
    pub block: FsBlock,
    pub group: GroupNumber,
    /// The error of the first superblock; `None` if it was not read.
    pub reason: Option<Error>,
}

impl SuperblockCopy {
    /// Reads the superblock in a block, of a volume that fits on `device_bytes` bytes.
    fn read(
        device: &SharedDevice,
        block: FsBlock,
        block_size: BlockSize,
        device_bytes: u64,
    ) -> Result<Self> {
        let location = Location::block(block);
        let offset = match (block.0, block_size.device_offset(block)) {
            // In a block of 2 KiB or more, block 0 holds the first superblock, at byte 1024.
            (0, _) => SUPERBLOCK_OFFSET,
            (_, Some(offset)) => offset,
            (_, None) => DeviceOffset(u64::MAX),
        };
        let available = device.size().saturating_sub(offset.0);
        if available < SUPERBLOCK_BYTES as u64 {
            let problem = Problem::Truncated { needed: SUPERBLOCK_BYTES as u64, available };
            return Err(Error::corrupt("superblock", location, problem));
        }
        let mut bytes = [0; SUPERBLOCK_BYTES];
        device.read_at(offset, &mut bytes)?;
        let mut superblock = Superblock::parse(&bytes, device_bytes)?;
        let found = superblock.geometry.block_size;
        if found != block_size {
            let (found, expected) = (found.bytes().into(), block_size.bytes().into());
            let problem = Problem::Mismatch { field: "block size", found, expected };
            return Err(Error::corrupt("superblock", location, problem));
        }
        let group = GroupNumber(superblock.raw().block_group_nr.get().into());
        superblock.geometry.copy_in_use = (offset != SUPERBLOCK_OFFSET).then_some(block);
        Ok(Self { superblock, block, group, reason: None })
    }

    /// Reads the superblock at a location that the user gave, of a volume that fits on
    /// `device_bytes` bytes.
    pub(crate) fn read_at(
        device: &SharedDevice,
        location: SuperblockLocation,
        device_bytes: u64,
    ) -> Result<Self> {
        let sizes = BLOCK_SHIFTS.filter_map(BlockSize::from_shift);
        let sizes = sizes.filter(|size| location.block_size.is_none_or(|wanted| wanted == *size));
        let mut worst = None;
        for size in sizes {
            match Self::read(device, FsBlock(location.block), size, device_bytes) {
                Ok(copy) => return Ok(copy),
                Err(error @ Error::Io(_)) => return Err(error),
                // An error after the magic number was found tells more.
                Err(error) if is_magic(&error) => drop(worst.get_or_insert(error)),
                Err(error) => worst = Some(error),
            }
        }
        Err(worst.unwrap_or(Error::InvalidArgument("no volume can have this block size")))
    }

    /// Finds copies of the superblocks of volumes that fit on `device_bytes` bytes, the most
    /// trustworthy one first: the latest one, in the lowest group. An older file system may have
    /// left copies, too.
    pub(crate) fn find(device: &SharedDevice, device_bytes: u64) -> Vec<Self> {
        let sound = candidates(device.size()).into_iter().filter_map(|(block, size, group)| {
            let copy = Self::read(device, block, size, device_bytes).ok()?;
            let geometry = &copy.superblock.geometry;
            // Copies contain the low 16 bits of their group's number.
            let is_there = copy.group.0 == group & 0xFFFF
                && group < geometry.group_count
                && geometry.has_superblock(GroupNumber(group))
                && geometry.group_start(GroupNumber(group)) == block;
            is_there.then_some(Self { group: GroupNumber(group), ..copy })
        });
        let mut sound: Vec<Self> = sound.collect();
        sound.sort_by_key(|copy| (std::cmp::Reverse(copy.superblock.created()), copy.group));
        sound
    }
}

fn is_magic(error: &Error) -> bool {
    let Error::Corrupt(corrupt) = error else { return false };
    // A volume that is longer than its device is a volume.
    matches!(corrupt.problem, Problem::Magic { .. })
        || corrupt.structure == "superblock" && matches!(corrupt.problem, Problem::Truncated { .. })
}

/// Returns the default positions of copies, as mke2fs chooses them: the block, its size, and the
/// group.
fn candidates(device_bytes: u64) -> Vec<(FsBlock, BlockSize, u32)> {
    let mut candidates = Vec::new();
    for shift in BLOCK_SHIFTS {
        let Some(size) = BlockSize::from_shift(shift) else { continue };
        let blocks = device_bytes >> shift;
        let mut add = |first: u64, per_group: u64, group: u64| {
            let block = first + group * per_group;
            if let (true, Ok(group)) = (block < blocks, u32::try_from(group)) {
                candidates.push((FsBlock(block), size, group));
            }
        };
        // A bitmap is one block, and 16-bit counts must be able to hold the number of free
        // clusters.
        let (bits, first) = ((8 << shift).min(CLUSTERS_PER_GROUP_MAX), u64::from(shift == 10));
        GROUPS.into_iter().for_each(|group| add(first, bits, group.into()));
        let last = blocks.saturating_sub(first + 1) / bits;
        if !GROUPS.iter().any(|&group| u64::from(group) == last) && last > 0 {
            add(first, bits, last);
        }
        for cluster_shift in 1..=CLUSTER_SHIFT_MAX {
            [1, 3].into_iter().for_each(|group| add(0, bits << cluster_shift, group));
        }
    }
    debug_assert!(candidates.len() <= CANDIDATES_MAX, "{} positions", candidates.len());
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_positions_is_bounded_for_every_device_size() {
        for bytes in [0, 1024, 1 << 20, 1 << 30, 1 << 45, u64::MAX] {
            let candidates = candidates(bytes);
            assert!(candidates.len() <= CANDIDATES_MAX);
            let inside = |(block, size, _): &(FsBlock, BlockSize, u32)| {
                block.0 > 0 && block.0 < bytes >> size.shift()
            };
            assert!(candidates.iter().all(inside), "{bytes}");
        }
    }

    #[test]
    fn e2fscks_positions_are_among_the_candidates() {
        let candidates = candidates(1 << 34);
        for (block, size) in
            [(8193, 1024), (16_384, 2048), (32_768, 4096), (98_304, 4096), (24_577, 1024)]
        {
            let size = BlockSize::from_bytes(size).unwrap();
            assert!(candidates.iter().any(|it| (it.0.0, it.1) == (block, size)), "{block}");
        }
    }
}
