//! Model files, and devices that fail or delay bios.
#![allow(dead_code, unused_imports, reason = "not every test uses everything")]

pub mod format;
pub mod gate;
pub mod reads;
// testkit depends on this crate.
#[path = "../../../testkit/src/waiting.rs"]
pub mod waiting;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use base::{BlockSize, DeviceOffset, Error, FileOffset, Result};
use device::{Bio, DeviceHooks, HookedDevice, MemoryDevice, Recording, Replay, SharedDevice};
use iomap::{
    CacheOptions, Iomap, IomapKind, MapFlags, MapRead, Mapping, PageCache, ReadContext, ReadOptions,
};

pub use reads::{check_reads, random_options};
pub use waiting::wait_until;

/// Returns the CPU time that this thread has used, in seconds.
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A small generator of random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn between(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// Returns a number below a random power of two, whose exponent is in `exponents`.
    pub fn of_magnitude(&mut self, exponents: Range<u64>) -> u64 {
        let exponent = self.between(exponents);
        self.below(1 << exponent)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A file of several extents on a device.
#[derive(Debug)]
pub struct ModelFile {
    pub block_size: BlockSize,
    pub size: u64,
    pub maps: Vec<Iomap>,
    /// The contents.
    pub bytes: Vec<u8>,
    pub inline: Option<Vec<u8>>,
    /// The number of mappings that it returned.
    pub calls: AtomicU64,
}

impl ModelFile {
    /// Returns a random file of at most `blocks_max` blocks, and the contents of its device, which
    /// has other bytes where no extent is.
    pub fn random(random: &mut Random, block_size: BlockSize, blocks_max: u64) -> (Self, Vec<u8>) {
        let block = u64::from(block_size.bytes());
        let blocks = random.between(1..blocks_max + 1);
        let size = (blocks * block).saturating_sub(random.below(block));
        let (mut maps, mut at, mut place) = (Vec::new(), 0, 1);
        while at < blocks {
            let longest = if random.one_in(3) { 4 } else { 200 };
            let length = random.between(1..longest).min(blocks - at);
            let kind = match random.below(5) {
                0 => IomapKind::Hole,
                1 => IomapKind::Unwritten,
                _ => IomapKind::Mapped,
            };
            if random.one_in(2) {
                place += random.below(4);
            }
            maps.push(Iomap {
                offset: FileOffset(at * block),
                length: length * block,
                kind,
                address: (kind != IomapKind::Hole).then_some(DeviceOffset(place * block)),
                flags: MapFlags::default(),
            });
            if kind != IomapKind::Hole {
                place += length;
            }
            at += length;
        }
        let device: Vec<u8> = (0..((place + 1) * block).div_ceil(8))
            .flat_map(|_| random.next().to_le_bytes())
            .collect();
        let bytes = expected(&maps, size, &device);
        (Self { block_size, size, maps, bytes, inline: None, calls: AtomicU64::new(0) }, device)
    }

    /// Returns a file of one extent, from byte `address` of the device on.
    pub fn contiguous(block_size: BlockSize, size: u64, address: u64, device: &[u8]) -> Self {
        let maps = vec![Iomap {
            offset: FileOffset(0),
            length: size.next_multiple_of(block_size.bytes().into()),
            kind: IomapKind::Mapped,
            address: Some(DeviceOffset(address)),
            flags: MapFlags { last: true, ..MapFlags::default() },
        }];
        let mut bytes = device[address as usize..].to_vec();
        bytes.resize(size as usize, 0);
        Self { block_size, size, maps, bytes, inline: None, calls: AtomicU64::new(0) }
    }

    /// Returns a file of these ranges, with unknown contents.
    pub fn of_maps(block_size: BlockSize, size: u64, maps: Vec<Iomap>) -> Self {
        let calls = AtomicU64::new(0);
        Self { block_size, size, maps, bytes: Vec::new(), inline: None, calls }
    }

    /// Returns a file with inline data.
    pub fn inline(block_size: BlockSize, data: Vec<u8>) -> Self {
        let maps = vec![Iomap {
            offset: FileOffset(0),
            length: data.len() as u64,
            kind: IomapKind::Inline,
            address: None,
            flags: MapFlags { last: true, ..MapFlags::default() },
        }];
        Self {
            block_size,
            size: data.len() as u64,
            maps,
            bytes: data.clone(),
            inline: Some(data),
            calls: AtomicU64::new(0),
        }
    }

    pub fn context<'a>(
        &'a self,
        mapping: &'a Mapping,
        device: &'a SharedDevice,
        options: ReadOptions,
    ) -> ReadContext<'a> {
        ReadContext { mapping, mapper: self, device, size: self.size, options }
    }
}

