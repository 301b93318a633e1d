//! Metadata in a file of its own: maps in node blocks, which are cached by node number, limited,
//! and written out of place like data. The end of I/O of data changes nodes, and a checkpoint
//! writes them.
//!
//! Nodes have an `EndIo` of their own: an end of I/O of data may wait for a node that is under
//! writeback, and the end of that writeback waits for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::thread;

use crate::support::{Late, Random, block_size, cache, for_each_cut};
use base::{DeviceOffset, Error, FileOffset, Result};
use device::{MemoryDevice, RecordDevice, SharedDevice};
use iomap::{
    DirtyLimits, EndIo, FinishedRange, Iomap, IomapKind, MapFlags, MapRead, MapWrite, PageCache,
    Placement, ReadOptions, Readahead, Token, WritableFile, WritePolicy, note_size_on_disk,
    punch_cache, read, truncate_cache, wait_for_writeback, write, write_back, write_back_and_wait,
};

const BLOCK: u64 = 4096;
/// The addresses in a node. There is room for more, but a test wants many nodes.
const ADDRESSES: u64 = 16;
/// The byte of a file's first node that holds the file's size.
const SIZE_AT: u64 = BLOCK - 8;
const FILE_BLOCKS: u64 = 64;
const FILES: u64 = 3;
const NODES_OF_FILE: u64 = FILE_BLOCKS / ADDRESSES;

/// The blocks of a device. A block that the last checkpoint uses is not used again before the next
/// one.
struct Blocks {
    device: Arc<MemoryDevice>,
    state: Mutex<Use>,
}

#[derive(Default)]
struct Use {
    free: BTreeSet<u64>,
    all: u64,
    checkpointed: BTreeSet<u64>,
    freed_since: Vec<u64>,
}

