//! Copies of trees out of an image to the host.
//!
//! The image is not trusted. Everything below the destination is reached through open directories, one checked
//! name at a time, and no symbolic link is followed there, so nothing outside of it can be changed. A file gets
//! its name only when it is complete.

mod contents;
mod destination;
mod engine;
mod hard_links;
mod left_out;
mod losses;
mod metadata;
mod progress;
mod worker;

use vfs::Volume;

pub use destination::{Directory, temporary_name};
pub use engine::{Engine, Options};
pub use left_out::LeftOut;

/// Returns the size of the largest file that is copied through the volume's cache: half of the cache. Data is copied
/// once, and larger files would evict data that is used again.
pub fn kept_bytes_max(volume: &Volume) -> u64 {
    volume.cache_stats().bytes_max / 2
}
