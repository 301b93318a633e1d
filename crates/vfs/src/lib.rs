//! What a file system offers to its users, whatever its format: inodes, names, data, attributes.
//! Not here: any format, any transport.
#![forbid(unsafe_code)]

mod file_system;

pub use file_system::{FileData, FileSystem, Inode};
