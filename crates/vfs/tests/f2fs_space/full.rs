//! Full volumes: threads fill a volume, overwrite when it is full, delete files and go on. Data
//! whose write succeeded reaches the device.

use std::sync::Arc;
use std::thread;

use base::{Error, FileOffset};
use device::MemoryDevice;
use testkit::Random;
use testkit::f2fs::offer_all_segments_but;
use vfs::{Creation, F2fsMode, Fallocate, Follow, Privileges, XattrMode};

use crate::model::{
    BLOCK, Model, ROOT, THREADS, WRITE, check, close, fill, image, image_of, open, open_in,
};

const SEGMENT_BLOCKS: u64 = 512;

/// FS_COMPR_FL.
const COMPRESSED: u32 = 4;

fn fill_overwrite_and_delete(kind: &str, blocks_max: usize, seed: u64) {
    let megabytes = if kind == "large_sections" { 256 } else { 64 };
    let device = Arc::new(MemoryDevice::new(image_of(kind, megabytes)));
    let volume = open(&device);
    if kind == "lz4" {
        volume.root().unwrap().set_flags(COMPRESSED, ROOT).unwrap();
    }
    let before = volume.statfs();
    let mut models = fill(&volume, "first", blocks_max);
    volume.sync().unwrap();
    let full = volume.statfs();
    // A write may need nodes, too, and each thread has tried one of 16 blocks.
    assert!(full.blocks_free < 64, "{} of {} blocks are free", full.blocks_free, before.blocks);
    check(&volume, &models, "full");
    for round in 0..3 {
        thread::scope(|scope| {
            for (thread, models) in models.iter_mut().enumerate() {
                let volume = &volume;
                scope.spawn(move || {
                    let mut random = Random(seed + round * THREADS + thread as u64);
                    for model in models.iter_mut() {
                        let count = model.versions.len() as u64;
                        model.overwrite(volume, &mut random, count);
                    }
                });
            }
        });
        volume.sync().unwrap();
    }
    check(&volume, &models, "overwritten");
    assert_eq!(volume.statfs().blocks_free, full.blocks_free);
    // Deleting, truncating and punching need no free blocks.
    for models in &mut models {
        let half = models.len() / 2;
        for model in models.drain(..half) {
            volume.remove(model.path.as_bytes(), ROOT).unwrap();
        }
        for model in models.iter_mut() {
            let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
            model.versions.truncate(model.versions.len().div_ceil(2));
            node.set_size(model.versions.len() as u64 * BLOCK, Privileges::Keep).unwrap();
        }
    }
    volume.sync().unwrap();
    let freed = volume.statfs().blocks_free - full.blocks_free;
    assert!(freed > before.blocks_free / 3, "{freed} blocks were freed");
    let more = fill(&volume, "again", blocks_max);
    let written: usize = more.iter().flatten().map(|model| model.versions.len()).sum();
    models.extend(more);
    volume.sync().unwrap();
    assert!(written as u64 > freed * 9 / 10, "{written} of {freed} freed blocks could be written");
    check(&volume, &models, "filled again");
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
}

#[test]
fn threads_fill_overwrite_and_delete_large_files() {
    fill_overwrite_and_delete("plain", 4096, 1);
}

#[test]
fn threads_fill_overwrite_and_delete_small_files() {
    fill_overwrite_and_delete("plain", 32, 2);
}

#[test]
fn threads_fill_overwrite_and_delete_compressed_files() {
    fill_overwrite_and_delete("lz4", 1024, 3);
}

/// The nodes of so small files take as many segments as the data.
#[test]
fn threads_fill_overwrite_and_delete_where_sections_have_several_segments() {
    fill_overwrite_and_delete("large_sections", 3, 4);
}

/// Files are overwritten on a volume that offers users all segments but 8. The logs of data come to
/// the last blocks of their segments, in which blocks before these are free again.
fn overwrite_where_few_segments_are_kept_back(mode: F2fsMode) {
    let mut image = image(64);
    offer_all_segments_but(&mut image, 8);
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open_in(Arc::clone(&device) as _, mode);
    let blocks = volume.statfs().blocks_free as usize - 440;
    let mut kept = Model { path: "/kept".into(), versions: Vec::new() };
    assert!(!kept.fill(&volume, blocks));
    let mut models = Vec::new();
    for number in 0..8 {
        let mut model = Model { path: format!("/file{number}"), versions: Vec::new() };
        assert!(!model.fill(&volume, 32));
        models.push(model);
    }
    let mut random = Random(7);
    for round in 0..400 {
        let model = &mut models[random.below(8) as usize];
        model.overwrite_all(&volume);
        let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
        assert_eq!(node.sync(false), Ok(()), "round {round}");
        if round % 50 == 0 {
            volume.sync().unwrap();
        }
    }
    models.push(kept);
    check(&volume, &[models], "overwritten");
    close(&device, volume);
}

