//! Whether a test binary mounts over io_uring.
#![allow(clippy::print_stdout, reason = "what a host does not have is said")]

use testkit::RingOffer;

/// Whether this test binary mounts with io_uring.
const THROUGH_RINGS: bool = ends_with_ring(env!("CARGO_CRATE_NAME"));

const fn ends_with_ring(name: &str) -> bool {
    matches!(name.as_bytes(), [.., b'_', b'r', b'i', b'n', b'g'])
}

/// How this test binary mounts: the mount option, and what makes it possible.
pub fn way() -> (Option<RingOffer>, &'static str) {
    if !THROUGH_RINGS {
        return (None, "io_uring=off");
    }
    match RingOffer::put(true) {
        Some(offer) => (Some(offer), "io_uring=on"),
        None => {
            println!("NOTE: this host has no FUSE over io_uring: mounting without it");
            (None, "io_uring=auto")
        }
    }
}
