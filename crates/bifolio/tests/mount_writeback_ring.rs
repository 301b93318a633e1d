//! The tests of `mount_writeback` again, with requests that travel through io_uring.

#[path = "mount_writeback.rs"]
mod writeback;
