//! The host's switch for FUSE over io_uring. It is one for all of the host and counts when something
//! is mounted: whoever needs it in a certain position holds a lock while mounting.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::FlockOperation;

use crate::must;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The switch in a position, until this is dropped.
pub struct RingOffer {
    switch: File,
    before: [u8; 1],
}

impl RingOffer {
    /// Puts the switch to on or off. `None` where there is none: a kernel before 6.14, or a
    /// container.
    pub fn put(on: bool) -> Option<Self> {
        let switch = OpenOptions::new().read(true).write(true).open(SWITCH).ok()?;
        // Programs beside this one, too, keep to this lock; the file's end releases it.
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
