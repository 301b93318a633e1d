//! The devices of a volume: its own, and its journal's if that is external.

use std::sync::Arc;

use base::{DeviceOffset, Result};
use device::{RebuiltDevice, SharedDevice, Slice};
use fs::{FileSystem, Format, FormatOptions};
use fscrypt::Keys;
use iomap::PageCache;

use crate::images::encryption;

/// Returns the keys of all encrypted files.
fn keys() -> Arc<Keys> {
    Arc::new(encryption::master_keys())
}

/// A format of recorded volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeFormat {
    /// ext2, ext3 or ext4.
    Ext4,
    /// f2fs.
    F2fs,
}

/// The devices of a volume.
#[derive(Clone, Debug)]
pub struct Disks {
    /// The volume's device.
    pub volume: SharedDevice,
    /// The device of an external journal.
    pub journal: Option<SharedDevice>,
    /// The volume's format.
    pub format: VolumeFormat,
    /// The volume's device, if it was rebuilt after a power cut.
    pub rebuilt: Option<RebuiltDevice>,
}

impl Disks {
    /// Returns a volume of this format without other devices.
    pub fn new(volume: SharedDevice, format: VolumeFormat) -> Self {
        Self { volume, journal: None, format, rebuilt: None }
    }

    /// Returns the devices in `whole`: the volume's first `volume_bytes` bytes, and then those of
    /// an external journal. With `None`, the volume has all bytes.
    pub fn of(whole: RebuiltDevice, volume_bytes: Option<u64>, format: VolumeFormat) -> Self {
        let device = whole.device();
        let Some(bytes) = volume_bytes else {
            return Self { rebuilt: Some(whole), ..Self::new(device, format) };
        };
        let volume = Slice::new(Arc::clone(&device), DeviceOffset(0), bytes).unwrap();
        let journal = Slice::from(device, DeviceOffset(bytes)).unwrap();
        Self { journal: Some(Arc::new(journal)), ..Self::new(Arc::new(volume), format) }
    }

    /// Opens the volume, and recovers it in memory.
    pub fn open(&self, cache: &Arc<PageCache>) -> Result<Arc<dyn FileSystem>> {
        self.open_with(cache, &FormatOptions { keys: keys(), ..FormatOptions::default() })
    }

    /// Opens the volume for writing, and recovers it in place.
    pub fn open_for_writing(&self, cache: &Arc<PageCache>) -> Result<Arc<dyn FileSystem>> {
        let options = FormatOptions { writable: true, keys: keys(), ..FormatOptions::default() };
        self.open_with(cache, &options)
    }

    fn open_with(
        &self,
        cache: &Arc<PageCache>,
        options: &FormatOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        match self.format {
            VolumeFormat::Ext4 => {
                let journal_device = self.journal.clone();
                let format = ext4::Format { journal_device, ..ext4::Format::default() };
                format.open(&self.volume, cache, options)
            }
            VolumeFormat::F2fs => f2fs::Format::default().open(&self.volume, cache, options),
        }
    }

    /// Opens a volume of ext4.
    pub fn open_ext4(&self, cache: &Arc<PageCache>) -> Result<Arc<ext4::Volume>> {
        ext4::Volume::open(Arc::clone(&self.volume), cache, &self.ext4_options())
    }

    /// Opens a volume of ext4 for writing, and recovers it in place.
    pub fn open_ext4_for_writing(&self, cache: &Arc<PageCache>) -> Result<Arc<ext4::Volume>> {
        ext4::Volume::open_for_writing(Arc::clone(&self.volume), cache, &self.ext4_options())
    }

    fn ext4_options(&self) -> ext4::OpenOptions {
        let journal_device = self.journal.clone();
        ext4::OpenOptions { journal_device, ..ext4::OpenOptions::default() }
    }
}
