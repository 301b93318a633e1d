//! Images that end before their volume does: reads of the missing bytes fail, and all others
//! succeed.

use std::ops::Range;

use base::{DeviceOffset, Error, IoError, Result};

use crate::bio::EINVAL;
use crate::{Bio, BlockDevice, SharedDevice};

/// A device with the size of its volume, of which the bytes past the end of the image are missing.
/// Read-only.
#[derive(Debug)]
pub struct IncompleteDevice {
    device: SharedDevice,
    size: u64,
}

impl IncompleteDevice {
    /// Returns the device for a volume of `size` bytes that begins with the bytes of `device`.
    pub fn new(device: SharedDevice, size: u64) -> Self {
        Self { device, size }
    }
}

impl BlockDevice for IncompleteDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn submit(&self, batch: Vec<Bio>) {
        let mut present = Vec::with_capacity(batch.len());
        for bio in batch {
            match bio.range_within(self.size) {
                Ok(range) if range.end <= self.device.size() => present.push(bio),
                Ok(_) => bio.end(Err(IoError::PAST_END)),
                Err(_) => bio.end(Err(EINVAL)),
            }
        }
        self.device.submit(present);
    }

    fn flush(&self) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn discard(&self, _offset: DeviceOffset, _length: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn write_zeroes(&self, _offset: DeviceOffset, _length: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        self.device.refresh(offset, length);
    }

    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        let (present, end) = (DeviceOffset(self.device.size()), DeviceOffset(self.size));
        if offset >= end {
            return None;
        }
        // The missing bytes are no hole: reads of them must fail.
        let data = if offset < present { self.device.next_data(offset) } else { None };
        Some(data.unwrap_or(present.max(offset)..end))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn missing_bytes_fail_and_are_no_hole() {
        let image = Arc::new(MemoryDevice::new(vec![7; 1000]));
        let device = IncompleteDevice::new(image, 4096);
        let device: &dyn BlockDevice = &device;
        let mut bytes = [0; 100];
        device.read_at(DeviceOffset(900), &mut bytes).unwrap();
        assert_eq!(bytes, [7; 100]);
        let past_end = IoError::PAST_END;
        for (offset, errno) in [(901, past_end), (1000, past_end), (3996, past_end), (3997, EINVAL)]
        {
            let Err(Error::Io(error)) = device.read_at(DeviceOffset(offset), &mut bytes) else {
                panic!("{offset} is read");
            };
            assert_eq!((error.errno, error.offset), (errno, DeviceOffset(offset)));
        }
        assert_eq!(
            device.next_data(DeviceOffset(1000)),
            Some(DeviceOffset(1000)..DeviceOffset(4096))
        );
        assert_eq!(device.next_data(DeviceOffset(4096)), None);
        assert!(device.is_read_only());
    }
}
