//! Results of handlers: a payload in the transport's memory, a range of a file that the transport
//! fetches itself, an error, or no answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::FileOffset;
use iomap::FolioSlice;
use rustix::io::Errno;
use vfs::RwFlags;
use zerocopy::{Immutable, IntoBytes};

use crate::deferred::Deferred;

/// The payload of a reply, filled from the front.
#[derive(Debug)]
pub struct Reply<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> Reply<'a> {
    /// Creates an empty payload in `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0 }
    }

    /// Limits the payload to `bytes`, including the bytes already added.
    pub fn limit(&mut self, bytes: usize) {
        let kept = self.buffer.len().min(bytes.max(self.length));
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = &mut buffer[..kept];
    }

    /// Returns the number of bytes that still fit.
    pub fn room(&self) -> usize {
        self.buffer.len() - self.length
    }

    /// Returns whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the bytes added so far.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Adds bytes. Fails with ERANGE, and adds nothing, if they do not fit.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let target = self.buffer[self.length..].get_mut(..bytes.len()).ok_or(Errno::RANGE)?;
        target.copy_from_slice(bytes);
        self.length += bytes.len();
        Ok(())
    }

    /// Adds a record. Fails with ERANGE, and adds nothing, if it does not fit.
    pub fn push<T: IntoBytes + Immutable>(&mut self, record: &T) -> Result<(), Errno> {
        self.push_bytes(record.as_bytes())
    }

    /// Adds zeroes up to the alignment of records. The caller has checked the room.
    pub fn pad(&mut self) {
        let end = crate::protocol::align(self.length).min(self.buffer.len());
        self.buffer[self.length..end].fill(0);
        self.length = end;
    }
}

/// The answer to a request.
#[derive(Debug)]
pub enum Answer {
    /// No answer.
    Silent,
    /// Success, with the payload in the [`Reply`].
    Payload,
    /// Success, with bytes of a file.
    Contents(Contents),
    /// Not known yet: a wait for the kernel comes first.
    Deferred(Deferred),
    /// An error.
    Error(Errno),
}

/// A range of a file as the payload of a reply. The payload is shorter if the file ends in the
/// range.
#[derive(Debug)]
pub struct Contents {
    /// The file.
    pub file: Arc<vfs::File>,
    /// The first byte.
    pub offset: FileOffset,
    /// The number of bytes. The reply has room for them.
    pub length: usize,
    /// Whether the read bypasses the cache (O_DIRECT).
    pub is_direct: bool,
}

impl Contents {
    /// Reads the bytes into the front of `buffer`. Returns their number.
    pub fn fetch(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let length = self.length.min(buffer.len());
        let buffer = &mut buffer[..length];
        self.catch_panic(|| {
            if self.is_direct {
                self.file.read_direct(self.offset, buffer)
            } else {
                self.file.read_with(self.offset, buffer, RwFlags::default())
            }
        })
    }

    /// Lends the bytes from the cache: stores references to them in `slices`, which is empty. Not
    /// for direct reads.
    pub fn lend(&self, slices: &mut Vec<FolioSlice>) -> Result<(), Errno> {
        self.catch_panic(|| {
            let mut done = 0;
            while done < self.length {
                let Some(here) = self.offset.checked_add(done as u64) else { break };
                let slice = self.file.lend(here, self.length - done)?;
                if slice.is_empty() {
                    break;
                }
                done += slice.len();
                slices.push(slice);
            }
            Ok(())
        })
    }

    /// Calls `read`. A panic in it is logged by the panic hook and becomes EIO.
    fn catch_panic<T>(&self, read: impl FnOnce() -> base::Result<T>) -> Result<T, Errno> {
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(done) => done.map_err(|error| Failure::from(error).0),
            Err(_) => {
                tracing::error!("panic while reading inode {}", self.file.node().number());
                Err(Errno::IO)
            }
        }
    }
}

/// A handler's error, as an error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure(pub Errno);

impl Failure {
    /// Returns whether space was lacking.
    pub fn is_lack_of_space(&self) -> bool {
        self.0 == Errno::NOSPC
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<base::Error> for Failure {
    fn from(error: base::Error) -> Self {
        if matches!(error, base::Error::Corrupt(_) | base::Error::Io(_) | base::Error::OutOfMemory)
        {
            tracing::warn!("{error}");
        }
        Self(Errno::from_raw_os_error(error.errno()))
    }
}

/// The result of a handler.
pub type Outcome = Result<Answer, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_does_not_fit_leaves_the_payload_unchanged() {
        let mut memory = [0xff; 20];
        let mut reply = Reply::new(&mut memory);
        assert_eq!(reply.push_bytes(b"abcde"), Ok(()));
        reply.pad();
        assert_eq!(reply.push(&[1_u64, 2]), Err(Errno::RANGE));
        assert_eq!(reply.bytes(), b"abcde\0\0\0");
        reply.limit(10);
        assert_eq!(reply.room(), 2);
        reply.limit(3);
        assert_eq!((reply.room(), reply.bytes().len()), (0, 8));
    }
}
