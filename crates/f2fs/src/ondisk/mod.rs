//! Layouts of the structures on the device, one file per structure.

pub mod dentry;
pub mod xattr;
