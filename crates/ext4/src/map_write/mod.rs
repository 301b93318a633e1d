//! Changes where an inode's data lies.
mod leaf;
mod tree;
