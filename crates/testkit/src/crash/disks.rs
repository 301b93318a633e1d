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
    /// The journal's, where that is another one.
    pub journal: Option<SharedDevice>,
}

impl Disks {
    /// Returns the devices in `whole`, in which one follows the other, if the volume has only its first
    /// `volume_bytes` bytes.
    pub fn of(whole: SharedDevice, volume_bytes: Option<u64>) -> Self {
        let Some(bytes) = volume_bytes else { return Self { volume: whole, journal: None } };
        let volume = Slice::new(Arc::clone(&whole), DeviceOffset(0), bytes).unwrap();
        let journal = Slice::from(whole, DeviceOffset(bytes)).unwrap();
        Self { volume: Arc::new(volume), journal: Some(Arc::new(journal)) }
    }

    /// Opens the volume, recovered in memory.
    pub fn open(&self, cache: &Arc<PageCache>) -> Result<Arc<Volume>> {
        Volume::open(Arc::clone(&self.volume), cache, &self.options())
    }

    /// Opens the volume for writing, recovered in place.
    pub fn open_for_writing(&self, cache: &Arc<PageCache>) -> Result<Arc<Volume>> {
        Volume::open_for_writing(Arc::clone(&self.volume), cache, &self.options())
    }

    fn options(&self) -> OpenOptions {
        OpenOptions { journal_device: self.journal.clone(), ..OpenOptions::default() }
    }
}