#[test]
fn files_are_overwritten_where_few_segments_are_kept_back() {
    overwrite_where_few_segments_are_kept_back(F2fsMode::Adaptive);
}

#[test]
fn files_are_overwritten_where_few_segments_are_kept_back_without_filling_holes() {
    overwrite_where_few_segments_are_kept_back(F2fsMode::Lfs);
}

#[test]
fn files_are_created_until_the_volume_is_full_and_all_are_deleted() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    let before = volume.statfs().blocks_free;
    let mut count = 0;
    loop {
        match volume.create_at(
            format!("/{count}").as_bytes(),
            &Creation::symlink(&[b't'; 3000]),
            ROOT,
        ) {
            Ok(_) => count += 1,
            Err(Error::NoSpace | Error::NoInodes) => break,
            Err(error) => panic!("{error}"),
        }
    }
    volume.sync().unwrap();
    let full = volume.statfs().blocks_free;
    assert!(full < 8, "{full} of {before} blocks are free");
    for number in 0..count {
        volume.remove(format!("/{number}").as_bytes(), ROOT).unwrap();
    }
    volume.sync().unwrap();
    let after = volume.statfs().blocks_free;
    // The directory has grown.
    assert!(after + 1000 > before, "{after} of {before} blocks are free again");
    close(&device, volume);
}

#[test]
fn allocated_blocks_of_a_full_volume_can_be_written() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    let node = volume.create_file(b"/allocated", 0o644, ROOT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    let range = FileOffset(0)..FileOffset(4 << 20);
    file.fallocate(Fallocate::Allocate { keep_size: false }, range, Privileges::Keep).unwrap();
    let models = fill(&volume, "file", 4096);
    for at in 0..4 {
        assert_eq!(file.write_at(&vec![7; 1 << 20], at << 20), Ok(1 << 20));
    }
    file.sync_all().unwrap();
    check(&volume, &models, "full");
    close(&device, volume);
}

/// Sections have four segments. Each round writes files of a segment, and removes three of four, so
/// that in the end each section has a full segment, and three empty ones.
#[test]
fn empty_segments_of_sections_in_use_can_be_written() {
    let device = Arc::new(MemoryDevice::new(image_of("large_sections", 256)));
    let volume = open(&device);
    let mut kept = Vec::new();
    for round in 0..4 {
        let files = volume.statfs().blocks_free / (SEGMENT_BLOCKS + 2);
        for number in 0..files {
            let path = format!("/file{round}-{number}");
            let mut model = Model { path, versions: Vec::new() };
            assert!(!model.fill(&volume, SEGMENT_BLOCKS as usize), "{}", model.path);
            // In one piece.
            volume.sync().unwrap();
            kept.push(model);
        }
        let before = kept.len() - files as usize;
        for index in (before..kept.len()).rev().filter(|index| index % 4 > 0) {
            volume.remove(kept.remove(index).path.as_bytes(), ROOT).unwrap();
        }
        volume.sync().unwrap();
    }
    // Nodes need sections of their own, which cleaning makes.
    let inodes = volume.statfs().blocks_free * 9 / 10;
    assert!(inodes > 10 * SEGMENT_BLOCKS, "{inodes}");
    for number in 0..inodes {
        volume.create_file(format!("/empty{number}").as_bytes(), 0o644, ROOT).unwrap();
    }
    let models = [kept];
    check(&volume, &models, "written");
    close(&device, volume);
    check(&open(&device), &models, "after closing");
}

#[test]
fn a_change_that_finds_no_room_loses_no_time_of_another() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    let file = volume.create("/file").unwrap();
    file.write_at(&[1; 4 * BLOCK as usize], 0).unwrap();
    file.sync_all().unwrap();
    let filler = volume.create("/filler").unwrap();
    let mut at = 0;
    for size in [1 << 20, BLOCK as usize] {
        while filler.write_at(&vec![2; size], at).is_ok_and(|written| written == size) {
            at += size as u64;
        }
    }
    filler.sync_all().unwrap();
    // Until a tick of the clock has passed.
    thread::sleep(std::time::Duration::from_millis(20));
    let before = file.node().attributes().modified;
    file.write_at(b"new", 0).unwrap();
    let modified = file.node().attributes().modified;
    assert_ne!(modified, before);
    // It needs a block of its own.
    let value = vec![3; 3000];
    let refused = file.node().set_xattr(b"user.large", &value, XattrMode::Create, Privileges::Keep);
    assert_eq!(refused, Err(Error::NoSpace));
    assert_eq!(file.node().attributes().modified, modified);
    drop((file, filler));
    close(&device, volume);
    let volume = open(&device);
    let node = volume.resolve(b"/file", Follow::No).unwrap();
    assert_eq!(node.attributes().modified, modified);
}