impl Blocks {
    fn new(count: u64) -> Arc<Self> {
        let device = Arc::new(MemoryDevice::new(vec![0xee; (count * BLOCK) as usize]));
        // Block 0 stands for a hole.
        let state = Use { free: (1..count).collect(), all: count, ..Use::default() };
        Arc::new(Self { device, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, Use> {
        self.state.lock().expect("no panic")
    }

    /// Allocates at most `count` adjacent blocks.
    fn allocate(&self, count: u64) -> Result<Range<u64>> {
        let mut state = self.state();
        let first = *state.free.first().ok_or(Error::NoSpace)?;
        let is_free = |block: &u64| state.free.contains(block);
        let end = (first..first + count).take_while(is_free).last().map_or(first, |last| last + 1);
        for block in first..end {
            state.free.remove(&block);
        }
        Ok(first..end)
    }

    fn free(&self, block: u64) {
        let mut state = self.state();
        if state.checkpointed.contains(&block) {
            state.freed_since.push(block);
        } else {
            assert!(state.free.insert(block), "block {block} is freed twice");
        }
    }

    /// Makes the blocks that are in use those of the last checkpoint.
    fn checkpoint(&self) {
        let mut state = self.state();
        let freed = std::mem::take(&mut state.freed_since);
        state.free.extend(freed);
        state.checkpointed = (1..state.all).filter(|block| !state.free.contains(block)).collect();
    }
}

/// The addresses of a file's blocks. Zero is a hole.
trait Addresses: Send + Sync + 'static {
    fn get(&self, block: u64) -> Result<u64>;
    fn set(&self, block: u64, address: u64) -> Result<()>;
    fn set_size(&self, size: u64) -> Result<()>;
}

/// The table of the addresses of nodes, by node number.
struct NodeTable(Mutex<Vec<u64>>);

impl Addresses for NodeTable {
    fn get(&self, block: u64) -> Result<u64> {
        Ok(self.0.lock().expect("no panic")[block as usize])
    }

    fn set(&self, block: u64, address: u64) -> Result<()> {
        self.0.lock().expect("no panic")[block as usize] = address;
        Ok(())
    }

    fn set_size(&self, _size: u64) -> Result<()> {
        Ok(())
    }
}

/// The file of nodes. Its lock is that of an inode.
struct Nodes {
    file: Arc<WritableFile>,
    lock: RwLock<()>,
}

impl Nodes {
    fn get(&self, byte: u64) -> Result<u64> {
        let _shared = self.lock.read().expect("no panic");
        let mut number = [0; 8];
        let context = self.file.read_context();
        read(&context, &Readahead::default(), FileOffset(byte), &mut number)?;
        Ok(u64::from_le_bytes(number))
    }

    fn set(&self, byte: u64, number: u64) -> Result<()> {
        let _alone = self.lock.write().expect("no panic");
        write(&self.file, FileOffset(byte), &number.to_le_bytes()).map(drop)
    }
}

/// The addresses of a file, in nodes from `first` on.
struct InNodes {
    nodes: Arc<Nodes>,
    first: u64,
}

impl InNodes {
    fn byte(&self, block: u64) -> u64 {
        (self.first + block / ADDRESSES) * BLOCK + block % ADDRESSES * 8
    }

    fn size_at(&self) -> u64 {
        self.first * BLOCK + SIZE_AT
    }
}

impl Addresses for InNodes {
    fn get(&self, block: u64) -> Result<u64> {
        self.nodes.get(self.byte(block))
    }

    fn set(&self, block: u64, address: u64) -> Result<()> {
        self.nodes.set(self.byte(block), address)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.nodes.set(self.size_at(), size)
    }
}

/// The map of a file that is written out of place.
struct Map<A> {
    blocks: Arc<Blocks>,
    addresses: A,
    delayed: Mutex<Delayed>,
    generation: AtomicU64,
}

#[derive(Default)]
struct Delayed {
    /// Blocks without an address whose data is in the cache or in flight.
    blocks: BTreeSet<u64>,
    /// The first block of the file and the new blocks, by token.
    placements: BTreeMap<u64, (u64, Range<u64>)>,
    tokens: u64,
}

impl<A: Addresses> Map<A> {
    fn new(blocks: &Arc<Blocks>, addresses: A) -> Arc<Self> {
        let (blocks, delayed) = (Arc::clone(blocks), Mutex::default());
        Arc::new(Self { blocks, addresses, delayed, generation: AtomicU64::new(0) })
    }

    fn delayed(&self) -> MutexGuard<'_, Delayed> {
        self.delayed.lock().expect("no panic")
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Frees the blocks of `range`, which the cache does not have.
    fn free(&self, range: Range<u64>) -> Result<()> {
        for block in range {
            if self.delayed().blocks.remove(&block) {
                continue;
            }
            let address = self.addresses.get(block)?;
            if address != 0 {
                self.addresses.set(block, 0)?;
                self.blocks.free(address);
            }
        }
        self.changed();
        Ok(())
    }
}

fn blocks_of(range: Range<u64>) -> Range<u64> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

impl<A: Addresses> MapRead for Map<A> {
    fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap> {
        let block = at.0 / BLOCK;
        // In this order: an end of I/O sets the address first.
        let is_delayed = self.delayed().blocks.contains(&block);
        let address = self.addresses.get(block)?;
        let kind = match address {
            0 if is_delayed => IomapKind::Delalloc,
            0 => IomapKind::Hole,
            _ => IomapKind::Mapped,
        };
        let address = (address != 0).then_some(DeviceOffset(address * BLOCK));
        let flags = MapFlags::default();
        Ok(Iomap { offset: FileOffset(block * BLOCK), length: BLOCK, kind, address, flags })
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

impl<A: Addresses> MapWrite for Map<A> {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        for block in blocks_of(at.0..at.0 + length) {
            // An end of I/O gives the block its address before it takes the block out of the set.
            let mut delayed = self.delayed();
            if !delayed.blocks.contains(&block) && self.addresses.get(block)? == 0 {
                delayed.blocks.insert(block);
            }
        }
        self.map_read(at, length)
    }

    fn end_write(&self, unused: Range<FileOffset>) {
        for block in blocks_of(unused.start.0..unused.end.0) {
            self.delayed().blocks.remove(&block);
        }
    }

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.map_read(at, length)
    }

    fn policy(&self, _range: Range<FileOffset>) -> WritePolicy {
        WritePolicy::OutOfPlace
    }

    fn place(&self, dirty: Range<FileOffset>) -> Result<Placement> {
        let blocks = blocks_of(dirty.start.0..dirty.end.0);
        let new = self.blocks.allocate(blocks.end - blocks.start)?;
        let (length, address) = ((new.end - new.start) * BLOCK, DeviceOffset(new.start * BLOCK));
        let mut delayed = self.delayed();
        delayed.tokens += 1;
        let token = delayed.tokens;
        delayed.placements.insert(token, (blocks.start, new));
        Ok(Placement { length, address, token: Token(token) })
    }

    fn unplace(&self, failed: &[FinishedRange]) {
        for range in failed {
            let token = range.token.expect("a placement").0;
            let (_, new) = self.delayed().placements.remove(&token).expect("a placement");
            new.for_each(|block| self.blocks.free(block));
        }
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        for range in finished {
            let token = range.token.expect("a placement").0;
            let (first, new) = self.delayed().placements.remove(&token).expect("a placement");
            for (block, address) in (first..).zip(new) {
                let old = self.addresses.get(block)?;
                self.addresses.set(block, address)?;
                self.delayed().blocks.remove(&block);
                if old != 0 {
                    self.blocks.free(old);
                }
            }
        }
        self.changed();
        self.addresses.set_size(size.0)
    }
}

/// A data file, and its contents, locked as its inode would be.
struct DataFile {
    map: Arc<Map<InNodes>>,
    file: Arc<WritableFile>,
    model: Mutex<Vec<u8>>,
}

/// A volume of some data files.
struct Volume {
    cache: Arc<PageCache>,
    blocks: Arc<Blocks>,
    device: Arc<RecordDevice>,
    table: Arc<Map<NodeTable>>,
    nodes: Arc<Nodes>,
    files: Vec<DataFile>,
    /// Held alone by a checkpoint. Shared by threads that change files or submit writes.
    operations: RwLock<()>,
    checkpoints: Mutex<Vec<Checkpoint>>,
}

/// A checkpoint: the point of the recording from which on it is durable, its table of nodes, and
/// the contents of the files when it was made.
struct Checkpoint {
    point: usize,
    table: Vec<u64>,
    contents: Vec<Vec<u8>>,
}

/// Returns the contents of the files in an image with a table of nodes.
fn contents(image: &[u8], table: &[u64]) -> Vec<Vec<u8>> {
    const ZEROES: [u8; BLOCK as usize] = [0; BLOCK as usize];
    let block = |address: u64| match address {
        0 => &ZEROES[..],
        _ => &image[(address * BLOCK) as usize..((address + 1) * BLOCK) as usize],
    };
    let number = |node: &[u8], at: u64| {
        let bytes = node[at as usize..at as usize + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    let file = |index: u64| {
        let first = (index * NODES_OF_FILE) as usize;
        let nodes = table[first..first + NODES_OF_FILE as usize].iter().map(|at| block(*at));
        let size = nodes.clone().next().map_or(0, |node| number(node, SIZE_AT));
        let addresses =
            nodes.flat_map(|node| (0..ADDRESSES).map(move |entry| number(node, entry * 8)));
        // Byte by byte would take longer than all else.
        let mut bytes = Vec::with_capacity((FILE_BLOCKS * BLOCK) as usize);
        addresses.for_each(|address| bytes.extend_from_slice(block(address)));
        bytes.truncate(size as usize);
        bytes
    };
    (0..FILES).map(file).collect()
}

impl Volume {
    /// Creates a volume whose nodes have room for more than the data files' maps.
    fn new(random: &mut Random, cache_bytes: u64, nodes: u64) -> Self {
        let cache = cache(cache_bytes, random.below(6) as u8);
        let blocks = Blocks::new(4 * (nodes + FILES * FILE_BLOCKS));
        let device = Arc::new(RecordDevice::new(blocks.device.clone()).expect("memory"));
        let late: SharedDevice = Arc::new(Late::device(device.clone(), random.next()));
        let [node_end_io, data_end_io] = [(); 2].map(|()| EndIo::start().expect("a thread"));
        let table = Map::new(&blocks, NodeTable(Mutex::new(vec![0; nodes as usize])));
        let options = ReadOptions::default();
        let file = WritableFile::new(
            cache.new_mapping(block_size(BLOCK)),
            Arc::clone(&table),
            late.clone(),
            node_end_io,
            nodes * BLOCK,
            options,
        );
        let nodes = Arc::new(Nodes { file, lock: RwLock::default() });
        let data_file = |index| {
            let addresses = InNodes { nodes: Arc::clone(&nodes), first: index * NODES_OF_FILE };
            let map = Map::new(&blocks, addresses);
            let mapping = cache.new_mapping(block_size(BLOCK));
            let (mapper, end_io) = (Arc::clone(&map), Arc::clone(&data_end_io));
            let file = WritableFile::new(mapping, mapper, late.clone(), end_io, 0, options);
            DataFile { map, file, model: Mutex::default() }
        };
        let files = (0..FILES).map(data_file).collect();
        let (operations, checkpoints) = (RwLock::default(), Mutex::default());
        Self { cache, blocks, device, table, nodes, files, operations, checkpoints }
    }

    /// Makes a checkpoint while other threads write. Returns the contents of the files in it.
    fn checkpoint(&self) -> Vec<Vec<u8>> {
        let mut checkpoints = self.checkpoints.lock().expect("no panic");
        let _alone = self.operations.write().expect("no panic");
        // Then no end of I/O of data changes nodes any more.
        for data in &self.files {
            wait_for_writeback(&data.file, 0..u64::MAX);
        }
        write_back_and_wait(&self.nodes.file, 0..u64::MAX);
        let device: SharedDevice = self.device.clone();
        device.flush().expect("memory");
        let table = self.table.addresses.0.lock().expect("no panic").clone();
        let contents = contents(&self.blocks.device.snapshot(), &table);
        let point = self.device.point();
        self.blocks.checkpoint();
        checkpoints.push(Checkpoint { point, table, contents: contents.clone() });
        contents
    }

    fn change(&self, random: &mut Random) {
        let DataFile { map, file, model } = &self.files[random.below(FILES) as usize];
        let mut model = model.lock().expect("no panic");
        let _operation = self.operations.read().expect("no panic");
        let at = random.below(model.len() as u64 + 1);
        let most = FILE_BLOCKS * BLOCK;
        let length = random.of_magnitude(1..16).min(most - at);
        let end = (at + length).min(model.len() as u64);
        match random.below(8) {
            0 => {
                let size = random.below(most);
                file.wait_for_direct();
                truncate_cache(file, size).expect("memory");
                map.free(size.div_ceil(BLOCK)..FILE_BLOCKS).expect("memory");
                map.addresses.set_size(size).expect("memory");
                note_size_on_disk(file);
                model.resize(size as usize, 0);
            }
            1 if at < end => {
                file.wait_for_direct();
                let holes = punch_cache(file, at..end).expect("memory");
                map.free(holes.start / BLOCK..holes.end / BLOCK).expect("memory");
                model[at as usize..end as usize].fill(0);
            }
            _ => {
                let data = vec![1 + random.below(0x7f) as u8; length as usize];
                let written = write(file, FileOffset(at), &data).expect("room");
                assert_eq!(written, data.len());
                let size = model.len().max(at as usize + written);
                model.resize(size, 0);
                model[at as usize..at as usize + written].copy_from_slice(&data);
            }
        }
    }

    /// Cuts the power at random times, and compares the last checkpoint with its contents when it
    /// was made.
    fn judge(&self, random: &mut Random, cuts: u64) {
        let made = self.checkpoints.lock().expect("no panic");
        let points: Vec<usize> = made.iter().map(|made| made.point).collect();
        for_each_cut(&self.device.recording(), &points, random, cuts, |last, cut, image| {
            assert!(contents(image, &made[last].table) == made[last].contents, "cut at {cut}");
        });
    }
}

#[test]
fn a_checkpoint_of_data_and_nodes_survives_a_power_cut_at_any_time() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let volume = Volume::new(&mut random, 4 << 20, FILES * NODES_OF_FILE);
        let done = AtomicBool::new(false);
        let until_done = |work: &dyn Fn()| {
            while !done.load(Ordering::Acquire) {
                work();
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let data_flusher = scope.spawn(|| {
                until_done(&|| {
                    let _operation = volume.operations.read().expect("no panic");
                    volume.files.iter().for_each(|data| write_back(&data.file, 0..u64::MAX));
                });
            });
            let node_flusher = scope.spawn(|| {
                until_done(&|| {
                    let _operation = volume.operations.read().expect("no panic");
                    write_back(&volume.nodes.file, 0..u64::MAX);
                });
            });
            let checkpointer = scope.spawn(|| until_done(&|| drop(volume.checkpoint())));
            for _ in 0..150 {
                volume.change(&mut random);
            }
            done.store(true, Ordering::Release);
            for thread in [data_flusher, node_flusher, checkpointer] {
                thread.join().expect("no panic");
            }
        });
        for data in &volume.files {
            write_back_and_wait(&data.file, 0..u64::MAX);
            assert_eq!(data.file.errors().check(&data.file.errors().cursor()), Ok(()));
        }
        let models = volume.files.iter().map(|data| data.model.lock().expect("no panic").clone());
        let models: Vec<Vec<u8>> = models.collect();
        assert!(volume.checkpoint() == models, "a checkpoint after a sync");
        volume.judge(&mut random, 60);
    }
}

#[test]
fn changed_nodes_stay_within_the_limits_of_the_cache() {
    const NODES: u64 = 8000;
    let mut random = Random(1);
    let volume = Volume::new(&mut random, 4 << 20, NODES);
    let bytes_max = volume.cache.stats().bytes_max;
    let limits = DirtyLimits::of_shares(bytes_max, 10, 20);
    let mut most = 0;
    for node in 0..NODES {
        volume.nodes.set(node * BLOCK, node + 1).expect("memory");
        let dirty = volume.cache.stats().dirty;
        most = most.max(dirty.bytes_dirty + dirty.bytes_writeback);
        if limits.must_throttle(&dirty) {
            write_back_and_wait(&volume.nodes.file, 0..u64::MAX);
        } else if limits.needs_flush(&dirty) {
            write_back(&volume.nodes.file, 0..u64::MAX);
        }
    }
    println!("{most} of {bytes_max} bytes were dirty at once, of {} changed", NODES * BLOCK);
    assert!(most <= limits.hard + BLOCK, "{most} bytes are above {}", limits.hard);
    for node in 0..NODES {
        assert_eq!(volume.nodes.get(node * BLOCK), Ok(node + 1));
    }
}
