//! A device in memory.

use std::ops::Range;
use std::sync::Arc;

use base::{DeviceOffset, IoOperation, Result};
use parking_lot::RwLock;

use crate::bio::range_within;
use crate::{Bio, BioOperation, BlockDevice};

/// The unit of holes, in bytes.
const HOLE_UNIT: usize = 4096;
/// The number of bytes that one search for data visits.
const SEARCH_BYTES: usize = 1 << 20;

/// A device whose contents are a vector of bytes.
pub struct MemoryDevice {
    contents: RwLock<Arc<Vec<u8>>>,
    size: u64,
}

impl MemoryDevice {
    /// Creates a device with `contents`.
    pub fn new(contents: Vec<u8>) -> Self {
        Self::shared(Arc::new(contents))
    }

    /// Creates a device with shared `contents`. The first write copies them, if they have other references.
    pub fn shared(contents: Arc<Vec<u8>>) -> Self {
        let size = contents.len() as u64;
        Self { contents: RwLock::new(contents), size }
    }

    /// Returns a copy of the current contents.
    pub fn snapshot(&self) -> Vec<u8> {
        Vec::clone(&self.contents.read())
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
                            memory.copy_from_slice(&contents[at..at + memory.len()]);
                            at += memory.len();
                        }
                    }
                    BioOperation::Write => {
                        let mut contents = self.contents.write();
                        let contents = Arc::make_mut(&mut contents);
                        for segment in bio.segments() {
                            contents[at..at + segment.len()].copy_from_slice(segment.bytes());
                            at += segment.len();
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
        Arc::make_mut(&mut contents)[range.start as usize..range.end as usize].fill(0);
        Ok(())
    }

    /// Takes zeroes for a hole, and searches a limited part of the device.
    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        let contents = self.contents.read();
        let rest = contents.get(offset.0 as usize..).filter(|rest| !rest.is_empty())?;
        let searched = &rest[..rest.len().min(SEARCH_BYTES)];
        let units = || searched.chunks(HOLE_UNIT);
        let zeroes = units().take_while(|unit| is_zero(unit)).count();
        let data = units().skip(zeroes).take_while(|unit| !is_zero(unit)).count();
        let start = (zeroes * HOLE_UNIT).min(searched.len());
        if start == rest.len() {
            return None;
        }
        // What was not searched may have data.
        let end = ((zeroes + data.max(1)) * HOLE_UNIT).min(rest.len());
        Some(DeviceOffset(offset.0 + start as u64)..DeviceOffset(offset.0 + end as u64))
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
    fn a_search_for_data_is_limited() {
        let device = MemoryDevice::new(vec![0; SEARCH_BYTES + 2 * HOLE_UNIT]);
        let searched = SEARCH_BYTES as u64;
        let unit = HOLE_UNIT as u64;
        let next = DeviceOffset(searched)..DeviceOffset(searched + unit);
        assert_eq!(device.next_data(DeviceOffset(0)), Some(next));
        assert_eq!(device.next_data(DeviceOffset(2 * unit)), None);
    }
}
