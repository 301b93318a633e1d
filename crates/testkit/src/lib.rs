//! Tools for tests of whole volumes: images, their contents, descriptions of these, and independent
//! judges. For development only.
//!
//! All functions panic on failure, so a test that cannot run fails with the reason.

pub mod answers;
pub mod crash;
pub mod f2fs;
pub mod guest;
mod host;
pub mod hostile;
mod images;
mod manifest;
pub mod memory;
mod panics;
mod random;
pub mod tree;
pub mod turns;
mod waiting;
#[cfg(test)]
mod waiting_tests;
pub mod walk;

pub use device::{DeviceHooks, HookedDevice};
pub use host::async_writes::AsyncWrites;
pub use host::deny::{
    Denied, LAYERS_REFUSED, add_group, become_user, deny, fakes_of_layers, refusals_of_layer,
};
pub use host::environment::{seeds, soak_factor};
pub use host::ioctl::move_extents;
pub use host::limits::Limits;
pub use host::mount::{LoopMount, private_mounts};
pub use host::rings::RingOffer;
pub use host::terminal::open_terminal;
pub use host::{command, escapes, ring_escapes};
pub use images::format::Format;
pub use images::image::{MKE2FS_CONF, Mke2fs, check_by_e2fsck};
pub use images::kind::{GUEST_KINDS, KINDS, Kind};
pub use images::{encryption, log_writes, verity};
pub use manifest::Manifest;
pub use manifest::digest::digest;
pub use memory::toy;
pub use panics::{PanicDevice, PanicOnce};
pub use random::changer::Changer;
pub use random::exercise;
pub use random::{Choose, InputBytes, Random};
pub use waiting::{Waiter, thread_state, wait_for_wakes, wait_until};

use std::fmt::{Debug, Display};

/// Returns the value of `result`. Panics with `what` if it is an error.
#[track_caller]
pub fn must<T, E: Debug>(result: Result<T, E>, what: impl Display) -> T {
    result.unwrap_or_else(|error| panic!("{what}: {error:?}"))
}
