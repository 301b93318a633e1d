//! Tests of what only volumes of ext4 have.

#[path = "../common/mod.rs"]
mod common;

mod direct;
mod move_extents;
mod sparse_check;
mod system_zones;
mod writing;
