//! Errors of writeback, kept until every open file has heard of them.
//! Not here: what follows from one (the format's and the volume's policy).

use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use parking_lot::Mutex;

/// The errors of one file's writeback: the first one reaches the fsync of each open file once, and
/// so does the first one after somebody heard of that.
#[derive(Debug, Default)]
pub struct WritebackErrors {
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// How many errors were kept so far.
    number: u64,
    error: Option<Error>,
    /// Whether some open file has heard of the error.
    heard: bool,
}

/// Which errors one open file has heard of; see [`WritebackErrors::cursor`].
#[derive(Debug, Default)]
pub struct ErrorCursor(AtomicU64);

impl WritebackErrors {
    /// Keeps an error, unless there is one before it that nobody has heard of.
    pub fn record(&self, error: Error) {
        // Who wrote in time, before nothing could be changed any more, has lost something.
        let error = match error {
            Error::ShutDown(cause) => Error::Lost(cause),
            other => other,
        };
        let mut latest = self.latest.lock();
        if latest.error.is_none() || latest.heard {
            *latest = Latest { number: latest.number + 1, error: Some(error), heard: false };
        }
    }

    /// A cursor for a file that is being opened. It will hear of an error that nobody has heard of.
    pub fn cursor(&self) -> ErrorCursor {
        let latest = self.latest.lock();
        let unheard = u64::from(latest.error.is_some() && !latest.heard);
        ErrorCursor(AtomicU64::new(latest.number - unheard))
    }

    /// Returns whether any error was ever recorded.
    pub(crate) fn any(&self) -> bool {
        self.latest.lock().number > 0
    }

    /// The error that [`check`](Self::check) would give, of which nobody has heard by this.
    pub fn peek(&self, cursor: &ErrorCursor) -> Option<Error> {
        let latest = self.latest.lock();
        let is_news = cursor.0.load(Ordering::Relaxed) != latest.number;
        if is_news { latest.error.clone() } else { None }
    }

    /// The error that [`peek`](Self::peek) gives, once for this cursor.
    pub fn peek_once(&self, cursor: &ErrorCursor) -> Option<Error> {
        let latest = self.latest.lock();
        // Cursors change under the lock only.
        let is_news = cursor.0.swap(latest.number, Ordering::Relaxed) != latest.number;
        if is_news { latest.error.clone() } else { None }
    }

    /// The error that the open file with this cursor has to hear of, if there is one.
    pub fn check(&self, cursor: &ErrorCursor) -> Result<()> {
        let mut latest = self.latest.lock();
        // Cursors change under the lock only.
        if cursor.0.swap(latest.number, Ordering::Relaxed) == latest.number {
            return Ok(());
        }
        latest.heard = true;
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
    fn every_open_file_hears_of_the_first_error_once() {
        let errors = WritebackErrors::default();
        let (one, other) = (errors.cursor(), errors.cursor());
        assert_eq!(errors.check(&one), Ok(()));
        errors.record(FIRST);
        errors.record(SECOND);
        assert_eq!((errors.peek(&one), errors.peek(&one)), (Some(FIRST), Some(FIRST)));
        let watcher = errors.cursor();
        assert_eq!((errors.peek_once(&watcher), errors.peek_once(&watcher)), (Some(FIRST), None));
        assert_eq!(errors.check(&one), Err(FIRST));
        assert_eq!(errors.peek(&one), None);
        assert_eq!(errors.check(&one), Ok(()));
        assert_eq!(errors.check(&errors.cursor()), Ok(()), "opened after it was heard of");
        assert_eq!(errors.check(&other), Err(FIRST));
        assert_eq!(errors.check(&other), Ok(()));
    }

    #[test]
    fn an_error_that_nobody_heard_of_waits_for_the_next_open_file() {
        let errors = WritebackErrors::default();
        errors.record(FIRST);
        let late = errors.cursor();
        assert_eq!(errors.check(&late), Err(FIRST));
        assert_eq!(errors.check(&late), Ok(()));
    }

    #[test]
    fn an_error_after_one_that_was_heard_of_is_news() {
        let errors = WritebackErrors::default();
        let (one, slow) = (errors.cursor(), errors.cursor());
        errors.record(FIRST);
        assert_eq!(errors.check(&one), Err(FIRST));
        errors.record(SECOND);
        errors.record(THIRD);
        assert_eq!(errors.check(&one), Err(SECOND));
        assert_eq!(errors.check(&slow), Err(SECOND), "one error at a time");
        assert_eq!(errors.check(&slow), Ok(()));
    }
}
