//! A device on which no flush succeeds after a failed flush.
//!
//! After a failed flush it is unknown which earlier writes are durable, and a host drops writes
//! that it could not make durable. The next flush would succeed, and its caller would believe that
//! lost data is durable.

use base::cancellation::{self, CHECK_EVERY};
use base::{DeviceOffset, Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{Bio, BlockDevice, SharedDevice};

/// A device whose first flush error is permanent: every later flush, and every flush that is
/// waiting, fails with the same error. To guarantee this, only one flush runs at a time. Callers
/// that arrive during a flush share the next one.
#[derive(Debug)]
pub struct LatchDevice {
    inner: SharedDevice,
    flushes: Mutex<Flushes>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Flushes {
    /// The number of flushes that have begun.
    begun: u64,
    /// The number of flushes that have ended: equal to `begun`, or one less.
    ended: u64,
    failure: Option<Error>,
}

impl LatchDevice {
    /// Returns `inner` with a latch.
    pub fn new(inner: SharedDevice) -> Self {
        Self { inner, flushes: Mutex::default(), ended: Condvar::new() }
    }

    /// Returns the device behind the latch. Its flushes may succeed after a failed flush.
    pub fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    /// Returns the error of the first flush that failed.
    pub fn failure(&self) -> Option<Error> {
        self.flushes.lock().failure.clone()
    }

    /// Flushes like [`flush`](BlockDevice::flush), but stops waiting for another thread's flush if
    /// the request that this thread serves is cancelled ([`base::cancellation`]).
    ///
    /// # Errors
    ///
    /// `Interrupted`, and the errors of `flush`.
    pub fn flush_cancellable(&self) -> Result<()> {
        self.flush_after(|flushes| {
            self.ended.wait_for(flushes, CHECK_EVERY);
            MutexGuard::unlocked(flushes, cancellation::check)
        })
    }

    /// Flushes, or shares another thread's flush. Calls `wait` while a flush runs.
    fn flush_after(
        &self,
        mut wait: impl FnMut(&mut MutexGuard<'_, Flushes>) -> Result<()>,
    ) -> Result<()> {
        let mut flushes = self.flushes.lock();
        // A flush that is running may have begun before the caller's last write ended.
        let wanted = flushes.begun + 1;
        loop {
            if let Some(error) = &flushes.failure {
                return Err(error.clone());
            }
            if flushes.ended >= wanted {
                return Ok(());
            }
            if flushes.ended == flushes.begun {
                break;
            }
            wait(&mut flushes)?;
        }
        flushes.begun += 1;
        drop(flushes);
        let result = self.inner.flush();
        let mut flushes = self.flushes.lock();
        flushes.ended += 1;
        flushes.failure = result.as_ref().err().cloned();
        drop(flushes);
        self.ended.notify_all();
        result
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
        self.inner.submit(batch);
    }

    fn flush(&self) -> Result<()> {
        self.flush_after(|flushes| {
            self.ended.wait(flushes);
            Ok(())
        })
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.write_zeroes(offset, length)
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        self.inner.refresh(offset, length);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Barrier};

    use base::{IoError, IoOperation};

    use super::*;
    use crate::bio::EIO;
    use crate::waiting::Waiter;
    use crate::{CountedFault, FaultDevice, FaultPlan, Lasting, MemoryDevice};

    fn latch_over(operation: IoOperation) -> LatchDevice {
        let counted = CountedFault { operation, number: 1, lasting: Lasting::Once, errno: EIO };
        let plan = FaultPlan { counted: Some(counted), ..FaultPlan::default() };
        let memory = Arc::new(MemoryDevice::new(vec![0; 4096]));
        LatchDevice::new(Arc::new(FaultDevice::new(memory, plan)))
    }

    #[test]
    fn no_flush_succeeds_after_a_failed_flush() {
        let latch = latch_over(IoOperation::Flush);
        latch.flush().unwrap();
        let failure = latch.flush().unwrap_err();
        assert_eq!(latch.flush(), Err(failure.clone()));
        assert_eq!(latch.failure(), Some(failure));
        latch.inner().flush().unwrap();
    }

    #[test]
    fn a_failed_write_does_not_make_flushes_fail() {
        let latch = latch_over(IoOperation::Write);
        let device: &dyn BlockDevice = &latch;
        device.write_at(DeviceOffset(0), &[0; 8]).unwrap();
        device.write_at(DeviceOffset(0), &[0; 8]).unwrap_err();
        device.write_at(DeviceOffset(0), &[0; 8]).unwrap();
        assert_eq!((device.flush(), latch.failure()), (Ok(()), None));
    }

    /// A device whose first flush waits until the test releases it, and then fails.
    #[derive(Debug)]
    struct Slow {
        reached: Barrier,
        released: Barrier,
        flushes: AtomicU64,
    }

    impl Slow {
        fn new() -> Arc<Self> {
            let (reached, released) = (Barrier::new(2), Barrier::new(2));
            Arc::new(Self { reached, released, flushes: AtomicU64::new(0) })
        }
    }

    impl BlockDevice for Slow {
        fn size(&self) -> u64 {
            0
        }

        fn is_read_only(&self) -> bool {
            false
        }

        fn submit(&self, _: Vec<Bio>) {}

        fn flush(&self) -> Result<()> {
            if self.flushes.fetch_add(1, Ordering::Relaxed) > 0 {
                return Ok(());
            }
            self.reached.wait();
            self.released.wait();
            let (operation, offset) = (IoOperation::Flush, DeviceOffset(0));
            Err(IoError { operation, offset, length: 0, errno: EIO }.into())
        }

        fn discard(&self, _: DeviceOffset, _: u64) -> Result<()> {
            Ok(())
        }

        fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_waiter_for_a_flush_that_fails_does_not_flush_again() {
        let slow = Slow::new();
        let latch = LatchDevice::new(slow.clone());
        let waiter = Waiter::default();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| latch.flush());
            slow.reached.wait();
            let second = scope.spawn(|| waiter.run(|| latch.flush()));
            let waits = waiter.begins_to_wait();
            slow.released.wait();
            first.join().unwrap().unwrap_err();
            second.join().unwrap().unwrap_err();
            assert!(waits, "the second flush does not wait for the first one");
        });
        assert_eq!(slow.flushes.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_cancelled_request_does_not_wait_for_another_threads_flush() {
        let slow = Slow::new();
        let latch = LatchDevice::new(slow.clone());
        std::thread::scope(|scope| {
            let first = scope.spawn(|| latch.flush());
            slow.reached.wait();
            let cancellable = cancellation::cancel_when(|| true);
            assert_eq!(latch.flush_cancellable(), Err(Error::Interrupted));
            drop(cancellable);
            assert_eq!(latch.failure(), None, "a cancellation is not a failed flush");
            slow.released.wait();
            first.join().unwrap().unwrap_err();
        });
        assert!(matches!(latch.flush_cancellable(), Err(Error::Io(_))));
    }
}
