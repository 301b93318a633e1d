//! The handlers of the operations. Each translates one request to calls of `vfs` and fills the
//! reply. All have the same arguments: the header, the operation's fixed part (`()` if there is
//! none), the rest of the request, and the reply.

mod access;
mod attributes;
mod bmap;
mod change;
mod create;
mod data;
mod directories;
mod f2fs_ioctl;
mod init;
mod ioctl;
mod names;
mod remove;
mod seek;
mod sync;
mod volume_ioctl;
mod write;
mod xattrs;

pub use init::{InitRefused, MAX_BACKGROUND, Negotiated, TRANSFER_BYTES_MAX};
pub use ioctl::{
    BECOME_WRITABLE, IS_WRITABLE, MARK_CLEAN, MARK_IN_USE, REASON_BYTES_MAX, SYNC_VOLUME,
};
