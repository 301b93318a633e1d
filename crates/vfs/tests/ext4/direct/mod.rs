//! Direct I/O on ext4 volumes, judged by e2fsck: random operations compared with a model, races
//! with other accesses to the same bytes, and a device that holds requests.

mod calls;
mod model;
mod order;
mod races;

use std::path::{Path, PathBuf};

use base::FileOffset;
use device::SharedDevice;
use iomap::DirectOptions;
use tempfile::TempDir;
use testkit::Mke2fs;
use vfs::{Fallocate, File, Privileges, Volume, WriteAt, WriteSync};

use crate::common::{close, device, make, open_on};

/// The maximum size of a file.
const SIZE_MAX: u64 = 4 << 20;
/// The byte with which the device is filled before. No file contains it.
const STALE: u8 = 0xFE;

/// An image, and the volume on it.
struct Stage {
    _folder: TempDir,
    image: PathBuf,
    volume: Volume,
}

impl Stage {
    /// Opens a volume with blocks of 4 KiB on the device that `wrap` returns for the image's.
    /// Creates a file with `size` allocated bytes.
    fn with_file(size: u64, wrap: impl FnOnce(SharedDevice) -> SharedDevice) -> (Self, File) {
        Self::open(size, wrap, |device| open_on(device, DirectOptions::default()))
    }

    /// [`with_file`](Self::with_file) for a volume that `open` opens.
    fn open(
        size: u64,
        wrap: impl FnOnce(SharedDevice) -> SharedDevice,
        open: impl FnOnce(SharedDevice) -> Volume,
    ) -> (Self, File) {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        make_stale(&image, 4096, "");
        let volume = open(wrap(device(&image)));
        let file = make(&volume, "a");
        allocate(&file, size);
        (Self { _folder: folder, image, volume }, file)
    }

    /// Closes the volume. Panics if e2fsck finds an inconsistency.
    fn close(self) {
        close(self.volume, &self.image);
    }
}

/// Creates a volume on a device that is full of old data.
fn make_stale(image: &Path, block_size: u32, arguments: &str) {
    let size = 96 << 20;
    std::fs::write(image, vec![STALE; size]).unwrap();
    let kind = Mke2fs { size: size as u64, ..Mke2fs::new("ext4", block_size) };
    kind.with("-E nodiscard").with(arguments).make(image, None);
}

fn write_direct(file: &File, at: u64, data: &[u8]) -> base::Result<usize> {
    file.write_direct(WriteAt::Offset(FileOffset(at)), data, Privileges::Keep, WriteSync::None)
}

fn allocate(file: &File, size: u64) {
    let mode = Fallocate::Allocate { keep_size: false };
    file.fallocate(mode, FileOffset(0)..FileOffset(size), Privileges::Keep).unwrap();
}
