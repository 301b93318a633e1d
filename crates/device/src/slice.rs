//! A part of a device as a device of its own: a partition, or an image that begins inside of a larger file.

use base::{DeviceOffset, Error, IoError, IoOperation, Result};

use crate::bio::range_within;
use crate::{Bio, BlockDevice, SharedDevice};

/// A part of a device. Errors contain offsets in the part.
#[derive(Debug)]
pub struct Slice {
    device: SharedDevice,
    start: u64,
    size: u64,
}

impl Slice {
    /// Returns the part of `size` bytes from `start` on. Fails unless it is within the device.
    pub fn new(device: SharedDevice, start: DeviceOffset, size: u64) -> Result<Self> {
        match start.0.checked_add(size) {
            Some(end) if end <= device.size() => Ok(Self { device, start: start.0, size }),
            _ => Err(Error::InvalidArgument("the range is not within the image")),
        }
    }

    /// Returns the part from `start` to the end of the device.
    pub fn from(device: SharedDevice, start: DeviceOffset) -> Result<Self> {
        let size = device.size().checked_sub(start.0);
        let size = size.ok_or(Error::InvalidArgument("the offset is past the end of the image"))?;
        Self::new(device, start, size)
    }

    /// Returns the device offset of a range of the part.
    fn locate(
        &self,
        operation: IoOperation,
        offset: DeviceOffset,
        length: u64,
    ) -> Result<DeviceOffset, IoError> {
        range_within(operation, offset, length, self.size)?;
        Ok(DeviceOffset(self.start + offset.0))
    }

    /// Converts the offset of a device error to an offset in the part.
    fn relocated(&self, error: Error) -> Error {
        match error {
            Error::Io(io) => {
                let offset = DeviceOffset(io.offset.0.saturating_sub(self.start));
                Error::Io(IoError { offset, ..io })
            }
            other => other,
        }
    }
}

impl BlockDevice for Slice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        let mut inside = Vec::with_capacity(batch.len());
        for mut bio in batch {
            match bio.range_within(self.size) {
                Ok(range) => {
                    bio.redirect(DeviceOffset(self.start + range.start));
                    inside.push(bio);
                }
                Err(errno) => bio.end(Err(errno)),
            }
        }
        self.device.submit(inside);
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let device_offset = self.locate(IoOperation::Discard, offset, length)?;
        self.device.discard(device_offset, length).map_err(|error| self.relocated(error))
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let device_offset = self.locate(IoOperation::WriteZeroes, offset, length)?;
        self.device.write_zeroes(device_offset, length).map_err(|error| self.relocated(error))
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        self.device.refresh(DeviceOffset(self.start + offset.0), length);
    }
}
