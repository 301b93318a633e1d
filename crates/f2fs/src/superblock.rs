//! Parsing and validation of the superblock, of which there are two copies.

use std::ops::Range;

use base::Unsupported;
use base::checksum::crc32_le;
use base::{BlockSize, DeviceOffset, Error, FsBlock, InodeNumber, Location, Problem, Result};
use device::SharedDevice;
use fs::quota::QuotaKind;
use zerocopy::{FromBytes, IntoBytes};

use crate::features::{Feature, Features};
use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::ondisk::superblock::RawSuperblock;

/// Position of the superblock in its block.
pub(crate) const OFFSET_IN_BLOCK: u64 = 1024;
/// Bytes in a superblock.
pub const SUPERBLOCK_BYTES: usize = size_of::<RawSuperblock>();

const STRUCTURE: &str = "superblock";
pub(crate) const MAGIC: u32 = 0xF2F5_2010;
/// Exponents of the possible block sizes.
const BLOCK_SHIFTS: [u32; 2] = [12, 14];
const SEGMENT_SHIFT: u32 = 9;
const SECTOR_SHIFT_MIN: u32 = 9;
/// The numbers of the inodes that stand for nodes, for other metadata, and of the root directory.
const FIXED_INODES: [u32; 3] = [1, 2, 3];
/// The maximum number of payload blocks: a pack has one segment, with two copies of its first block
/// and six summaries.
const PAYLOAD_MAX: u32 = SEGMENT_BLOCKS as u32 - 2 - 6;
/// The maximum number of blocks of a volume, whose addresses have 32 bits.
const BLOCKS_MAX: u64 = 1 << 32;
/// The encoding of casefolded names that exists.
const ENCODING_UTF8: u16 = 1;
const ENCODING_STRICT: u16 = 1;
const ENCODING_NO_LINEAR_SEARCH: u16 = 2;

/// The encoding of names in directories that ignore case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoding {
    /// Whether names that are not valid Unicode are refused.
    pub is_strict: bool,
    /// Whether names are found by their hash only. Otherwise, a name whose hash an older version of
    /// Unicode determined is found by a search through the directory.
    pub is_hash_only: bool,
}

/// A validated superblock.
#[derive(Clone, Debug)]
pub struct Superblock {
    /// The shape of the volume.
    pub geometry: Geometry,
    /// The label in UTF-8.
    pub label: Vec<u8>,
    /// The encoding of casefolded names.
    pub encoding: Option<Encoding>,
    /// The quota files of users, groups and projects.
    pub quota_inodes: [Option<InodeNumber>; 3],
    /// The problem of the first copy, if the second one is used.
    pub damage: Option<Error>,
    raw: RawSuperblock,
}

impl Superblock {
    /// Reads the first valid copy of the superblock of `device`. Errors: those of the first copy.
    pub fn read(device: &SharedDevice) -> Result<Self> {
        Self::read_for(device, device.size())
    }

    /// Returns the number of bytes that the volume needs, also if `device` has fewer.
    pub(crate) fn volume_bytes(device: &SharedDevice) -> Option<u64> {
        let geometry = Self::read_for(device, u64::MAX).ok()?.geometry;
        Some(geometry.main.end.0 << geometry.block_size.shift())
    }

    /// [`read`](Self::read), but checks that the volume fits on `device_bytes` bytes.
    fn read_for(device: &SharedDevice, device_bytes: u64) -> Result<Self> {
        let first = Self::read_at(device, 0, device_bytes);
        let error = match first {
            Err(error @ Error::Corrupt(_)) => error,
            first => return first,
        };
        match Self::second(device, device_bytes) {
            Some(second) => Ok(Self { damage: Some(error), ..second }),
            None => Err(error),
        }
    }

    /// Returns the second copy. It is in the second block, whose position depends on the size of
    /// blocks.
    fn second(device: &SharedDevice, device_bytes: u64) -> Option<Self> {
        BLOCK_SHIFTS.into_iter().find_map(|shift| {
            let second = Self::read_at(device, 1 << shift, device_bytes).ok()?;
            (second.geometry.block_size.shift() == shift).then_some(second)
        })
    }

    /// Returns the quota files of the volume, by kind.
    pub(crate) fn quota_files(&self) -> [Option<InodeNumber>; QuotaKind::ALL.len()] {
        if self.geometry.features.has(Feature::QuotaInodes) {
            self.quota_inodes
        } else {
            Default::default()
        }
    }

