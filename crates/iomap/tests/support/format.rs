//! A format of one file, for the tests of the write path. It writes in place or out of place. Its
//! device is full of garbage where no data was written, and so is every freed block.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

use base::{BlockSize, DeviceOffset, Error, FileOffset, Result};
use device::{BlockDevice, MemoryDevice};
use iomap::{
    FinishedRange, Iomap, IomapKind, MapFlags, MapRead, MapWrite, Placement, Token, Transform,
    WritePolicy,
};

use super::Random;

/// The byte that no test writes.
pub const GARBAGE: u8 = 0xee;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Delalloc,
    /// Delayed, and in flight to a block that is not yet the file's.
    Placed,
    /// Blocks of the device.
    Unwritten(u64),
    Mapped(u64),
}

#[derive(Debug)]
pub struct Format {
    block_size: BlockSize,
    /// The device below all wrappers.
    device: Arc<MemoryDevice>,
    state: Mutex<State>,
    generation: AtomicU64,
    mode: Mode,
    transform: Option<Arc<dyn Transform>>,
    /// The number of blocks that the file may have.
    capacity: u64,
    /// The maximum number of blocks of one mapping.
    run_max: u64,
    /// Held while ends of I/O have to wait.
    ends: Mutex<()>,
    pub map_writes: AtomicU64,
    pub map_writebacks: AtomicU64,
    pub end_ios: AtomicU64,
    /// The number of ends of I/O that wait, or have waited.
    pub waiting: AtomicU64,
    /// The thread of the last end of I/O.
    pub ended_by: Mutex<Option<ThreadId>>,
    /// Whether the next end of I/O panics.
    pub panics: AtomicBool,
    /// The failure of a mapping for writeback.
    fails: Mutex<Option<Failure>>,
    /// Called after the next reservation.
    pub after_reservation: Hook,
}

/// The way in which data is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    InPlace,
    /// Preallocated blocks are written in place all the same.
    OutOfPlace {
        orders_size: bool,
    },
}

impl Mode {
    pub fn random(random: &mut Random) -> Self {
        match random.below(4) {
            0 | 1 => Self::InPlace,
            choice => Self::OutOfPlace { orders_size: choice == 2 },
        }
    }
}

