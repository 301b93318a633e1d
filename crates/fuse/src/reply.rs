//! What a handler gives back: a payload in memory that the transport supplied, file contents for
//! the transport to fetch in the way that suits it, an error, or nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::FileOffset;
use iomap::FolioSlice;
use rustix::io::Errno;
use vfs::RwFlags;
use zerocopy::{Immutable, IntoBytes};

/// The payload of a reply, filled from the front.
#[derive(Debug)]
pub struct Reply<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> Reply<'a> {
    /// An empty payload with room for all of `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0 }
    }

    /// Reduces the room to `bytes`, where it was larger.
    pub fn limit(&mut self, bytes: usize) {
        let kept = self.buffer.len().min(bytes.max(self.length));
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = &mut buffer[..kept];
    }

    /// The bytes that still fit.
    pub fn room(&self) -> usize {
        self.buffer.len() - self.length
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes added so far.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// Adds bytes; ERANGE, and nothing added, when they do not fit.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let target = self.buffer[self.length..].get_mut(..bytes.len()).ok_or(Errno::RANGE)?;
        target.copy_from_slice(bytes);
        self.length += bytes.len();
        Ok(())
    }

    /// Adds a record; ERANGE, and nothing added, when it does not fit.
    pub fn push<T: IntoBytes + Immutable>(&mut self, record: &T) -> Result<(), Errno> {
        self.push_bytes(record.as_bytes())
    }

    /// Adds zeroes up to the alignment of records. The room was checked by the caller.
    pub fn pad(&mut self) {
        let end = crate::protocol::align(self.length).min(self.buffer.len());
        self.buffer[self.length..end].fill(0);
        self.length = end;
    }
}

/// How a request is to be answered.
#[derive(Debug)]
pub enum Answer {
    /// Not at all.
    Silent,
    /// With success, and what was put into the [`Reply`].
    Payload,
    /// With success, and bytes of a file.
    Contents(Contents),
    /// With an error number.
    Error(Errno),
}

/// A range of a file, as the payload of a reply. Shorter at the end of the file.
#[derive(Debug)]
pub struct Contents {
    /// The file.
    pub file: Arc<vfs::File>,
    /// The first byte.
    pub offset: FileOffset,
    /// The number of bytes: no more than the reply has room for.
    pub length: usize,
    /// Around the cache (O_DIRECT).
    pub direct: bool,
}

impl Contents {
    /// Reads the bytes into the front of `buffer` and gives their number.
    pub fn fetch(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let length = self.length.min(buffer.len());
        let buffer = &mut buffer[..length];
        self.guarded(|| match self.direct {
            true => self.file.read_direct(self.offset, buffer),
            false => self.file.read_with(self.offset, buffer, RwFlags::default()),
        })
    }

    /// Lends the bytes out of the cache, in order, into `slices`, which is empty. Not around it.
    pub fn lend(&self, slices: &mut Vec<FolioSlice>) -> Result<(), Errno> {
        self.guarded(|| {
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

    /// A panic on the way is logged by the panic hook and becomes EIO.
    fn guarded<T>(&self, read: impl FnOnce() -> base::Result<T>) -> Result<T, Errno> {
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(done) => done.map_err(|error| Failure::from(error).0),
            Err(_) => {
                tracing::error!("a panic while reading inode {}", self.file.node().number());
                Err(Errno::IO)
            }
        }
    }
}

/// Why a handler gave up, as an error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure(pub Errno);

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

/// What handlers return.
pub type Outcome = Result<Answer, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_refuses_what_does_not_fit_and_keeps_what_did() {
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
