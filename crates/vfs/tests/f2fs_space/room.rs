//! The room of checkpoints on full volumes where cleaning gains nothing: what was accepted always
//! becomes durable, and files can always be removed. The plans are random.

use std::sync::Arc;

use base::attributes::AttributeChange;
use base::{BlockSize, Error, FileOffset};
use device::MemoryDevice;
use testkit::Random;
use testkit::f2fs::make::{MakeOptions, make_file};
use testkit::f2fs::offer_all_segments_but;
use vfs::{AtomicWrite, Creation, F2fsMode, Fallocate, File, Follow, Node, Privileges};
use vfs::{SyncRange, Volume};

use crate::model::{BLOCK, ROOT, WRITE, close, open, open_in};

/// The number of random plans.
const PLANS: u64 = 4;
/// The number of random steps of a plan, once the volume is full.
const STEPS: u64 = 60;

/// Writes data back without making it durable.
const ALL: SyncRange = SyncRange { wait_before: true, write: true, wait_after: true };

/// Returns the image of a small volume that offers users as many segments as any.
fn image(mebibytes: u64) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    make_file(&path, &MakeOptions::new(BlockSize::from_shift(12).unwrap(), mebibytes << 20));
    let mut image = std::fs::read(path).unwrap();
    offer_all_segments_but(&mut image, 8);
    image
}

fn create(volume: &Volume, path: &str) -> File {
    let node = volume.create_file(path.as_bytes(), 0o644, ROOT).unwrap();
    node.open_for(WRITE).unwrap()
}

fn punch(file: &File, first: u64, count: u64) {
    let range = FileOffset(first * BLOCK)..FileOffset((first + count) * BLOCK);
    file.fallocate(Fallocate::PunchHole, range, Privileges::Keep).unwrap();
}

/// A volume on which an atomic write has blocks in all segments of data: cleaning does not move
/// them.
struct Stage {
    device: Arc<MemoryDevice>,
    volume: Volume,
    /// The file with the atomic write.
    atomic: File,
    /// The number of turns.
    turns: u64,
}

impl Stage {
    /// Writes a block of the atomic write every `step` blocks of its file, and after each of them
    /// `others` blocks of another file, until only `blocks_left` are free or after `turns_max`.
    fn new(
        mode: F2fsMode,
        (step, others): (u64, u64),
        (blocks_left, turns_max): (u64, u64),
    ) -> Self {
        let device = Arc::new(MemoryDevice::new(image(56)));
        let volume = open_in(Arc::clone(&device) as _, mode);
        let atomic = create(&volume, "/atomic");
        atomic.write_at(b"old", 0).unwrap();
        atomic.sync_all().unwrap();
        atomic.atomic_start(AtomicWrite::Update).unwrap();
        let other = create(&volume, "/other");
        let data = vec![1; (others * BLOCK) as usize];
        let mut turns = 0;
        while volume.statfs().blocks_free > blocks_left && turns < turns_max {
            atomic.write_at(&data[..BLOCK as usize], turns * step * BLOCK).unwrap();
            atomic.sync_range(0..u64::MAX, ALL).unwrap();
            // The data of atomic writes goes to one log.
            other.atomic_start(AtomicWrite::Update).unwrap();
            other.write_at(&data, turns * others * BLOCK).unwrap();
            other.atomic_commit().unwrap();
            turns += 1;
        }
        Self { device, volume, atomic, turns }
    }

    fn node(&self, path: &str) -> Arc<Node> {
        self.volume.resolve(path.as_bytes(), Follow::No).unwrap()
    }

    /// Creates files until there is no space, or up to `count_max`. Returns their number.
    fn create_files(&self, count_max: u64) -> u64 {
        for number in 0..count_max {
            match self.volume.create_file(format!("/{number}").as_bytes(), 0o644, ROOT) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error, Error::NoSpace);
                    return number;
                }
            }
        }
        count_max
    }
}

fn set_permissions(node: &Node, permissions: u16) {
    let change = AttributeChange { permissions: Some(permissions), ..Default::default() };
    node.set_attributes(&change, ROOT).unwrap();
}

