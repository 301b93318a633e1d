//! The transport over io_uring (from Linux 6.14 on). One system call sends an answer and receives
//! the next request, in a thread on the client's own processor. FORGET and INTERRUPT still come
//! through /dev/fuse.

mod delivery;
mod device;
mod entry;
mod processors;
mod worker_pool;

pub use device::{connect_device, open_device};
pub use worker_pool::{NoRings, RingWorkerPool, Rings};
