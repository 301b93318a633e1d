//! A device in memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use base::{DeviceOffset, IoOperation, Result};
use parking_lot::RwLock;

use crate::bio::range_within;
use crate::{Bio, BioOperation, BlockDevice};

/// The unit of holes, in bytes.
const HOLE_UNIT: usize = 4096;
/// The maximum number of units that one search for data visits.
const SEARCH_UNITS: usize = (1 << 20) / HOLE_UNIT;

/// A device whose contents are a vector of bytes.
pub struct MemoryDevice {
    contents: RwLock<Contents>,
    size: u64,
}

struct Contents {
    bytes: Arc<Vec<u8>>,
    /// What earlier searches have found in each unit: one of `UNKNOWN`, `HOLE` and `DATA`.
    found: Vec<AtomicU8>,
}

/// No search has visited the unit since it was written.
const UNKNOWN: u8 = 0;
/// The unit has only zeroes.
const HOLE: u8 = 1;
/// The unit has other bytes, too.
const DATA: u8 = 2;

impl Contents {
    fn new(bytes: Arc<Vec<u8>>) -> Self {
        let units = bytes.len().div_ceil(HOLE_UNIT);
        Self { bytes, found: (0..units).map(|_| AtomicU8::new(UNKNOWN)).collect() }
    }

    /// Returns bytes that will be changed.
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let units = range.start / HOLE_UNIT..range.end.div_ceil(HOLE_UNIT);
        for found in &mut self.found[units] {
            *found.get_mut() = UNKNOWN;
        }
        &mut Arc::make_mut(&mut self.bytes)[range]
    }

    fn is_hole(&self, unit: usize) -> bool {
        // The lock of the contents orders it with writes, and all searches find the same.
        let found = &self.found[unit];
        match found.load(Ordering::Relaxed) {
            UNKNOWN => {
                let start = unit * HOLE_UNIT;
                let end = self.bytes.len().min(start + HOLE_UNIT);
                let is_hole = is_zero(&self.bytes[start..end]);
                found.store(if is_hole { HOLE } else { DATA }, Ordering::Relaxed);
                is_hole
            }
            known => known == HOLE,
        }
    }
}

impl MemoryDevice {
    /// Creates a device with `contents`.
    pub fn new(contents: Vec<u8>) -> Self {
        Self::shared(Arc::new(contents))
    }

    /// Creates a device with shared `contents`. The first write copies them, if they have other
    /// references.
    pub fn shared(contents: Arc<Vec<u8>>) -> Self {
        let size = contents.len() as u64;
        Self { contents: RwLock::new(Contents::new(contents)), size }
    }

    /// Returns a copy of the current contents.
    pub fn snapshot(&self) -> Vec<u8> {
        Vec::clone(&self.contents.read().bytes)
    }
}

impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryDevice({} bytes)", self.size)
    }
}

impl BlockDevice for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&self, batch: Vec<Bio>) {
        for mut bio in batch {
            let result = bio.range_within(self.size).map(|range| {
                let mut at = range.start as usize;
                match bio.operation() {
                    BioOperation::Read => {
                        let contents = self.contents.read();
                        for memory in bio.memory_mut() {
                            memory.copy_from_slice(&contents.bytes[at..at + memory.len()]);
                            at += memory.len();
                        }
                    }
                    BioOperation::Write => {
                        let mut contents = self.contents.write();
                        let mut rest = contents.bytes_mut(at..range.end as usize);
                        for segment in bio.segments() {
                            let (target, other) = rest.split_at_mut(segment.len());
                            target.copy_from_slice(segment.bytes());
                            rest = other;
                        }
                    }
                }
            });
            bio.end(result);
        }
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        range_within(IoOperation::Discard, offset, length, self.size)?;
        self.write_zeroes(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let range = range_within(IoOperation::WriteZeroes, offset, length, self.size)?;
        let mut contents = self.contents.write();
        contents.bytes_mut(range.start as usize..range.end as usize).fill(0);
        Ok(())
    }

    /// Takes zeroes for a hole, and searches a limited part of the device.
    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        let contents = self.contents.read();
        let (start, size) = (usize::try_from(offset.0).ok()?, contents.bytes.len());
        if start >= size {
            return None;
        }
        let first = start / HOLE_UNIT;
        let last = contents.found.len().min(first + SEARCH_UNITS);
        let begin = (first..last).find(|unit| !contents.is_hole(*unit)).unwrap_or(last);
        // What was not searched may have data.
        let end =
            (begin + 1..last).find(|unit| contents.is_hole(*unit)).unwrap_or(last.max(begin + 1));
        let at = |unit: usize| DeviceOffset((unit * HOLE_UNIT).clamp(start, size) as u64);
        (at(begin) < at(end)).then(|| at(begin)..at(end))
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes == &[0; HOLE_UNIT][..bytes.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_holes() {
        let mut contents = vec![0; 5 * HOLE_UNIT + 100];
        contents[HOLE_UNIT..][1] = 1;
        contents[2 * HOLE_UNIT..][HOLE_UNIT - 1] = 1;
        contents[4 * HOLE_UNIT..][5] = 1;
        let device = MemoryDevice::new(contents);
        let data = |at: usize| {
            let data = device.next_data(DeviceOffset(at as u64))?;
            Some(data.start.0 as usize..data.end.0 as usize)
        };
        let units = |range: Range<usize>| Some(range.start * HOLE_UNIT..range.end * HOLE_UNIT);
        assert_eq!(data(0), units(1..3));
        assert_eq!(data(2 * HOLE_UNIT), units(2..3));
        assert_eq!(data(3 * HOLE_UNIT), units(4..5));
        for end in [5 * HOLE_UNIT, 5 * HOLE_UNIT + 99, 5 * HOLE_UNIT + 100, usize::MAX] {
            assert_eq!(data(end), None, "from {end}");
        }
    }

    #[test]
    fn searches_see_later_writes() {
        let device: &dyn BlockDevice = &MemoryDevice::new(vec![0; 4 * HOLE_UNIT]);
        let unit = |number: usize| DeviceOffset((number * HOLE_UNIT) as u64);
        assert_eq!(device.next_data(unit(0)), None);
        device.write_at(DeviceOffset(2 * HOLE_UNIT as u64 - 1), &[1, 1]).unwrap();
        assert_eq!(device.next_data(unit(0)), Some(unit(1)..unit(3)));
        device.write_zeroes(unit(1), HOLE_UNIT as u64).unwrap();
        assert_eq!(device.next_data(unit(0)), Some(unit(2)..unit(3)));
        device.discard(unit(2), HOLE_UNIT as u64).unwrap();
        assert_eq!(device.next_data(unit(0)), None);
    }

    #[test]
    fn a_search_for_data_is_limited() {
        let device = MemoryDevice::new(vec![0; (SEARCH_UNITS + 2) * HOLE_UNIT]);
        let searched = (SEARCH_UNITS * HOLE_UNIT) as u64;
        let unit = HOLE_UNIT as u64;
        let next = DeviceOffset(searched)..DeviceOffset(searched + unit);
        assert_eq!(device.next_data(DeviceOffset(0)), Some(next));
        assert_eq!(device.next_data(DeviceOffset(2 * unit)), None);
    }
}
