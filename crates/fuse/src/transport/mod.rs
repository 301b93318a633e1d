//! Transports for requests and answers, and the threads that serve: over /dev/fuse, with one
//! message in each read and write, or through rings of io_uring.

mod affinity;
mod buffers;
mod busy_poll;
mod channel;
mod contention;
mod interval;
mod invalidator;
mod leadership;
mod ring;
mod wait_times;
mod waiters;
mod worker_pool;

pub use affinity::Affinity;
pub use buffers::shake_hands;
pub use busy_poll::{BusyPoll, KeepAwake};
pub use channel::{Channel, EndReason};
pub use contention::Contention;
pub use invalidator::Invalidator;
pub use ring::{NoRings, RingWorkerPool, Rings, connect_device, open_device};
pub use worker_pool::{THREADS_DEFAULT, WorkerPool};
