//! What the whole-volume tests share: making images, filling them, describing what is in them,
//! and asking judges that nobody here wrote. For development only.
//!
//! Everything here panics when it fails: a test that cannot run fails and says why.

pub mod command;
mod cpio;
pub mod crash;
mod digest;
pub mod exercise;
pub mod guest;
mod hooked_device;
pub mod hostile;
mod image;
mod ioctl;
mod kind;
mod manifest;
pub mod memory;
mod mount;
mod panics;
mod random;
mod rings;
pub mod toy;
pub mod tree;
pub mod turns;
mod waiting;
pub mod walk;

pub use digest::digest;
pub use hooked_device::{DeviceHooks, HookedDevice};
pub use image::{MKE2FS_CONF, Mke2fs, check_by_e2fsck};
pub use ioctl::move_extents;
pub use kind::{GUEST_KINDS, KINDS, Kind};
pub use manifest::Manifest;
pub use mount::{LoopMount, private_mounts};
pub use panics::{PanicDevice, PanicOnce};
pub use random::Random;
pub use rings::RingOffer;
pub use waiting::wait_until;

use std::fmt::{Debug, Display};

/// The value of `result`, or a panic that says what was tried.
#[track_caller]
pub fn must<T, E: Debug>(result: Result<T, E>, what: impl Display) -> T {
    result.unwrap_or_else(|error| panic!("{what}: {error:?}"))
}
