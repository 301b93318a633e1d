//! The master boot record, and the chains of extended boot records with logical partitions. Layout:
//! the record's last two bytes are 55 AA; the four entries of 16 bytes before them are the
//! partitions.

use base::{DeviceOffset, Error, Location, Problem, Result};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{Partition, PartitionTable, SectorSize, TableKind};
use crate::BlockDevice;

/// The size of a record, which does not depend on the sector's.
const RECORD_BYTES: u64 = 512;
/// The offset of the entries in a record.
const ENTRIES_AT: u64 = 446;
const ENTRY_BYTES: u64 = 16;
/// The maximum number of records in a chain. The host stops at 256 partitions.
const CHAIN_MAX: u32 = 256;
/// The type of the entry that covers a GPT disk for software that does not know GPT.
const KIND_PROTECTIVE: u8 = 0xEE;

/// A partition entry.
#[repr(C)]
#[derive(FromBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
struct RawEntry {
    /// 0x80 if the partition is bootable, else 0.
    boot: u8,
    /// The first sector as cylinder, head and sector; not used.
    _first_chs: [u8; 3],
    /// The type of the partition; 0 if the entry is not in use.
    kind: u8,
    /// The last sector as cylinder, head and sector; not used.
    _last_chs: [u8; 3],
    /// The first sector.
    start: U32,
    /// The number of sectors.
    sectors: U32,
}
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES as usize);

impl RawEntry {
    fn is_used(&self) -> bool {
        self.kind != 0 && self.sectors != 0
    }

    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }

    fn has_data(&self) -> bool {
        self.is_used() && !self.is_extended()
    }

    fn start(&self) -> u64 {
        self.start.get().into()
    }

    fn sectors(&self) -> u64 {
        self.sectors.get().into()
    }

    fn end(&self) -> u64 {
        self.start() + self.sectors()
    }
}

/// The boot record of the image, or an extended boot record.
pub(super) struct BootRecord {
    at: DeviceOffset,
    entries: [RawEntry; 4],
}

/// Returns the record of the image, if there is one. A file system's boot sector has the same mark,
/// but code in place of the entries.
pub(super) fn read(device: &dyn BlockDevice) -> Result<Option<BootRecord>> {
    let record = BootRecord::read(device, DeviceOffset(0))?;
    let plausible = |record: &BootRecord| record.entries.iter().all(|entry| entry.boot & 0x7F == 0);
    Ok(record.filter(plausible))
}

impl BootRecord {
    fn read(device: &dyn BlockDevice, at: DeviceOffset) -> Result<Option<Self>> {
        if at.checked_add(RECORD_BYTES).is_none_or(|end| end.0 > device.size()) {
            return Ok(None);
        }
        let mut bytes = [0; RECORD_BYTES as usize];
        device.read_at(at, &mut bytes)?;
        let (entries, mark) = bytes.split_at(RECORD_BYTES as usize - 2);
        let entries = <[RawEntry; 4]>::read_from_suffix(entries).ok();
        Ok(entries.filter(|_| mark == [0x55, 0xAA]).map(|(_, entries)| Self { at, entries }))
    }

