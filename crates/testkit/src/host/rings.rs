//! The host's switch for FUSE over io_uring. It affects all mounts of the host when they are
//! created. A test that needs it on or off holds a lock while it mounts.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::FlockOperation;

use crate::must;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// A setting of the switch. Dropping this restores the previous one.
pub struct RingOffer {
    switch: File,
    before: [u8; 1],
}

impl RingOffer {
    /// Sets the switch on or off. Returns `None` if there is none: on a kernel before 6.14, or in a
    /// container.
    pub fn put(on: bool) -> Option<Self> {
        let switch = OpenOptions::new().read(true).write(true).open(SWITCH).ok()?;
        // Other test programs use this lock, too. Closing the file releases it.
        must(rustix::fs::flock(&switch, FlockOperation::LockExclusive), SWITCH);
        let mut before = [0; 1];
        must(switch.read_exact_at(&mut before, 0), SWITCH);
        must(switch.write_all_at(if on { b"Y" } else { b"N" }, 0), SWITCH);
        Some(Self { switch, before })
    }
}

impl Drop for RingOffer {
    fn drop(&mut self) {
        let restored = self.switch.write_all_at(&self.before, 0);
        assert!(std::thread::panicking() || restored.is_ok(), "{restored:?}");
    }
}
