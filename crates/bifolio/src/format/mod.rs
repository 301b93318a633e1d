//! Formatting of data from an image, for people and scripts.

pub mod acl;
pub mod json;
pub mod mode;
pub mod pattern;
pub mod size;
pub mod time;
pub mod xattr;
pub mod xattr_dump;

pub use base::text;
