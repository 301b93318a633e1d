//! Ioctls of the host's block devices for which no crate has a safe wrapper.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl};

/// BLKROGET: whether the device refuses writes.
const GET_READ_ONLY: Opcode = rustix::ioctl::opcode::none(0x12, 94);

/// Returns whether the host refuses all writes to this block device.
pub(crate) fn is_write_protected(device: &OwnedFd) -> Result<bool, Errno> {
    // SAFETY: the request stores one `int`, whatever the device is.
    let read_only = unsafe { ioctl(device, Getter::<GET_READ_ONLY, i32>::new()) };
    read_only.map(|read_only| read_only != 0)
}
