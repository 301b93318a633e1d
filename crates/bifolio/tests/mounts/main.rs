//! Tests of mounts.
#![allow(
    clippy::print_stdout,
    reason = "prints the numbers of extents, and the results of a child process"
)]

#[path = "../mounting/mod.rs"]
mod mounting;

mod access_times;
mod again;
mod confinement;
mod devices;
mod extents;
mod f2fs_ioctls;
mod fallocate;
mod faults;
mod handles;
mod helper;
mod inode_ioctls;
mod operations;
mod owners;
mod privileges;
mod remount;
mod space;
mod sqlite;
mod times;
mod unwritten;
mod upgrade;