/// Work that is done once.
#[derive(Default)]
pub struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hook {
    pub fn set(&self, work: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("no panic") = Some(Box::new(work));
    }

    fn call(&self) {
        let work = self.0.lock().expect("no panic").take();
        if let Some(work) = work {
            work();
        }
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// The number of mappings that succeed before one fails, and the function that returns its error or
/// panics.
type Failure = (u64, fn() -> Error);

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<u64, Block>,
    /// Free blocks of the device.
    free: Vec<Range<u64>>,
    /// The number of free blocks that are reserved.
    reserved: u64,
    size: u64,
    /// The placements that have not ended, by token: the first block of the file, and the blocks of
    /// the device.
    placements: BTreeMap<u64, (u64, Range<u64>)>,
    tokens: u64,
    /// The ranges of the file with placements, in bytes.
    placed: Vec<Range<u64>>,
    /// The blocks of the device in the last checkpoint, and those among them that were freed since.
    checkpointed: BTreeSet<u64>,
    freed_since: Vec<u64>,
}

/// The file as a checkpoint has it.
#[derive(Debug)]
pub struct Checkpoint {
    size: u64,
    /// The blocks of the device, by block of the file.
    blocks: BTreeMap<u64, u64>,
}

impl Checkpoint {
    /// Returns the contents of the file on a device with `image`.
    pub fn contents(&self, image: &[u8], block: usize) -> Vec<u8> {
        let mut bytes = vec![0; (self.size as usize).next_multiple_of(block)];
        for (at, place) in &self.blocks {
            let (to, from) = (*at as usize * block, *place as usize * block);
            if to < bytes.len() {
                bytes[to..to + block].copy_from_slice(&image[from..from + block]);
            }
        }
        bytes.truncate(self.size as usize);
        bytes
    }
}

impl State {
    fn free_blocks(&self) -> u64 {
        self.free.iter().map(|range| range.end - range.start).sum()
    }
}

impl Format {
    /// Creates an empty file on a device of `blocks` blocks.
    pub fn new(block_size: BlockSize, blocks: u64, run_max: u64) -> Arc<Self> {
        Self::with_mode(block_size, blocks, run_max, Mode::InPlace)
    }

    /// [`new`](Self::new), with a mode. Out of place, the device has twice as many blocks.
    pub fn with_mode(block_size: BlockSize, capacity: u64, run_max: u64, mode: Mode) -> Arc<Self> {
        Self::with_transform(block_size, capacity, run_max, mode, None)
    }

    /// [`with_mode`](Self::with_mode), with a transform of the data.
    pub fn with_transform(
        block_size: BlockSize,
        capacity: u64,
        run_max: u64,
        mode: Mode,
        transform: Option<Arc<dyn Transform>>,
    ) -> Arc<Self> {
        let blocks = if mode == Mode::InPlace { capacity } else { 2 * capacity };
        let contents = vec![GARBAGE; (blocks * u64::from(block_size.bytes())) as usize];
        let state = State { free: std::iter::once(0..blocks).collect(), ..State::default() };
        Arc::new(Self {
            block_size,
            device: Arc::new(MemoryDevice::new(contents)),
            state: Mutex::new(state),
            generation: AtomicU64::new(0),
            mode,
            transform,
            capacity,
            run_max,
            ends: Mutex::default(),
            map_writes: AtomicU64::new(0),
            map_writebacks: AtomicU64::new(0),
            end_ios: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            ended_by: Mutex::default(),
            panics: AtomicBool::new(false),
            fails: Mutex::default(),
            after_reservation: Hook::default(),
        })
    }

    pub fn device(&self) -> Arc<MemoryDevice> {
        Arc::clone(&self.device)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Makes one mapping for writeback fail with `error`, after `after` others.
    pub fn fail(&self, after: u64, error: fn() -> Error) {
        *self.fails.lock().expect("no panic") = Some((after, error));
    }

    /// Makes ends of I/O wait until the result is dropped.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.ends.lock().expect("no panic")
    }

    fn block(&self) -> u64 {
        self.block_size.bytes().into()
    }

    /// Returns the size on the disk.
    pub fn size(&self) -> u64 {
        self.state().size
    }

    /// Returns the number of reserved blocks.
    pub fn reserved(&self) -> u64 {
        self.state().reserved
    }

    /// Makes a checkpoint, the state after a crash, and returns the contents of the file in it. No
    /// data is in flight, and the device was flushed. Until the next checkpoint, none of its blocks
    /// is used again.
    pub fn checkpoint(&self) -> (Checkpoint, Vec<u8>) {
        let mut state = self.state();
        assert!(state.placements.is_empty(), "data is in flight");
        for place in std::mem::take(&mut state.freed_since) {
            state.free.push(place..place + 1);
        }
        let mapped = |(at, block): (&u64, &Block)| match block {
            Block::Mapped(place) => Some((*at, *place)),
            _ => None,
        };
        let blocks: BTreeMap<u64, u64> = state.blocks.iter().filter_map(mapped).collect();
        state.checkpointed = blocks.values().copied().collect();
        let checkpoint = Checkpoint { size: state.size, blocks };
        let contents = checkpoint.contents(&self.device.snapshot(), self.block_size.len());
        (checkpoint, contents)
    }

    /// Returns the number of placements that have not ended.
    pub fn placements(&self) -> usize {
        self.state().placements.len()
    }

    /// Returns the ranges of the file that were placed since the last call.
    pub fn take_placed(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.state().placed)
    }

    /// Returns the number of free blocks of the device.
    pub fn free_blocks(&self) -> u64 {
        self.state().free_blocks()
    }

    /// Returns the addresses of the blocks that the file has.
    pub fn addresses(&self) -> Vec<u64> {
        let state = self.state();
        let address = |(at, block): (&u64, &Block)| self.map_of(*at, Some(block)).address;
        state.blocks.iter().filter_map(address).map(|address| address.0).collect()
    }

    pub fn kinds(&self) -> Vec<(u64, IomapKind)> {
        let state = self.state();
        state.blocks.iter().map(|(at, block)| (*at, self.map_of(*at, Some(block)).kind)).collect()
    }

    /// Returns the file's contents after a crash at this moment.
    pub fn on_disk(&self) -> Vec<u8> {
        let (state, block) = (self.state(), self.block() as usize);
        let device = self.device.snapshot();
        let mut bytes = Vec::new();
        for at in 0..state.size.div_ceil(self.block()) {
            match state.blocks.get(&at) {
                Some(Block::Mapped(place)) => {
                    let start = *place as usize * block;
                    bytes.extend_from_slice(&device[start..start + block]);
                    if let Some(transform) = &self.transform {
                        let first = bytes.len() - block;
                        let at = FileOffset(at * self.block());
                        transform.load(at, &mut bytes[first..]).expect("a valid block");
                    }
                }
                _ => bytes.resize(bytes.len() + block, 0),
            }
        }
        bytes.truncate(state.size as usize);
        bytes
    }

    /// Sets the size on the disk, and frees the blocks past it.
    pub fn truncate(&self, size: u64) {
        let mut state = self.state();
        let gone = state.blocks.split_off(&size.div_ceil(self.block()));
        gone.into_values().for_each(|block| self.free(&mut state, block));
        state.size = size;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Frees the blocks of `range`.
    pub fn punch(&self, range: Range<u64>) {
        let mut state = self.state();
        for at in range.start / self.block()..range.end / self.block() {
            if let Some(block) = state.blocks.remove(&at) {
                self.free(&mut state, block);
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Allocates unwritten blocks where `range` has none.
    pub fn preallocate(&self, range: Range<u64>) {
        let mut state = self.state();
        for at in range.start / self.block()..range.end.div_ceil(self.block()) {
            if !state.blocks.contains_key(&at) && self.has_room(&state, 1) {
                let place = allocate(&mut state.free, 1).start;
                state.blocks.insert(at, Block::Unwritten(place));
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Writes garbage to the device after the end of the file in its last block.
    pub fn spoil_tail(&self) {
        let state = self.state();
        let (block, size) = (self.block(), state.size);
        if let Some(Block::Mapped(place)) = state.blocks.get(&(size / block)) {
            let (start, end) = (place * block + size % block, (place + 1) * block);
            let garbage = vec![GARBAGE; (end - start) as usize];
            let device: &dyn BlockDevice = &*self.device;
            device.write_at(DeviceOffset(start), &garbage).expect("memory");
        }
    }

    fn free(&self, state: &mut State, block: Block) {
        match block {
            Block::Delalloc => state.reserved -= 1,
            Block::Placed => panic!("a block in flight is freed"),
            Block::Mapped(place) if state.checkpointed.contains(&place) => {
                state.freed_since.push(place);
            }
            Block::Unwritten(place) | Block::Mapped(place) => {
                let garbage = vec![GARBAGE; self.block() as usize];
                let device: &dyn BlockDevice = &*self.device;
                device.write_at(DeviceOffset(place * self.block()), &garbage).expect("memory");
                // First, so that it is used next, and late writes to it are noticed.
                state.free.insert(0, place..place + 1);
            }
        }
    }

    fn map_of(&self, at: u64, block: Option<&Block>) -> Iomap {
        let (kind, place) = match block {
            None => (IomapKind::Hole, None),
            Some(Block::Delalloc | Block::Placed) => (IomapKind::Delalloc, None),
            Some(Block::Unwritten(place)) => (IomapKind::Unwritten, Some(*place)),
            Some(Block::Mapped(place)) => (IomapKind::Mapped, Some(*place)),
        };
        Iomap {
            offset: FileOffset(at * self.block()),
            length: self.block(),
            kind,
            address: place.map(|place| DeviceOffset(place * self.block())),
            flags: MapFlags::default(),
        }
    }

    /// Returns whether `new` more blocks can be reserved.
    fn has_room(&self, state: &State, new: u64) -> bool {
        match self.mode {
            Mode::InPlace => state.reserved + new <= state.free_blocks(),
            Mode::OutOfPlace { .. } => state.blocks.len() as u64 + new <= self.capacity,
        }
    }

    /// Fails if the test wants this mapping for writeback to fail.
    fn check_fails(&self) -> Result<()> {
        self.map_writebacks.fetch_add(1, Ordering::Relaxed);
        let mut fails = self.fails.lock().expect("no panic");
        match fails.take() {
            Some((0, error)) => {
                // The error may be a panic.
                drop(fails);
                Err(error())
            }
            more => {
                *fails = more.map(|(left, error)| (left - 1, error));
                Ok(())
            }
        }
    }

    /// Ends the placement of `range`. Returns the blocks of the file and of the device.
    fn end_placement(&self, state: &mut State, range: &FinishedRange) -> (Range<u64>, Range<u64>) {
        let token = range.token.expect("a placement").0;
        let (first, places) =
            state.placements.remove(&token).expect("a placement that has not ended");
        let blocks = range.offset.0 / self.block()..range.end() / self.block();
        assert_eq!(blocks, first..first + (places.end - places.start), "what was placed");
        (blocks, places)
    }

    fn map(&self, state: &State, at: FileOffset, length: u64) -> Iomap {
        let first = at.0 / self.block();
        let end = (at.0 + length).div_ceil(self.block()).min(first + self.run_max);
        let mut map = self.map_of(first, state.blocks.get(&first));
        for next in first + 1..end {
            let next = self.map_of(next, state.blocks.get(&next));
            let follows = map.address.map(|address| address.0 + map.length);
            if next.kind != map.kind || next.address.map(|address| address.0) != follows {
                break;
            }
            map.length += next.length;
        }
        map
    }
}

/// Allocates at most `count` contiguous blocks.
fn allocate(free: &mut Vec<Range<u64>>, count: u64) -> Range<u64> {
    let first = free.first_mut().expect("counted before");
    let taken = first.start..first.end.min(first.start + count);
    first.start = taken.end;
    if first.is_empty() {
        free.remove(0);
    }
    taken
}

impl MapRead for Format {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        Ok(self.map(&self.state(), at, length))
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn transform(&self) -> Option<Arc<dyn Transform>> {
        self.transform.clone()
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

impl MapWrite for Format {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.map_writes.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let blocks = at.0 / self.block()..(at.0 + length).div_ceil(self.block());
        let new: Vec<u64> = blocks.filter(|block| !state.blocks.contains_key(block)).collect();
        if !self.has_room(&state, new.len() as u64) {
            return Err(Error::NoSpace);
        }
        state.reserved += new.len() as u64;
        state.blocks.extend(new.into_iter().map(|block| (block, Block::Delalloc)));
        let map = self.map(&state, at, length);
        drop(state);
        self.after_reservation.call();
        Ok(map)
    }

    fn end_write(&self, unused: Range<FileOffset>) {
        let mut state = self.state();
        for at in unused.start.0 / self.block()..unused.end.0.div_ceil(self.block()) {
            if state.blocks.get(&at) == Some(&Block::Delalloc) {
                state.blocks.remove(&at);
                state.reserved -= 1;
            }
        }
    }

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.check_fails()?;
        let mut state = self.state();
        let first = at.0 / self.block();
        let end = (at.0 + length).div_ceil(self.block());
        let wanted =
            (first..end).take_while(|block| state.blocks.get(block) == Some(&Block::Delalloc));
        let wanted = wanted.count() as u64;
        if wanted > 0 {
            let places = allocate(&mut state.free, wanted.min(self.run_max));
            state.reserved -= places.end - places.start;
            let new = (first..).zip(places).map(|(at, place)| (at, Block::Unwritten(place)));
            state.blocks.extend(new.collect::<Vec<_>>());
            self.generation.fetch_add(1, Ordering::Release);
        }
        Ok(self.map(&state, at, length))
    }

    fn allocate(&self, range: Range<FileOffset>) -> Result<bool> {
        if self.mode != Mode::InPlace {
            return Ok(false);
        }
        let mut state = self.state();
        let blocks = range.start.0 / self.block()..range.end.0.div_ceil(self.block());
        let missing = |at: &u64| !state.blocks.contains_key(at);
        if !self.has_room(&state, blocks.clone().filter(missing).count() as u64) {
            return Err(Error::NoSpace);
        }
        for at in blocks {
            let block = state.blocks.get(&at).copied();
            if matches!(block, None | Some(Block::Delalloc)) {
                state.reserved -= u64::from(block.is_some());
                let place = allocate(&mut state.free, 1).start;
                state.blocks.insert(at, Block::Unwritten(place));
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        Ok(true)
    }

    fn policy(&self, range: Range<FileOffset>) -> WritePolicy {
        let state = self.state();
        let mut blocks = range.start.0 / self.block()..range.end.0.div_ceil(self.block());
        let is_unwritten = |at| matches!(state.blocks.get(&at), Some(Block::Unwritten(_)));
        match self.mode {
            Mode::OutOfPlace { .. } if !blocks.all(is_unwritten) => WritePolicy::OutOfPlace,
            _ => WritePolicy::InPlace,
        }
    }

    fn place(&self, dirty: Range<FileOffset>) -> Result<Placement> {
        self.check_fails()?;
        let mut state = self.state();
        let first = dirty.start.0 / self.block();
        let wanted = (dirty.end.0.div_ceil(self.block()) - first).min(self.run_max);
        if state.free.is_empty() {
            return Err(Error::NoSpace);
        }
        let places = allocate(&mut state.free, wanted);
        let count = places.end - places.start;
        for at in first..first + count {
            let block = state.blocks.get_mut(&at).expect("a block that was reserved");
            if *block == Block::Delalloc {
                *block = Block::Placed;
                state.reserved -= 1;
            }
        }
        let start = first * self.block();
        state.placed.push(start..start + count * self.block());
        state.tokens += 1;
        let token = state.tokens;
        let address = DeviceOffset(places.start * self.block());
        state.placements.insert(token, (first, places));
        self.generation.fetch_add(1, Ordering::Release);
        Ok(Placement { length: count * self.block(), address, token: Token(token) })
    }

    fn unplace(&self, failed: &[FinishedRange]) {
        let mut state = self.state();
        for range in failed {
            let (blocks, places) = self.end_placement(&mut state, range);
            places.for_each(|place| self.free(&mut state, Block::Mapped(place)));
            for at in blocks {
                if state.blocks.get(&at) == Some(&Block::Placed) {
                    state.blocks.remove(&at);
                }
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn orders_size(&self) -> bool {
        self.mode != Mode::OutOfPlace { orders_size: false }
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "as the test has it");
        let paused = self.ends.try_lock().is_err();
        self.waiting.fetch_add(u64::from(paused), Ordering::Relaxed);
        let _not_paused = self.pause();
        self.end_ios.fetch_add(1, Ordering::Relaxed);
        *self.ended_by.lock().expect("no panic") = Some(std::thread::current().id());
        let ends_before = |one: &FinishedRange, next: &FinishedRange| {
            one.token.is_some() && next.token.is_some() || one.end() <= next.offset.0
        };
        assert!(finished.windows(2).all(|two| ends_before(&two[0], &two[1])), "{finished:?}");
        let mut state = self.state();
        for range in finished {
            if range.token.is_some() {
                let (blocks, places) = self.end_placement(&mut state, range);
                for (at, place) in blocks.zip(places) {
                    match state.blocks.insert(at, Block::Mapped(place)) {
                        Some(Block::Placed) => {}
                        Some(old) => self.free(&mut state, old),
                        None => panic!("block {at} was written but is not the file's"),
                    }
                }
                continue;
            }
            for at in range.offset.0 / self.block()..range.end() / self.block() {
                let block = state.blocks.get_mut(&at).expect("a block that was written");
                match (*block, range.kind) {
                    (Block::Unwritten(place), IomapKind::Unwritten) => {
                        *block = Block::Mapped(place)
                    }
                    (Block::Mapped(_), IomapKind::Mapped) => {}
                    other => panic!("block {at}: {other:?}"),
                }
            }
        }
        state.size = state.size.max(size.0);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
