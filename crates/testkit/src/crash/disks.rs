//! The devices of a volume: its own, and its journal's if that is external.

use std::sync::Arc;

use base::{DeviceOffset, Result};
use device::{SharedDevice, Slice};
use ext4::{OpenOptions, Volume};
use iomap::PageCache;

/// The devices of a volume.
#[derive(Clone, Debug)]
pub struct Disks {
    /// The volume's device.
    pub volume: SharedDevice,
    /// The device of an external journal.
    pub journal: Option<SharedDevice>,
}

impl Disks {
    /// Returns the devices in `whole`: the volume's first `volume_bytes` bytes, and then those of an external journal.
    /// With `None`, the volume has all bytes.
    pub fn of(whole: SharedDevice, volume_bytes: Option<u64>) -> Self {
        let Some(bytes) = volume_bytes else { return Self { volume: whole, journal: None } };
        let volume = Slice::new(Arc::clone(&whole), DeviceOffset(0), bytes).unwrap();
        let journal = Slice::from(whole, DeviceOffset(bytes)).unwrap();
        Self { volume: Arc::new(volume), journal: Some(Arc::new(journal)) }
    }

    /// Opens the volume, and recovers it in memory.
    pub fn open(&self, cache: &Arc<PageCache>) -> Result<Arc<Volume>> {
        Volume::open(Arc::clone(&self.volume), cache, &self.options())
    }

    /// Opens the volume for writing, and recovers it in place.
    pub fn open_for_writing(&self, cache: &Arc<PageCache>) -> Result<Arc<Volume>> {
        Volume::open_for_writing(Arc::clone(&self.volume), cache, &self.options())
    }

    fn options(&self) -> OpenOptions {
        OpenOptions { journal_device: self.journal.clone(), ..OpenOptions::default() }
    }
}