/// Takes a random step. Only what adds something may fail.
fn step(stage: &Stage, random: &mut Random, files: &mut Vec<String>, place: &str) {
    let volume = &stage.volume;
    let may_fail = |result: base::Result<()>, place: &str| match result {
        Err(Error::NoSpace | Error::NoInodes) => false,
        result => result.map(|()| true).unwrap_or_else(|error| panic!("{place}: {error}")),
    };
    let kind = random.below(10);
    let place = format!("{place}, kind {kind}");
    match kind {
        0 => {
            for _ in 0..random.below(300) {
                let path = format!("/new{}", random.draw());
                let created = volume.create_file(path.as_bytes(), 0o644, ROOT);
                if !may_fail(created.map(drop), &place) {
                    break;
                }
                files.push(path);
            }
        }
        1 => {
            let path = format!("/link{}", random.draw());
            let target = [b't'; 3000];
            let made = volume.create_at(path.as_bytes(), &Creation::symlink(&target), ROOT);
            if may_fail(made.map(drop), &place) {
                files.push(path);
            }
        }
        2 => {
            let path = format!("/directory{}", random.draw());
            if may_fail(volume.mkdir(path.as_bytes(), 0o755, ROOT).map(drop), &place) {
                files.push(path);
            }
        }
        3 => {
            // Each changes a node.
            for _ in 0..random.below(1500) {
                let node = stage.node(random.pick(files).unwrap());
                set_permissions(&node, 0o600 | random.below(64) as u16);
            }
        }
        4 => {
            let other = stage.node("/other").open_for(WRITE).unwrap();
            let data = vec![2; (random.below(200) * BLOCK) as usize];
            let at = random.below(stage.turns) * 32 * BLOCK;
            may_fail(other.write_at(&data, at).map(drop), &place);
            assert_eq!(other.sync_all(), Ok(()), "{place}");
        }
        5 => {
            for _ in 0..random.below(100) {
                if let Some(path) = random.take(files) {
                    let removed = volume.remove(path.as_bytes(), ROOT);
                    assert_eq!(removed, Ok(()), "{place}: {path}");
                }
            }
        }
        6 => {
            for _ in 0..random.below(40) {
                let node = stage.node(random.pick(files).unwrap());
                set_permissions(&node, 0o600 | random.below(64) as u16);
                assert_eq!(node.sync(false), Ok(()), "{place}");
            }
        }
        7 => {
            let node = stage.node("/other");
            let size = node.attributes().size;
            let truncated = node.set_size(size - size / 16, Privileges::Keep);
            assert_eq!(truncated, Ok(()), "{place}");
        }
        8 => assert_eq!(volume.sync(), Ok(()), "{place}"),
        _ => {
            may_fail(volume.clean().map(drop), &place);
        }
    }
}

#[test]
fn what_was_accepted_becomes_durable_and_files_can_be_removed() {
    for seed in 0..PLANS {
        let mut random = Random(seed);
        let mode = [F2fsMode::Adaptive, F2fsMode::Lfs][(seed % 2) as usize];
        let stage = Stage::new(mode, (1, 32), (200, u64::MAX));
        // Holes between data, which no node can fill.
        let other = stage.node("/other").open_for(WRITE).unwrap();
        let kept = 1 + random.below(3);
        (0..stage.turns * 8).for_each(|turn| punch(&other, turn * 4, 4 - kept));
        drop(other);
        stage.volume.sync().unwrap();
        let count = stage.create_files(u64::MAX);
        let mut files: Vec<String> = (0..count).map(|number| format!("/{number}")).collect();
        assert_eq!(stage.volume.sync(), Ok(()), "seed {seed}: after {count} files");
        for number in 0..STEPS {
            if files.is_empty() {
                break;
            }
            step(&stage, &mut random, &mut files, &format!("seed {seed}, step {number}"));
        }
        assert_eq!(stage.volume.sync(), Ok(()), "seed {seed}");
        for path in files {
            let removed = stage.volume.remove(path.as_bytes(), ROOT);
            assert_eq!(removed, Ok(()), "seed {seed}: {path}");
        }
        assert_eq!(stage.volume.sync(), Ok(()), "seed {seed}: without files");
        stage.atomic.atomic_commit().unwrap();
        drop(stage.atomic);
        close(&stage.device, stage.volume);
    }
}

#[test]
fn a_volume_without_space_is_recovered_after_a_power_cut() {
    let stage = Stage::new(F2fsMode::Adaptive, (1, 32), (200, u64::MAX));
    let other = stage.node("/other").open_for(WRITE).unwrap();
    (0..stage.turns * 8).for_each(|turn| punch(&other, turn * 4, 2));
    stage.volume.sync().unwrap();
    let count = stage.create_files(u64::MAX);
    stage.volume.sync().unwrap();
    // As many as have room before the next checkpoint.
    let mut synced = 0;
    for number in 0..count.min(400) {
        let node = stage.node(&format!("/{number}"));
        set_permissions(&node, 0o600);
        assert_eq!(node.sync(false), Ok(()), "file {number}");
        synced += 1;
    }
    let device = Arc::new(MemoryDevice::new(stage.device.snapshot()));
    let volume = open(&device);
    let nodes = |volume: &Volume, number: u64| {
        volume.resolve(format!("/{number}").as_bytes(), Follow::No).unwrap()
    };
    for number in 0..synced {
        assert_eq!(nodes(&volume, number).attributes().permissions, 0o600, "file {number}");
    }
    for number in 0..count {
        assert_eq!(volume.remove(format!("/{number}").as_bytes(), ROOT), Ok(()), "{number}");
    }
    close(&device, volume);
}

