//! Handling of errors: some shut the volume down, and others are only recorded, as its error policy
//! says. Not here: the format of errors in the superblock (`superblock/error_log.rs`).

use std::sync::Arc;

use base::{Error, Location, Result};
use fs::ErrorPolicy;

use super::{End, Journal};
use crate::ondisk::superblock::SUPERBLOCK_OFFSET;
use crate::superblock::{self, SUPERBLOCK_BYTES, Superblock};

/// The host's error number for corrupt structures.
const EUCLEAN: u32 = 117;
const EIO: u32 = 5;

impl Journal {
    /// Shuts the volume down, because `error` has left the metadata in memory inconsistent, or is
    /// an error of the device. Only the error itself is written, to the superblocks of the journal
    /// and of the volume (J4). If the volume is already shut down or closed, does nothing.
    pub(crate) fn fail(&self, error: &Error) {
        if !self.stop(error) {
            return;
        }
        if let Err(error) = self.write_error(error) {
            tracing::warn!(%error, "the error cannot be recorded on the volume");
        }
    }

    /// Shuts the volume down after a panic, which may have left the state in memory inconsistent.
    /// The panic hook has reported the panic itself. `operation` is the operation that panicked.
    pub(crate) fn fail_after_panic(&self, operation: &'static str) {
        self.fail(&Error::Panicked(operation));
    }

    /// Shuts the volume down without writing the error to it, since another host may be writing it.
    /// Returns false if the volume is already shut down or closed.
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

    /// Applies the volume's error policy to corrupt metadata that was found before any change that
    /// depends on it. Ignores other errors.
    pub(crate) fn apply_error_policy(&self, error: &Error) {
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

    /// Flushes the device. A failed flush shuts the volume down. Errors: `Interrupted`, without a
    /// shutdown, if the request that this thread serves is cancelled while another thread flushes.
    pub(crate) fn flush_device(&self) -> Result<()> {
        match self.device.flush_cancellable() {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            flushed => flushed.inspect_err(|error| self.fail(error)),
        }
    }

    /// Fails if the volume cannot be changed any more.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }

    /// Stores new errors in the superblock in memory. The next commit writes them to the disk.
    pub(crate) fn store_errors(&self) -> Result<()> {
        if !self.errors.take_unstored() {
            return Ok(());
        }
        let geometry = self.errors.geometry();
        let block = geometry.superblock_block();
        let mut handle = self.start(1)?;
        handle.edit(block, "superblock", Location::block(block), |bytes| {
            superblock::edit(bytes, geometry, |raw| self.errors.errors().store(raw));
        })
    }

    /// Clears the error number in the log's superblock, if there is a log. The volume's superblock
    /// has recorded the error.
    pub(crate) fn clear_errno(&self) -> Result<()> {
        match &self.log {
            Some(log) if log.lock().errno() != 0 => log.lock().set_errno(0),
            _ => Ok(()),
        }
    }

    /// Writes the error to the superblocks of the log and of the volume, also after a failed flush.
    /// Does not write to a volume that is marked as clean, since another host may have it.
    fn write_error(&self, error: &Error) -> Result<()> {
        if self.is_clean() {
            return Ok(());
        }
        let errno = if matches!(error, Error::Corrupt(_)) { EUCLEAN } else { EIO };
        let in_log = self.log.as_ref().map_or(Ok(()), |log| log.lock().set_errno(errno));
        let in_volume = self.write_errors();
        let flushed = self.device.inner().flush();
        in_log.and(in_volume).and(flushed)
    }

    /// Writes the errors to the superblock on the device. Its other changes in memory are not
    /// written, since they may belong to a lost transaction.
    fn write_errors(&self) -> Result<()> {
        let geometry = self.errors.geometry();
        let size = geometry.block_size;
        let offset = size.device_offset(geometry.superblock_block());
        let offset = offset.expect("the superblock lies on the device");
        let mut block = vec![0; size.len()];
        let _no_checkpoint = self.checkpoint.lock();
        let device = self.device.inner();
        device.read_at(offset, &mut block)?;
        // A torn superblock must not get a valid checksum.
        let at = SUPERBLOCK_OFFSET.0 as usize % size.len();
        let (found, _) = block[at..].split_first_chunk::<SUPERBLOCK_BYTES>().expect("it has room");
        Superblock::parse(found, device.size())?;
        superblock::edit(&mut block, geometry, |raw| self.errors.errors().store(raw));
        device.write_at(offset, &block)
    }
}
