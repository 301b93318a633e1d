//! A device in memory.

use std::sync::Arc;

use base::{DeviceOffset, IoOperation, Result};
use parking_lot::RwLock;

use crate::bio::range_within;
use crate::{Bio, BioOperation, BlockDevice};

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
}