/// The addresses of an atomic write are in more nodes than a checkpoint has room for.
#[test]
fn a_commit_without_room_for_its_nodes_leaves_the_old_file_and_the_volume_usable() {
    let stage = Stage::new(F2fsMode::Adaptive, (1100, 2), (0, 1450));
    let other = stage.node("/other").open_for(WRITE).unwrap();
    punch(&other, 0, stage.turns * 2);
    drop(other);
    stage.volume.sync().unwrap();
    let count = stage.create_files(1900);
    assert_eq!(stage.atomic.atomic_commit(), Err(Error::NoSpace), "beside {count} files");
    assert_eq!(stage.volume.sync(), Ok(()));
    let mut old = [0; 3];
    stage.atomic.read_at(&mut old, 0).unwrap();
    assert_eq!((&old, stage.atomic.node().attributes().size), (b"old", 3));
    for number in 0..count {
        let removed = stage.volume.remove(format!("/{number}").as_bytes(), ROOT);
        assert_eq!(removed, Ok(()), "{number} of {count}");
    }
    // The same write fits now.
    stage.atomic.atomic_start(AtomicWrite::Update).unwrap();
    for turn in 0..stage.turns {
        stage.atomic.write_at(&[3; BLOCK as usize], turn * 1100 * BLOCK).unwrap();
    }
    assert_eq!(stage.atomic.atomic_commit(), Ok(()));
    drop(stage.atomic);
    close(&stage.device, stage.volume);
}

/// The number of blocks whose addresses a direct node has, and more.
const STRIDE: u64 = 1100;

/// A volume with a file that has one block for each of its nodes, and with fewer free blocks than
/// such nodes.
struct Sparse {
    device: Arc<MemoryDevice>,
    volume: Volume,
    file: File,
    /// The number of blocks of `file`.
    count: u64,
    other: File,
}

impl Sparse {
    fn new() -> Self {
        // Larger than the room that users do not have.
        let device = Arc::new(MemoryDevice::new(image(128)));
        let volume = open(&device);
        let (file, other) = (create(&volume, "/sparse"), create(&volume, "/other"));
        other.write_at(&[1; 8 * BLOCK as usize], 0).unwrap();
        let count = volume.statfs().blocks_free * 2 / 5;
        for number in 0..count {
            file.write_at(&[2; BLOCK as usize], number * STRIDE * BLOCK).unwrap();
        }
        volume.sync().unwrap();
        let filler = create(&volume, "/filler");
        let mut at = 0;
        while volume.statfs().blocks_free > 32 {
            filler.write_at(&[3; BLOCK as usize], at).unwrap();
            at += BLOCK;
        }
        volume.sync().unwrap();
        let free = volume.statfs().blocks_free;
        assert!(free + 8 * 512 < count, "{count} nodes have room beside {free} free blocks");
        Self { device, volume, file, count, other }
    }

    /// Checks that data which was accepted before becomes durable, and that the file has nodes
    /// only.
    fn close(self) {
        assert_eq!(self.other.sync_all(), Ok(()));
        assert_eq!(self.volume.sync(), Ok(()));
        let sectors = self.file.node().attributes().blocks;
        assert!(sectors < (self.count + 100) * (BLOCK >> 9), "blocks are not freed");
        let mut found = [0; 8 * BLOCK as usize];
        self.other.read_at(&mut found, 0).unwrap();
        assert_eq!(found, [4; 8 * BLOCK as usize]);
        drop((self.file, self.other));
        close(&self.device, self.volume);
    }
}

#[test]
fn a_hole_in_more_nodes_than_there_are_free_blocks_leaves_room_for_accepted_data() {
    let sparse = Sparse::new();
    sparse.other.write_at(&[4; 8 * BLOCK as usize], 0).unwrap();
    punch(&sparse.file, 0, sparse.count * STRIDE);
    sparse.close();
}

#[test]
fn a_commit_that_empties_more_nodes_than_there_are_free_blocks_leaves_the_old_file() {
    let sparse = Sparse::new();
    sparse.other.write_at(&[4; 8 * BLOCK as usize], 0).unwrap();
    sparse.file.atomic_start(AtomicWrite::Replace).unwrap();
    let last = sparse.count * STRIDE * BLOCK;
    for at in [0, last] {
        sparse.file.write_at(b"new", at).unwrap();
    }
    assert_eq!(sparse.file.atomic_commit(), Err(Error::NoSpace));
    assert_eq!(sparse.volume.sync(), Ok(()));
    sparse.file.atomic_abort().unwrap();
    let mut old = [0];
    sparse.file.read_at(&mut old, STRIDE * BLOCK).unwrap();
    assert_eq!(old, [2]);
    punch(&sparse.file, 0, sparse.count * STRIDE);
    sparse.close();
}
