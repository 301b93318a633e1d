//! The rows: how full a volume is, which blocks are overwritten, and where they go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::attributes::FileType;
use bench::image::Image;
use device::{HookedDevice, MemoryDevice, SharedDevice};
use f2fs::Superblock;
use testkit::Random;
use vfs::{Creation, Credentials, F2fsMode, Node, OpenMode, Volume, VolumeOptions};

use crate::counting::{Count, Counting};
use crate::textbook::next_of;

/// The size of the volume in bytes.
const IMAGE_BYTES: u64 = 1 << 30;
/// The limit of the cache.
const CACHE_BYTES: u64 = 256 << 20;
/// The size of a block, and of a write, in bytes.
const BLOCK: u64 = 4096;
/// The number of writes between two syncs of the volume.
const WRITES: u64 = 8192;
/// How often, on average, each block is overwritten before the measurement, and during it.
const TIMES: u64 = 2;

/// One workload.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The part of the space for users that is in use, in percent.
    pub percent: u64,
    /// Whether 80% of the writes go to 20% of the blocks.
    pub is_skewed: bool,
    mode: F2fsMode,
}

/// The result of a row.
pub struct Measured {
    /// The number of segments of the main area.
    pub segments: u64,
    /// The number of blocks that are in use there.
    pub used: u64,
    /// The number of writes.
    pub written: u64,
    /// How many bytes of the main area were written for each byte that was overwritten.
    pub main_amplification: f64,
    /// The same, of the whole device.
    pub amplification: f64,
    /// The mean length of the runs in which the main area was written, in KiB.
    pub adjacent_kib: f64,
    pub mib_per_second: f64,
    pub longest_write: Duration,
    pub longest_sync: Duration,
}

impl Row {
    /// Returns all rows.
    pub fn all() -> impl Iterator<Item = Self> {
        [80, 90, 95].into_iter().flat_map(|percent| {
            [false, true].into_iter().flat_map(move |is_skewed| {
                let modes = [F2fsMode::Adaptive, F2fsMode::Lfs];
                modes.into_iter().map(move |mode| Self { percent, is_skewed, mode })
            })
        })
    }

    /// Returns the name in tables.
    pub fn name(&self) -> String {
        let pattern = if self.is_skewed { "80/20" } else { "uniform" };
        let mode = match self.mode {
            F2fsMode::Adaptive => "adaptive",
            F2fsMode::Lfs => "lfs",
        };
        format!("{}% {pattern} {mode}", self.percent)
    }

    /// Fills a volume, overwrites it until it is in its steady state, and then measures.
    pub fn measure(&self) -> Measured {
        let image = std::fs::read(Image::make_f2fs(IMAGE_BYTES).path()).expect("the image");
        let memory: SharedDevice = Arc::new(MemoryDevice::new(image));
        let geometry = Superblock::read(&memory).expect("a superblock").geometry;
        let counting = Counting::new(geometry.main.start.0 * BLOCK);
        let device = Arc::new(HookedDevice::new(memory, counting));
        let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
        options.cache.bytes_max = CACHE_BYTES;
        options.f2fs.mode = self.mode;
        let volume = Volume::open_device(Arc::clone(&device) as _, &options).expect("a volume");
        let empty = volume.statfs();
        let blocks = empty.blocks_free * self.percent / 100;
        let root = volume.root().expect("a root");
        let what = Creation::of(FileType::Regular, 0o644);
        let node = volume.create_in(&root, b"data", &what, &Credentials::ROOT).expect("a file");
        let node: Arc<Node> = node;
        let file = node.open_for(OpenMode { write: true, append: false }).expect("an open file");
        let data = vec![0x5a; (BLOCK * 256) as usize];
        for at in (0..blocks).step_by(256) {
            let count = (blocks - at).min(256);
            let written = file.write_at(&data[..(count * BLOCK) as usize], at * BLOCK);
            assert_eq!(written, Ok((count * BLOCK) as usize));
        }
        volume.sync().expect("a sync");
        let mut random = Random(1);
        let mut longest = (Duration::ZERO, Duration::ZERO);
        let writes = (blocks * TIMES).next_multiple_of(WRITES);
        let mut overwrite = |longest: &mut (Duration, Duration)| {
            for number in 1..=writes {
                let at = next_of(blocks, self.is_skewed, &mut random) * BLOCK;
                let begun = Instant::now();
                let written = file.write_at(&data[..BLOCK as usize], at);
                longest.0 = longest.0.max(begun.elapsed());
                assert_eq!(written, Ok(BLOCK as usize));
                if number % WRITES == 0 {
                    let begun = Instant::now();
                    volume.sync().expect("a sync");
                    longest.1 = longest.1.max(begun.elapsed());
                }
            }
        };
        overwrite(&mut longest);
        longest = (Duration::ZERO, Duration::ZERO);
        let (before, begun) = (device.count(), Instant::now());
        overwrite(&mut longest);
        let (after, elapsed) = (device.count(), begun.elapsed());
        let difference = |of: fn(&Count) -> u64| (of(&after) - of(&before)) as f64;
        let bytes = (writes * BLOCK) as f64;
        let main_bytes = difference(|count| count.main_bytes);
        let measured = Measured {
            segments: geometry.main_segments().into(),
            used: empty.blocks_free - volume.statfs().blocks_free,
            written: writes,
            main_amplification: main_bytes / bytes,
            amplification: (main_bytes + difference(|count| count.other_bytes)) / bytes,
            adjacent_kib: main_bytes / 1024.0 / difference(|count| count.main_writes),
            mib_per_second: bytes / f64::from(1 << 20) / elapsed.as_secs_f64(),
            longest_write: longest.0,
            longest_sync: longest.1,
        };
        drop(file);
        volume.close().expect("a volume");
        measured
    }
}
