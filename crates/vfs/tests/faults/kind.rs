//! Kinds of volumes.

use std::sync::Arc;

use base::{BlockSize, Result};
use device::{MemoryDevice, OverlayDevice, SharedDevice};
use testkit::crash::{self, F2FS, F2FS_16K, F2FS_COMPRESSED, F2FS_ENCRYPTED};
use testkit::{Mke2fs, encryption};
use vfs::{AccessOptions, AccessTimes, Credentials, Volume, VolumeOptions};

/// A kind of volume.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Ext4,
    F2fs(&'static crash::Kind),
}

/// All kinds. The second one has nothing special.
pub const KINDS: [Kind; 5] = [
    Kind::Ext4,
    Kind::F2fs(&F2FS[0]),
    Kind::F2fs(&F2FS_COMPRESSED),
    Kind::F2fs(&F2FS_ENCRYPTED),
    Kind::F2fs(&F2FS_16K),
];

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ext4, Self::Ext4) => true,
            (Self::F2fs(one), Self::F2fs(other)) => one.name == other.name,
            _ => false,
        }
    }
}

impl Kind {
    /// Returns the contents of a new volume, which are never written to.
    pub fn contents(&self) -> SharedDevice {
        match self {
            Self::Ext4 => {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("image");
                Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.make(&path, None);
                Arc::new(MemoryDevice::new(std::fs::read(path).unwrap()))
            }
            Self::F2fs(kind) => kind.contents(),
        }
    }

    /// Returns a device with a new volume.
    pub fn disk(&self) -> SharedDevice {
        let block_size = BlockSize::from_bytes(4096).unwrap();
        Arc::new(OverlayDevice::new(self.contents(), block_size, u64::MAX))
    }

    /// Opens a volume for writing. New files are compressed if the kind has compressed files.
    pub fn open(&self, device: SharedDevice) -> Volume {
        /// FS_COMPR_FL.
        const COMPRESSED: u32 = 4;
        let volume = self.try_open(device, true).unwrap();
        if self.is_compressed() {
            volume.root().unwrap().set_flags(COMPRESSED, &Credentials::ROOT).unwrap();
        }
        volume
    }

    pub fn try_open(&self, device: SharedDevice, writable: bool) -> Result<Volume> {
        let access = AccessOptions { times: AccessTimes::Always, ..AccessOptions::default() };
        let keys = Arc::new(encryption::master_keys());
        let mut options = VolumeOptions { writable, access, keys, ..VolumeOptions::default() };
        options.cache.bytes_max = 16 << 20;
        Volume::open_device(device, &options)
    }

    /// Returns whether new files are compressed.
    pub fn is_compressed(&self) -> bool {
        matches!(self, Self::F2fs(kind) if kind.is_compressed())
    }

    /// Returns whether data lies on the device as it was written.
    pub fn stores_data_as_it_is(&self) -> bool {
        !self.is_compressed() && !matches!(self, Self::F2fs(kind) if kind.is_encrypted())
    }

    /// Returns the bytes that are written to the device as a whole.
    pub fn unit(&self) -> usize {
        match self {
            Self::Ext4 => 4096,
            Self::F2fs(kind) if kind.is_compressed() => 16 << 10,
            Self::F2fs(kind) => kind.atomic_bytes as usize,
        }
    }

    /// Returns the length of a file with more than one unit. Of compressed files, all units are
    /// whole.
    pub fn length(&self) -> usize {
        if self.is_compressed() { 2 * self.unit() } else { self.unit() + 904 }
    }
}
