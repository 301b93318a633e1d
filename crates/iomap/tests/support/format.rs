//! A format of one file, for the tests of the write path. Its device is full of garbage where no
//! data was written, and so is every block that is freed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

use base::{BlockSize, DeviceOffset, Error, FileOffset, Result};
use device::{BlockDevice, MemoryDevice};
use iomap::{FinishedRange, Iomap, IomapKind, MapFlags, MapRead, MapWrite};

/// The byte that no test writes.
pub const GARBAGE: u8 = 0xee;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Delalloc,
    /// Blocks of the device.
    Unwritten(u64),
    Mapped(u64),
}

#[derive(Debug)]
pub struct Format {
    block_size: BlockSize,
    /// The device, as it really is.
    device: Arc<MemoryDevice>,
    state: Mutex<State>,
    sequence: AtomicU64,
    /// The most blocks of one mapping.
    run_max: u64,
    /// Held to keep the end of I/O waiting.
    ends: Mutex<()>,
    pub map_writes: AtomicU64,
    pub map_writebacks: AtomicU64,
    pub end_ios: AtomicU64,
    /// How many ends of I/O wait, or have waited.
    pub waiting: AtomicU64,
    /// The thread of the last end of I/O.
    pub ended_by: Mutex<Option<ThreadId>>,
    /// Whether the next end of I/O panics.
    pub panics: AtomicBool,
    /// What becomes of one mapping for writeback instead, after so many others.
    fails: Mutex<Option<Failure>>,
    /// Done after the next reservation.
    pub after_reservation: Hook,
}

/// Something to do once.
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

/// How many mappings go well before one that does not, and what becomes of that.
type Failure = (u64, fn() -> Error);

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<u64, Block>,
    /// Free blocks of the device.
    free: Vec<Range<u64>>,
    /// How many of those are reserved.
    reserved: u64,
    size: u64,
}

impl State {
    fn free_blocks(&self) -> u64 {
        self.free.iter().map(|range| range.end - range.start).sum()
    }
}

impl Format {
    /// An empty file on a device of `blocks` blocks.
    pub fn new(block_size: BlockSize, blocks: u64, run_max: u64) -> Arc<Self> {
        let contents = vec![GARBAGE; (blocks * u64::from(block_size.bytes())) as usize];
        let state = State { free: std::iter::once(0..blocks).collect(), ..State::default() };
        Arc::new(Self {
            block_size,
            device: Arc::new(MemoryDevice::new(contents)),
            state: Mutex::new(state),
            sequence: AtomicU64::new(0),
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

    /// Has one mapping for writeback, after so many others, end in `error`.
    pub fn fail(&self, after: u64, error: fn() -> Error) {
        *self.fails.lock().expect("no panic") = Some((after, error));
    }

    /// Has the end of I/O wait until the result is dropped.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.ends.lock().expect("no panic")
    }

    fn block(&self) -> u64 {
        self.block_size.bytes().into()
    }

    /// The size on the disk.
    pub fn size(&self) -> u64 {
        self.state().size
    }

    /// Blocks that are reserved.
    pub fn reserved(&self) -> u64 {
        self.state().reserved
    }

    pub fn kinds(&self) -> Vec<(u64, IomapKind)> {
        let state = self.state();
        state.blocks.iter().map(|(at, block)| (*at, self.map_of(*at, Some(block)).kind)).collect()
    }

    /// The file as a crash just now would leave it.
    pub fn on_disk(&self) -> Vec<u8> {
        let (state, block) = (self.state(), self.block() as usize);
        let device = self.device.snapshot();
        let mut bytes = Vec::new();
        for at in 0..state.size.div_ceil(self.block()) {
            match state.blocks.get(&at) {
                Some(Block::Mapped(place)) => {
                    let start = *place as usize * block;
                    bytes.extend_from_slice(&device[start..start + block]);
                }
                _ => bytes.resize(bytes.len() + block, 0),
            }
        }
        bytes.truncate(state.size as usize);
        bytes
    }

    /// Cuts the file off, or lengthens it, on the disk.
    pub fn truncate(&self, size: u64) {
        let mut state = self.state();
        let gone = state.blocks.split_off(&size.div_ceil(self.block()));
        gone.into_values().for_each(|block| self.free(&mut state, block));
        state.size = size;
        self.sequence.fetch_add(1, Ordering::Release);
    }

    /// Takes the blocks of `range` away.
    pub fn punch(&self, range: Range<u64>) {
        let mut state = self.state();
        for at in range.start / self.block()..range.end / self.block() {
            if let Some(block) = state.blocks.remove(&at) {
                self.free(&mut state, block);
            }
        }
        self.sequence.fetch_add(1, Ordering::Release);
    }

    /// Allocates unwritten blocks where `range` has none.
    pub fn preallocate(&self, range: Range<u64>) {
        let mut state = self.state();
        for at in range.start / self.block()..range.end.div_ceil(self.block()) {
            if !state.blocks.contains_key(&at) && state.free_blocks() > state.reserved {
                let place = take(&mut state.free, 1).start;
                state.blocks.insert(at, Block::Unwritten(place));
            }
        }
        self.sequence.fetch_add(1, Ordering::Release);
    }

    /// Has everything past the end in the file's last block be garbage on the device.
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
            Block::Unwritten(place) | Block::Mapped(place) => {
                let garbage = vec![GARBAGE; self.block() as usize];
                let device: &dyn BlockDevice = &*self.device;
                device.write_at(DeviceOffset(place * self.block()), &garbage).expect("memory");
                // The next to be used: late writes to it are noticed.
                state.free.insert(0, place..place + 1);
            }
        }
    }

