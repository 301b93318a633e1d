//! The socket by which other programs find the guard of a mount, and the user who has bound it. Not here: messages.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Creates the socket of the guard of the mount `name`. It exists while the guard runs.
pub fn announce(name: &str) -> Option<UnixListener> {
    let address = SocketAddr::from_abstract_name(abstract_name(name)).ok()?;
    UnixListener::bind_addr(&address).ok()
}

/// Connects to the guard of the mount `name`, which runs as one of `users`. Returns `None` if there is no such
/// socket: the guard was killed, or runs in another network namespace.
///
/// Any user can bind the name of a mount that has no guard. Fails with `PermissionDenied` if another user has bound it,
/// and with `WouldBlock` if too many programs have connected, since the guard accepts no connection.
pub fn connect(name: &str, users: &[u32]) -> io::Result<Option<UnixStream>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(abstract_name(name).as_bytes())?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::CONNREFUSED) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    if !users.contains(&user(&socket)?) {
        let text = "another user has bound the name of the mount's guard";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(Some(stream))
}

fn abstract_name(name: &str) -> String {
    format!("bifolio-mount-{name}")
}

/// Returns the effective user of the process that listens at the other end of `socket`, at the time it began to listen.
///
/// Not by rustix's function, which cannot represent the result for a process that is not visible from here: its id is
/// zero then.
fn user(socket: &OwnedFd) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel stores at most `length` bytes, for which `found` has room.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    match done {
        0 if length as usize == size_of::<libc::ucred>() => Ok(found.uid),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> String {
        format!("test-{}-{test}", std::process::id())
    }

    #[test]
    fn a_guard_is_found_by_its_name_and_its_user() {
        let name = name("user");
        let user = rustix::process::geteuid().as_raw();
        assert!(connect(&name, &[user]).unwrap().is_none());
        let listener = announce(&name).unwrap();
        assert!(announce(&name).is_none());
        assert!(connect(&name, &[user + 1, user]).unwrap().is_some());
        let refused = connect(&name, &[user + 1]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        drop(listener);
        assert!(connect(&name, &[user]).unwrap().is_none());
    }

    #[test]
    fn connecting_does_not_wait_to_be_accepted() {
        let name = name("full");
        let user = rustix::process::geteuid().as_raw();
        let listener = announce(&name).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let first = connect(&name, &[user]).unwrap();
        let refused = connect(&name, &[user]).unwrap_err();
        assert!(first.is_some() && refused.kind() == io::ErrorKind::WouldBlock, "{refused}");
    }
}
