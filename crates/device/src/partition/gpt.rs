//! The GUID partition table. Source of layout and rules: UEFI specification, chapter 5.

use base::checksum::crc32_le;
use base::{DeviceOffset, Error, Location, Problem, Result};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{Partition, PartitionTable, SectorSize, TableKind};
use crate::BlockDevice;

/// "EFI PART", in the byte order of the disk.
const MAGIC: u64 = u64::from_le_bytes(*b"EFI PART");
/// The maximum size of all entries, in bytes: 32768 entries of the usual size.
const ENTRIES_BYTES_MAX: u64 = 4 << 20;
const HEADER: &str = "GPT header";

/// The header, in the second sector and, as a backup, in the last one.
#[repr(C)]
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
struct RawHeader {
    /// "EFI PART".
    magic: U64,
    /// 0x00010000.
    _revision: U32,
    /// The size of this header in bytes, from 92 to the sector's.
    header_bytes: U32,
    /// CRC-32 of the header's bytes with this field zero.
    checksum: U32,
    _reserved: U32,
    /// The sector of this header.
    sector: U64,
    /// The sector of the other header.
    _other_sector: U64,
    /// The first sector that partitions may use.
    _first_usable: U64,
    /// The last sector that partitions may use.
    _last_usable: U64,
    /// The disk's identity.
    _disk: [u8; 16],
    /// The first sector of the entries.
    entries_sector: U64,
    /// The number of entries, used or not.
    entries: U32,
    /// The size of an entry in bytes: 128 times a power of two.
    entry_bytes: U32,
    /// CRC-32 of all entries.
    entries_checksum: U32,
}
const _: () = assert!(size_of::<RawHeader>() == 92);

/// An entry. Entries may be longer; the rest is zero.
#[repr(C)]
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
struct RawEntry {
    /// The type of the partition; zero if the entry is not in use.
    kind: [u8; 16],
    /// The partition's identity.
    _identity: [u8; 16],
    /// The first sector.
    first: U64,
    /// The last sector, inclusive.
    last: U64,
    _flags: U64,
    /// UTF-16, zero-terminated unless full.
    name: [U16; 36],
}
const _: () = assert!(size_of::<RawEntry>() == 128);

/// Returns the table, or `None` if there is no header for any of the sector `sizes`. Uses the
/// backup if the first header or its entries are damaged.
pub(super) fn read(
    device: &dyn BlockDevice,
    sizes: &[SectorSize],
) -> Result<Option<PartitionTable>> {
    let mut damage = None;
    for &size in sizes {
        let last = (device.size() / size.bytes()).saturating_sub(1);
        for sector in [1, last] {
            match (Candidate { device, size, sector }).read() {
                Ok(None) => {}
                Ok(Some((partitions, entry_damage))) => {
                    // Of the first header, if this is the backup.
                    let damage = damage.or_else(|| (sector > 1).then(missing)).or(entry_damage);
                    let kind = TableKind::Gpt;
                    return Ok(Some(PartitionTable {
                        kind,
                        sector_size: size,
                        partitions,
                        damage,
                    }));
                }
                Err(error) => damage = damage.or(Some(error)),
            }
        }
    }
    damage.map_or(Ok(None), Err)
}

/// Returns the error for a boot record that announces a table which does not exist.
pub(super) fn missing() -> Error {
    Error::corrupt(
        HEADER,
        Location::byte(512),
        Problem::Missing("the table that the MBR refers to"),
    )
}

/// A sector that may contain a header.
struct Candidate<'a> {
    device: &'a dyn BlockDevice,
    size: SectorSize,
    sector: u64,
}

