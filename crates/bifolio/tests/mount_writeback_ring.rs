//! The tests of `mount_writeback` with requests through io_uring.

#[path = "mount_writeback.rs"]
mod writeback;
