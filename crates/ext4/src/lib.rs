//! The ext2, ext3 and ext4 formats.
#![forbid(unsafe_code)]

pub mod dir;
pub mod jbd2;
pub mod ondisk;
pub mod xattr;
