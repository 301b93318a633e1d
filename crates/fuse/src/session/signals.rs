//! Signals that request the end of the process, as a descriptor that can be polled.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::RecvFlags;

/// SIGHUP, SIGINT and SIGTERM.
const SIGNALS: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// A handler of the signals. From [`install`](Self::install) on, they only make its descriptor readable.
#[derive(Debug)]
pub struct Signals {
    receiver: UnixStream,
}

impl Signals {
    /// Installs the handler.
    pub fn install() -> Result<Self, Errno> {
        let of = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let (receiver, sender) = UnixStream::pair().map_err(of)?;
        for signal in SIGNALS {
            let sender = sender.try_clone().map_err(of)?;
            signal_hook::low_level::pipe::register(signal, sender).map_err(of)?;
        }
        Ok(Self { receiver })
    }

    /// Clears the signals that have come.
    pub fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!(rustix::net::recv(&self.receiver, &mut bytes, RecvFlags::DONTWAIT), Ok((n, _)) if n > 0)
        {
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}
