//! Choice of the transport: whether a test program mounts with io_uring.
#![allow(clippy::print_stdout, reason = "prints missing features of the host")]

use testkit::RingOffer;

/// Whether this test program mounts with io_uring.
const USES_RINGS: bool = ends_with_ring(env!("CARGO_CRATE_NAME"));

const fn ends_with_ring(name: &str) -> bool {
    matches!(name.as_bytes(), [.., b'_', b'r', b'i', b'n', b'g'])
}

/// Returns the mount option for the transport, and the offer of io_uring that must exist while
/// mounting.
pub fn transport() -> (Option<RingOffer>, &'static str) {
    if !USES_RINGS {
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
