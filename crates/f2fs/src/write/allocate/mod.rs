//! The choice of new blocks.
//!
//! - `logs.rs`, `mode.rs`: the next block of each log
//! - `room.rs`: the blocks that a checkpoint needs and can use
//! - `place.rs`, `placements.rs`: data on its way to the device
//! - `owned.rs`: the check before writes in place
//! - `pending.rs`: blocks of atomic writes
//! - `reserved.rs`: what an operation changes beside nodes

pub(crate) mod logs;
pub(crate) mod mode;
pub(crate) mod owned;
pub(crate) mod pending;
pub(crate) mod place;
pub(crate) mod placements;
pub(crate) mod reserved;
pub(crate) mod room;
