//! Checkpoint packs: the valid one with the later version, its version bitmaps, journals and
//! orphans.

mod end;

use std::collections::BTreeMap;

use base::checksum::crc32_le;
use base::view::view_at;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};
use device::SharedDevice;
use zerocopy::FromBytes;

use crate::geometry::{Geometry, SEGMENT_BLOCKS, WORD_BYTES};
use crate::ondisk::checkpoint::{
    COMPACT_SUMMARIES, LARGE_NAT_BITMAP, ORPHANS, RawCheckpoint, RawOrphanFooter,
};
use crate::ondisk::nat::{RawNatEntry, RawNatJournalEntry};
use crate::ondisk::summary::{RawSummary, RawSummaryFooter};
use crate::superblock::MAGIC;

use self::end::End;

const STRUCTURE: &str = "checkpoint";
/// Bytes of a CRC.
const CRC_BYTES: usize = 4;
/// The least number of blocks in a pack: its first and last block, and a data summary.
const PACK_BLOCKS_MIN: u64 = 3;

/// A valid checkpoint pack.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The fixed part of the first block.
    pub raw: RawCheckpoint,
    /// The CRC of the first block.
    pub checksum: u32,
    /// The pack's first block.
    pub start: FsBlock,
    /// Bit of each block of the segment information table: whether its second copy counts.
    pub sit_versions: VersionBitmap,
    /// Bit of each block of the node address table: whether its second copy counts.
    pub nat_versions: VersionBitmap,
    /// Entries that override those of the node address table.
    pub nat_journal: BTreeMap<u32, RawNatEntry>,
    /// Inodes without a name, which were open at the time of the checkpoint.
    pub orphans: Vec<InodeNumber>,
    /// Why there may be more of them. Reading needs none.
    pub orphan_damage: Option<Error>,
    /// The problem of the other pack, if it has one.
    pub damage: Option<Error>,
    /// Whether the other pack, which has the problem, was complete, and is the later one: no power
    /// cut leaves that.
    pub is_later_lost: bool,
    /// The problem of the first block of this pack, in whose place its copy, the last block, is
    /// used. Linux uses the other pack instead, which is older.
    pub first_block_damage: Option<Error>,
}

impl Checkpoint {
    /// Reads the valid pack with the later version. A pack without a valid first block is valid if
    /// its last block shows that it was complete, and the later one. Errors: those of the first
    /// pack, if none is valid.
    pub fn read(device: &SharedDevice, geometry: &Geometry) -> Result<Self> {
        let starts = [0, SEGMENT_BLOCKS].map(|more| FsBlock(geometry.checkpoint.0 + more));
        let (pack, other, error) = match starts.map(|start| Pack::read(device, geometry, start)) {
            [Ok(first), Ok(second)] => {
                let distance = second.version().wrapping_sub(first.version());
                let pack = if distance as i64 > 0 { second } else { first };
                return pack.load(device, geometry);
            }
            [Ok(pack), Err(error)] => (pack, starts[1], error),
            [Err(error), Ok(pack)] => (pack, starts[0], error),
            [Err(error), Err(_)] => return Err(error),
        };
        let version = pack.version().wrapping_add(1);
        let is_later_lost = match end::of_invalid(device, geometry, other, version) {
            End::Torn => false,
            End::Lost => true,
            End::Copied(later) => match later.load(device, geometry) {
                Ok(checkpoint) => {
                    return Ok(Self { first_block_damage: Some(error), ..checkpoint });
                }
                Err(_) => true,
            },
        };
        Ok(Self { damage: Some(error), is_later_lost, ..pack.load(device, geometry)? })
    }

    /// Reads the pack with this version, which was just written. Errors: also those of reading it,
    /// in whose case [`read`](Self::read) returns the other pack.
    pub(crate) fn read_written(
        device: &SharedDevice,
        geometry: &Geometry,
        version: u64,
    ) -> Result<Self> {
        let checkpoint = Self::read(device, geometry)?;
        if let Some(error) = checkpoint.first_block_damage {
            return Err(error);
        }
        let found = checkpoint.raw.version.get();
        if found == version {
            return Ok(checkpoint);
        }
        let problem = Problem::Mismatch { field: "version", found, expected: version };
        let mismatch = Error::corrupt(STRUCTURE, Location::block(checkpoint.start), problem);
        Err(checkpoint.damage.unwrap_or(mismatch))
    }

