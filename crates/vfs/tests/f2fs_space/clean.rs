//! Cleaning: scattered free blocks become free segments, and no byte of any file changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use base::Error;
use device::MemoryDevice;
use testkit::Random;
use vfs::{Creation, F2fsMode, Fallocate, Follow, Privileges, Volume};

use crate::model::{
    BLOCK, Model, ROOT, THREADS, WRITE, check, close, fill, image, image_with_blocks_of_16k, open,
    open_in,
};

/// Fills a volume, and removes most of it so that all segments have some blocks in use. Returns the
/// models.
pub fn scattered(volume: &Volume, seed: u64) -> Vec<Vec<Model>> {
    let mut models = fill(volume, "file", 64);
    let mut random = Random(seed);
    for of_thread in &mut models {
        of_thread.retain_mut(|model| {
            if random.below(3) > 0 {
                volume.remove(model.path.as_bytes(), ROOT).unwrap();
                return false;
            }
            let blocks = model.versions.len() as u64;
            let hole = random.below(blocks);
            let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
            let file = node.open_for(WRITE).unwrap();
            let length = random.below(blocks - hole) + 1;
            let range = base::FileOffset(hole * BLOCK)..base::FileOffset((hole + length) * BLOCK);
            file.fallocate(Fallocate::PunchHole, range, Privileges::Keep).unwrap();
            model.punch(hole as usize..(hole + length) as usize);
            true
        });
    }
    volume.sync().unwrap();
    models
}

#[test]
fn cleaning_makes_free_segments_until_nothing_is_left_to_gain() {
    let device = Arc::new(MemoryDevice::new(image(128)));
    let volume = open(&device);
    for directory in 0..20 {
        let path = format!("/directory{directory}");
        volume.mkdir(path.as_bytes(), 0o755, ROOT).unwrap();
        for name in 0..100 {
            let path = format!("{path}/a rather long name so that blocks are needed {name}");
            volume.create_at(path.as_bytes(), &Creation::symlink(&[b't'; 3000]), ROOT).unwrap();
        }
    }
    volume.sync().unwrap();
    let models = scattered(&volume, 1);
    // Writeback of a removed file may still be using it. Its blocks are free once the volume is
    // opened again.
    volume.close().unwrap();
    drop(volume);
    let volume = open(&device);
    let before = volume.statfs();
    let cleaned = volume.clean().unwrap();
    assert!(cleaned.free_after > cleaned.free_before + 5, "{cleaned:?}");
    let after = volume.statfs();
    assert_eq!((after.blocks_free, after.inodes_free), (before.blocks_free, before.inodes_free));
    // All free blocks are in free segments, but those of logs and of the last victims.
    let scattered = before.blocks_free.saturating_sub(cleaned.free_after * 512);
    assert!(scattered < 12 * 512, "{scattered} free blocks are scattered: {cleaned:?}");
    check(&volume, &models, "cleaned");
    let again = volume.clean().unwrap();
    assert!(again.blocks < 4 * 512, "nothing was left to gain: {again:?}");
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
    let target = volume.resolve(b"/directory7", Follow::No).unwrap();
    let name = b"a rather long name so that blocks are needed 77";
    assert_eq!(volume.lookup(&target, name).unwrap().read_link().unwrap(), [b't'; 3000]);
}

#[test]
fn files_can_be_read_and_written_while_they_are_cleaned() {
    read_and_write_during_cleaning(image(128));
}

#[test]
fn files_with_blocks_of_16_kib_can_be_read_and_written_while_they_are_cleaned() {
    read_and_write_during_cleaning(image_with_blocks_of_16k(192));
}

fn read_and_write_during_cleaning(image: Vec<u8>) {
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open(&device);
    let mut models = scattered(&volume, 2);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (volume, is_done) = (&volume, &is_done);
        for (thread, models) in models.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut random = Random(thread as u64);
                while !is_done.load(Ordering::Acquire) {
                    let index = random.below(models.len() as u64) as usize;
                    models[index].overwrite(volume, &mut random, 4);
                    let index = random.below(models.len() as u64) as usize;
                    models[index].check(volume, "during cleaning");
                    models[index].check_directly(volume, "during cleaning");
                }
            });
        }
        let mut cleaned = 0;
        for _ in 0..6 {
            cleaned += volume.clean().unwrap().sections;
            volume.sync().unwrap();
        }
        assert!(cleaned > 0, "nothing was cleaned");
        is_done.store(true, Ordering::Release);
    });
    check(&volume, &models, "cleaned");
    volume.sync().unwrap();
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
}

/// Overwrites blocks of a volume that is in use by `percent` for some rounds. With `skewed`, 80% of
/// the writes go to 20% of the files.
fn churn(percent: u64, skewed: bool, mode: F2fsMode, seed: u64) {
    let device = Arc::new(MemoryDevice::new(image(128)));
    let volume = open_in(Arc::clone(&device) as _, mode);
    let blocks = volume.statfs().blocks_free * percent / 100;
    let mut models: Vec<Vec<Model>> = (0..THREADS).map(|_| Vec::new()).collect();
    let mut number = 0;
    let used = |volume: &Volume| volume.statfs().blocks_free;
    let free = used(&volume) - blocks;
    while volume.statfs().blocks_free > free + 64 {
        let mut model = Model { path: format!("/file{number}"), versions: Vec::new() };
        assert!(!model.fill(&volume, 48), "the volume is full");
        models[number % THREADS as usize].push(model);
        number += 1;
    }
    volume.sync().unwrap();
    for round in 0..4 {
        thread::scope(|scope| {
            for (thread, models) in models.iter_mut().enumerate() {
                let volume = &volume;
                scope.spawn(move || {
                    let mut random = Random(seed + round * THREADS + thread as u64);
                    let count = models.len() as u64;
                    for _ in 0..count * 4 {
                        let hot = skewed && random.below(10) < 8;
                        let among = if hot { count.div_ceil(5) } else { count };
                        let index = random.below(among) as usize;
                        models[index].overwrite(volume, &mut random, 6);
                        if random.below(10) == 0 {
                            let path = models[index].path.as_bytes();
                            let node = volume.resolve(path, Follow::No).unwrap();
                            node.open_for(WRITE).unwrap().sync_all().unwrap();
                        }
                    }
                });
            }
        });
        volume.sync().unwrap();
    }
    check(&volume, &models, "overwritten");
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
    let cleaned = volume.clean();
    assert!(matches!(cleaned, Ok(_) | Err(Error::NoSpace)), "{cleaned:?}");
    check(&volume, &models, "cleaned");
    close(&device, volume);
}

#[test]
fn a_volume_that_is_used_by_80_percent_is_overwritten_evenly() {
    churn(80, false, F2fsMode::Adaptive, 10);
}

#[test]
fn a_volume_that_is_used_by_90_percent_is_overwritten_unevenly() {
    churn(90, true, F2fsMode::Adaptive, 20);
}

#[test]
fn a_volume_that_is_used_by_95_percent_is_overwritten_evenly_and_unevenly() {
    churn(95, false, F2fsMode::Adaptive, 30);
    churn(95, true, F2fsMode::Adaptive, 40);
}

#[test]
fn a_volume_is_overwritten_with_cleaning_instead_of_filling_holes() {
    churn(80, true, F2fsMode::Lfs, 50);
    churn(95, false, F2fsMode::Lfs, 60);
}
