//! A device that does no more work once a write or a flush has failed.
//!
//! After a failure nobody knows what the device holds, and a host forgets writes that it could not
//! do: trying again would seem to work. Going on would build on data that is not there.

use std::sync::{Arc, OnceLock};

use base::{DeviceOffset, Error, IoError, IoOperation, Result};

use crate::bio::{EIO, EROFS, range_within};
use crate::{Bio, BioOperation, BlockDevice, SharedDevice};

/// `inner` until its first failed write, zeroing or flush; then EIO to everything, reads too.
/// What the device would refuse anyway (a bad range, a write to a read-only device) is no failure,
/// and neither is a failed read or discard.
#[derive(Debug)]
pub struct LatchDevice {
    inner: SharedDevice,
    failure: Arc<OnceLock<IoError>>,
}

impl LatchDevice {
    /// Watches over `inner`.
    pub fn new(inner: SharedDevice) -> Self {
        Self { inner, failure: Arc::default() }
    }

    /// The failure that ended all work.
    pub fn failure(&self) -> Option<IoError> {
        self.failure.get().copied()
    }

    /// The bio, watched, or nothing when it was refused.
    fn admit(&self, mut bio: Bio) -> Option<Bio> {
        if self.failure.get().is_some() {
            bio.end(Err(EIO));
            return None;
        }
        if bio.operation() == BioOperation::Read {
            return Some(bio);
        }
        if let Err(errno) = bio.range_within(self.size()) {
            bio.end(Err(errno));
            return None;
        }
        let failure = Arc::clone(&self.failure);
        let (operation, offset, length) = (IoOperation::Write, bio.offset(), bio.length());
        bio.before_end(move |result| {
            result.inspect_err(|&errno| {
                if errno != EROFS {
                    // Only the first failure counts.
                    let _ = failure.set(IoError { operation, offset, length, errno });
                }
            })
        });
        Some(bio)
    }

    /// Runs `work` unless there was a failure before.
    fn guard(
        &self,
        operation: IoOperation,
        offset: DeviceOffset,
        length: u64,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        range_within(operation, offset, length, self.size())?;
        if self.failure.get().is_some() {
            return Err(IoError { operation, offset, length, errno: EIO }.into());
        }
        work().inspect_err(|error| {
            let refused = matches!(error, Error::Io(IoError { errno: EROFS, .. }));
            if !refused && operation != IoOperation::Discard {
                let located = IoError { operation, offset, length, errno: EIO };
                let _ = self.failure.set(match error {
                    Error::Io(error) => *error,
                    _ => located,
                });
            }
        })
    }
}

impl BlockDevice for LatchDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        self.inner.submit(batch.into_iter().filter_map(|bio| self.admit(bio)).collect());
    }

    fn flush(&self) -> Result<()> {
        let whole = (IoOperation::Flush, DeviceOffset(0), self.size());
        self.guard(whole.0, whole.1, whole.2, || self.inner.flush())
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.guard(IoOperation::Discard, offset, length, || self.inner.discard(offset, length))
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let work = || self.inner.write_zeroes(offset, length);
        self.guard(IoOperation::WriteZeroes, offset, length, work)
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        self.inner.refresh(offset, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultDevice, FaultPlan, MemoryDevice};

    fn latch_over(plan: FaultPlan) -> (Arc<FaultDevice>, LatchDevice) {
        let faulty = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(vec![0; 4096])), plan));
        (faulty.clone(), LatchDevice::new(faulty))
    }

    fn errno(result: Result<()>) -> i32 {
        match result {
            Err(Error::Io(error)) => error.errno,
            other => panic!("{other:?}"),
        }
    }

    fn check_dead(latch: &LatchDevice) {
        let device: &dyn BlockDevice = latch;
        assert_eq!(errno(device.read_at(DeviceOffset(0), &mut [0; 8])), EIO);
        assert_eq!(errno(device.write_at(DeviceOffset(0), &[0; 8])), EIO);
        assert_eq!(errno(device.flush()), EIO);
        assert_eq!(errno(device.discard(DeviceOffset(0), 8)), EIO);
        assert_eq!(errno(device.write_zeroes(DeviceOffset(0), 8)), EIO);
    }

    #[test]
    fn nothing_works_after_a_failed_write() {
        let (_, latch) = latch_over(FaultPlan { write_errors: 1_000_000, ..Default::default() });
        let device: &dyn BlockDevice = &latch;
        device.read_at(DeviceOffset(0), &mut [0; 8]).unwrap();
        assert_eq!(errno(device.write_at(DeviceOffset(512), &[1; 8])), EIO);
        assert_eq!(latch.failure().unwrap().offset, DeviceOffset(512));
        check_dead(&latch);
    }

    #[test]
    fn nothing_works_after_a_failed_flush() {
        let (_, latch) = latch_over(FaultPlan { flush_errors: 1_000_000, ..Default::default() });
        (&latch as &dyn BlockDevice).write_at(DeviceOffset(0), &[1; 8]).unwrap();
        assert_eq!(errno(latch.flush()), EIO);
        assert_eq!(latch.failure().unwrap().operation, IoOperation::Flush);
        check_dead(&latch);
    }

    #[test]
    fn failed_reads_and_senseless_requests_are_no_failures() {
        let (faulty, latch) = latch_over(FaultPlan::default());
        faulty.fail_reads_in(0..512);
        let device: &dyn BlockDevice = &latch;
        device.read_at(DeviceOffset(0), &mut [0; 8]).unwrap_err();
        device.write_at(DeviceOffset(4096), &[0; 8]).unwrap_err();
        device.write_zeroes(DeviceOffset(4096), 8).unwrap_err();
        assert_eq!(latch.failure(), None);
        device.write_at(DeviceOffset(0), &[0; 8]).unwrap();
    }
}
