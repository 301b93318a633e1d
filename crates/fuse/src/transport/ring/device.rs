//! The open /dev/fuse that the rings of a server send their commands to. It is opened before the
//! server is confined, since rings accept no further files then, and gets the connection of the
//! mount later. Not here: receiving requests from it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Setter, opcode};

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Opens /dev/fuse, without a connection.
pub fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Gives `device` the connection that `connection` has. The connection lasts until both are closed,
/// and the rings that know `device`.
pub fn connect_device(device: impl AsFd, connection: &OwnedFd) -> io::Result<()> {
    let number = connection.as_raw_fd();
    let number = u32::try_from(number).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel reads a number of 32 bits.
    let call = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: the call accesses nothing else.
    unsafe { ioctl::ioctl(device, call) }?;
    Ok(())
}
