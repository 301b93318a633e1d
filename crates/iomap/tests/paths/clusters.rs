//! Files whose data is stored in clusters that are decoded as a whole: random reads, readahead,
//! damaged clusters, failing devices, and mapped pages.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};

use crate::support::waiting::Waiter;
use crate::support::{
    BadRanges, Late, Random, block_size, cache, check_empty, check_reads, random_options,
};
use base::{BlockSize, DeviceOffset, Error, FileOffset, Location, Problem, Result};
use device::{Bio, DeviceHooks, FaultDevice, FaultPlan, HookedDevice, MemoryDevice, SharedDevice};
use iomap::{
    CLUSTER_BYTES_MAX, Caching, Cluster, Decode, DecodePool, Encoding, EndIo, FinishedRange, Iomap,
    IomapKind, MapFlags, MapRead, MapWrite, Mapping, ReadContext, ReadOptions, Readahead, Refused,
    StoredRun, WritableFile, fault_for_load, fiemap, lend, read, read_direct, seek_hole, write,
    zero_range,
};
use pagecache::{FaultHandler, MapWindow};

/// The byte of damaged clusters: their decoding fails.
const DAMAGE: u8 = 0xdd;
/// The byte of clusters whose decoding panics.
const PANIC: u8 = 0xde;

/// Decodes pairs of a byte and the number of its repetitions, 4 bytes, after the number of pairs.
#[derive(Debug, Default)]
struct RunLength {
    decodes: AtomicU64,
    threads: Mutex<Vec<ThreadId>>,
}

impl Decode for RunLength {
    fn decode(&self, at: FileOffset, stored: &mut [u8], data: &mut [u8]) -> Result<()> {
        self.decodes.fetch_add(1, Ordering::Relaxed);
        self.threads.lock().expect("no panic").push(thread::current().id());
        let count = u32::from_le_bytes(stored[..4].try_into().expect("4 bytes"));
        let mut filled = 0;
        for pair in stored[4..].chunks_exact(5).take(count as usize) {
            let length = u32::from_le_bytes(pair[1..].try_into().expect("4 bytes")) as usize;
            if pair[0] == DAMAGE {
                let problem = Problem::Invalid { field: "byte", found: at.0 };
                return Err(Error::corrupt("run", Location::default(), problem));
            }
            assert!(pair[0] != PANIC, "as the test has it");
            data[filled..filled + length].fill(pair[0]);
            filled += length;
        }
        assert_eq!(filled, data.len(), "a cluster has all of its bytes");
        Ok(())
    }
}

/// Returns the stored form of `data`.
fn encode(data: &[u8]) -> Vec<u8> {
    let runs: Vec<&[u8]> = data.chunk_by(|one, next| one == next).collect();
    let mut stored = (runs.len() as u32).to_le_bytes().to_vec();
    for run in runs {
        stored.push(run[0]);
        stored.extend((run.len() as u32).to_le_bytes());
    }
    stored
}

/// A file of clusters of `cluster` bytes.
#[derive(Debug)]
struct ClusterFile {
    block_size: BlockSize,
    cluster: u64,
    size: u64,
    /// The contents.
    bytes: Vec<u8>,
    /// One range for each cluster.
    maps: Vec<Iomap>,
    /// The stored forms of encoded clusters.
    stored: Vec<Vec<StoredRun>>,
    decode: Arc<RunLength>,
    pool: Arc<DecodePool>,
    /// The result of the next calls of `cluster`, if the test has one.
    wrong: Mutex<Option<Cluster>>,
}

/// The kinds of clusters in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kinds {
    All,
    Encoded,
}

