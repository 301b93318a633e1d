//! Cleaning in the background: it begins when the volume is idle, makes free segments, and ends
//! when nothing is left to gain.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base::FileOffset;
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice};
use vfs::{Fallocate, Follow, Privileges, Volume, VolumeOptions};

use crate::model::{BLOCK, Model, ROOT, WRITE, check, close, fill, image, open};

/// Several times the interval at which the volume looks whether it is idle.
const IDLE: Duration = Duration::from_millis(2500);
/// The most time for all of the cleaning.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Hooks that count writes and flushes.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl DeviceHooks for Counter {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let changes = batch.iter().filter(|bio| bio.operation() != BioOperation::Read).count();
        self.0.fetch_add(changes as u64, Ordering::Relaxed);
        device.submit(batch);
    }
}

/// Returns the number of free segments of a copy of the device.
fn free_segments(memory: &MemoryDevice) -> u64 {
    let copy = open(&Arc::new(MemoryDevice::new(memory.snapshot())));
    copy.clean().unwrap().free_before
}

#[test]
fn an_idle_volume_is_cleaned_until_nothing_is_left_to_gain() {
    let memory = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&memory);
    // One of eight files stays.
    let mut models = fill(&volume, "file", 16);
    for models in &mut models {
        let mut number = 0;
        models.retain(|model| {
            number += 1;
            number % 8 == 0 || volume.remove(model.path.as_bytes(), ROOT).is_err()
        });
    }
    volume.close().unwrap();
    drop(volume);
    let before = free_segments(&memory);
    let device = Arc::new(HookedDevice::new(memory.clone(), Counter::default()));
    let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    let count = || device.0.load(Ordering::Relaxed);
    let opened = count();
    let begun = Instant::now();
    let mut last = (count(), Instant::now());
    while last.0 == opened || last.1.elapsed() < IDLE {
        assert!(begun.elapsed() < TIME_MAX, "{} writes, and no end", last.0 - opened);
        thread::sleep(Duration::from_millis(50));
        if count() != last.0 {
            last = (count(), Instant::now());
        }
    }
    let after = free_segments(&memory);
    assert!(after > before + 2, "{before} free segments became {after}");
    check(&volume, &models, "cleaned");
    close(&memory, volume);
}

#[test]
fn a_volume_whose_free_blocks_are_mostly_in_free_sections_is_not_cleaned() {
    let memory = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&memory);
    let mut model = Model { path: "/f".into(), versions: Vec::new() };
    assert!(!model.fill(&volume, 4096), "the volume is full");
    let file = volume.resolve(b"/f", Follow::No).unwrap().open_for(WRITE).unwrap();
    for block in (0..4096).step_by(4) {
        let range = FileOffset(block * BLOCK)..FileOffset((block + 1) * BLOCK);
        file.fallocate(Fallocate::PunchHole, range, Privileges::Keep).unwrap();
        model.punch(block as usize..block as usize + 1);
    }
    drop(file);
    volume.close().unwrap();
    drop(volume);
    let device = Arc::new(HookedDevice::new(memory.clone(), Counter::default()));
    let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    let opened = device.0.load(Ordering::Relaxed);
    thread::sleep(IDLE);
    assert_eq!(device.0.load(Ordering::Relaxed), opened, "cleaning writes, although it need not");
    let cleaned = volume.clean().unwrap();
    assert!(cleaned.free_after > cleaned.free_before, "there was something to gain: {cleaned:?}");
    check(&volume, &[vec![model]], "cleaned");
    close(&memory, volume);
}