    fn map_of(&self, at: u64, block: Option<&Block>) -> Iomap {
        let (kind, place) = match block {
            None => (IomapKind::Hole, None),
            Some(Block::Delalloc) => (IomapKind::Delalloc, None),
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

/// Takes at most `count` blocks that follow one another.
fn take(free: &mut Vec<Range<u64>>, count: u64) -> Range<u64> {
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

    fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }
}

impl MapWrite for Format {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.map_writes.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let blocks = at.0 / self.block()..(at.0 + length).div_ceil(self.block());
        let new: Vec<u64> = blocks.filter(|block| !state.blocks.contains_key(block)).collect();
        if state.reserved + new.len() as u64 > state.free_blocks() {
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
        self.map_writebacks.fetch_add(1, Ordering::Relaxed);
        let mut fails = self.fails.lock().expect("no panic");
        match fails.take() {
            Some((0, error)) => {
                drop(fails);
                return Err(error());
            }
            more => *fails = more.map(|(left, error)| (left - 1, error)),
        }
        drop(fails);
        let mut state = self.state();
        let first = at.0 / self.block();
        let end = (at.0 + length).div_ceil(self.block());
        let wanted =
            (first..end).take_while(|block| state.blocks.get(block) == Some(&Block::Delalloc));
        let wanted = wanted.count() as u64;
        if wanted > 0 {
            let places = take(&mut state.free, wanted.min(self.run_max));
            state.reserved -= places.end - places.start;
            let new = (first..).zip(places).map(|(at, place)| (at, Block::Unwritten(place)));
            state.blocks.extend(new.collect::<Vec<_>>());
            self.sequence.fetch_add(1, Ordering::Release);
        }
        Ok(self.map(&state, at, length))
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "as the test has it");
        let paused = self.ends.try_lock().is_err();
        self.waiting.fetch_add(u64::from(paused), Ordering::Relaxed);
        let _not_paused = self.pause();
        self.end_ios.fetch_add(1, Ordering::Relaxed);
        *self.ended_by.lock().expect("no panic") = Some(std::thread::current().id());
        assert!(finished.windows(2).all(|two| two[0].end() <= two[1].offset.0), "{finished:?}");
        let mut state = self.state();
        for range in finished {
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
        self.sequence.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