impl ClusterFile {
    /// Returns a file, and the contents of its device.
    fn new(
        random: &mut Random,
        block_size: BlockSize,
        cluster_blocks: u64,
        clusters: u64,
        kinds: Kinds,
    ) -> (Self, Vec<u8>) {
        let block = u64::from(block_size.bytes());
        let cluster = cluster_blocks * block;
        let mut device: Vec<u8> = vec![0xee; block as usize];
        let (mut bytes, mut maps, mut stored) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..clusters {
            let kind = match random.below(5) {
                0 if kinds == Kinds::All => IomapKind::Hole,
                1 if kinds == Kinds::All => IomapKind::Mapped,
                _ => IomapKind::Encoded,
            };
            let start = bytes.len();
            while (bytes.len() - start) < cluster as usize {
                let left = cluster - (bytes.len() - start) as u64;
                let run = (cluster / 40 + random.of_magnitude(1..14)).clamp(1, left);
                let byte = if kind == IomapKind::Hole { 0 } else { random.next() as u8 & 0x7f };
                bytes.resize(bytes.len() + run as usize, byte);
            }
            let data = &bytes[start..];
            let mut runs = Vec::new();
            let mut address = None;
            match kind {
                IomapKind::Hole => {}
                IomapKind::Mapped => {
                    address = Some(DeviceOffset(device.len() as u64));
                    device.extend_from_slice(data);
                }
                _ => {
                    let mut form = encode(data);
                    form.resize(form.len().next_multiple_of(block as usize), 0xee);
                    assert!(form.len() as u64 <= cluster, "{} bytes", form.len());
                    for part in form.chunks((block * (1 + random.below(8))) as usize) {
                        if kinds == Kinds::All && random.one_in(3) {
                            device.resize(device.len() + block as usize, 0xee);
                        }
                        let (address, length) = (device.len() as u64, part.len() as u64);
                        runs.push(StoredRun { address: DeviceOffset(address), length });
                        device.extend_from_slice(part);
                    }
                }
            }
            let offset = FileOffset(index * cluster);
            let flags = MapFlags { last: index + 1 == clusters, ..MapFlags::default() };
            maps.push(Iomap { offset, length: cluster, kind, address, flags });
            stored.push(runs);
        }
        let size = bytes.len() as u64;
        let (decode, pool, wrong) = (Arc::default(), Arc::default(), Mutex::default());
        let file = Self { block_size, cluster, size, bytes, maps, stored, decode, pool, wrong };
        (file, device)
    }

    /// Cuts the file within its last cluster.
    fn cut(&mut self, length: u64) {
        self.size -= length;
        self.bytes.truncate(self.size as usize);
    }

    fn context<'a>(&'a self, mapping: &'a Mapping, device: &'a SharedDevice) -> ReadContext<'a> {
        let options = ReadOptions::default();
        ReadContext { mapping, mapper: self, device, size: self.size, options }
    }

    fn decodes(&self) -> u64 {
        self.decode.decodes.load(Ordering::Relaxed)
    }

    /// Returns the stored bytes of cluster `index` on the device.
    fn place(&self, index: usize) -> Range<u64> {
        let first = self.stored[index][0];
        first.address.0..first.address.0 + first.length
    }
}

impl MapRead for ClusterFile {
    fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap> {
        let map = self.maps.get((at.0 / self.cluster) as usize);
        map.copied().ok_or(Error::InvalidArgument("past the file's end"))
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Err(Error::InvalidArgument("not inline"))
    }

    fn encoding(&self) -> Option<Encoding> {
        let decode: Arc<dyn Decode> = self.decode.clone();
        Some(Encoding { decode, pool: Arc::clone(&self.pool) })
    }

    fn cluster(&self, at: FileOffset) -> Result<Cluster> {
        if let Some(wrong) = &*self.wrong.lock().expect("no panic") {
            return Ok(wrong.clone());
        }
        let index = (at.0 / self.cluster) as usize;
        let stored = self.stored[index].iter().copied().collect();
        Ok(Cluster { offset: self.maps[index].offset, length: self.cluster, stored })
    }
}

fn random_file(random: &mut Random) -> (ClusterFile, Vec<u8>) {
    let size = block_size(512 << random.below(8));
    let bytes_max = (1 << random.between(11..21)).max(4 * u64::from(size.bytes()));
    let blocks = 1 << (bytes_max / u64::from(size.bytes())).ilog2().min(8);
    let blocks = if random.one_in(6) { blocks + 1 } else { blocks };
    let count = 1 + random.below(1 + (3 << 20) / (blocks * u64::from(size.bytes())));
    let (mut file, device) = ClusterFile::new(random, size, blocks, count.min(100), Kinds::All);
    if random.one_in(2) {
        file.cut(random.below(file.cluster));
    }
    (file, device)
}

