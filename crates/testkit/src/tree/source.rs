//! A filled folder, as the source for `mke2fs -d`. Not here: its contents.

use std::path::{Path, PathBuf};

use super::{TreeOptions, populate};
use crate::{LoopMount, Mke2fs, must};

/// The folder. It exists as long as the mount that contains it.
pub struct Source {
    mount: LoopMount,
}

impl Source {
    /// Fills a folder with files that all formats of the ext family support with blocks of
    /// `block_size`, and that `mke2fs -d` copies. The folder is in a separate file system with an
    /// image in `scratch`, since some file systems in /tmp have no extended attributes. The caller
    /// has called [`private_mounts`](crate::private_mounts).
    pub fn new(scratch: &Path, block_size: u32) -> Self {
        let image = scratch.join("source");
        Mke2fs::new("ext4", 4096).make(&image, None);
        let source = Self { mount: LoopMount::new(&image, "ext4", "rw") };
        must(std::fs::create_dir(source.path()), "the source");
        populate(&source.path(), &options(block_size));
        source
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> PathBuf {
        self.mount.path().join("top")
    }
}

fn options(block_size: u32) -> TreeOptions {
    let smaller = u64::from(block_size.min(4096));
    TreeOptions {
        // mke2fs copies preallocated space as data.
        preallocate: false,
        flags: false,
        // Fits into an attribute block with its headers.
        xattr_bytes_max: smaller as usize - 200,
        // The maximum with indirect blocks of 1 KiB.
        file_size_max: 15 << 30,
        ..TreeOptions::new(smaller as u32)
    }
}
