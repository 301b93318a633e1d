//! LSEEK for data and holes, also in files with data that only the kernel has.

use std::time::Duration;

use base::{Error, FileOffset, Result};
use rustix::io::Errno;
use vfs::File;

use crate::protocol::{InHeader, InitFlags, LseekIn, LseekOut, SEEK_DATA, SEEK_HOLE};
use crate::reply::{Answer, Outcome, Reply};
use crate::server::Server;

/// The time for which a handler waits until the kernel has written its pages, one by one.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The target of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sought {
    Data,
    Hole,
}

impl Sought {
    /// Returns the next data or hole from `from` on.
    fn find(self, file: &File, from: FileOffset) -> Result<FileOffset> {
        match self {
            Self::Data => file.seek_data(from),
            Self::Hole => file.seek_hole(from),
        }
    }
}

impl Server {
    /// LSEEK for SEEK_DATA and SEEK_HOLE. Other kinds of seeking do not reach the server.
    ///
    /// Fails with ENOSYS if the kernel does not write its data in time. The kernel then reports all
    /// files of the mount as data without holes until it is unmounted.
    pub(crate) fn lseek(
        &self,
        header: &InHeader,
        operation: &LseekIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let sought = match operation.whence {
            SEEK_DATA => Sought::Data,
            SEEK_HOLE => Sought::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        let file = self.known(header.node)?.file()?;
        let from = FileOffset(operation.offset);
        if self.files.kernel_may_hold_data(file.node().number())
            && !self.flush_holes(header.node, &file, from, sought)?
        {
            tracing::warn!(
                "the kernel took too long to write its data: it reports holes as data from now on"
            );
            return Err(Errno::NOSYS.into());
        }
        reply.push(&LseekOut { offset: sought.find(&file, from)?.0 })?;
        Ok(Answer::Payload)
    }

    /// Makes the kernel write the data that it holds in holes of `file`, as far as a search from
    /// byte `from` depends on it. Returns whether the kernel has done so in time.
    fn flush_holes(
        &self,
        node: u64,
        file: &File,
        from: FileOffset,
        sought: Sought,
    ) -> Result<bool> {
        if self.agreed_on(InitFlags::WRITEBACK_CACHE) {
            // The kernel may know a larger size.
            return Ok(self.write_and_invalidate(node, from, WRITE_TIMEOUT));
        }
        match (sought, sought.find(file, from)) {
            // A write does not turn data into a hole.
            (Sought::Data, Ok(data)) if data == from => Ok(true),
            (Sought::Data, Ok(_) | Err(Error::NoSuchOffset)) => {
                let is_past_end = from.0 >= file.node().attributes().size;
                Ok(is_past_end || self.write_and_invalidate(node, from, WRITE_TIMEOUT))
            }
            (Sought::Hole, Ok(hole)) => {
                let is_end = hole.0 >= file.node().attributes().size;
                Ok(is_end || self.write_and_invalidate(node, hole, WRITE_TIMEOUT))
            }
            (Sought::Hole, Err(Error::NoSuchOffset)) => Ok(true),
            (_, Err(error)) => Err(error),
        }
    }
}