#[test]
fn random_files_read_as_the_model_on_any_device_and_in_any_cache() {
    for seed in 0..200 {
        println!("seed {seed}");
        let random = &mut Random(seed);
        let (file, contents) = random_file(random);
        let mut device: SharedDevice = Arc::new(MemoryDevice::new(contents));
        if random.one_in(2) {
            device = Arc::new(Late::device(device, seed));
        }
        let cache = cache(1 << random.between(19..24), (seed % 10) as u8);
        let mapping = cache.new_mapping(file.block_size);
        for _ in 0..4 {
            check_reads(random, file.context(&mapping, &device), &file.bytes, 25);
        }
        drop(mapping);
        check_empty(&cache);
    }
}

#[test]
fn threads_that_share_a_cache_that_is_too_small_read_the_model() {
    for seed in 0..6 {
        println!("seed {seed}");
        let random = &mut Random(1000 + seed);
        let cache = cache(1 << 20, 9);
        let files: Vec<_> = (0..4)
            .map(|_| {
                let (file, contents) = random_file(random);
                let mapping = cache.new_mapping(file.block_size);
                let device: SharedDevice = Arc::new(MemoryDevice::new(contents));
                let device: SharedDevice = Arc::new(Late::device(device, seed));
                (file, mapping, device)
            })
            .collect();
        thread::scope(|scope| {
            for thread in 0..6 {
                let files = &files;
                scope.spawn(move || {
                    let mut random = Random(seed << 8 | thread);
                    for _ in 0..20 {
                        let (file, mapping, device) = &files[random.below(4) as usize];
                        check_reads(&mut random, file.context(mapping, device), &file.bytes, 10);
                    }
                });
            }
        });
        drop(files);
        check_empty(&cache);
    }
}

/// Returns a file of `clusters` clusters of `cluster_blocks` blocks of 4 KiB, all of them encoded.
fn encoded(cluster_blocks: u64, clusters: u64) -> (ClusterFile, Arc<HookedDevice<BadRanges>>) {
    let size = block_size(4096);
    let (file, contents) =
        ClusterFile::new(&mut Random(5), size, cluster_blocks, clusters, Kinds::Encoded);
    (file, Arc::new(BadRanges::device(contents)))
}

#[test]
fn a_small_read_fills_all_folios_of_its_cluster() {
    for order in 0..=9 {
        let (file, bad) = encoded(256, 3);
        let device: SharedDevice = bad.clone();
        let mapping = cache(16 << 20, order).new_mapping(file.block_size);
        let context = file.context(&mapping, &device);
        let mut buffer = [0; 4096];
        let at = FileOffset(file.cluster + (100 << 12));
        read(&context, &Readahead::default(), at, &mut buffer).expect("readable");
        let bios = bad.bios.load(Ordering::Relaxed);
        assert_eq!((file.decodes(), bios), (1, 1), "order {order}");
        let mut random = Random(6);
        for _ in 0..300 {
            let at = file.cluster + random.below(file.cluster - 4096);
            read(&context, &Readahead::default(), FileOffset(at), &mut buffer).expect("cached");
            assert_eq!(buffer[..], file.bytes[at as usize..at as usize + 4096]);
        }
        assert_eq!((file.decodes(), bad.bios.load(Ordering::Relaxed)), (1, bios), "order {order}");
        // The reader, not the device or another thread, has decoded it.
        assert_eq!(*file.decode.threads.lock().expect("no panic"), [thread::current().id()]);
    }
}

#[test]
fn a_file_that_is_read_in_order_is_decoded_once_and_ahead() {
    for cluster_blocks in [4, 64, 256] {
        for caching in [Caching::Kept, Caching::Dropbehind] {
            let (file, bad) = encoded(cluster_blocks, (8 << 20) / (cluster_blocks << 12));
            let device: SharedDevice = bad.clone();
            let mapping = cache(64 << 20, 9).new_mapping(file.block_size);
            let mut context = file.context(&mapping, &device);
            context.options.caching = caching;
            let readahead = Readahead::default();
            let mut buffer = [0; 4096];
            for page in 0..2048_u64 {
                read(&context, &readahead, FileOffset(page << 12), &mut buffer).expect("readable");
                assert_eq!(buffer[..], file.bytes[(page as usize) << 12..][..4096]);
            }
            assert_eq!(file.decodes(), file.maps.len() as u64, "{cluster_blocks} {caching:?}");
            // Stored forms are adjacent, and one bio reads those of a whole window.
            let bios = bad.bios.load(Ordering::Relaxed);
            assert!(bios < 12, "{bios} requests");
            let threads = file.decode.threads.lock().expect("no panic");
            let here = threads.iter().filter(|id| **id == thread::current().id()).count();
            assert!(here * 3 < threads.len() * 2, "{here} of {} were waited for", threads.len());
        }
    }
}