    /// Returns whether the record only announces a GPT.
    pub(super) fn protects_gpt(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == KIND_PROTECTIVE)
    }

    /// Returns the partitions of the record and of its chains of extended records.
    pub(super) fn partitions(
        &self,
        device: &dyn BlockDevice,
        sector_size: Option<SectorSize>,
    ) -> Result<PartitionTable> {
        let sector_size = match sector_size {
            Some(size) => size,
            None => self.guess_sector_size(device)?,
        };
        let mut partitions = Vec::new();
        for (slot, entry) in self.entries.iter().enumerate() {
            if entry.has_data() {
                partitions.push(self.partition(slot, 1 + slot as u32, 0));
            }
        }
        let mut number = 5;
        let mut damage = None;
        for (slot, entry) in self.entries.iter().enumerate() {
            if entry.is_used() && entry.is_extended() {
                let chain = Chain { device, sector_size, extended: *entry };
                match chain.follow(self.entry_at(slot), &mut number, &mut partitions) {
                    // What was found before it can be used.
                    Err(error @ Error::Corrupt(_)) => damage = damage.or(Some(error)),
                    followed => followed?,
                }
            }
        }
        Ok(PartitionTable { kind: TableKind::Mbr, sector_size, partitions, damage })
    }

    /// Returns 4096 if the record of an extended partition is found with this sector size and not
    /// with 512. Otherwise returns 512.
    fn guess_sector_size(&self, device: &dyn BlockDevice) -> Result<SectorSize> {
        for entry in self.entries.iter().filter(|entry| entry.is_used() && entry.is_extended()) {
            for size in SectorSize::ALL {
                let at = DeviceOffset(entry.start() * size.bytes());
                if Self::read(device, at)?.is_some() {
                    return Ok(size);
                }
            }
        }
        Ok(SectorSize::B512)
    }

    fn partition(&self, slot: usize, number: u32, base_sector: u64) -> Partition {
        let entry = self.entries[slot];
        Partition {
            number,
            // Does not overflow: the sum of at most three numbers of 32 bits.
            first_sector: base_sector + entry.start(),
            sectors: entry.sectors(),
            name: String::new(),
            entry: self.entry_at(slot),
        }
    }

    fn entry_at(&self, slot: usize) -> DeviceOffset {
        DeviceOffset(self.at.0 + ENTRIES_AT + slot as u64 * ENTRY_BYTES)
    }
}

/// The chain of records in one extended partition. Each record has an entry for a logical
/// partition, whose sectors count from the record, and an entry for the next record, whose sectors
/// count from the chain's start.
struct Chain<'a> {
    device: &'a dyn BlockDevice,
    sector_size: SectorSize,
    extended: RawEntry,
}

impl Chain<'_> {
    /// Adds the logical partitions of all records. `reference` is the offset of the entry for the
    /// first record.
    fn follow(
        &self,
        mut reference: DeviceOffset,
        number: &mut u32,
        partitions: &mut Vec<Partition>,
    ) -> Result<()> {
        let mut sector = self.extended.start();
        let mut visited = Vec::new();
        for link in 0..CHAIN_MAX {
            if visited.contains(&sector) {
                return Err(corrupt(reference, Problem::Cycle));
            }
            visited.push(sector);
            let at = DeviceOffset(sector * self.sector_size.bytes());
            let Some(record) = BootRecord::read(self.device, at)? else {
                // An empty extended partition need not have a record.
                return if link == 0 { Ok(()) } else { Err(missing(reference)) };
            };
            for slot in 0..4 {
                if self.is_logical(&record, slot, sector) {
                    partitions.push(record.partition(slot, *number, sector));
                    *number += 1;
                }
            }
            let next = record.entries.iter().position(|one| one.is_used() && one.is_extended());
            let Some(slot) = next else { return Ok(()) };
            reference = record.entry_at(slot);
            sector = self.extended.start() + record.entries[slot].start();
        }
        let (field, found) = ("number of extended boot records", u64::from(CHAIN_MAX) + 1);
        let problem = Problem::Range { field, found, min: 0, max: CHAIN_MAX.into() };
        Err(corrupt(reference, problem))
    }

    /// Returns whether the slot has a logical partition. The format does not use the last two
    /// slots, which may contain anything. The host accepts them only if they are plausible. This
    /// function does the same, so that partitions get the same numbers.
    fn is_logical(&self, record: &BootRecord, slot: usize, sector: u64) -> bool {
        let entry = record.entries[slot];
        let inside = || sector + entry.end() <= self.extended.end() && entry.start() > 0;
        entry.has_data() && (slot < 2 || inside())
    }
}

fn missing(reference: DeviceOffset) -> Error {
    corrupt(reference, Problem::Missing("the record that the previous one refers to"))
}

fn corrupt(reference: DeviceOffset, problem: Problem) -> Error {
    Error::corrupt("extended boot record", Location::byte(reference.0), problem)
}
