//! The transport over io_uring, which Linux has from 6.14 on: a request and the answer to the one
//! before travel in a single system call, to a thread on the client's own processor. FORGET and
//! INTERRUPT keep coming through /dev/fuse.

mod crew;
mod delivery;
mod entry;
mod processors;

pub use crew::{NoRings, RingCrew, Rings};
pub use entry::ENABLE_RINGS;
