//! Partition tables of disk images. Not here: the two kinds of table (`gpt`, `mbr`).
//!
//! No other crate is used to parse them, since images are not trusted: `gpt` 4.1 asserts the entry
//! size and allocates memory for an unchecked count, and `mbrman` 0.6 adds sector numbers without
//! checks, follows chains of any length and depends on an abandoned serializer.

mod gpt;
mod mbr;

use std::ops::Range;

use base::{DeviceOffset, Error, Location, Problem, Result, Unsupported};

use crate::{BlockDevice, SharedDevice, Slice};

/// The sector size, which is the unit of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectorSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl SectorSize {
    /// Both sizes, the usual one first.
    pub const ALL: [Self; 2] = [Self::B512, Self::B4096];

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

/// The kind of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableKind {
    /// A GUID partition table.
    Gpt,
    /// A master boot record, with extended boot records for logical partitions.
    Mbr,
}

impl TableKind {
    /// Returns the usual name: "GPT" or "MBR".
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt => "GPT",
            Self::Mbr => "MBR",
        }
    }
}

/// An entry of a table. Its range may be outside the image, until it is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// The number that the host uses: from 1 for GPT entries, 1 to 4 for MBR entries, from 5 for
    /// logical partitions.
    pub number: u32,
    /// The first sector.
    pub first_sector: u64,
    /// The number of sectors.
    pub sectors: u64,
    /// The name in a GPT entry. Empty in an MBR.
    pub name: String,
    /// The offset of the entry in the image.
    entry: DeviceOffset,
}

/// The partition table of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionTable {
    /// The kind.
    pub kind: TableKind,
    /// The sector size.
    pub sector_size: SectorSize,
    /// The partitions in use, in ascending order of their numbers.
    pub partitions: Vec<Partition>,
    /// Damage, because of which partitions may be missing, or the backup of a table was read.
    pub damage: Option<Error>,
}

impl PartitionTable {
    /// Reads the table of `device`. If `sector_size` is `None`, tries both. A GPT header is at a
    /// different offset for each size. For an MBR, the size is 512 bytes, unless its extended
    /// partitions are found only with 4096.
    pub fn read(device: &dyn BlockDevice, sector_size: Option<SectorSize>) -> Result<Self> {
        let record = mbr::read(device)?;
        if record.as_ref().is_none_or(mbr::BootRecord::protects_gpt) {
            let sizes = sector_size.as_ref().map_or(&SectorSize::ALL[..], std::slice::from_ref);
            let announced = record.is_some();
            match gpt::read(device, sizes) {
                Ok(Some(table)) => return Ok(table),
                Ok(None) if announced => return Err(gpt::missing()),
                Err(error) if announced => return Err(error),
                // Without a record that announces a GPT, ignore bytes that resemble one.
                _ => {}
            }
        }
        match record {
            Some(record) => record.partitions(device, sector_size),
            None => Err(Error::Unsupported(Unsupported::PartitionTable)),
        }
    }

    /// Opens partition `number` of `device`, from which this table was read.
    pub fn open(&self, device: SharedDevice, number: u32) -> Result<Slice> {
        let range = self.range(&*device, number)?;
        let part = Slice::new(device, DeviceOffset(range.start), range.end - range.start)?;
        Ok(part.found_despite(self.damage.clone()))
    }

    /// Returns the bytes of partition `number` of `device`, from which this table was read.
    fn range(&self, device: &dyn BlockDevice, number: u32) -> Result<Range<u64>> {
        let partition = self
            .partitions
            .iter()
            .find(|partition| partition.number == number)
            .ok_or_else(|| self.no_partition(number))?;
        let unit = self.sector_size.bytes();
        let sectors_max = device.size() / unit;
        let end = partition.first_sector.checked_add(partition.sectors);
        match end {
            // Neither product overflows: both are at most the device's size.
            Some(end) if end <= sectors_max => Ok(partition.first_sector * unit..end * unit),
            _ => Err(Error::corrupt(
                "partition entry",
                Location::byte(partition.entry.0),
                Problem::Range {
                    field: "last sector",
                    found: end.unwrap_or(u64::MAX).saturating_sub(1),
                    min: 0,
                    max: sectors_max.saturating_sub(1),
                },
            )),
        }
    }

    /// Opens what `device` has of partition `number`, if that is more than nothing.
    pub fn open_present(&self, device: SharedDevice, number: u32) -> Option<Slice> {
        let range = self.present_range(&*device, number)?;
        let part = Slice::new(device, DeviceOffset(range.start), range.end - range.start).ok()?;
        Some(part.found_despite(self.damage.clone()))
    }

    /// Returns the bytes of partition `number` that `device` has, if that has the first one of
    /// them.
    fn present_range(&self, device: &dyn BlockDevice, number: u32) -> Option<Range<u64>> {
        let partition = self.partitions.iter().find(|partition| partition.number == number)?;
        let unit = self.sector_size.bytes();
        let start = partition.first_sector.checked_mul(unit)?;
        let length = partition.sectors.checked_mul(unit)?;
        let end = start.checked_add(length)?.min(device.size());
        (start < end).then_some(start..end)
    }

    /// Returns whether a partition begins in the first `bytes` of the image.
    pub(crate) fn has_partition_in(&self, bytes: u64) -> bool {
        let sectors = bytes / self.sector_size.bytes();
        self.partitions.iter().any(|partition| partition.first_sector < sectors)
    }

    /// Returns the numbers of the partitions for a message, such as "1, 2, 5", or "none".
    pub(crate) fn numbers(&self) -> String {
        /// The maximum number of partitions in the message. A table may have tens of thousands.
        const NAMED_MAX: usize = 32;
        let named = self.partitions.iter().take(NAMED_MAX);
        let mut numbers = named.map(|one| one.number.to_string()).collect::<Vec<_>>().join(", ");
        if numbers.is_empty() {
            numbers.push_str("none");
        } else if self.partitions.len() > NAMED_MAX {
            numbers.push_str(", …");
        }
        numbers
    }

    fn no_partition(&self, number: u32) -> Error {
        if let Some(damage) = &self.damage {
            return damage.clone();
        }
        Error::NoPartition { number, table: self.kind.name(), existing: self.numbers() }
    }
}
