//! The segment information table: the blocks in use of each segment, and the segment's type.

use std::collections::BTreeMap;

use base::view::view_at;
use base::{Error, FsBlock, Location, Problem, Result};

use crate::core::Core;
use crate::ondisk::sit::RawSitEntry;
use crate::summaries::LOGS;

const STRUCTURE: &str = "SIT entry";
/// The bits of the number of blocks in use. The type is above them.
const COUNT_BITS: u32 = 10;
const COUNT_MASK: u16 = (1 << COUNT_BITS) - 1;

impl RawSitEntry {
    /// Returns the number of blocks in use, as stored.
    pub(crate) fn count(&self) -> u16 {
        self.valid_blocks.get() & COUNT_MASK
    }

    /// Returns the type: 0 to 2 for hot, warm and cold data, 3 to 5 for nodes.
    pub(crate) fn kind(&self) -> u16 {
        self.valid_blocks.get() >> COUNT_BITS
    }

    /// Stores the type and the number of blocks in use.
    pub(crate) fn set_use(&mut self, kind: u16, count: u16) {
        self.valid_blocks.set(kind << COUNT_BITS | count & COUNT_MASK);
    }

    /// Returns whether the map has the block at `index`.
    pub(crate) fn has(&self, index: u64) -> bool {
        let byte = self.map.get((index / 8) as usize).copied().unwrap_or_default();
        byte & bit(index) != 0
    }
}

/// Returns the bit of the block at `index` in its byte of a map.
pub(crate) fn bit(index: u64) -> u8 {
    0x80 >> (index % 8)
}

/// The entry of a segment.
#[derive(Clone, Debug)]
pub(crate) struct SegmentEntry {
    raw: RawSitEntry,
    /// The block and byte of the entry, or only its segment's first block if the entry is in the
    /// journal.
    pub(crate) location: Location,
}

impl SegmentEntry {
    /// Reads the entry of a segment of the main area. An entry in `journal` overrides that of the
    /// table. Errors: `Corrupt` if the table is too short for the segment.
    pub(crate) fn read(
        volume: &Core,
        journal: &BTreeMap<u32, RawSitEntry>,
        segment: u32,
    ) -> Result<Self> {
        let geometry = volume.geometry();
        if let Some(raw) = journal.get(&segment) {
            let location = Location::block(volume.checkpoint().start);
            return Ok(Self { raw: raw.clone(), location });
        }
        let at = Self::block(volume, segment)?;
        let byte = (segment % geometry.sit_entries_per_block()) as usize * size_of::<RawSitEntry>();
        let location = Location::block(at).at_byte(byte as u64);
        let buffer = volume.metadata().read(at, STRUCTURE, location)?;
        let raw: &RawSitEntry = view_at(&buffer, byte, STRUCTURE, location)?;
        Ok(Self { raw: raw.clone(), location })
    }

    /// Returns the block of the table with the entry of a segment. Errors: `Corrupt` if the table
    /// is too short for the segment.
    pub(crate) fn block(volume: &Core, segment: u32) -> Result<FsBlock> {
        let geometry = volume.geometry();
        let number = u64::from(segment / geometry.sit_entries_per_block());
        let max = geometry.sit_blocks().saturating_sub(1);
        if number > max {
            // The superblock's main area has more segments than the table.
            let location = Location::block(geometry.sit.start);
            let problem =
                Problem::Range { field: "block of the table", found: number, min: 0, max };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        Ok(volume.checkpoint().sit_versions.current(number, geometry.sit_copies(number)))
    }

    /// Returns the entry as it is stored.
    pub(crate) fn raw(&self) -> &RawSitEntry {
        &self.raw
    }

    /// Returns the number of blocks in use, as stored.
    pub(crate) fn count(&self) -> u16 {
        self.raw.count()
    }

    /// Checks that the map has as many blocks as are counted, and the type exists. Errors:
    /// `Corrupt`.
    pub(crate) fn check_count(&self) -> Result<()> {
        let mapped = self.map().iter().map(|word| u64::from(word.count_ones())).sum();
        let (count, kind) = (u64::from(self.count()), u64::from(self.kind()));
        let problem = if count != mapped {
            Problem::Mismatch { field: "block count", found: count, expected: mapped }
        } else if self.kind() >= 2 * LOGS as u16 {
            let max = 2 * LOGS as u64 - 1;
            Problem::Range { field: "segment type", found: kind, min: 0, max }
        } else {
            return Ok(());
        };
        Err(Error::corrupt(STRUCTURE, self.location, problem))
    }

    /// Returns the type: 0 to 2 for hot, warm and cold data, 3 to 5 for nodes.
    pub(crate) fn kind(&self) -> u16 {
        self.raw.kind()
    }

    /// Returns the map in words, with the first block in the most significant bit.
    pub(crate) fn map(&self) -> [u64; 8] {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(self.raw.map.chunks_exact(8)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        words
    }

    /// Returns whether the map has the block at `index`.
    pub(crate) fn has(&self, index: u64) -> bool {
        self.raw.has(index)
    }
}

/// Checks that as many blocks are in use as the checkpoint says: `used` is that of data and of
/// nodes. Reserved blocks count in the checkpoint only. Otherwise blocks in use may be marked as
/// free, and changes would overwrite them. Errors: `Corrupt`.
pub(crate) fn check_totals(volume: &Core, used: [u64; 2]) -> Result<()> {
    let checkpoint = volume.checkpoint();
    let (raw, [data, nodes]) = (&checkpoint.raw, used);
    let max = raw.valid_block_count.get();
    let problem = if nodes != u64::from(raw.valid_nodes.get()) {
        let (found, expected) = (raw.valid_nodes.get().into(), nodes);
        Problem::Mismatch { field: "nodes in use", found, expected }
    } else if data + nodes > max {
        Problem::Range { field: "blocks of segments in use", found: data + nodes, min: 0, max }
    } else {
        return Ok(());
    };
    Err(Error::corrupt("checkpoint", Location::block(checkpoint.start), problem))
}
