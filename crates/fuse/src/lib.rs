//! A FUSE server for volumes: the protocol, its operations, the transports over /dev/fuse and
//! io_uring, and mounting. Not here: formats, and file-system logic beyond the translation to
//! `vfs`.
#![deny(unsafe_code)]

pub mod protocol;

mod child;
mod deferred;
mod dispatch;
mod interrupts;
mod kernel_cache;
mod mount;
mod node_table;
mod open_files;
mod operations;
mod owners;
mod parked;
mod reply;
mod request;
mod requester;
mod retry;
mod server;
mod session;
mod socket;
mod transport;
mod upgrade;

pub use deferred::Deferred;
pub use mount::{
    Claim, LoopBacking, LoopDevice, MountEntry, MountError, MountOptions, OptionError, Preference,
    backing_file, loop_backing, mount_again, mounts_of, retry_while_in_use, served, split_option,
};
pub use operations::{InitRefused, Negotiated};
pub use owners::{IdMap, IdRange, Owners};
pub use parked::keep_until_exit;
pub use reply::{Answer, Contents, Reply};
pub use request::Request;
pub use server::{Server, ServerOptions};
pub use session::{
    ConfineError, Confinement, END_SIGNALS, Hold, Inherited, Layer, Plan, Remount, RemountError,
    SessionError, Severity, SyncError, SystemLog, UmountError, UmountNotice, Upgrade, ask,
    ignore_other_signals, is_dead_device, remount, remove_dead, run, sync, umount, umount_lazily,
};
pub use transport::{BusyPoll, Channel, EndReason, NoRings, THREADS_DEFAULT, WorkerPool};