    /// Returns whether `device` has the format's magic number in the first copy.
    pub fn has_magic(device: &SharedDevice) -> Result<bool> {
        let mut bytes = [0; size_of::<u32>()];
        if device.size() < OFFSET_IN_BLOCK + bytes.len() as u64 {
            return Ok(false);
        }
        device.read_at(DeviceOffset(OFFSET_IN_BLOCK), &mut bytes)?;
        Ok(u32::from_le_bytes(bytes) == MAGIC)
    }

    /// Returns whether `device` has a valid second copy.
    pub fn has_copy(device: &SharedDevice) -> bool {
        // If the volume does not fit, opening says so.
        Self::second(device, u64::MAX).is_some()
    }

    /// Reads the copy in the block that begins at byte `block_start`, of a volume that fits on
    /// `device_bytes` bytes.
    pub(crate) fn read_at(
        device: &SharedDevice,
        block_start: u64,
        device_bytes: u64,
    ) -> Result<Self> {
        let at = block_start + OFFSET_IN_BLOCK;
        let available = device.size().saturating_sub(at);
        let needed = SUPERBLOCK_BYTES as u64;
        if available < needed {
            return Err(fault(Problem::Truncated { needed, available }));
        }
        let mut bytes = [0; SUPERBLOCK_BYTES];
        device.read_at(DeviceOffset(at), &mut bytes)?;
        Self::parse(&bytes, device_bytes)
    }

    /// Parses and validates the bytes of a superblock, for a device of `device_bytes` bytes.
    pub fn parse(bytes: &[u8; SUPERBLOCK_BYTES], device_bytes: u64) -> Result<Self> {
        let raw = RawSuperblock::read_from_bytes(bytes).expect("the array has this size");
        let magic = raw.magic.get();
        if magic != MAGIC {
            let (found, expected) = (magic.into(), MAGIC.into());
            return Err(fault(Problem::Magic { found, expected }));
        }
        let features = Features::new(raw.features.get())?;
        if features.has(Feature::SuperblockChecksum) {
            verify_checksum(&raw)?;
        }
        if raw.devices[0].path[0] != 0 {
            return Err(Unsupported::Operation("volumes on several devices").into());
        }
        let geometry = geometry(&raw, features)?;
        let available = device_bytes >> geometry.block_size.shift();
        if geometry.main.end.0 > available {
            let needed = geometry.main.end.0 << geometry.block_size.shift();
            let problem = Problem::Truncated { needed, available: device_bytes };
            return Err(Error::corrupt("volume", Location::default(), problem));
        }
        let label: Vec<u16> =
            raw.label.iter().map(|unit| unit.get()).take_while(|unit| *unit != 0).collect();
        let quota_inodes = raw.quota_inodes.map(|number| match number.get() {
            0 => None,
            number => Some(InodeNumber(number.into())),
        });
        Ok(Self {
            label: String::from_utf16_lossy(&label).into_bytes(),
            encoding: encoding(&raw, features)?,
            quota_inodes,
            damage: None,
            geometry,
            raw,
        })
    }

    pub(crate) fn raw(&self) -> &RawSuperblock {
        &self.raw
    }
}

fn fault(problem: Problem) -> Error {
    Error::corrupt(STRUCTURE, Location::byte(OFFSET_IN_BLOCK), problem)
}

fn verify_checksum(raw: &RawSuperblock) -> Result<()> {
    let (offset, expected) =
        (raw.checksum_offset.get(), std::mem::offset_of!(RawSuperblock, checksum));
    if offset as usize != expected {
        let (found, expected) = (offset.into(), expected as u64);
        return Err(fault(Problem::Mismatch { field: "checksum offset", found, expected }));
    }
    let stored = raw.checksum.get();
    let computed = crc32_le(MAGIC, &raw.as_bytes()[..expected]);
    if stored != computed {
        return Err(fault(Problem::Checksum { stored, computed }));
    }
    Ok(())
}

fn encoding(raw: &RawSuperblock, features: Features) -> Result<Option<Encoding>> {
    if !features.has(Feature::Casefold) {
        return Ok(None);
    }
    let found = raw.encoding.get();
    if found != ENCODING_UTF8 {
        return Err(fault(Problem::Invalid { field: "encoding", found: found.into() }));
    }
    let flags = raw.encoding_flags.get();
    Ok(Some(Encoding {
        is_strict: flags & ENCODING_STRICT != 0,
        is_hash_only: flags & ENCODING_NO_LINEAR_SEARCH != 0,
    }))
}

