//! Ways of writing files: mounts, and the library in this process. Not here: the measurements.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use base::attributes::FileType;
use device::{OpenDevice, SharedDevice};
use pagecache::CacheOptions;
use vfs::{Creation, Credentials, OpenMode, Volume, VolumeOptions};

use crate::image::Image;
use crate::mount::{Mount, Mounter};

/// A way of writing.
pub trait Side {
    /// Returns the heading of the column.
    fn name(&self) -> &'static str;

    /// Creates an empty file in the root and opens it. Replaces an existing file.
    fn create(&self, name: &str) -> Box<dyn Output>;

    /// Removes a file from the root.
    fn remove(&self, name: &str);

    /// Makes all changes durable, so that freed blocks can be allocated again.
    fn sync(&self);
}

/// An open file.
pub trait Output: Send {
    /// Writes all of `data` at offset `at`.
    fn write(&mut self, at: u64, data: &[u8]);

    /// Calls fsync(2), or its equivalent.
    fn sync(&mut self);
}

/// A mount, used through system calls.
pub struct Mounted {
    name: &'static str,
    // Unmounted before its image is removed.
    mount: Mount,
    _image: Image,
}

impl Mounted {
    /// Mounts `image`.
    pub fn new(name: &'static str, image: Image, mounter: Mounter) -> Self {
        Self { name, mount: Mount::new(&image.path(), mounter), _image: image }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }
}

impl Side for Mounted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn create(&self, name: &str) -> Box<dyn Output> {
        if self.path(name).exists() {
            self.remove(name);
        }
        Box::new(File::create_new(self.path(name)).expect("a new file"))
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).expect("a removed file");
        self.sync();
    }

    fn sync(&self) {
        File::open(self.mount.path()).and_then(|root| root.sync_all()).expect("a durable root");
    }
}

impl Output for File {
    fn write(&mut self, at: u64, data: &[u8]) {
        self.write_all_at(data, at).expect("a write");
    }

    fn sync(&mut self) {
        self.sync_all().expect("a durable file");
    }
}

/// The library, in this process.
pub struct Library {
    name: &'static str,
    volume: Volume,
    _image: Option<Image>,
}

impl Library {
    /// Opens `image` with a cache in which `bytes` can be dirty without being written back.
    pub fn new(name: &'static str, image: Image, folio_order_max: u8, bytes: u64) -> Self {
        let open = OpenDevice { read_only: false, ..OpenDevice::default() };
        let device = device::open(image.path(), open).expect("the image");
        let mut library = Self::on(name, device, folio_order_max, bytes);
        library._image = Some(image);
        library
    }

    /// Opens the volume on `device` with a cache in which `bytes` can be dirty without being
    /// written back.
    pub fn on(name: &'static str, device: SharedDevice, folio_order_max: u8, bytes: u64) -> Self {
        // A fifth of the cache may be dirty before writeback begins.
        let cache = CacheOptions { folio_order_max, bytes_max: 6 * bytes };
        let options = VolumeOptions { cache, writable: true, ..VolumeOptions::default() };
        let volume = Volume::open_device(device, &options).expect("a volume");
        Self { name, volume, _image: None }
    }
}

impl Side for Library {
    fn name(&self) -> &'static str {
        self.name
    }

    fn create(&self, name: &str) -> Box<dyn Output> {
        let root = self.volume.root().expect("a root");
        if self.volume.lookup(&root, name.as_bytes()).is_ok() {
            self.remove(name);
        }
        let what = Creation::of(FileType::Regular, 0o644);
        let node = self.volume.create_in(&root, name.as_bytes(), &what, &Credentials::ROOT);
        let node: Arc<vfs::Node> = node.expect("a new file");
        let mode = OpenMode { write: true, append: false };
        Box::new(node.open_for(mode).expect("an open file"))
    }

    fn remove(&self, name: &str) {
        let root = self.volume.root().expect("a root");
        let removed = self.volume.unlink(&root, name.as_bytes(), &Credentials::ROOT);
        removed.expect("a removed file");
        self.sync();
    }

    fn sync(&self) {
        self.volume.sync().expect("a durable volume");
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.volume.close().expect("a sound volume");
        }
    }
}

impl Output for vfs::File {
    fn write(&mut self, at: u64, data: &[u8]) {
        let written = self.write_at(data, at).expect("a write");
        assert_eq!(written, data.len(), "written in part");
    }

    fn sync(&mut self) {
        self.sync_all().expect("a durable file");
    }
}
