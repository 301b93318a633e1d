//! Copies of trees from an image to the host.
//!
//! The image is not trusted. A copy accesses paths below the destination through open directories,
//! one checked name at a time, and follows no symbolic links there. So it cannot change files
//! outside of the destination. A file gets its final name only when it is complete. What gives
//! rights on the host, such as set-ID bits, is copied only on request ([`Options::privileged`]).
//! The process is confined to the destination before it reads the image.

mod contents;
mod destination;
mod engine;
mod hard_links;
mod left_out;
mod levels;
mod limits;
mod losses;
mod metadata;
mod names;
mod place;
mod progress;
mod worker;

use vfs::Volume;

pub use destination::{Directory, temporary_name};
pub use engine::{Engine, Options};
pub use hard_links::Links;
pub use left_out::{Full, LeftOut};
pub use limits::{Maximum, suspicious_bytes};
pub use metadata::CAPABILITIES;

/// The error of a copy that would replace another one of the same command.
pub const IS_MADE: &str = "has the name of a file that was just copied, and was not copied";

/// Returns the size of the largest file that is copied through the cache of the volume, which is
/// half of the cache. Copied data is used once, and larger files would evict data that is used
/// again.
pub fn cached_bytes_max(volume: &Volume) -> u64 {
    volume.cache_stats().bytes_max / 2
}
