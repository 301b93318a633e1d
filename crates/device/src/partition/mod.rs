//! Finds the partitions of a disk image. Not here: the two kinds of table (`gpt`, `mbr`).
//!
//! The tables are parsed here rather than by a crate because images are not trusted: `gpt` 4.1
//! asserts the entry size and sizes an allocation by an unchecked count, and `mbrman` 0.6 adds
//! sector numbers unchecked, follows a chain of any length and stands on an abandoned serializer.

mod gpt;
mod mbr;

use base::{DeviceOffset, Error, Location, Problem, Result, Unsupported};

use crate::{BlockDevice, SharedDevice, Slice};

/// The unit that a table counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectorSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl SectorSize {
    /// Both of them, the usual one first.
    pub const ALL: [Self; 2] = [Self::B512, Self::B4096];

    /// The size in bytes.
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
    /// A master boot record, with logical partitions in extended ones.
    Mbr,
}

impl TableKind {
    /// The kind's usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt => "GPT",
            Self::Mbr => "MBR",
        }
    }
}

/// One partition, as the table has it: its range may lie outside the image until it is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Its number, as the host counts: GPT entries from 1, MBR entries 1 to 4, logical ones from 5.
    pub number: u32,
    /// The first sector.
    pub first_sector: u64,
    /// The number of sectors.
    pub sectors: u64,
    /// The name that a GPT entry gives; empty otherwise.
    pub name: String,
    /// Where in the image the entry lies, in bytes.
    entry: DeviceOffset,
}

/// The partition table of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionTable {
    /// The kind.
    pub kind: TableKind,
    /// The unit it counts in.
    pub sector_size: SectorSize,
    /// The partitions in use, in ascending order of their numbers.
    pub partitions: Vec<Partition>,
}

impl PartitionTable {
    /// Reads the table of `device`. A GPT tells its sector size; an MBR does not, so that without
    /// a `sector_size` it is taken to count in 512 bytes, unless its extended partitions can only
    /// be found in units of 4096.
    pub fn read(device: &dyn BlockDevice, sector_size: Option<SectorSize>) -> Result<Self> {
        let record = mbr::read(device)?;
        if record.as_ref().is_none_or(mbr::BootRecord::protects_gpt) {
            let sizes = sector_size.as_ref().map_or(&SectorSize::ALL[..], std::slice::from_ref);
            let announced = record.is_some();
            match gpt::read(device, sizes) {
                Ok(Some(table)) => return Ok(table),
                Ok(None) if announced => return Err(gpt::missing()),
                Err(error) if announced => return Err(error),
                // Without the record that announces a GPT, bytes that resemble one are chance.
                _ => {}
            }
        }
        match record {
            Some(record) => record.partitions(device, sector_size),
            None => Err(Error::Unsupported(Unsupported::PartitionTable)),
        }
    }

    /// Opens partition `number` of `device`, which this table was read from.
    pub fn open(&self, device: SharedDevice, number: u32) -> Result<Slice> {
        let partition = self
            .partitions
            .iter()
            .find(|partition| partition.number == number)
            .ok_or_else(|| self.no_partition(number))?;
        let unit = self.sector_size.bytes();
        let sectors_max = device.size() / unit;
        let end = partition.first_sector.checked_add(partition.sectors);
        if end.is_none_or(|end| end > sectors_max) {
            return Err(Error::corrupt(
                "partition entry",
                Location::byte(partition.entry.0),
                Problem::Range {
                    field: "last sector",
                    found: end.unwrap_or(u64::MAX).saturating_sub(1),
                    min: 0,
                    max: sectors_max.saturating_sub(1),
                },
            ));
        }
        // Neither product overflows: both are at most the device's size.
        Slice::new(device, DeviceOffset(partition.first_sector * unit), partition.sectors * unit)
    }

    fn no_partition(&self, number: u32) -> Error {
        /// A table may have tens of thousands; a message should not.
        const NAMED_MAX: usize = 32;
        let named = self.partitions.iter().take(NAMED_MAX);
        let mut existing = named.map(|one| one.number.to_string()).collect::<Vec<_>>().join(", ");
        if existing.is_empty() {
            existing.push_str("none");
        } else if self.partitions.len() > NAMED_MAX {
            existing.push_str(", …");
        }
        Error::NoPartition { number, table: self.kind.name(), existing }
    }
}