    /// Checks that the device could read both packs. Otherwise the one that was not read may be the
    /// later one: files of the other one may have other files' data, and writing would destroy the
    /// later one. Errors: those of reading.
    pub(crate) fn check_reads(&self) -> Result<()> {
        match &self.damage {
            Some(error @ Error::Io(_)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Checks that no later checkpoint was lost. The next one would take the place of its rest, and
    /// its changes may be in blocks that this one refers to. Errors: `Corrupt`.
    pub(crate) fn check_later(&self) -> Result<()> {
        match &self.damage {
            Some(Error::Corrupt(corrupt)) if self.is_later_lost => {
                let location = corrupt.location;
                Err(Error::corrupt("later checkpoint", location, corrupt.problem.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Writes the damaged first block of the pack again, from its copy, before the other pack is
    /// overwritten. Does nothing if the block is not damaged.
    pub(crate) fn restore_first_block(
        &self,
        device: &SharedDevice,
        geometry: &Geometry,
    ) -> Result<()> {
        if self.first_block_damage.is_none() {
            return Ok(());
        }
        let end = FsBlock(self.start.0 + u64::from(self.raw.pack_blocks.get()) - 1);
        let (_, _, block) = read_header(device, geometry, end)?;
        device.write_at(geometry.device_offset(self.start), &block)?;
        device.flush()
    }

    /// Checks the counts that changes refer to: there are not more blocks in use than users can
    /// have, and not more of these than there are. Errors: `Corrupt`.
    pub(crate) fn check_counts(&self, geometry: &Geometry) -> Result<()> {
        let raw = &self.raw;
        let user_blocks = raw.user_block_count.get();
        let main_blocks = geometry.main.end.0 - geometry.main.start.0;
        let nodes = u64::from(raw.valid_nodes.get());
        for (field, found, max) in [
            ("user blocks", user_blocks, main_blocks),
            ("blocks in use", raw.valid_block_count.get(), user_blocks),
            ("nodes in use", nodes, geometry.nid_count()),
            ("inodes in use", raw.valid_inodes.get().into(), nodes),
        ] {
            if found > max {
                let problem = Problem::Range { field, found, min: 0, max };
                return Err(Error::corrupt(STRUCTURE, Location::block(self.start), problem));
            }
        }
        Ok(())
    }

    /// Checks that the checksum is not among the version bits: the next checkpoint would have wrong
    /// ones. Errors: `Corrupt`.
    pub(crate) fn check_checksum(&self, geometry: &Geometry) -> Result<()> {
        let lengths = [&self.sit_versions, &self.nat_versions].map(|versions| versions.0.len());
        let places = bitmap_places(&self.raw, geometry, lengths);
        let offset = self.raw.checksum_offset.get() as usize;
        let is_among =
            |(at, length): (usize, usize)| at < offset + CRC_BYTES && offset < at + length;
        if places.into_iter().zip(lengths).any(is_among) {
            let problem = Problem::Invalid { field: "checksum offset", found: offset as u64 };
            return Err(Error::corrupt(STRUCTURE, Location::block(self.start), problem));
        }
        Ok(())
    }

    /// Returns whether a flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.raw.flags.get() & flag != 0
    }
}

/// A bit for each block of a table. The most significant bit of a byte comes first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionBitmap(Vec<u8>);

impl VersionBitmap {
    /// Returns whether the second copy of `block` counts. The table has this block.
    pub fn is_second(&self, block: u64) -> bool {
        let byte = self.0.get((block / 8) as usize).copied().unwrap_or_default();
        byte & (0x80 >> (block % 8)) != 0
    }

    /// Returns the one of both copies of `block` that counts.
    pub(crate) fn current(&self, block: u64, copies: [FsBlock; 2]) -> FsBlock {
        copies[usize::from(self.is_second(block))]
    }

    /// Makes the other copy of `block` count. The table has this block.
    pub(crate) fn flip(&mut self, block: u64) {
        self.0[(block / 8) as usize] ^= 0x80 >> (block % 8);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A pack whose first and last block agree.
struct Pack {
    start: FsBlock,
    raw: RawCheckpoint,
    checksum: u32,
    /// The first block.
    header: Vec<u8>,
}

impl Pack {
    fn read(device: &SharedDevice, geometry: &Geometry, start: FsBlock) -> Result<Self> {
        let (raw, checksum, header) = read_header(device, geometry, start)?;
        let blocks = u64::from(raw.pack_blocks.get());
        if !(PACK_BLOCKS_MIN..=SEGMENT_BLOCKS).contains(&blocks) {
            let (field, min, max) = ("pack blocks", PACK_BLOCKS_MIN, SEGMENT_BLOCKS);
            let problem = Problem::Range { field, found: blocks, min, max };
            return Err(Error::corrupt(STRUCTURE, Location::block(start), problem));
        }
        let last = FsBlock(start.0 + blocks - 1);
        let (end, _, _) = read_header(device, geometry, last)?;
        if end.version != raw.version {
            let (found, expected) = (end.version.get(), raw.version.get());
            let problem = Problem::Mismatch { field: "version", found, expected };
            return Err(Error::corrupt(STRUCTURE, Location::block(last), problem));
        }
        Ok(Self { start, raw, checksum, header })
    }

    fn version(&self) -> u64 {
        self.raw.version.get()
    }

    fn fault(&self, problem: Problem) -> Error {
        Error::corrupt(STRUCTURE, Location::block(self.start), problem)
    }

    fn load(self, device: &SharedDevice, geometry: &Geometry) -> Result<Checkpoint> {
        let (sit_versions, nat_versions) = self.bitmaps(device, geometry)?;
        let nat_journal = self.nat_journal(device, geometry)?;
        let mut orphans = Vec::new();
        let orphan_damage = self.read_orphans(device, geometry, &mut orphans).err();
        let Self { start, raw, checksum, .. } = self;
        Ok(Checkpoint {
            raw,
            checksum,
            start,
            sit_versions,
            nat_versions,
            nat_journal,
            orphans,
            orphan_damage,
            damage: None,
            is_later_lost: false,
            first_block_damage: None,
        })
    }

    /// Returns the version bitmaps of the SIT and the NAT.
    fn bitmaps(
        &self,
        device: &SharedDevice,
        geometry: &Geometry,
    ) -> Result<(VersionBitmap, VersionBitmap)> {
        let fixed = size_of::<RawCheckpoint>();
        let is_large = self.raw.flags.get() & LARGE_NAT_BITMAP != 0;
        let checksum_offset = self.raw.checksum_offset.get();
        if is_large && checksum_offset as usize != fixed {
            let (found, expected) = (checksum_offset.into(), fixed as u64);
            let problem = Problem::Mismatch { field: "checksum offset", found, expected };
            return Err(self.fault(problem));
        }
        let sit_bytes =
            self.bitmap_bytes("SIT", &self.raw.sit_bitmap_bytes, geometry.sit_blocks())?;
        let nat_bytes =
            self.bitmap_bytes("NAT", &self.raw.nat_bitmap_bytes, geometry.nat_blocks())?;
        let payload = geometry.checkpoint_payload;
        let [sit_at, nat_at] = bitmap_places(&self.raw, geometry, [sit_bytes, nat_bytes]);
        let mut bytes = self.header.clone();
        for block in (1..).take(payload as usize) {
            bytes.extend(read_block(device, geometry, FsBlock(self.start.0 + block))?);
        }
        let bitmap = |at: usize, length: usize| {
            let available = bytes.len().saturating_sub(at) as u64;
            let bitmap = bytes.get(at..at + length).map(|bitmap| VersionBitmap(bitmap.to_vec()));
            bitmap
                .ok_or_else(|| self.fault(Problem::Truncated { needed: length as u64, available }))
        };
        Ok((bitmap(sit_at, sit_bytes)?, bitmap(nat_at, nat_bytes)?))
    }

    fn bitmap_bytes(
        &self,
        table: &'static str,
        bytes: &zerocopy::little_endian::U32,
        blocks: u64,
    ) -> Result<usize> {
        let (found, expected) = (bytes.get().into(), blocks / 8);
        if found != expected {
            let field = if table == "SIT" { "SIT bitmap bytes" } else { "NAT bitmap bytes" };
            return Err(self.fault(Problem::Mismatch { field, found, expected }));
        }
        Ok(expected as usize)
    }

    /// Returns the first data summary, or the first block of the compact form.
    fn first_summary(&self, device: &SharedDevice, geometry: &Geometry) -> Result<Vec<u8>> {
        let start = u64::from(self.raw.summary_start.get());
        let (min, max) =
            (1 + u64::from(geometry.checkpoint_payload), u64::from(self.raw.pack_blocks.get()) - 1);
        if start < min || start >= max {
            let problem =
                Problem::Range { field: "summary start", found: start, min, max: max - 1 };
            return Err(self.fault(problem));
        }
        read_block(device, geometry, FsBlock(self.start.0 + start))
    }

    fn nat_journal(
        &self,
        device: &SharedDevice,
        geometry: &Geometry,
    ) -> Result<BTreeMap<u32, RawNatEntry>> {
        const JOURNAL: &str = "NAT journal";
        let block = self.first_summary(device, geometry)?;
        let is_compact = self.raw.flags.get() & COMPACT_SUMMARIES != 0;
        let at = if is_compact { 0 } else { journal_offset(geometry) };
        let location =
            Location::block(FsBlock(self.start.0 + u64::from(self.raw.summary_start.get())));
        let count: &zerocopy::little_endian::U16 = view_at(&block, at, JOURNAL, location)?;
        let found = u64::from(count.get());
        let max =
            ((journal_bytes(geometry) - size_of::<u16>()) / size_of::<RawNatJournalEntry>()) as u64;
        if found > max {
            let problem = Problem::Range { field: "entries", found, min: 0, max };
            return Err(Error::corrupt(JOURNAL, location.at_byte(at as u64), problem));
        }
        let entries = (0..found as usize).map(|index| {
            let at = at + size_of::<u16>() + index * size_of::<RawNatJournalEntry>();
            let entry: &RawNatJournalEntry = view_at(&block, at, JOURNAL, location)?;
            Ok((entry.nid.get(), entry.entry.clone()))
        });
        entries.collect()
    }

    /// Adds the orphans of the pack to `orphans`.
    fn read_orphans(
        &self,
        device: &SharedDevice,
        geometry: &Geometry,
        orphans: &mut Vec<InodeNumber>,
    ) -> Result<()> {
        if self.raw.flags.get() & ORPHANS == 0 {
            return Ok(());
        }
        const BLOCK: &str = "orphan block";
        let first = 1 + u64::from(geometry.checkpoint_payload);
        // `first_summary` has checked the upper end.
        for number in first..u64::from(self.raw.summary_start.get()) {
            let at = FsBlock(self.start.0 + number);
            let block = read_block(device, geometry, at)?;
            let length = block.len() - size_of::<RawOrphanFooter>();
            let footer: &RawOrphanFooter = view_at(&block, length, BLOCK, Location::block(at))?;
            let (found, max) = (u64::from(footer.entries.get()), (length / WORD_BYTES) as u64);
            if found > max {
                let problem = Problem::Range { field: "entries", found, min: 0, max };
                return Err(Error::corrupt(BLOCK, Location::block(at), problem));
            }
            let numbers = block.chunks_exact(WORD_BYTES).take(found as usize);
            let numbers = numbers.filter_map(|bytes| bytes.first_chunk::<WORD_BYTES>());
            orphans.extend(numbers.map(|bytes| InodeNumber(u32::from_le_bytes(*bytes).into())));
        }
        Ok(())
    }
}

/// Returns the bytes at which the version bitmaps of the SIT and of the NAT begin, which have these
/// lengths, in the first block of a pack and those after it.
pub(crate) fn bitmap_places(
    raw: &RawCheckpoint,
    geometry: &Geometry,
    [sit, nat]: [usize; 2],
) -> [usize; 2] {
    let fixed = size_of::<RawCheckpoint>();
    let is_large = raw.flags.get() & LARGE_NAT_BITMAP != 0;
    match (is_large, geometry.checkpoint_payload) {
        (true, _) => [fixed + CRC_BYTES + nat, fixed + CRC_BYTES],
        (false, 0) => [fixed, fixed + sit],
        (false, _) => [geometry.block_size.len(), fixed],
    }
}

/// Returns the number of entries in a summary.
pub(crate) fn summary_entries(geometry: &Geometry) -> usize {
    geometry.summary_bytes() / 8
}

/// Returns the byte of the journal in a summary.
pub(crate) fn journal_offset(geometry: &Geometry) -> usize {
    summary_entries(geometry) * size_of::<RawSummary>()
}

/// Returns the size of a journal.
pub(crate) fn journal_bytes(geometry: &Geometry) -> usize {
    geometry.summary_bytes() - size_of::<RawSummaryFooter>() - journal_offset(geometry)
}

/// Reads a block of the checkpoint area.
pub(crate) fn read_block(
    device: &SharedDevice,
    geometry: &Geometry,
    block: FsBlock,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; geometry.block_size.len()];
    device.read_at(geometry.device_offset(block), &mut bytes)?;
    Ok(bytes)
}

/// Reads the first or last block of a pack and verifies its CRC. Returns the fixed part, the CRC
/// and the block.
fn read_header(
    device: &SharedDevice,
    geometry: &Geometry,
    block: FsBlock,
) -> Result<(RawCheckpoint, u32, Vec<u8>)> {
    let location = Location::block(block);
    let bytes = read_block(device, geometry, block)?;
    let (raw, _) = RawCheckpoint::read_from_prefix(&bytes).expect("a block is larger");
    let (min, max) = (size_of::<RawCheckpoint>(), bytes.len() - CRC_BYTES);
    let offset = raw.checksum_offset.get() as usize;
    if !(min..=max).contains(&offset) {
        let (found, min, max) = (offset as u64, min as u64, max as u64);
        let problem = Problem::Range { field: "checksum offset", found, min, max };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    let (before, rest) = bytes.split_at(offset);
    let (stored, after) = rest.split_at(CRC_BYTES);
    let stored = u32::from_le_bytes(stored.try_into().expect("four bytes"));
    let computed = crc32_le(crc32_le(MAGIC, before), after);
    if stored != computed {
        return Err(Error::corrupt(STRUCTURE, location, Problem::Checksum { stored, computed }));
    }
    Ok((raw, stored, bytes))
}
