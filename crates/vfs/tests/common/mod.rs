//! Images opened for writing, and files on them, for several test programs of this crate.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::ops::Range;
use std::path::Path;

use base::FileOffset;
use base::attributes::FileType;
use device::{OpenDevice, SharedDevice};
use iomap::{CacheOptions, DirectOptions};
use vfs::{Creation, Credentials, File, FileMap, Follow, OpenMode, Volume, VolumeOptions};

pub const WRITE: OpenMode = OpenMode { write: true, append: false };

pub fn device(image: &Path) -> SharedDevice {
    device::open(image, OpenDevice { read_only: false, ..OpenDevice::default() }).unwrap()
}

/// The size of the cache of [`open`].
pub const CACHE_BYTES: u64 = 8 << 20;

/// Opens the volume on an image with a small cache, so that data is evicted and read again.
pub fn open(image: &Path) -> Volume {
    open_on(device(image), DirectOptions::default())
}

/// Opens the volume on a device with a small cache and these options for direct I/O.
pub fn open_on(device: SharedDevice, direct: DirectOptions) -> Volume {
    let cache = CacheOptions { bytes_max: CACHE_BYTES, ..CacheOptions::default() };
    let options = VolumeOptions { writable: true, cache, direct, ..VolumeOptions::default() };
    Volume::open_device(device, &options).unwrap()
}

/// Creates a file in the root directory, and opens it for writing.
pub fn make(volume: &Volume, name: &str) -> File {
    let creation = Creation::of(FileType::Regular, 0o644);
    let root = volume.root().unwrap();
    let node = volume.create_in(&root, name.as_bytes(), &creation, &Credentials::ROOT).unwrap();
    node.open_for(WRITE).unwrap()
}

/// Opens an existing file in the root directory for writing.
pub fn file(volume: &Volume, name: &str) -> File {
    let path = format!("/{name}");
    volume.resolve(path.as_bytes(), Follow::No).unwrap().open_for(WRITE).unwrap()
}

/// Closes the volume. Panics if e2fsck finds an inconsistency.
pub fn close(volume: Volume, image: &Path) {
    volume.close().unwrap();
    drop(volume);
    testkit::check_by_e2fsck(image);
}

/// Makes the file durable. With `data_only`, makes attributes durable only if reading the data
/// needs them.
pub fn sync(file: &File, data_only: bool) {
    let synced = if data_only { file.sync_data() } else { file.sync_all() };
    synced.unwrap();
}

pub fn bytes(range: Range<u64>) -> Range<FileOffset> {
    FileOffset(range.start)..FileOffset(range.end)
}

/// Loads bytes of a map by a pointer.
pub fn load(map: &FileMap, range: &Range<u64>) -> Vec<u8> {
    assert!(range.end <= map.len() as u64);
    let at = |at: u64| {
        // SAFETY: the byte is in the map. Other threads may change it, which volatile accesses
        // allow.
        unsafe { map.as_ptr().add(at as usize).read_volatile() }
    };
    range.clone().map(at).collect()
}

/// Stores bytes to a map by a pointer.
pub fn store(map: &FileMap, at: u64, data: &[u8]) {
    assert!(at as usize + data.len() <= map.len());
    for (index, byte) in data.iter().enumerate() {
        // SAFETY: the byte is in the map. Other threads may change it, which volatile accesses
        // allow.
        unsafe { map.as_ptr().add(at as usize + index).write_volatile(*byte) };
    }
}
