//! Errors that shut a volume down or are only recorded, as its error policy decides.
//! Not here: the format of errors in the superblock (`volume/error_log.rs`).

use std::sync::Arc;

use base::{Error, Location, Result};
use fs::ErrorPolicy;

use super::{End, Journal};
use crate::superblock::{self, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};

/// The host's number for corrupt structures.
const EUCLEAN: u32 = 117;
const EIO: u32 = 5;

impl Journal {
    /// Shuts the volume down: `error` has left the metadata in memory inconsistent, or is the device's. Durable
    /// changes stay as they are (J4), except that the superblocks of the journal and of the volume record the error.
    /// Only the first error counts.
    pub(crate) fn fail(&self, error: &Error) {
        if !self.stop(error) {
            return;
        }
        if let Err(error) = self.write_error(error) {
            tracing::warn!(%error, "the error cannot be recorded on the volume");
        }
    }

    /// [`fail`](Self::fail) after a panic, which may have left the state in memory inconsistent. The panic hook
    /// has reported the panic itself. `operation` is the operation that panicked.
    pub(crate) fn fail_after_panic(&self, operation: &'static str) {
        self.fail(&Error::Panicked(operation));
    }

    /// [`fail`](Self::fail) on a volume that another host may be writing to: the error is not recorded on it.
    /// Returns whether this is the first error.
    pub(crate) fn stop(&self, error: &Error) -> bool {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return false;
        }
        tracing::error!(%error, "the volume accepts no more writes");
        state.end = Some(End::Failed(Arc::new(error.clone())));
        self.changed.notify_all();
        drop(state);
        self.errors.add(error);
        true
    }

    /// Applies the volume's error policy to corrupt metadata that was found before a change that depends on it.
    /// Ignores other errors.
    pub(crate) fn found(&self, error: &Error) {
        if !matches!(error, Error::Corrupt(_)) || self.check().is_err() {
            return;
        }
        match self.errors.policy() {
            ErrorPolicy::Continue => {
                tracing::error!(%error, "the volume is corrupt: run e2fsck");
                self.errors.add(error);
            }
            ErrorPolicy::ReadOnly | ErrorPolicy::Panic => self.fail(error),
        }
    }

    /// Flushes the device. A failed flush shuts the volume down. Errors: `Interrupted`, without a shutdown, if
    /// the request that this thread serves is cancelled while another thread flushes.
    pub(crate) fn flush_device(&self) -> Result<()> {
        match self.device.flush_cancellable() {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            flushed => flushed.inspect_err(|error| self.fail(error)),
        }
    }

    /// Fails if nothing can be changed any more.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }

    /// Adds new errors to the superblock in memory, and with the next commit to the one on the disk.
    pub(crate) fn store_errors(&self) -> Result<()> {
        if !self.errors.take_news() {
            return Ok(());
        }
        let geometry = self.errors.geometry();
        let block = geometry.superblock_block();
        let mut handle = self.start(1)?;
        handle.edit(block, "superblock", Location::block(block), |bytes| {
            superblock::edit(bytes, geometry, |raw| self.errors.errors().store(raw));
        })
    }

    /// Clears the error number in the log's superblock, if there is a log: the error is recorded elsewhere.
    pub(crate) fn forget_errno(&self) -> Result<()> {
        match &self.log {
            Some(log) if log.lock().errno() != 0 => log.lock().set_errno(0),
            _ => Ok(()),
        }
    }

    /// Writes the error to the log's superblock and to the volume's, also after a failed flush.
    fn write_error(&self, error: &Error) -> Result<()> {
        let errno = if matches!(error, Error::Corrupt(_)) { EUCLEAN } else { EIO };
        let in_log = self.log.as_ref().map_or(Ok(()), |log| log.lock().set_errno(errno));
        let in_volume = self.write_errors();
        let flushed = self.device.inner().flush();
        in_log.and(in_volume).and(flushed)
    }

    /// Writes the errors, and nothing else, to the superblock on the device: other changes of it in memory may
    /// be lost.
    fn write_errors(&self) -> Result<()> {
        let geometry = self.errors.geometry();
        let size = geometry.block_size;
        let offset = size.device_offset(geometry.superblock_block());
        let offset = offset.expect("the superblock lies on the device");
        let mut block = vec![0; size.len()];
        let _writing = self.checkpoint.alone();
        let device = self.device.inner();
        device.read_at(offset, &mut block)?;
        // A partly written superblock must not get a valid checksum.
        let at = SUPERBLOCK_OFFSET.0 as usize % size.len();
        let (found, _) = block[at..].split_first_chunk::<SUPERBLOCK_BYTES>().expect("it has room");
        Superblock::parse(found, device.size())?;
        superblock::edit(&mut block, geometry, |raw| self.errors.errors().store(raw));
        device.write_at(offset, &block)
    }
}
