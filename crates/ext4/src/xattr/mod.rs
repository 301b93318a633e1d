//! Extended attributes: in the inode, in a block, with values in inodes of their own; POSIX ACLs.

pub mod acl;
pub mod entries;
pub mod name;
