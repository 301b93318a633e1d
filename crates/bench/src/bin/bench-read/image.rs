//! The image for all reads: ext4 with 4 KiB blocks, on tmpfs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use device::OpenDevice;
use tempfile::TempDir;
use testkit::{LoopMount, Mke2fs};

use crate::case::Content;
use crate::sides::Opener;

/// The size of each of the two files in bytes, much more than the processor's caches.
pub const FILE_BYTES: u64 = 256 << 20;

/// An image with a file of data and a file that is a hole, created through the kernel's mount.
pub struct Image {
    folder: TempDir,
}

impl Image {
    /// Creates the image.
    pub fn make() -> Self {
        let folder = TempDir::new_in("/dev/shm").expect("a folder on tmpfs");
        let image = Self { folder };
        let mut options = Mke2fs::new("ext4", 4096);
        options.size = 3 * FILE_BYTES;
        options.make(&image.path(), None);
        let mount = LoopMount::new(&image.path(), "ext4", "rw");
        let mut data = File::create(mount.path().join(name(Content::Data))).expect("a file");
        let piece: Vec<u8> =
            (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for _ in 0..FILE_BYTES / piece.len() as u64 {
            data.write_all(&piece).expect("room in the image");
        }
        drop(data);
        let hole = File::create(mount.path().join(name(Content::Hole))).expect("a file");
        hole.set_len(FILE_BYTES).expect("a long file");
        drop(hole);
        mount.unmount();
        image
    }

    /// Returns the path of the image.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Returns a function that opens the image.
    pub fn opener(&self) -> Opener {
        let path = self.path();
        Arc::new(move || device::open(&path, OpenDevice::default()).expect("the image"))
    }

    /// Mounts the image with the kernel, read-only.
    pub fn mount(&self) -> LoopMount {
        LoopMount::new(&self.path(), "ext4", "ro")
    }
}

/// Returns the name of the file with `content`, in the image's root.
pub fn name(content: Content) -> &'static Path {
    Path::new(match content {
        Content::Data => "data",
        Content::Hole => "hole",
    })
}