/// Device hooks that count batches.
#[derive(Debug, Default)]
struct Batches(AtomicU64);

impl DeviceHooks for Batches {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        device.submit(batch);
    }
}

#[test]
fn one_batch_reads_several_clusters() {
    let random = &mut Random(9);
    // The parts of the clusters are scattered.
    let (file, contents) = ClusterFile::new(random, block_size(4096), 4, 16, Kinds::All);
    let memory: SharedDevice = Arc::new(MemoryDevice::new(contents));
    let counted = Arc::new(HookedDevice::new(memory, Batches::default()));
    let device: SharedDevice = counted.clone();
    let mapping = cache(16 << 20, 9).new_mapping(file.block_size);
    let mut buffer = vec![0; file.bytes.len()];
    let context = file.context(&mapping, &device);
    read(&context, &Readahead::default(), FileOffset(0), &mut buffer).expect("readable");
    assert!(buffer == file.bytes);
    assert_eq!(counted.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_cluster_whose_device_fails_is_an_error_only_for_its_readers() {
    for order in [0, 3, 5, 9] {
        for is_late in [false, true] {
            let (file, bad) = encoded(16, 8);
            let mut device: SharedDevice = bad.clone();
            if is_late {
                device = Arc::new(Late::device(device, 4));
            }
            let cache = cache(16 << 20, order);
            let mapping = cache.new_mapping(file.block_size);
            let context = file.context(&mapping, &device);
            let broken = 5;
            bad.bad.lock().expect("no panic").push(file.place(broken));
            for _ in 0..2 {
                let readahead = Readahead::default();
                for page in 0..8 * 16 {
                    let (at, mut buffer) = (page << 12, [0; 4096]);
                    let got = read(&context, &readahead, FileOffset(at as u64), &mut buffer);
                    if page / 16 == broken {
                        assert!(matches!(got, Err(Error::Io(_))), "{got:?}");
                    } else {
                        assert_eq!(got, Ok(4096), "page {page}, order {order}");
                        assert_eq!(buffer[..], file.bytes[at..at + 4096]);
                    }
                }
            }
            bad.bad.lock().expect("no panic").clear();
            let mut buffer = vec![0; file.bytes.len()];
            read(&context, &Readahead::default(), FileOffset(0), &mut buffer).expect("healed");
            assert!(buffer == file.bytes);
        }
    }
}

#[test]
fn random_failures_of_the_device_lose_no_folio() {
    for seed in 0..60 {
        println!("seed {seed}");
        let random = &mut Random(2000 + seed);
        let (file, contents) = random_file(random);
        let plan = FaultPlan { seed, read_errors: 300_000, ..FaultPlan::default() };
        let faulty = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(contents)), plan));
        let device: SharedDevice = Arc::new(Late::device(faulty, seed));
        let cache = cache(8 << 20, random.below(10) as u8);
        let mapping = cache.new_mapping(file.block_size);
        let options = random_options(random);
        let context = ReadContext { options, ..file.context(&mapping, &device) };
        let readahead = Readahead::default();
        for _ in 0..40 {
            let at = random.below(file.size.max(1));
            let mut buffer = vec![0; random.of_magnitude(1..18) as usize];
            match read(&context, &readahead, FileOffset(at), &mut buffer) {
                Ok(got) => assert!(buffer[..got] == file.bytes[at as usize..][..got]),
                Err(error) => assert!(matches!(error, Error::Io(_)), "{error}"),
            }
        }
        drop(mapping);
        check_empty(&cache);
    }
}

