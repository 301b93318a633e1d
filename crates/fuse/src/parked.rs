//! Open files that last as long as a process that cannot use them: the server keeps locks in this
//! way. Not here: the locks (`device`).

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::socket;

/// Keeps the open file of `file`, and with it its locks, until this process has ended, even if all
/// descriptors are closed. A message has a descriptor, in a connection that waits to be accepted.
/// The filter on system calls refuses accept(2) to a confined process, so this gives it no right to
/// read the file.
pub fn keep_until_exit(file: impl AsFd) -> Result<(), Errno> {
    std::mem::forget(park(file)?);
    Ok(())
}

/// The maximum number of attempts to connect before another program does. Any program can connect
/// to the name of a socket.
const ATTEMPTS_MAX: u32 = 64;

/// Returns a socket that keeps the open file of `file`.
fn park(file: impl AsFd) -> Result<OwnedFd, Errno> {
    let create = || {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
    };
    let mut attempts = ATTEMPTS_MAX;
    loop {
        let listener = create()?;
        // The kernel chooses a name. There is room for one connection.
        rustix::net::bind(&listener, &SocketAddrUnix::new_unnamed())?;
        rustix::net::listen(&listener, 0)?;
        let sender = create()?;
        match rustix::net::connect(&sender, &rustix::net::getsockname(&listener)?) {
            Ok(()) => {
                socket::send(&sender, b"l", Some(file.as_fd()))?;
                return Ok(listener);
            }
            // Another program has taken the room. The next socket has another name.
            Err(Errno::AGAIN) if attempts > 0 => attempts -= 1,
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn a_lock_lasts_as_long_as_the_socket_without_any_descriptor() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive);
        let locked = file.reopen().unwrap();
        lock(&locked).unwrap();
        let socket = park(&locked).unwrap();
        drop(locked);
        let other = file.reopen().unwrap();
        assert_eq!(lock(&other), Err(Errno::WOULDBLOCK));
        drop(socket);
        testkit::wait_until("the end of the lock", || lock(&other).is_ok());
    }
}
