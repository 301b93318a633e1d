//! The host that tests run on: its programs, limits and mounts, what it refuses, and attempts to
//! escape from a confinement.

pub(crate) mod async_writes;
pub mod command;
pub(crate) mod deny;
pub(crate) mod environment;
pub mod escapes;
pub(crate) mod ioctl;
pub(crate) mod limits;
pub(crate) mod mount;
pub mod ring_escapes;
pub(crate) mod rings;
pub(crate) mod terminal;
