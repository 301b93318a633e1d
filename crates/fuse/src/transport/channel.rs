//! The connection to the kernel over /dev/fuse: a read receives a request, and a writev sends an
//! answer. Not here: threads.

use std::io::IoSlice;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use base::FileOffset;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::protocol::{InvalidateInode, NOTIFY_INVALIDATE_INODE, OutHeader};
use crate::transport::busy_poll::BusyPoll;

/// The greatest error number that the kernel accepts in an answer.
const ERRNO_MAX: i32 = 511;

/// The maximum number of pieces of a payload: one less than writev accepts (IOV_MAX), for the
/// header.
pub const PIECES_MAX: usize = 1023;

/// The reason why no more requests come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// The file system was unmounted.
    Unmounted,
    /// The connection was aborted. The mount still exists, but every access to it fails.
    Aborted,
    /// Reading failed.
    Failed(Errno),
    /// A ring failed while it held an answer.
    RingFailed(Errno),
    /// A thread with a ring panicked.
    Panicked,
}

/// An open /dev/fuse, or another file that preserves message boundaries, such as a socket.
#[derive(Clone, Debug)]
pub struct Channel {
    device: Arc<OwnedFd>,
}

impl Channel {
    /// Creates a channel over `device`, and makes the descriptor nonblocking.
    pub fn new(device: OwnedFd) -> Result<Self, Errno> {
        let flags = rustix::fs::fcntl_getfl(&device)?;
        // A confined server may not change the flags. The guard has set this one.
        if !flags.contains(OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self { device: Arc::new(device) })
    }

    /// Waits for a request and reads it into `buffer`. Returns its length.
    pub fn receive(&self, buffer: &mut [u8], poll: &BusyPoll) -> Result<usize, EndReason> {
        let mut wait = None;
        loop {
            match rustix::io::read(&*self.device, &mut *buffer) {
                Ok(0) | Err(Errno::NODEV) => return Err(EndReason::Unmounted),
                Ok(length) => {
                    if let Some(wait) = &wait {
                        poll.end(wait);
                    }
                    return Ok(length);
                }
                Err(Errno::AGAIN) => {
                    if !poll.poll_again(wait.get_or_insert_with(|| poll.begin())) {
                        self.sleep(poll)?;
                    }
                }
                // NOENT: the kernel withdrew the request during the read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::CONNABORTED) => return Err(EndReason::Aborted),
                Err(errno) => return Err(EndReason::Failed(errno)),
            }
        }
    }

    /// Sleeps until there may be a request.
    fn sleep(&self, poll: &BusyPoll) -> Result<(), EndReason> {
        let mut device = [PollFd::new(&*self.device, PollFlags::IN)];
        match rustix::event::poll(&mut device, poll.sleep_timeout()) {
            Ok(0) => poll.let_sleep(),
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(EndReason::Failed(errno)),
        }
        Ok(())
    }

    /// Answers the request `unique` with success and a payload in at most `PIECES_MAX` pieces.
    pub fn succeed<P: Deref<Target = [u8]>>(&self, unique: u64, payload: &[P]) {
        let length = payload.iter().fold(size_of::<OutHeader>(), |sum, piece| sum + piece.len());
        let Ok(length) = u32::try_from(length) else { return self.fail(unique, Errno::IO) };
        let header = OutHeader { length, error: 0, unique };
        let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::with_capacity(1 + payload.len());
        slices.push(IoSlice::new(header.as_bytes()));
        slices.extend(payload.iter().map(|piece| IoSlice::new(piece)));
        if let Err(errno) = self.write(&slices) {
            tracing::warn!("the kernel refused an answer of {length} bytes: {errno}");
            self.fail(unique, Errno::IO);
        }
    }

    /// Answers the request `unique` with an error.
    pub fn fail(&self, unique: u64, errno: Errno) {
        let length = size_of::<OutHeader>() as u32;
        let header = OutHeader { length, error: -error_number(errno), unique };
        if let Err(errno) = self.write(&[IoSlice::new(header.as_bytes())]) {
            tracing::warn!("the kernel refused an error as an answer: {errno}");
        }
    }

    /// Invalidates the attributes of `node` in the kernel's cache. Handlers of requests may call
    /// this.
    pub fn invalidate_attributes(&self, node: u64) {
        self.invalidate(InvalidateInode { node, offset: -1, length: 0 });
    }

    /// Invalidates the attributes of `node`, and a range of its contents, in the kernel's cache.
    /// The kernel writes dirty contents first, and waits for requests in flight that read or write
    /// the contents. So a thread that receives requests must not call this. Returns whether the
    /// kernel has done so.
    pub fn invalidate_contents(&self, node: u64, range: Range<FileOffset>) -> bool {
        let offset = i64::try_from(range.start.0).unwrap_or(i64::MAX);
        // Zero: up to the end of the file.
        let length = i64::try_from(range.end.0).map_or(0, |end| end.saturating_sub(offset));
        self.invalidate(InvalidateInode { node, offset, length })
    }

    fn invalidate(&self, message: InvalidateInode) -> bool {
        let length = (size_of::<OutHeader>() + size_of::<InvalidateInode>()) as u32;
        let header = OutHeader { length, error: NOTIFY_INVALIDATE_INODE, unique: 0 };
        let sent = self.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(message.as_bytes())]);
        if let Err(errno) = sent {
            tracing::warn!("the kernel refused to invalidate cached data: {errno}");
        }
        sent.is_ok()
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> Result<(), Errno> {
        loop {
            match rustix::io::writev(&*self.device, slices) {
                // NOENT, NODEV: the request was aborted, or the connection has ended.
                Ok(_) | Err(Errno::NOENT | Errno::NODEV) => return Ok(()),
                Err(Errno::INTR) => {}
                // /dev/fuse always has room. A socket may be full.
                Err(Errno::AGAIN) => self.await_room()?,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sleeps until there may be room for an answer.
    fn await_room(&self) -> Result<(), Errno> {
        let mut device = [PollFd::new(&*self.device, PollFlags::OUT)];
        match rustix::event::poll(&mut device, None) {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Returns the number of `errno` in an answer: EIO's if an answer cannot contain its own.
pub fn error_number(errno: Errno) -> i32 {
    let number = errno.raw_os_error();
    if (1..=ERRNO_MAX).contains(&number) { number } else { Errno::IO.raw_os_error() }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
