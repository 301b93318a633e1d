//! The first error of reads that are submitted together.

use base::Error;
use parking_lot::Mutex;

/// The first error of some bios.
#[derive(Debug, Default)]
pub(crate) struct Failure(Mutex<Option<Error>>);

impl Failure {
    /// Records `error`, unless there is one.
    pub(crate) fn note(&self, error: Error) {
        self.0.lock().get_or_insert(error);
    }

    pub(crate) fn take(&self) -> Option<Error> {
        self.0.lock().take()
    }
}
