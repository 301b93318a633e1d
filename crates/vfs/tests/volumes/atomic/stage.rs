//! An f2fs volume in an image, its opening, and its contents as a recovery finds them.

use std::path::PathBuf;

use base::FileOffset;
use tempfile::TempDir;
use testkit::f2fs::{Kind, check_by_both};
use vfs::{File, Follow, RwFlags, SyncRange, Volume, VolumeOptions};

pub const MEGABYTES: u64 = 128;

/// Writes data back, and waits for it, without making it durable.
pub const ALL: SyncRange = SyncRange { wait_before: true, write: true, wait_after: true };

/// An image.
pub struct Stage {
    _folder: TempDir,
    pub image: PathBuf,
}

impl Stage {
    pub fn new() -> Self {
        Self::of(MEGABYTES)
    }

    pub fn of(megabytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        Kind::named("plain").make(&image, megabytes);
        Self { _folder: folder, image }
    }

    /// Opens the volume for writing with a small cache.
    pub fn open(&self) -> Volume {
        crate::common::open(&self.image)
    }

    /// Returns the contents of a file that a recovery finds now. The volume is not changed
    /// meanwhile.
    pub fn contents_on_device(&self, name: &str) -> Vec<u8> {
        let copy = self.image.with_extension("copy");
        std::fs::copy(&self.image, &copy).unwrap();
        let volume = VolumeOptions::new().cache_bytes_max(8 << 20).open(&copy).unwrap();
        match volume.resolve(format!("/{name}").as_bytes(), Follow::No) {
            Ok(node) => read(&node.open().unwrap()),
            Err(_) => Vec::new(),
        }
    }

    /// Closes the volume, and has the image checked.
    pub fn close(&self, volume: Volume) {
        volume.close().unwrap();
        drop(volume);
        self.check();
    }

    pub fn check(&self) {
        check_by_both(&self.image);
    }
}

/// Returns the contents of a file.
pub fn read(file: &File) -> Vec<u8> {
    let mut contents = vec![0; file.node().attributes().size as usize];
    let length = file.read_with(FileOffset(0), &mut contents, RwFlags::default()).unwrap();
    assert_eq!(length, contents.len());
    contents
}

/// Returns `length` bytes for this seed.
pub fn data(seed: u64, length: usize) -> Vec<u8> {
    testkit::tree::contents(seed, length)
}
