//! What a volume has while it is open for writing, and opening it so.
//! Not here: what is written.

use std::sync::Arc;

use base::{Error, Result};
use device::SharedDevice;
use iomap::PageCache;

use crate::features::Feature;
use crate::journal::{Handle, Journal};
use crate::volume::{Probed, Volume};

/// The part of a volume that writing needs.
pub(crate) struct Writer {
    pub(crate) journal: Journal,
}

impl Volume {
    /// Opens the volume on `device` for reading and writing. Features that are not written yet
    /// are refused by name. What the journal holds is put in place first.
    pub fn open_for_writing(device: SharedDevice, cache: &Arc<PageCache>) -> Result<Arc<Self>> {
        if device.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let volume = match Self::probe(Arc::clone(&device), cache)? {
            Probed::Ready(volume) => volume,
            Probed::NeedsRecovery(_) => {
                return Err(base::Unsupported::Features {
                    names: vec![Feature::NeedsRecovery.name().to_string()],
                }
                .into());
            }
        };
        volume.geometry().features.check_writable()?;
        let mut volume = Arc::into_inner(volume).expect("nobody else has a volume just opened");
        let journal = Journal::new(device, Arc::clone(volume.metadata()));
        volume.writer = Some(Writer { journal });
        Ok(Arc::new(volume))
    }

    /// What writing needs; `ReadOnly` when the volume is not open for that.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or(Error::ReadOnly)
    }

    /// Runs `operation` with a handle that may change `credits` blocks. If it fails after it has
    /// changed something, the metadata in memory is not what any operation leaves behind, and the
    /// volume takes no more writes: an operation that can fail in the ordinary course of things
    /// (`NoSpace`, `Exists` …) does so before its first change, or undoes what it changed and says
    /// so by [`Handle::undone`].
    pub(crate) fn change<'v, R>(
        &'v self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'v>) -> Result<R>,
    ) -> Result<R> {
        let journal = &self.writer()?.journal;
        let mut handle = journal.start(credits)?;
        let result = operation(&mut handle);
        if let Err(error) = &result {
            if handle.has_changes() && !handle.is_undone() {
                journal.fail(error);
            }
        }
        result
    }

    /// Makes every change up to now durable.
    pub fn sync(&self) -> Result<()> {
        self.writer()?.journal.commit_all()
    }

    /// Ends writing: everything is where it belongs, and the volume says that it is sound.
    pub fn close(&self) -> Result<()> {
        self.writer()?.journal.flush()
    }
}
