//! FSYNC, FSYNCDIR, SYNCFS and RELEASE.

use std::time::Duration;

use crate::protocol::{FSYNC_FDATASYNC, FsyncIn, InHeader, ReleaseIn};
use crate::reply::{Answer, Outcome, Reply};
use crate::requester::Requester;
use crate::server::Server;

/// The number of attempts to find no file open for writing, and the time between them: the kernel
/// may delay the RELEASE of a file that is closed.
const WRITERS_ATTEMPTS: u32 = 10;
const WRITERS_INTERVAL: Duration = Duration::from_millis(10);

impl Server {
    /// FSYNC. Reports a writeback error that was not reported through this open file yet.
    pub(crate) fn fsync(
        &self,
        header: &InHeader,
        operation: &FsyncIn,
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        base::waiting::about_to_wait();
        let data_only = operation.flags & FSYNC_FDATASYNC != 0;
        match self.files.get(operation.handle) {
            Some(opened) if data_only => opened.file.sync_data()?,
            Some(opened) => opened.file.sync_all()?,
            None => self.known(header.node)?.node.sync(data_only)?,
        }
        Ok(Answer::Payload)
    }

    /// FSYNCDIR.
    pub(crate) fn fsync_directory(
        &self,
        header: &InHeader,
        operation: &FsyncIn,
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        base::waiting::about_to_wait();
        let data_only = operation.flags & FSYNC_FDATASYNC != 0;
        self.known(header.node)?.node.sync(data_only)?;
        Ok(Answer::Payload)
    }

    /// SYNCFS, for sync(2), syncfs(2) and remounts. Marks the volume as clean if it becomes
    /// read-only.
    pub(crate) fn sync_volume(
        &self,
        header: &InHeader,
        (): &(),
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        base::waiting::about_to_wait();
        let becomes_read_only = match self.requesters.of(header.pid) {
            Requester::Remount => true,
            // The call does not show the options. The kernel makes no file system read-only that
            // has a file open for writing.
            Requester::Reconfiguration => self.has_no_writers(),
            Requester::Fibmap | Requester::Unknown => false,
        };
        if becomes_read_only {
            self.volume().mark_clean()?;
        } else {
            self.volume().sync()?;
        }
        Ok(Answer::Payload)
    }

    /// Returns whether no file is open for writing, or soon none will be.
    fn has_no_writers(&self) -> bool {
        (0..WRITERS_ATTEMPTS).any(|attempt| {
            if attempt > 0 {
                std::thread::sleep(WRITERS_INTERVAL);
            }
            !self.files.has_writers()
        })
    }

    /// RELEASE.
    pub(crate) fn release(
        &self,
        header: &InHeader,
        operation: &ReleaseIn,
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        if let Some(opened) = self.files.get(operation.handle)
            && opened.file.has_started_atomic_write()
            && let Err(failure) = self.abort_atomic_write(header.node, &opened)
        {
            let inode = self.nodes.number(header.node);
            tracing::warn!("cannot end an atomic write of inode {inode}: {}", failure.0);
        }
        let was_last_holder = self.files.remove(operation.handle);
        if let Some(known) = self.nodes.get(header.node) {
            known.stop_reading();
            if was_last_holder && known.node.attributes().blocks == 0 {
                // While the kernel might have held data, a block was reported.
                self.invalidate_attributes(header.node);
            }
        }
        Ok(Answer::Payload)
    }
}
