//! Copies trees out of an image to the host.
//!
//! The image is not trusted. Everything below the destination is reached through open directories,
//! one checked name at a time, and no symbolic link is followed there, so nothing outside of it can
//! be touched. A file gets its name only when it is whole.

mod contents;
mod destination;
mod engine;
mod losses;
mod metadata;
mod progress;

pub use destination::{Directory, temporary_name};
pub use engine::{Engine, Options};
