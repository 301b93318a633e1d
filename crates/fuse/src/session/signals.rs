//! Signals that request the end of the process, as a descriptor that can be polled, and signals
//! that are ignored. Those of a fault in the process itself keep their effect.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use rustix::net::RecvFlags;

/// The signals that request the end. Written data is made durable first.
pub const END_SIGNALS: [i32; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGQUIT, libc::SIGXCPU, libc::SIGPWR];

/// Other signals that end a process by default, beside real-time signals.
const IGNORED: [i32; 11] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPIPE,
    libc::SIGSTKFLT,
    libc::SIGTRAP,
    libc::SIGSYS,
    // The write fails.
    libc::SIGXFSZ,
];

/// Makes signals without a meaning for this process have no effect, so that none of them ends it
/// before data is written.
pub fn ignore_other_signals() -> io::Result<()> {
    // A handler, since ignored signals would stay ignored in programs that this process executes.
    let unused = Arc::new(AtomicBool::new(false));
    for signal in IGNORED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        signal_hook::flag::register(signal, Arc::clone(&unused))?;
    }
    Ok(())
}

/// A handler of [`END_SIGNALS`]. From [`install`](Self::install) on, they only make its descriptor
/// readable.
#[derive(Debug)]
pub struct Signals {
    receiver: UnixStream,
}

impl Signals {
    /// Installs the handler, and [ignores](ignore_other_signals) other signals.
    pub fn install() -> Result<Self, Errno> {
        let of = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let (receiver, sender) = UnixStream::pair().map_err(of)?;
        for signal in END_SIGNALS {
            let sender = sender.try_clone().map_err(of)?;
            signal_hook::low_level::pipe::register(signal, sender).map_err(of)?;
        }
        ignore_other_signals().map_err(of)?;
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
