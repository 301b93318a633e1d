//! Volumes without a journal. A commit writes where things belong, and a power cut during one can
//! leave anything that e2fsck has to mend. But data and zeroes come first, so that nothing stale
//! appears; and once all of a commit's writes are there, the volume is sound.

mod common;
#[allow(dead_code, reason = "of it, only the random numbers are used")]
#[path = "common/namespace.rs"]
mod namespace;
#[path = "common/written_file.rs"]
mod written_file;

use std::process::Command;
use std::sync::Arc;

use common::{Image, open_device_for_writing};
use device::{MemoryDevice, RecordDevice, RecordedWrite, Recording};
use ext4::ROOT_INODE;
use iomap::{CacheOptions, EndIo, PageCache};
use namespace::Random;
use written_file::{STALE, WrittenFile, with_stale_blocks};

const KINDS: &[&str] =
    &["-t ext2 -b 1024", "-t ext2 -b 4096", "-t ext4 -b 1024 -O ^has_journal,^metadata_csum"];

fn record(options: &str, seed: u64, steps: usize) -> (Recording, Vec<WrittenFile>) {
    let arguments: Vec<&str> = options.split_whitespace().collect();
    let inner = Arc::new(MemoryDevice::new(with_stale_blocks(&Image::make(12, &arguments))));
    let device = Arc::new(RecordDevice::new(inner).unwrap());
    let volume = open_device_for_writing(device.clone()).unwrap();
    let options = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let (cache, end_io) = (PageCache::new(options).unwrap(), EndIo::start().unwrap());
    let new = |name| WrittenFile::new(&volume, &cache, &end_io, name);
    let mut files: Vec<WrittenFile> = ["a", "b"].into_iter().map(new).collect();
    volume.sync().unwrap();
    let begun = device.recording().crash_points().end - 1;
    files.iter_mut().for_each(|file| file.is_durable_from(begun));
    let mut random = Random(seed);
    for _ in 0..steps {
        let file = &mut files[random.below(2) as usize];
        match random.below(8) {
            0..=3 => file.write_somewhere(&mut random),
            4 => file.cut_off(&mut random),
            5 => file.write_back(),
            6 => {
                file.give_places();
                volume.sync().unwrap();
            }
            _ => {
                file.sync();
                file.is_durable_from(device.recording().crash_points().end - 1);
            }
        }
    }
    (device.recording(), files)
}

/// Whether a write is of metadata: of a block that was no free one before anything was written, or of
/// a block of pointers or extents.
fn is_metadata(before: &[u8], write: &RecordedWrite) -> bool {
    if before[write.offset.0 as usize] != STALE {
        return true;
    }
    let words = write.data.chunks_exact(4).map(|word| word.try_into().map(u32::from_le_bytes));
    let words: Vec<u32> = words.map(Result::unwrap).collect();
    // Data has the same byte four times.
    words[0] & 0xFFFF == 0xF30A
        || words.iter().any(|word| *word != 0) && words.iter().all(|word| *word < 12 << 10)
}

/// The image, mended by e2fsck, which may count free blocks and end what orphans were for.
fn mended(image: &[u8], place: &str) -> Vec<u8> {
    let scratch = common::Scratch::new();
    let path = scratch.write("image", image);
    let output = Command::new("e2fsck").arg("-fy").arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code().is_some_and(|code| code <= 1), "{place}: {text}");
    let mut before = "";
    for line in text.lines() {
        let is_sum = before.starts_with("Free ") && before.contains("s count wrong (");
        assert!(!line.contains("? yes") || is_sum, "{place}: {text}");
        before = line;
    }
    std::fs::read(&path).unwrap()
}

#[test]
fn commits_in_place_are_sound_and_show_nothing_stale() {
    for (index, options) in KINDS.iter().enumerate() {
        let (recording, files) = record(options, 900 + index as u64, 120);
        let begun = files.iter().map(WrittenFile::begun).max().unwrap_or(0);
        let before = recording.image(0, |_, _| false);
        // All of a commit has been written then, and nothing of it need be durable.
        let points = recording.flush_points().into_iter().map(|point| point - 1);
        for point in points.filter(|point| *point > begun) {
            let place = format!("{options}, cut at {point}");
            let image = recording.image(point, |write, _| is_metadata(&before, write));
            let volume = common::open(mended(&image, &place)).unwrap();
            let root = volume.inode(ROOT_INODE).unwrap();
            for file in &files {
                let inode = volume.inode(root.lookup(file.name.as_bytes()).unwrap()).unwrap();
                let found = common::contents(&volume, &inode);
                assert!(!found.contains(&STALE), "{place}: {} shows what was there", file.name);
                file.check(point, &found, &place);
            }
        }
    }
}
