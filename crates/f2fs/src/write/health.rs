//! What errors do to a volume that is open for writing: some shut it down, and corruption is
//! recorded in the next checkpoint.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use base::{Error, Result};
use fs::ErrorPolicy;

/// The errors that were found since the volume was opened.
#[derive(Debug)]
pub(crate) struct Health {
    policy: ErrorPolicy,
    /// The error after which nothing is written any more.
    failure: OnceLock<Error>,
    is_corrupt: AtomicBool,
}

impl Health {
    pub(super) fn new(policy: ErrorPolicy) -> Self {
        Self { policy, failure: OnceLock::new(), is_corrupt: AtomicBool::new(false) }
    }

    /// Fails after an error that has shut the volume down.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(error) => Err(Error::ShutDown(Arc::new(error.clone()))),
            None => Ok(()),
        }
    }

    /// Shuts the volume down: all later changes fail.
    pub(crate) fn fail(&self, error: Error) {
        if self.failure.set(error).is_ok() {
            tracing::error!(error = %self.failure.get().expect("it was just set"), "the volume is shut down");
        }
    }

    /// Records corruption that does not leave the state in memory inconsistent, and shuts the
    /// volume down if its policy is not to go on. Ignores other errors.
    pub(crate) fn found(&self, error: &Error) {
        if !matches!(error, Error::Corrupt(_)) || self.failure.get().is_some() {
            return;
        }
        if !self.is_corrupt.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "the volume is corrupt: run fsck.f2fs");
        }
        if self.policy != ErrorPolicy::Continue {
            self.fail(error.clone());
        }
    }

    /// Records corruption that a checkpoint repairs.
    pub(super) fn set_corrupt(&self) {
        self.is_corrupt.store(true, Ordering::Relaxed);
    }

    /// Returns whether corruption was found, so that the volume needs fsck.f2fs.
    pub(super) fn is_corrupt(&self) -> bool {
        self.is_corrupt.load(Ordering::Relaxed)
    }
}
