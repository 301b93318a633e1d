//! Power cuts: every write and flush of a workload is recorded, and the images that a power cut
//! could have left are rebuilt, with any of the sectors missing that no flush had made durable.
//! Each must recover, by this library and by e2fsck, to a sound volume that is as it was after some
//! operation, and not before one that was known to be durable.

mod common;
#[path = "common/namespace.rs"]
mod namespace;

#[path = "common/written_file.rs"]
mod written_file;

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use common::{Image, open_device_for_writing};
use device::{MemoryDevice, RecordDevice, Recording, SharedDevice};
use ext4::{ROOT_INODE, Volume};
use iomap::{CacheOptions, EndIo, PageCache};
use namespace::{Random, Tree, World, read_tree};
use written_file::{STALE, WrittenFile, with_stale_blocks};

/// What happened, and what must be there after a cut.
struct History {
    recording: Recording,
    /// The tree after each operation; the first one is that before any.
    trees: Vec<Tree>,
    /// Points of the recording from which on a number of operations was durable.
    durable: Vec<(usize, usize)>,
}

impl History {
    /// The number of operations that must have survived a cut at `point`.
    fn durable_at(&self, point: usize) -> usize {
        let before = self.durable.iter().take_while(|(from, _)| *from <= point);
        before.last().map_or(0, |(_, operations)| *operations)
    }
}

fn record(options: &str, seed: u64, steps: usize) -> History {
    let arguments: Vec<&str> = options.split_whitespace().collect();
    let image = Image::make(12, &arguments);
    let inner = Arc::new(MemoryDevice::new(image.bytes()));
    let device = Arc::new(RecordDevice::new(inner).unwrap());
    let volume = open_device_for_writing(device.clone()).unwrap();
    let mut world = World::new(volume, seed, 12);
    let mut random = Random(seed ^ 0x5555);
    let mut trees = vec![world.tree.clone()];
    let mut durable = Vec::new();
    for _ in 0..steps {
        world.step();
        trees.push(world.tree.clone());
        if random.below(6) == 0 {
            world.volume.sync().unwrap();
            durable.push((device.recording().crash_points().end - 1, trees.len() - 1));
        }
    }
    History { recording: device.recording(), trees, durable }
}

/// The image that a cut at `point` leaves when about `kept_of_8` of 8 sectors remain of what was not
/// durable. The two sectors of the superblock are taken to be written together: the format has one
/// checksum over both, so that the kernel depends on that too.
fn torn(recording: &Recording, point: usize, random: &mut Random, kept_of_8: u64) -> Vec<u8> {
    let mut superblock_kept = false;
    recording.image(point, |write, sector| {
        let kept = random.below(8) < kept_of_8;
        match write.offset.0 / 512 + sector {
            2 => {
                superblock_kept = kept;
                kept
            }
            3 => superblock_kept,
            _ => kept,
        }
    })
}

/// What recovery makes of `image`.
fn recovered(image: Vec<u8>, place: &str) -> Tree {
    read_tree(&opened(image, place))
}

/// The volume in `image`, recovered and sound.
fn opened(image: Vec<u8>, place: &str) -> Arc<Volume> {
    let volume = common::open(image).unwrap_or_else(|error| panic!("{place}: {error}"));
    let mut wrong = Vec::new();
    volume.check(&mut |error| {
        wrong.push(error.to_string());
        ControlFlow::Continue(())
    });
    assert!(wrong.is_empty(), "{place}: {wrong:?}");
    volume
}

/// The same by e2fsck, which must then find nothing more to mend.
fn mended(image: &[u8], place: &str) -> Vec<u8> {
    let scratch = common::Scratch::new();
    let path = scratch.write("image", image);
    for (arguments, allowed) in [("-fy", 1), ("-fn", 0)] {
        let output = Command::new("e2fsck").arg(arguments).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code().is_some_and(|code| code <= allowed), "{place}: {text}");
        // It may replay and count, and take back a mark that is set while a volume is in use;
        // anything else means that the volume was not sound.
        let text =
            text.replace("Feature orphan_present is set but orphan file is clean.\nClear? yes", "");
        let text = without_totals(&text);
        if arguments == "-fy" {
            for complaint in ["Fix? yes", "Clear? yes", "Connect", "lost+found? yes"] {
                assert!(!text.contains(complaint), "{place}: {text}");
            }
        }
    }
    std::fs::read(&path).unwrap()
}

/// The text without what it says of the superblock's sums, which are right only after a sync: the
/// groups have their own counts.
fn without_totals(text: &str) -> String {
    let (mut lines, mut kept) = (text.lines(), String::new());
    while let Some(line) = lines.next() {
        if ["Free blocks count wrong (", "Free inodes count wrong ("]
            .iter()
            .any(|start| line.starts_with(start))
        {
            lines.next();
        } else {
            kept.extend([line, "\n"]);
        }
    }
    kept
}

