//! Calls as in the standard library.
//!
//! - `path.rs`, `open_options.rs`, `read_dir.rs`: `std::fs`
//! - `file.rs`: `std::fs::File` and `std::io`
//! - `xattr.rs`: extended attributes by path

pub(crate) mod file;
pub(crate) mod open_options;
pub(crate) mod path;
pub(crate) mod read_dir;
pub(crate) mod xattr;
