//! Power cuts: every write and flush of a workload is recorded, and the images that a power cut
//! could have left are rebuilt, with any of the sectors missing that no flush had made durable.
//! Each must recover, by this library and by e2fsck, to a sound volume that is as it was after some
//! operation, and not before one that was known to be durable.

mod common;
#[path = "common/namespace.rs"]
mod namespace;

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use common::{Image, open_device_for_writing};
use device::{MemoryDevice, RecordDevice, Recording, SharedDevice};
use namespace::{Random, Tree, World, read_tree};

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
    let volume = common::open(image).unwrap_or_else(|error| panic!("{place}: {error}"));
    let mut wrong = Vec::new();
    volume.check(&mut |error| {
        wrong.push(error.to_string());
        ControlFlow::Continue(())
    });
    assert!(wrong.is_empty(), "{place}: {wrong:?}");
    read_tree(&volume)
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
        if arguments == "-fy" {
            for complaint in ["Fix? yes", "Clear? yes", "Connect", "lost+found? yes"] {
                assert!(!text.contains(complaint), "{place}: {text}");
            }
        }
    }
    std::fs::read(&path).unwrap()
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