fn in_range(field: &'static str, found: u32, range: Range<u32>) -> Result<()> {
    if range.contains(&found) {
        return Ok(());
    }
    let (min, max) = (range.start.into(), u64::from(range.end).saturating_sub(1));
    Err(fault(Problem::Range { field, found: found.into(), min, max }))
}

fn equal(field: &'static str, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(fault(Problem::Mismatch { field, found, expected }))
}

fn geometry(raw: &RawSuperblock, features: Features) -> Result<Geometry> {
    let shift = raw.log_block_size.get();
    if !BLOCK_SHIFTS.contains(&shift) {
        return Err(fault(Problem::Invalid { field: "block size exponent", found: shift.into() }));
    }
    let block_size = BlockSize::from_shift(shift).ok_or_else(|| {
        fault(Problem::Invalid { field: "block size exponent", found: shift.into() })
    })?;
    let segment_shift = raw.log_blocks_per_segment.get();
    equal("segment size exponent", segment_shift.into(), SEGMENT_SHIFT.into())?;
    let sector_shift = raw.log_sector_size.get();
    in_range("sector size exponent", sector_shift, SECTOR_SHIFT_MIN..shift + 1)?;
    let per_block = u64::from(raw.log_sectors_per_block.get());
    equal("sectors per block exponent", per_block, (shift - sector_shift).into())?;
    let numbers = [&raw.node_inode, &raw.meta_inode, &raw.root_inode].map(|number| number.get());
    for (found, expected) in numbers.into_iter().zip(FIXED_INODES) {
        equal("fixed inode number", found.into(), expected.into())?;
    }
    let payload = raw.checkpoint_payload.get();
    in_range("checkpoint payload", payload, 0..PAYLOAD_MAX + 1)?;
    let main_segments = raw.segment_count_main.get();
    in_range(
        "segments per section",
        raw.segments_per_section.get(),
        1..main_segments.saturating_add(1),
    )?;
    in_range("sections per zone", raw.sections_per_zone.get(), 1..main_segments.saturating_add(1))?;
    in_range("checkpoint segments", raw.segment_count_checkpoint.get(), 2..3)?;
    let sit_segments = raw.segment_count_sit.get();
    let nat_segments = raw.segment_count_nat.get();
    for (field, segments) in [("SIT segments", sit_segments), ("NAT segments", nat_segments)] {
        in_range(field, segments, 2..u32::MAX)?;
        equal("odd number of table segments", u64::from(segments % 2), 0)?;
    }
    equal("segment 0", raw.segment0_block.get().into(), raw.checkpoint_block.get().into())?;

    // Each area begins where the one before it ends. No sum overflows: there are six numbers of 32
    // bits each.
    let mut end = u64::from(raw.checkpoint_block.get());
    let mut area = |field, start: u32, segments: u32| {
        equal(field, start.into(), end)?;
        let start = end;
        end += u64::from(segments) * SEGMENT_BLOCKS;
        Ok::<_, Error>(FsBlock(start)..FsBlock(end))
    };
    let checkpoint = area("checkpoint area", raw.checkpoint_block.get(), 2)?;
    let sit = area("SIT area", raw.sit_block.get(), sit_segments)?;
    let nat = area("NAT area", raw.nat_block.get(), nat_segments)?;
    let ssa = area("SSA area", raw.ssa_block.get(), raw.segment_count_ssa.get())?;
    let main = area("main area", raw.main_block.get(), main_segments)?;
    // Addresses have 32 bits, and the two largest ones have other meanings.
    let block_count = raw.block_count.get();
    if block_count > BLOCKS_MAX {
        let (field, found) = ("block count", block_count);
        return Err(fault(Problem::Range { field, found, min: 1, max: BLOCKS_MAX }));
    }
    let most = block_count.min((u32::MAX - 2).into());
    if main.end.0 > most || main_segments == 0 {
        let (found, min) = (main.end.0, main.start.0 + 1);
        return Err(fault(Problem::Range { field: "end of main area", found, min, max: most }));
    }
    Ok(Geometry {
        block_size,
        block_count,
        segments_per_section: raw.segments_per_section.get(),
        sections_per_zone: raw.sections_per_zone.get(),
        checkpoint: checkpoint.start,
        checkpoint_payload: payload,
        sit,
        nat,
        ssa,
        main,
        features,
        uuid: raw.uuid,
        root: InodeNumber(raw.root_inode.get().into()),
    })
}
