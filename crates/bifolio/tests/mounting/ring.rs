//! The host's switch for FUSE over io_uring. It is one for all of the host and counts when something
//! is mounted: whoever needs it in a certain position holds a lock while mounting.
#![allow(clippy::print_stdout, reason = "what a host does not have is said")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::FlockOperation;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether this test binary mounts with io_uring.
const THROUGH_RINGS: bool = ends_with_ring(env!("CARGO_CRATE_NAME"));

const fn ends_with_ring(name: &str) -> bool {
    matches!(name.as_bytes(), [.., b'_', b'r', b'i', b'n', b'g'])
}

/// The switch in a position, until this is dropped.
pub struct Offer {
    switch: File,
    before: [u8; 1],
}

impl Offer {
    /// Puts the switch to on or off. `None` where there is none: a kernel before 6.14, or a
    /// container.
    pub fn put(on: bool) -> Option<Self> {
        let switch = OpenOptions::new().read(true).write(true).open(SWITCH).ok()?;
        // Tests of other processes, too, keep to this lock; the file's end releases it.
        rustix::fs::flock(&switch, FlockOperation::LockExclusive).unwrap();
        let mut before = [0; 1];
        switch.read_exact_at(&mut before, 0).unwrap();
        switch.write_all_at(if on { b"Y" } else { b"N" }, 0).unwrap();
        Some(Self { switch, before })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let restored = self.switch.write_all_at(&self.before, 0);
        assert!(std::thread::panicking() || restored.is_ok(), "{restored:?}");
    }
}

/// How this test binary mounts: the mount option, and what makes it possible.
pub fn way() -> (Option<Offer>, &'static str) {
    if !THROUGH_RINGS {
        return (None, "io_uring=off");
    }
    match Offer::put(true) {
        Some(offer) => (Some(offer), "io_uring=on"),
        None => {
            println!("NOTE: this host has no FUSE over io_uring: mounting without it");
            (None, "io_uring=auto")
        }
    }
}
