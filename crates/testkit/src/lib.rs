//! Tools for tests of whole volumes: images, their contents, descriptions of these, and independent
//! judges. For development only.
//!
//! All functions panic on failure, so a test that cannot run fails with the reason.

pub mod answers;
mod async_writes;
mod changer;
pub mod command;
mod cpio;
pub mod crash;
mod deny;
mod digest;
pub mod encryption;
mod environment;
pub mod escapes;
pub mod exercise;
pub mod f2fs;
mod format;
pub mod guest;
pub mod hostile;
mod image;
mod ioctl;
mod kind;
mod limits;
pub mod log_writes;
mod manifest;
pub mod memory;
mod mount;
mod panics;
mod random;
pub mod ring_escapes;
mod rings;
mod terminal;
pub mod toy;
pub mod tree;
pub mod turns;
pub mod verity;
mod waiting;
#[cfg(test)]
mod waiting_tests;
pub mod walk;

pub use async_writes::AsyncWrites;
pub use changer::Changer;
pub use deny::{
    Denied, LAYERS_REFUSED, add_group, become_user, deny, fakes_of_layers, refusals_of_layer,
};
pub use device::{DeviceHooks, HookedDevice};
pub use digest::digest;
pub use environment::{seeds, soak_factor};
pub use format::Format;
pub use image::{MKE2FS_CONF, Mke2fs, check_by_e2fsck};
pub use ioctl::move_extents;
pub use kind::{GUEST_KINDS, KINDS, Kind};
pub use limits::Limits;
pub use manifest::Manifest;
pub use mount::{LoopMount, private_mounts};
pub use panics::{PanicDevice, PanicOnce};
pub use random::{Choose, InputBytes, Random};
pub use rings::RingOffer;
pub use terminal::open_terminal;
pub use waiting::{Waiter, thread_state, wait_for_wakes, wait_until};

use std::fmt::{Debug, Display};

/// Returns the value of `result`. Panics with `what` if it is an error.
#[track_caller]
pub fn must<T, E: Debug>(result: Result<T, E>, what: impl Display) -> T {
    result.unwrap_or_else(|error| panic!("{what}: {error:?}"))
}
