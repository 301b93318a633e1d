//! The ext2, ext3 and ext4 formats.
#![forbid(unsafe_code)]

pub mod jbd2;
