//! Errors that a volume does not get over, and those that it only keeps in mind: what its error
//! policy makes of them, and the word that is left for whoever opens it next.
//! Not here: what an error looks like in the superblock (`error_log.rs`).

use std::sync::Arc;

use base::{Error, Place, Result, Unsupported};

use super::{End, Journal};
use crate::error_log::ErrorPolicy;
use crate::superblock::{self, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};

/// The host's number for corrupt structures.
const EUCLEAN: u32 = 117;
const EIO: u32 = 5;

impl Journal {
    /// Stops all changes: `error` has left the metadata in memory inconsistent, or is the
    /// device's. What is durable stays as it is (J4), save that the superblocks of the journal and
    /// of the volume come to say so. Only the first error counts.
    pub(crate) fn fail(&self, error: &Error) {
        if !self.stop(error) {
            return;
        }
        if let Err(error) = self.leave_word(error) {
            tracing::warn!(%error, "the volume does not say what has happened");
        }
    }

    /// [`fail`](Self::fail) after a panic, which was reported where it happened: nobody knows what it has
    /// left half done. `operation` says what cannot be: to go on after a panic, and in what.
    pub(crate) fn fail_after_panic(&self, operation: &'static str) {
        self.fail(&Unsupported::Operation(operation).into());
    }

    /// [`fail`](Self::fail) on a volume that somebody else may be writing to: not even word of it is
    /// written. Says whether this is the first error.
    pub(crate) fn stop(&self, error: &Error) -> bool {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return false;
        }
        tracing::error!(%error, "nothing more is changed on the volume");
        state.end = Some(End::Failed(Arc::new(error.clone())));
        self.changed.notify_all();
        drop(state);
        self.errors.add(error);
        true
    }

    /// Deals with metadata that turned out to be corrupt before anything that hangs on it was
    /// changed, as the volume's policy says. Other errors are not the volume's.
    pub(crate) fn found(&self, error: &Error) {
        if !matches!(error, Error::Corrupt(_)) || self.check().is_err() {
            return;
        }
        match self.errors.policy() {
            ErrorPolicy::Continue => {
                tracing::error!(%error, "the volume is corrupt and should be checked");
                self.errors.add(error);
            }
            ErrorPolicy::ReadOnly | ErrorPolicy::Panic => self.fail(error),
        }
    }

    /// Makes durable what was written. Where that fails nothing can be relied upon any more. Fails with
    /// `Interrupted`, without consequences, if the request that this thread serves is cancelled while another
    /// thread flushes.
    pub(crate) fn flush_device(&self) -> Result<()> {
        match self.device.flush_cancellable() {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            flushed => flushed.inspect_err(|error| self.fail(error)),
        }
    }

    /// Refuses when nothing can be changed any more.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }

    /// Makes the superblock in memory, and with the next commit on the disk, tell of errors that it
    /// does not have yet.
    pub(crate) fn store_errors(&self) -> Result<()> {
        if !self.errors.take_news() {
            return Ok(());
        }
        let geometry = self.errors.geometry();
        let block = geometry.superblock_block();
        let mut handle = self.start(1)?;
        handle.edit(block, "superblock", Place::block(block), |bytes| {
            superblock::edit(bytes, geometry, |raw| self.errors.errors().store(raw));
        })
    }

    /// Says in the log, if there is one, that what has happened before has been noted elsewhere.
    pub(crate) fn forget_errno(&self) -> Result<()> {
        match &self.log {
            Some(log) if log.lock().errno() != 0 => log.lock().set_errno(0),
            _ => Ok(()),
        }
    }

    /// Writes the error to the log's superblock and to the volume's, past a latch that has closed.
    fn leave_word(&self, error: &Error) -> Result<()> {
        let errno = if matches!(error, Error::Corrupt(_)) { EUCLEAN } else { EIO };
        let in_log = self.log.as_ref().map_or(Ok(()), |log| log.lock().set_errno(errno));
        let in_volume = self.write_errors();
        let flushed = self.device.inner().flush();
        in_log.and(in_volume).and(flushed)
    }

    /// Puts the errors into the superblock on the device, and nothing else: what was changed of it
    /// in memory may belong to what is lost.
    fn write_errors(&self) -> Result<()> {
        let geometry = self.errors.geometry();
        let size = geometry.block_size;
        let offset = size.device_offset(geometry.superblock_block());
        let offset = offset.expect("the superblock lies on the device");
        let mut block = vec![0; size.len()];
        let _writing = self.checkpoint.alone();
        let device = self.device.inner();
        device.read_at(offset, &mut block)?;
        // What is half written is not to get a checksum that says that it is sound.
        let at = SUPERBLOCK_OFFSET.0 as usize % size.len();
        let (found, _) = block[at..].split_first_chunk::<SUPERBLOCK_BYTES>().expect("it has room");
        Superblock::parse(found, device.size())?;
        superblock::edit(&mut block, geometry, |raw| self.errors.errors().store(raw));
        device.write_at(offset, &block)
    }
}
