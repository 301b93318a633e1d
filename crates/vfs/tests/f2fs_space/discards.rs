//! Discards: the device does not keep what is free, and keeps everything else.

use std::sync::Arc;

use base::Error;
use device::MemoryDevice;
use vfs::{Volume, VolumeOptions};

use crate::clean::scattered;
use crate::model::{check, close, image, open};

/// The first byte of the main area of a volume of 128 MiB is before this one, and the rest of the
/// volume is behind it.
const MAIN: usize = 64 << 20;

/// Returns the number of bytes of the main area that are not zero, in units of a segment.
fn segments_with_data(device: &MemoryDevice) -> usize {
    let bytes = device.snapshot();
    bytes[MAIN..].chunks(2 << 20).filter(|segment| segment.iter().any(|byte| *byte != 0)).count()
}

fn open_with_discard(device: &Arc<MemoryDevice>) -> Volume {
    let mut options =
        VolumeOptions { writable: true, discard: Some(true), ..VolumeOptions::default() };
    options.cache.bytes_max = 8 << 20;
    Volume::open_device(Arc::clone(device) as _, &options).unwrap()
}

#[test]
fn segments_that_cleaning_frees_are_discarded() {
    let device = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&device);
    let models = scattered(&volume, 5);
    volume.close().unwrap();
    drop(volume);
    let before = segments_with_data(&device);
    let volume = open_with_discard(&device);
    volume.clean().unwrap();
    let after = segments_with_data(&device);
    assert!(after + 5 < before, "{before} segments before, {after} after");
    check(&volume, &models, "cleaned");
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
}

#[test]
fn trimming_discards_all_free_blocks_and_no_others() {
    let device = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&device);
    let models = scattered(&volume, 6);
    let free = volume.statfs().blocks_free * 4096;
    let trimmed = volume.trim(0..128 << 20, 0).unwrap();
    assert!(trimmed >= free, "{trimmed} bytes of {free} free ones are trimmed");
    assert_eq!(volume.trim(0..1 << 20, 0), Ok(0), "there is no main area");
    let large = volume.trim(0..128 << 20, 2 << 20).unwrap();
    assert!(large < trimmed, "runs of 2 MiB are {large} bytes");
    let invalid = volume.trim(256 << 20..512 << 20, 0);
    assert!(matches!(invalid, Err(Error::InvalidArgument(_))), "{invalid:?}");
    check(&volume, &models, "trimmed");
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
}
