//! Messages over local sockets, with or without a descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::retry::retry;

/// Creates a pair of connected sockets that preserve message boundaries.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends `bytes`, and a descriptor with them if there is one. Does not wait, but fails with EAGAIN,
/// if the peer has left too many messages unread: the peer may have been compromised.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = retry(|| match descriptor {
        Some(descriptor) => send_with(&socket, bytes, descriptor, flags),
        // The confined server cannot send descriptors, nor make the system call for that.
        None => rustix::net::send(&socket, bytes, flags),
    });
    sent.map(drop)
}

fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    // `space` has room for one descriptor.
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

/// Receives a message into `bytes`. Returns its length and the descriptor that was sent with it.
/// The length is zero if the peer has closed its end.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut slices = [IoSliceMut::new(bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(&socket, &mut slices, &mut ancillary, flags) {
            Ok(received) => break received.bytes,
            Err(Errno::INTR) => {}
            // The peer has closed its end with unread messages in it.
            Err(Errno::CONNRESET) => break 0,
            Err(errno) => return Err(errno),
        }
    };
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((length, descriptor))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_is_received_with_its_message() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut kept, passed) = UnixStream::pair().unwrap();
        send(&here, b"abc", Some(passed.as_fd())).unwrap();
        drop(passed);
        let mut bytes = [0; 8];
        let (length, descriptor) = receive(&there, &mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"abc");
        UnixStream::from(descriptor.unwrap()).write_all(b"x").unwrap();
        kept.read_exact(&mut bytes[..1]).unwrap();
        send(&here, b"d", None).unwrap();
        assert!(receive(&there, &mut bytes).unwrap().1.is_none());
        drop(here);
        assert_eq!(receive(&there, &mut bytes).unwrap().0, 0);
    }
}