/// Checks `states` images, every `by_others`-th of them by e2fsck too.
fn check(options: &str, seed: u64, steps: usize, states: usize, by_others: usize) {
    let history = record(options, seed, steps);
    let mut random = Random(seed ^ 0xAAAA);
    let flushes = history.recording.flush_points();
    for state in 0..states {
        let point = match state % 3 {
            0 => *random.pick(&flushes).expect("there were flushes"),
            _ => random.below(history.recording.crash_points().end as u64) as usize,
        };
        let kept_of_8 = random.below(9);
        let image = torn(&history.recording, point, &mut random, kept_of_8);
        let place = format!("{options}, seed {seed}, state {state}, cut at {point}");
        let durable = history.durable_at(point);
        let check = |tree: &Tree, by: &str| {
            let found = history.trees[durable..].contains(tree);
            assert!(found, "{place}: {by} finds none of the states since operation {durable}");
        };
        check(&recovered(image.clone(), &place), "recovery");
        if state % by_others == 0 {
            check(&recovered(mended(&image, &place), &place), "e2fsck");
        }
    }
}

const KINDS: &[&str] = &[
    "-t ext4 -b 1024 -J size=1",
    "-t ext4 -b 4096 -O orphan_file,metadata_csum_seed -J size=4",
    "-t ext4 -b 1024 -O ^metadata_csum,^64bit,uninit_bg -J size=1",
    "-t ext3 -b 1024 -J size=1",
];

/// How many times as many states as in the everyday run: set by `make crash`.
fn factor() -> usize {
    std::env::var("BIFOLIO_CRASH_FACTOR").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn names_survive_power_cuts() {
    for (index, options) in KINDS.iter().enumerate() {
        for round in 0..factor() {
            check(options, 1 + index as u64 + 100 * round as u64, 250, 600, 20);
        }
    }
}

#[test]
fn a_power_cut_during_recovery_loses_nothing() {
    for (index, options) in KINDS.iter().enumerate() {
        let seed = 50 + index as u64;
        let history = record(options, seed, 120);
        let mut random = Random(seed);
        for state in 0..12 {
            let end = history.recording.crash_points().end as u64;
            let point = random.below(end) as usize;
            let image = torn(&history.recording, point, &mut random, 4);
            let durable = history.durable_at(point);
            // The first recovery writes; it is cut off in turn.
            let device = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(image))).unwrap());
            let opened = open_device_for_writing(device.clone() as SharedDevice).unwrap();
            drop(opened);
            let recording = device.recording();
            for second in recording.crash_points() {
                let image = torn(&recording, second, &mut random, 4);
                let place = format!("{options}, state {state}, cut at {point} and at {second}");
                let tree = recovered(image, &place);
                let found = history.trees[durable..].contains(&tree);
                assert!(found, "{place}: none of the states since operation {durable}");
            }
        }
    }
}

/// Files that are written, cut off and synced at random, on a device whose free blocks have
/// something in them, and the files as they were after each operation.
fn record_data(options: &str, seed: u64, steps: usize) -> (Recording, Vec<WrittenFile>) {
    let arguments: Vec<&str> = options.split_whitespace().collect();
    let inner = Arc::new(MemoryDevice::new(with_stale_blocks(&Image::make(12, &arguments))));
    let device = Arc::new(RecordDevice::new(inner).unwrap());
    let volume = open_device_for_writing(device.clone()).unwrap();
    let options = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let (cache, end_io) = (PageCache::new(options).unwrap(), EndIo::start().unwrap());
    let new = |name| WrittenFile::new(&volume, &cache, &end_io, name);
    let mut files: Vec<WrittenFile> = ["a", "b", "c"].into_iter().map(new).collect();
    volume.sync().unwrap();
    let begun = device.recording().crash_points().end - 1;
    files.iter_mut().for_each(|file| file.is_durable_from(begun));
    let mut random = Random(seed);
    for _ in 0..steps {
        let file = &mut files[random.below(3) as usize];
        match random.below(16) {
            0..=9 => file.write_somewhere(&mut random),
            10 => file.cut_off(&mut random),
            11..=12 => file.write_back(),
            13 => {
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

fn check_data(options: &str, seed: u64, steps: usize, states: usize, by_others: usize) {
    let (recording, files) = record_data(options, seed, steps);
    let mut random = Random(seed ^ 0xAAAA);
    let begun = files.iter().map(WrittenFile::begun).max().unwrap_or(0);
    let end = recording.crash_points().end;
    for state in 0..states {
        let point = begun + random.below((end - begun) as u64) as usize;
        let kept_of_8 = random.below(9);
        let image = torn(&recording, point, &mut random, kept_of_8);
        let place = format!("{options}, seed {seed}, state {state}, cut at {point}");
        let check = |image: Vec<u8>, by: &str| {
            let volume = opened(image, &place);
            let root = volume.inode(ROOT_INODE).unwrap();
            for file in &files {
                let number = root.lookup(file.name.as_bytes()).unwrap();
                let inode = volume.inode(number).unwrap();
                let found = common::contents(&volume, &inode);
                file.check(point, &found, &format!("{place}: {by}"));
            }
        };
        check(image.clone(), "recovery");
        if state % by_others == 0 {
            check(mended(&image, &place), "e2fsck");
        }
    }
}

#[test]
fn synced_data_survives_power_cuts_and_nothing_stale_appears() {
    assert_ne!(STALE, 0);
    for (index, options) in KINDS.iter().enumerate() {
        for round in 0..factor() {
            check_data(options, 200 + index as u64 + 100 * round as u64, 150, 200, 20);
        }
    }
}