fn expected(maps: &[Iomap], size: u64, device: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for map in maps {
        match (map.kind, map.address) {
            (IomapKind::Mapped, Some(address)) => {
                let start = address.0 as usize;
                bytes.extend_from_slice(&device[start..start + map.length as usize]);
            }
            _ => bytes.resize(bytes.len() + map.length as usize, 0),
        }
    }
    bytes.truncate(size as usize);
    bytes
}

impl MapRead for ModelFile {
    fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let after = self.maps.partition_point(|map| map.end() <= at.0);
        self.maps.get(after).copied().ok_or(Error::InvalidArgument("past the model's end"))
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        self.inline.clone().ok_or(Error::InvalidArgument("not inline"))
    }
}

/// Device hooks that pass bios to a thread, which submits them late and out of order.
#[derive(Debug)]
pub struct Late {
    queue: mpsc::Sender<Bio>,
}

impl Late {
    pub fn device(inner: SharedDevice, seed: u64) -> HookedDevice<Self> {
        let (queue, incoming) = mpsc::channel::<Bio>();
        let target = Arc::clone(&inner);
        thread::spawn(move || {
            let mut random = Random(seed);
            let mut waiting: Vec<Bio> = Vec::new();
            loop {
                while let Ok(bio) = incoming.try_recv() {
                    waiting.push(bio);
                }
                if waiting.is_empty() {
                    match incoming.recv() {
                        Ok(bio) => waiting.push(bio),
                        Err(_) => return,
                    }
                }
                if random.one_in(8) {
                    thread::sleep(Duration::from_micros(random.below(50)));
                }
                let chosen = random.below(waiting.len() as u64) as usize;
                target.submit(vec![waiting.swap_remove(chosen)]);
            }
        });
        HookedDevice::new(inner, Self { queue })
    }
}

impl DeviceHooks for Late {
    fn submit(&self, _device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            self.queue.send(bio).expect("the worker lives");
        }
    }
}

/// Device hooks that count bios, and fail those with bytes of the listed ranges.
#[derive(Debug, Default)]
pub struct BadRanges {
    pub bad: Mutex<Vec<Range<u64>>>,
    pub bios: AtomicU64,
    pub bytes: AtomicU64,
}

impl BadRanges {
    pub fn device(contents: Vec<u8>) -> HookedDevice<Self> {
        HookedDevice::new(Arc::new(MemoryDevice::new(contents)), Self::default())
    }
}

impl DeviceHooks for BadRanges {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            self.bios.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bio.length(), Ordering::Relaxed);
            let (start, end) = (bio.offset().0, bio.offset().0 + bio.length());
            let bad = self
                .bad
                .lock()
                .expect("no panic")
                .iter()
                .any(|bad| bad.start < end && start < bad.end);
            if bad {
                bio.end(Err(5));
            } else {
                device.submit(vec![bio]);
            }
        }
    }
}

pub fn cache(bytes_max: u64, folio_order_max: u8) -> Arc<PageCache> {
    PageCache::new(CacheOptions { bytes_max, folio_order_max }).expect("memory")
}

pub fn block_size(bytes: u64) -> BlockSize {
    BlockSize::from_bytes(bytes).expect("a block size")
}

/// Calls `judge` with the contents of the device after power cuts: `cuts` at random points, and at
/// most as many at `checkpoints`, the points where a checkpoint became durable, in order. A cut
/// before the first one is left out. Its arguments are the index of the last checkpoint, the point
/// of the cut and the contents.
pub fn for_each_cut(
    recording: &Recording,
    checkpoints: &[usize],
    random: &mut Random,
    cuts: u64,
    mut judge: impl FnMut(usize, usize, &[u8]),
) {
    let points = recording.crash_points();
    let span = (points.end - points.start) as u64;
    let mut chosen: Vec<usize> =
        (0..cuts).map(|_| points.start + random.below(span) as usize).collect();
    // A fast machine makes thousands of checkpoints.
    let one_in = (checkpoints.len() as u64).div_ceil(cuts).max(1);
    chosen.extend(checkpoints.iter().filter(|_| random.one_in(one_in)));
    chosen.sort_unstable();
    let mut replay = Replay::new(recording);
    for point in chosen {
        let Some(last) = checkpoints.partition_point(|made| *made <= point).checked_sub(1) else {
            continue;
        };
        let kept = random.below(9);
        let image = replay.image(point, |_, _| random.below(8) < kept);
        judge(last, point, &image);
    }
}

/// Checks that all memory is free after readahead in flight has ended.
pub fn check_empty(cache: &PageCache) {
    for _ in 0..1000 {
        if cache.stats().bytes_resident == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("folios are left: {:?}", cache.stats());
}
