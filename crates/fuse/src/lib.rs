//! A FUSE server for volumes: protocol, operations, transport over /dev/fuse and io_uring, mounting.
//! Not here: any format, any file-system logic beyond the translation to `vfs`.
#![deny(unsafe_code)]

pub mod protocol;

mod mount;
mod node_table;
mod open_files;
mod operations;
mod reply;
mod request;
mod server;
mod session;
mod socket;
mod transport;

pub use mount::{IoUring, MountError, MountOptions, OptionError};
pub use operations::{InitRefused, Negotiated};
pub use reply::{Answer, Contents, Reply};
pub use request::Request;
pub use server::{Server, ServerOptions};
pub use session::{Plan, SessionError, UmountError, run, umount};
pub use transport::{BusyPoll, Channel, Crew, End, NoRings, THREADS_DEFAULT};
