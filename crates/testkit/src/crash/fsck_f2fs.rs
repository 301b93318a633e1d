//! Runs of fsck.f2fs on images in memory.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use device::SharedDevice;
use rustix::fs::{MemfdFlags, memfd_create};

use super::e2fsck::copy;
use crate::f2fs::complaint_of_fsck;

thread_local! {
    /// A file in memory for the image. Each thread creates it once.
    static FILE: RefCell<Option<Arc<File>>> = const { RefCell::new(None) };
}

/// Returns the output of fsck.f2fs about the contents of a device. `None` if it finds no errors.
pub(super) fn complaint(device: &SharedDevice) -> Option<String> {
    FILE.with_borrow_mut(|file| {
        let new = || Arc::new(memfd_create("image", MemfdFlags::CLOEXEC).unwrap().into());
        let file = file.get_or_insert_with(new);
        copy(device, file);
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        complaint_of_fsck(&PathBuf::from(path))
    })
}
