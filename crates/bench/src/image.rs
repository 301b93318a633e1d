//! Images on tmpfs, one for each side.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use tempfile::TempDir;
use testkit::Mke2fs;

/// An image in a folder of its own. Dropping the image removes both.
pub struct Image {
    folder: TempDir,
}

impl Image {
    /// Creates an ext4 image of `size` bytes, with further arguments to mke2fs. All of its pages
    /// are present, and all structures initialized, so that no kernel does this during
    /// measurements.
    pub fn make(size: u64, block_size: u32, arguments: &str) -> Self {
        let image = Self { folder: TempDir::new_in("/dev/shm").expect("a folder on tmpfs") };
        let mut options = Mke2fs::new("ext4", block_size)
            .with("-E lazy_itable_init=0,lazy_journal_init=0")
            .with(arguments);
        options.size = size;
        options.make(&image.path(), None);
        image.allocate(size);
        image
    }

    /// Creates an f2fs image of `size` bytes. All of its pages are present.
    pub fn make_f2fs(size: u64) -> Self {
        let image = Self { folder: TempDir::new_in("/dev/shm").expect("a folder on tmpfs") };
        testkit::f2fs::Kind::named("plain").make(&image.path(), size >> 20);
        image.allocate(size);
        image
    }

    fn allocate(&self, size: u64) {
        let file = File::options().write(true).open(self.path()).expect("the image");
        fallocate(file, FallocateFlags::empty(), 0, size).expect("room on tmpfs");
    }

    /// Returns the path of the image.
    pub fn path(&self) -> PathBuf {
        self.folder().join("image")
    }

    /// Returns the folder of the image.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
