//! OPEN, READ and LSEEK of regular files.

use base::FileOffset;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::protocol::{
    FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, InHeader, LseekIn, LseekOut, OpenIn, OpenOut,
    ReadIn, SEEK_DATA, SEEK_HOLE,
};
use crate::reply::{Answer, Contents, Outcome, Reply};
use crate::server::Server;

/// The bits of `OFlags` that say whether a file is opened for reading or writing.
const ACCESS_MODE: OFlags = OFlags::ACCMODE;

impl Server {
    /// OPEN. Handles are not needed: the kernel keeps the node for as long as the file is open.
    pub(crate) fn open(
        &self,
        header: &InHeader,
        operation: &OpenIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let flags = OFlags::from_bits_retain(operation.flags);
        if flags & ACCESS_MODE != OFlags::RDONLY || flags.contains(OFlags::TRUNC) {
            return Err(Errno::ROFS.into());
        }
        self.known(header.node)?.file()?;
        let direct = if flags.contains(OFlags::DIRECT) { FOPEN_DIRECT_IO } else { 0 };
        let flags = FOPEN_KEEP_CACHE | FOPEN_NOFLUSH | direct;
        reply.push(&OpenOut { handle: 0, flags, backing: 0 })?;
        Ok(Answer::Payload)
    }

    /// READ. The transport fetches the bytes.
    pub(crate) fn read(
        &self,
        header: &InHeader,
        operation: &ReadIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let file = self.known(header.node)?.file()?;
        let length = reply.room().min(operation.size as usize);
        Ok(Answer::Contents(Contents { file, offset: FileOffset(operation.offset), length }))
    }

    /// LSEEK, for data and holes; the kernel does the rest.
    pub(crate) fn lseek(
        &self,
        header: &InHeader,
        operation: &LseekIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let file = self.known(header.node)?.file()?;
        let from = FileOffset(operation.offset);
        let found = match operation.whence {
            SEEK_DATA => file.seek_data(from)?,
            SEEK_HOLE => file.seek_hole(from)?,
            _ => return Err(Errno::INVAL.into()),
        };
        reply.push(&LseekOut { offset: found.0 })?;
        Ok(Answer::Payload)
    }
}
