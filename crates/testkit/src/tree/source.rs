//! A filled folder for `mke2fs -d` to copy from. Not here: what it is filled with.

use std::path::{Path, PathBuf};

use super::{TreeOptions, populate};
use crate::{LoopMount, Mke2fs, must};

/// The folder. It goes with the mount that it lies on.
pub struct Source {
    mount: LoopMount,
}

impl Source {
    /// Fills a folder with what every format of the ext family can hold with blocks of `block_size`
    /// and `mke2fs -d` copies. It lies on a file system of its own, whose image goes into `scratch`:
    /// not every /tmp takes attributes. [`private_mounts`](crate::private_mounts) must have been
    /// called.
    pub fn new(scratch: &Path, block_size: u32) -> Self {
        let image = scratch.join("source");
        Mke2fs::new("ext4", 4096).make(&image, None);
        let source = Self { mount: LoopMount::new(&image, "ext4", "rw") };
        must(std::fs::create_dir(source.path()), "the source");
        populate(&source.path(), &options(block_size));
        source
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.mount.path().join("top")
    }
}

fn options(block_size: u32) -> TreeOptions {
    let smaller = u64::from(block_size.min(4096));
    TreeOptions {
        // mke2fs reads what is allocated ahead as data.
        preallocate: false,
        flags: false,
        // Outside the inode, and without a value's worth of headers.
        xattr_bytes_max: smaller as usize - 200,
        // What indirect blocks of 1 KiB can map.
        file_size_max: 15 << 30,
        ..TreeOptions::new(smaller as u32)
    }
}