impl Candidate<'_> {
    /// Returns the partitions, and the first damage to an entry. `None` if there is no header.
    fn read(&self) -> Result<Option<(Vec<Partition>, Option<Error>)>> {
        if self.sector == 0 || self.sector >= self.device.size() / self.size.bytes() {
            return Ok(None);
        }
        let mut bytes = vec![0; self.size.bytes() as usize];
        self.device.read_at(DeviceOffset(self.offset()), &mut bytes)?;
        let header = base::view::view_at::<RawHeader>(&bytes, 0, HEADER, Location::default())?;
        if header.magic != MAGIC {
            return Ok(None);
        }
        self.verify(header, &bytes)?;
        self.read_entries(header).map(Some)
    }

    /// Returns the offset of the sector.
    fn offset(&self) -> u64 {
        self.sector * self.size.bytes()
    }

    fn corrupt(&self, problem: Problem) -> Error {
        Error::corrupt(HEADER, Location::byte(self.offset()), problem)
    }

    fn verify(&self, header: &RawHeader, bytes: &[u8]) -> Result<()> {
        let (min, max) = (size_of::<RawHeader>() as u64, self.size.bytes());
        let found = u64::from(header.header_bytes.get());
        let covered = bytes.get(..found as usize).filter(|_| found >= min);
        let field = "header size";
        let covered =
            covered.ok_or_else(|| self.corrupt(Problem::Range { field, found, min, max }))?;
        let (before, after) = (&covered[..16], &covered[20..]);
        let computed = crc32_le(crc32_le(crc32_le(!0, before), &[0; 4]), after);
        self.verify_checksum(header.checksum, !computed)?;
        if header.sector != self.sector {
            let (found, expected) = (header.sector.get(), self.sector);
            return Err(self.corrupt(Problem::Mismatch { field: "own sector", found, expected }));
        }
        Ok(())
    }

    fn verify_checksum(&self, stored: U32, computed: u32) -> Result<()> {
        let stored = stored.get();
        if stored == computed {
            return Ok(());
        }
        Err(self.corrupt(Problem::Checksum { stored, computed }))
    }

    fn read_entries(&self, header: &RawHeader) -> Result<(Vec<Partition>, Option<Error>)> {
        let entry_bytes = header.entry_bytes.get();
        if entry_bytes < 128 || !entry_bytes.is_power_of_two() {
            let found = entry_bytes.into();
            return Err(self.corrupt(Problem::Invalid { field: "entry size", found }));
        }
        let length = u64::from(header.entries.get()) * u64::from(entry_bytes);
        if length > ENTRIES_BYTES_MAX {
            let (field, max) = ("size of all entries", ENTRIES_BYTES_MAX);
            return Err(self.corrupt(Problem::Range { field, found: length, min: 0, max }));
        }
        let found = header.entries_sector.get();
        let max = self.device.size().saturating_sub(length) / self.size.bytes();
        if length > self.device.size() || found > max {
            let field = "first sector of the entries";
            return Err(self.corrupt(Problem::Range { field, found, min: 2, max }));
        }
        let at = found * self.size.bytes();
        let mut bytes = vec![0; length as usize];
        self.device.read_at(DeviceOffset(at), &mut bytes)?;
        self.verify_checksum(header.entries_checksum, !crc32_le(!0, &bytes))?;
        let entries = bytes.chunks_exact(entry_bytes as usize).zip(1..).zip(0..);
        let (mut partitions, mut damage) = (Vec::new(), None);
        for ((bytes, number), index) in entries {
            let entry = DeviceOffset(at + index * u64::from(entry_bytes));
            match parse_entry(bytes, number, entry) {
                Ok(partition) => partitions.extend(partition),
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        Ok((partitions, damage))
    }
}

fn parse_entry(bytes: &[u8], number: u32, at: DeviceOffset) -> Result<Option<Partition>> {
    let location = Location::byte(at.0);
    let raw = base::view::view_at::<RawEntry>(bytes, 0, "GPT entry", location)?;
    if raw.kind == [0; 16] {
        return Ok(None);
    }
    let (first, last) = (raw.first.get(), raw.last.get());
    let sectors = last.checked_sub(first).and_then(|distance| distance.checked_add(1));
    let sectors = sectors.ok_or_else(|| {
        let problem =
            Problem::Range { field: "last sector", found: last, min: first, max: u64::MAX - 1 };
        Error::corrupt("GPT entry", location, problem)
    })?;
    let name: Vec<u16> = raw.name.iter().map(|unit| unit.get()).take_while(|&u| u != 0).collect();
    let name = String::from_utf16_lossy(&name);
    Ok(Some(Partition { number, first_sector: first, sectors, name, entry: at }))
}
