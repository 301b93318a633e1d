//! A part of a device as a device of its own: a partition, or an image that begins inside of a
//! larger file.

use std::ops::Range;

use base::{DeviceOffset, Error, IoError, IoOperation, Result};

use crate::bio::EINVAL;
use crate::{Bio, BlockDevice, Origin, SharedDevice, everything_from};

/// A part of a device. Errors contain offsets in the part.
#[derive(Debug)]
pub struct Slice {
    device: SharedDevice,
    start: u64,
    size: u64,
    /// The damage to the partition table that the part was found by.
    damage: Option<Error>,
}

impl Slice {
    /// Returns the part of `size` bytes from `start` on. Fails unless it is within the device.
    pub fn new(device: SharedDevice, start: DeviceOffset, size: u64) -> Result<Self> {
        match start.0.checked_add(size) {
            Some(end) if end <= device.size() => {
                Ok(Self { device, start: start.0, size, damage: None })
            }
            _ => Err(Error::InvalidArgument("the range is not within the image")),
        }
    }

    /// Returns the part from `start` to the end of the device.
    pub fn from(device: SharedDevice, start: DeviceOffset) -> Result<Self> {
        let size = device.size().checked_sub(start.0);
        let size = size.ok_or(Error::InvalidArgument("the offset is past the end of the image"))?;
        Self::new(device, start, size)
    }

    /// Returns the part that was found by a partition table with this damage.
    pub(crate) fn found_despite(self, damage: Option<Error>) -> Self {
        Self { damage, ..self }
    }

    /// Returns the bytes of the device that the part has.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.size
    }

    /// Returns where the range of `length` bytes at `offset` begins on the device. Returns `None`
    /// unless it is within the part. The only place that computes positions on the device: whoever
    /// mounts a partition has the whole disk open.
    fn locate(&self, offset: DeviceOffset, length: u64) -> Option<DeviceOffset> {
        let end = offset.0.checked_add(length)?;
        // It does not overflow, since the part is within the device.
        (end <= self.size).then(|| DeviceOffset(self.start + offset.0))
    }

    /// Returns where a range begins on the device. Errors: EINVAL outside the part.
    fn located(
        &self,
        operation: IoOperation,
        offset: DeviceOffset,
        length: u64,
    ) -> Result<DeviceOffset, IoError> {
        let outside = IoError { operation, offset, length, errno: EINVAL };
        self.locate(offset, length).ok_or(outside)
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
            match self.locate(bio.offset(), bio.length()) {
                Some(offset) => {
                    bio.redirect(offset);
                    inside.push(bio);
                }
                None => bio.end(Err(EINVAL)),
            }
        }
        self.device.submit(inside);
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let device_offset = self.located(IoOperation::Discard, offset, length)?;
        self.device.discard(device_offset, length).map_err(|error| self.relocated(error))
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let device_offset = self.located(IoOperation::WriteZeroes, offset, length)?;
        self.device.write_zeroes(device_offset, length).map_err(|error| self.relocated(error))
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        if let Some(offset) = self.locate(offset, length) {
            self.device.refresh(offset, length);
        }
    }

    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        everything_from(offset, self.size)?;
        let data = self.device.next_data(self.locate(offset, 0)?)?;
        let within = |at: DeviceOffset| at.0.saturating_sub(self.start).min(self.size);
        let (start, end) = (within(data.start), within(data.end));
        (start < end).then_some(DeviceOffset(start)..DeviceOffset(end))
    }

    fn origin(&self) -> Option<Origin<'_>> {
        let Self { device, start, damage, .. } = self;
        Some(Origin { device: &**device, start: *start, damage: damage.as_ref() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::MemoryDevice;

    const START: u64 = 4096;
    const SIZE: u64 = 8192;

    /// Checks that an operation on a range that is not within the part fails, and changes nothing.
    fn check(offset: u64, length: u64) {
        let disk = Arc::new(MemoryDevice::new(vec![0x5a; 16_384]));
        let part = Slice::new(Arc::clone(&disk) as _, DeviceOffset(START), SIZE).unwrap();
        let at = DeviceOffset(offset);
        let mut bytes = vec![0xa5; length.min(16_384) as usize];
        let device: &dyn BlockDevice = &part;
        let outcomes = [
            device.read_at(at, &mut bytes),
            device.write_at(at, &bytes),
            device.discard(at, length),
            device.write_zeroes(at, length),
        ];
        device.refresh(at, length);
        for (operation, outcome) in outcomes.iter().enumerate() {
            let Err(Error::Io(error)) = outcome else {
                panic!("{offset}+{length}, operation {operation}: {outcome:?}");
            };
            assert_eq!(error.errno, EINVAL, "{offset}+{length}, operation {operation}");
            assert_eq!(error.offset, at, "{offset}+{length}, operation {operation}");
        }
        assert!(disk.snapshot().iter().all(|byte| *byte == 0x5a), "{offset}+{length}");
    }

    #[test]
    fn no_operation_leaves_the_part() {
        for (offset, length) in [
            (SIZE, 1),
            (SIZE - 1, 2),
            (0, SIZE + 1),
            (SIZE + START, 512),
            (u64::MAX, 1),
            (u64::MAX - START, 4096),
            // Its end, and its start on the disk, would be within the part if they overflowed.
            (u64::MAX - START + 1, START + 1),
        ] {
            check(offset, length);
        }
        let disk = Arc::new(MemoryDevice::new(vec![0x5a; 16_384]));
        let part = Slice::new(Arc::clone(&disk) as _, DeviceOffset(START), SIZE).unwrap();
        (&part as &dyn BlockDevice).write_at(DeviceOffset(0), &[0xa5; SIZE as usize]).unwrap();
        let found = disk.snapshot();
        let changed = START as usize..(START + SIZE) as usize;
        assert!(
            found.iter().enumerate().all(|(at, byte)| (*byte == 0xa5) == changed.contains(&at))
        );
    }
}