#[test]
fn a_cluster_that_cannot_be_decoded_is_an_error_only_for_its_readers() {
    for byte in [DAMAGE, PANIC] {
        let (file, bad) = encoded(4, 32);
        let place = file.place(20).start + 4;
        bad.inner().write_at(DeviceOffset(place), &[byte]).expect("memory");
        let device: SharedDevice = bad.clone();
        let mapping = cache(16 << 20, 9).new_mapping(file.block_size);
        let context = file.context(&mapping, &device);
        for readahead in [Readahead::default(), Readahead::default()] {
            for page in 0..128_u64 {
                let (at, mut buffer) = ((page as usize) << 12, [0; 4096]);
                let got = read(&context, &readahead, FileOffset(at as u64), &mut buffer);
                if page / 4 == 20 {
                    match got {
                        Err(Error::Corrupt(_)) => assert_eq!(byte, DAMAGE),
                        Err(Error::Panicked(_)) => assert_eq!(byte, PANIC),
                        other => panic!("{other:?}"),
                    }
                } else {
                    assert_eq!(got, Ok(4096), "page {page}");
                    assert_eq!(buffer[..], file.bytes[at..at + 4096]);
                }
            }
        }
    }
}

#[test]
fn a_panic_while_a_cluster_is_decoded_without_the_cache_is_an_error() {
    let (file, bad) = encoded(4, 64);
    let place = file.place(60).start + 4;
    bad.inner().write_at(DeviceOffset(place), &[PANIC]).expect("memory");
    let device: SharedDevice = bad.clone();
    let mapping = cache(1 << 19, 9).new_mapping(file.block_size);
    let context = file.context(&mapping, &device);
    // All of the cache's memory is in use.
    let lend_at = |page: u64| lend(&context, &Readahead::default(), FileOffset(page << 12), 4096);
    let lent: Vec<_> = (0..240).map(lend_at).collect();
    assert!(lent.iter().all(Result::is_ok));
    let mut buffer = [0; 4096];
    let got = read(&context, &Readahead::default(), FileOffset(241 << 12), &mut buffer);
    assert!(matches!(got, Err(Error::Panicked(_))), "{got:?}");
}

#[test]
fn a_cluster_that_is_not_what_the_format_promises_is_an_error() {
    let (file, bad) = encoded(4, 3);
    let device: SharedDevice = bad.clone();
    let right = file.cluster(FileOffset(0)).expect("a cluster");
    let run = |length| StoredRun { address: DeviceOffset(4096), length };
    let with = |offset, length, stored: &[StoredRun]| Cluster {
        offset: FileOffset(offset),
        length,
        stored: stored.iter().copied().collect(),
    };
    for wrong in [
        with(16384, 16384, &right.stored),
        with(0, 0, &right.stored),
        with(1, 16384, &right.stored),
        with(0, 16385, &right.stored),
        with(0, 2 * CLUSTER_BYTES_MAX, &right.stored),
        with(0, u64::MAX, &right.stored),
        with(0, 16384, &[]),
        with(0, 16384, &[run(0)]),
        with(0, 16384, &[run(16384), run(4096)]),
        with(0, 16384, &[run(u64::MAX), run(u64::MAX)]),
    ] {
        *file.wrong.lock().expect("no panic") = Some(wrong.clone());
        for bytes in [16 << 20, 1 << 19] {
            let mapping = cache(bytes, 9).new_mapping(file.block_size);
            let context = file.context(&mapping, &device);
            let got = read(&context, &Readahead::default(), FileOffset(0), &mut [0; 4096]);
            assert!(matches!(got, Err(Error::Corrupt(_))), "{wrong:?}: {got:?}");
        }
    }
    // Past the end of the device.
    let far = StoredRun { address: DeviceOffset(1 << 40), length: 4096 };
    *file.wrong.lock().expect("no panic") = Some(with(0, 16384, &[far]));
    let mapping = cache(16 << 20, 9).new_mapping(file.block_size);
    let context = file.context(&mapping, &device);
    let got = read(&context, &Readahead::default(), FileOffset(0), &mut [0; 4096]);
    assert!(matches!(got, Err(Error::Io(_))), "{got:?}");
}

#[test]
fn direct_reads_of_encoded_data_need_the_cache_and_it_is_no_hole() {
    let (file, bad) = encoded(4, 3);
    let device: SharedDevice = bad;
    let mapping = cache(16 << 20, 9).new_mapping(file.block_size);
    let context = file.context(&mapping, &device);
    let mut buffer = vec![0; 4096];
    let done = read_direct(&context, None, FileOffset(4096), &mut buffer, ());
    assert_eq!(done, Err(Refused::NeedsCache));
    assert_eq!(seek_hole(&context, FileOffset(5)), Ok(FileOffset(file.size)));
    let mut extents = Vec::new();
    let emit = &mut |extent: iomap::FiemapExtent| {
        extents.push((extent.logical.0, extent.length, extent.flags.encoded));
        ControlFlow::Continue(())
    };
    fiemap(&file, FileOffset(0)..FileOffset(file.size - 1), emit).expect("mapped");
    assert_eq!(extents, [(0, 16384, true), (16384, 16384, true), (32768, 16384, true)]);
}

