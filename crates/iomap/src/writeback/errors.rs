//! Errors of writeback, kept until every open file has reported them.
//! Not here: their consequences (the format's and the volume's error policy).

use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use parking_lot::Mutex;

/// The errors of writeback of one file, or of all files of a volume. Each open file's fsync, and
/// each sync of the volume, reports the first error once. After one of them has reported it, the
/// next error replaces it.
#[derive(Debug, Default)]
pub struct WritebackErrors {
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// The number of errors that were kept so far.
    number: u64,
    error: Option<Error>,
    /// Whether an open file has reported the error.
    is_reported: bool,
    /// The number of errors so far, including those that were not kept.
    count: u64,
    /// The last of them.
    last: Option<Error>,
}

/// A number of errors; see [`WritebackErrors::count`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorCount(u64);

/// Position of one open file in the sequence of errors; see [`WritebackErrors::cursor`].
#[derive(Debug, Default)]
pub struct ErrorCursor(AtomicU64);

impl WritebackErrors {
    /// Keeps `error`, unless an earlier one is still unreported.
    pub fn record(&self, error: Error) {
        // Data that was written before the volume was shut down is lost.
        let error = match error {
            Error::ShutDown(cause) => Error::Lost(cause),
            other => other,
        };
        let mut latest = self.latest.lock();
        if latest.error.is_none() || latest.is_reported {
            latest.number += 1;
            latest.error = Some(error.clone());
            latest.is_reported = false;
        }
        latest.count += 1;
        latest.last = Some(error);
    }

    /// Returns a cursor for a file that is being opened. The file will report an error that is
    /// still unreported.
    pub fn cursor(&self) -> ErrorCursor {
        let latest = self.latest.lock();
        let unreported = u64::from(latest.error.is_some() && !latest.is_reported);
        ErrorCursor(AtomicU64::new(latest.number - unreported))
    }

    /// Returns the number of errors so far, for a caller that writes data back and needs the errors
    /// of that only.
    pub fn count(&self) -> ErrorCount {
        ErrorCount(self.latest.lock().count)
    }

    /// Returns the last error after the first `count` ones, as an error. Open files still report
    /// it.
    pub fn check_since(&self, count: ErrorCount) -> Result<()> {
        let latest = self.latest.lock();
        if latest.count == count.0 {
            return Ok(());
        }
        latest.last.clone().map_or(Ok(()), Err)
    }

    /// Returns whether any error was ever recorded.
    pub(crate) fn any(&self) -> bool {
        self.latest.lock().number > 0
    }

    /// Marks the error as reported and returns it, unless the open file with this cursor has
    /// reported it before.
    pub fn check(&self, cursor: &ErrorCursor) -> Result<()> {
        let mut latest = self.latest.lock();
        // Cursors change only under the lock.
        if cursor.0.swap(latest.number, Ordering::Relaxed) == latest.number {
            return Ok(());
        }
        latest.is_reported = true;
        latest.error.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Error = Error::NoSpace;
    const SECOND: Error = Error::ReadOnly;
    const THIRD: Error = Error::Exists;

    #[test]
    fn each_open_file_reports_the_first_error_once() {
        let errors = WritebackErrors::default();
        let one = errors.cursor();
        let other = errors.cursor();
        assert_eq!(errors.check(&one), Ok(()));
        errors.record(FIRST);
        errors.record(SECOND);
        let late = errors.cursor();
        assert_eq!(errors.check(&one), Err(FIRST));
        assert_eq!(errors.check(&one), Ok(()));
        assert_eq!(errors.check(&late), Err(FIRST), "opened before it was reported");
        assert_eq!(errors.check(&errors.cursor()), Ok(()), "opened after it was reported");
        assert_eq!(errors.check(&other), Err(FIRST));
        assert_eq!(errors.check(&other), Ok(()));
    }

    #[test]
    fn an_unreported_error_waits_for_the_next_open_file() {
        let errors = WritebackErrors::default();
        errors.record(FIRST);
        let late = errors.cursor();
        assert_eq!(errors.check(&late), Err(FIRST));
        assert_eq!(errors.check(&late), Ok(()));
    }

    #[test]
    fn a_caller_that_counts_errors_gets_only_later_ones_and_reports_none() {
        let errors = WritebackErrors::default();
        errors.record(FIRST);
        let count = errors.count();
        assert_eq!(errors.check_since(count), Ok(()));
        errors.record(SECOND);
        assert_eq!(errors.check_since(count), Err(SECOND));
        assert_eq!(errors.check_since(errors.count()), Ok(()));
        assert_eq!(errors.check(&errors.cursor()), Err(FIRST));
    }

    #[test]
    fn an_error_after_a_reported_one_is_reported() {
        let errors = WritebackErrors::default();
        let one = errors.cursor();
        let slow = errors.cursor();
        errors.record(FIRST);
        assert_eq!(errors.check(&one), Err(FIRST));
        errors.record(SECOND);
        errors.record(THIRD);
        assert_eq!(errors.check(&one), Err(SECOND));
        assert_eq!(errors.check(&slow), Err(SECOND), "one error at a time");
        assert_eq!(errors.check(&slow), Ok(()));
    }
}