/// Serves the faults of a file's window.
struct Server {
    window: MapWindow,
    mapping: Arc<Mapping>,
    file: ClusterFile,
    device: SharedDevice,
    readahead: Option<Readahead>,
    access: Waiter,
}

impl FaultHandler for Server {
    fn handle_fault(&self, page: u64, _is_store: bool) {
        let context = self.file.context(&self.mapping, &self.device);
        fault_for_load(&context, self.readahead.as_ref(), &self.window, page).expect("readable");
    }
}

#[test]
fn mapped_pages_show_decoded_data() {
    for order in [0, 2, 9] {
        for readahead in [None, Some(Readahead::default())] {
            let (file, bad) = encoded(16, 4);
            let size = file.size;
            let cache = cache(16 << 20, order);
            let mapping = cache.new_mapping(file.block_size);
            let window = mapping.open_window(0..size >> 12, false, size).expect("a window");
            let access = Waiter::default();
            let device: SharedDevice = bad;
            let server = Arc::new(Server { window, mapping, file, device, readahead, access });
            let serves = Arc::downgrade(&server);
            server.window.set_fault_handler(serves as Weak<dyn FaultHandler>);
            let mut random = Random(order.into());
            let bytes = &server.file.bytes;
            server.access.run(|| {
                for _ in 0..200 {
                    let at = random.below(size) as usize;
                    // SAFETY: the window has all of the file's pages, and lives on.
                    let byte = unsafe { server.window.start().add(at).read_volatile() };
                    assert_eq!(byte, bytes[at], "byte {at}");
                }
            });
            assert!(server.file.decodes() <= 4, "{} decodes", server.file.decodes());
        }
    }
}

impl MapWrite for ClusterFile {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.map_read(at, length)
    }

    fn end_write(&self, _unused: Range<FileOffset>) {}

    fn map_writeback(&self, _at: FileOffset, _length: u64) -> Result<Iomap> {
        Err(Error::ReadOnly)
    }

    fn end_io(&self, _finished: &[FinishedRange], _size: FileOffset) -> Result<()> {
        Ok(())
    }
}

#[test]
fn writes_of_parts_of_blocks_keep_the_rest_of_the_cluster() {
    for seed in 0..20 {
        println!("seed {seed}");
        let random = &mut Random(3000 + seed);
        let (cluster_file, bad) = encoded(16, 8);
        let (size, mut model) = (cluster_file.size, cluster_file.bytes.clone());
        let mapping = cache(16 << 20, random.below(10) as u8).new_mapping(cluster_file.block_size);
        let (end_io, options) = (EndIo::start().expect("a thread"), ReadOptions::default());
        let (mapper, device): (_, SharedDevice) = (Arc::new(cluster_file), bad);
        let file = WritableFile::new(mapping, mapper, device, end_io, size, options);
        for _ in 0..30 {
            let at = random.below(size - 1);
            let length = random.of_magnitude(1..15).clamp(1, size - at) as usize;
            let range = at as usize..at as usize + length;
            match random.below(3) {
                0 => {
                    let data = vec![random.next() as u8; length];
                    assert_eq!(write(&file, FileOffset(at), &data), Ok(length));
                    model[range].copy_from_slice(&data);
                }
                1 => {
                    zero_range(&file, at..at + length as u64).expect("memory");
                    model[range].fill(0);
                }
                _ => {
                    let (context, mut buffer) = (file.read_context(), vec![0; length]);
                    let got = read(&context, &Readahead::default(), FileOffset(at), &mut buffer);
                    assert_eq!(got, Ok(length));
                    assert!(buffer == model[range], "{length} bytes at {at}");
                }
            }
        }
        let (context, mut buffer) = (file.read_context(), vec![0; model.len()]);
        read(&context, &Readahead::default(), FileOffset(0), &mut buffer).expect("readable");
        assert!(buffer == model);
    }
}
