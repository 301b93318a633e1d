//! A device that keeps writes in memory and does not change the device below.
//!
//! A volume that is opened read-only replays a dirty journal into it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{BlockSize, DeviceOffset, Error, IoError, IoOperation, Result};
use parking_lot::{Mutex, RwLock};

use crate::bio::{EIO, ENOSPC, range_within};
use crate::{Bio, BioOperation, BlockDevice, Segment, SharedDevice, everything_from};

/// A copy-on-write layer over `base`, which is never written to.
///
/// Written data is kept in blocks. If a write covers only a part of a new block, its submit reads
/// the rest from the base first. Until the first write, every bio is passed on to the base. If one
/// bio reads both written and other blocks, it fails if the base fails, even where the base's data
/// is not used.
#[derive(Debug)]
pub struct OverlayDevice {
    base: SharedDevice,
    block_size: BlockSize,
    bytes_max: u64,
    /// Whether there was a write. Never becomes false again.
    used: AtomicBool,
    blocks: Arc<RwLock<StoredBlocks>>,
    /// Whether a write was refused for lack of memory.
    was_full: AtomicBool,
    /// Serializes writers, since two of them might write parts of one block. A separate lock: the
    /// holder reads from the base, and the ends of these reads may have to wait for ends of other
    /// reads, which take the lock of the blocks.
    writer: Mutex<()>,
}

/// The written blocks by their number. The last block of the device has the full size, too.
pub type OverlayBlocks = BTreeMap<u64, Box<[u8]>>;
/// A block and its number.
type Numbered = (u64, Box<[u8]>);
/// The blocks in memory by their number.
type StoredBlocks = BTreeMap<u64, Stored>;

/// The contents of a block, without the repetitions of its last word. Blocks that come from holes
/// of an image file, or from chunks of a sparse image that are filled with one word, take little
/// memory, and others at most a word more than their size: a small image cannot make a layer large.
#[derive(Clone, Debug)]
struct Stored(Box<[u8]>);

/// The number of bytes of a word.
const WORD: usize = size_of::<u32>();

impl Stored {
    fn new(block: &[u8]) -> Self {
        debug_assert!(block.len() % WORD == 0, "blocks have whole words");
        let mut words = block.rchunks_exact(WORD);
        let last = words.next();
        let repeated = words.take_while(|word| Some(*word) == last).count();
        Self(block[..block.len() - repeated * WORD].into())
    }

    /// Copies the bytes from `from` on to `target`.
    fn copy_to(&self, from: usize, target: &mut [u8]) {
        let known = self.0.get(from..).unwrap_or_default();
        let length = known.len().min(target.len());
        target[..length].copy_from_slice(&known[..length]);
        let Some(word) = self.0.last_chunk::<WORD>() else { return };
        let mut word = *word;
        word.rotate_left((from + length) % WORD);
        let repeated = &mut target[length..];
        let mut filled = repeated.len().min(WORD);
        repeated[..filled].copy_from_slice(&word[..filled]);
        // Twice as much with each copy.
        while filled < repeated.len() {
            let more = filled.min(repeated.len() - filled);
            repeated.copy_within(..more, filled);
            filled += more;
        }
    }

    fn to_block(&self, size: BlockSize) -> Box<[u8]> {
        let mut block = vec![0; size.len()].into_boxed_slice();
        self.copy_to(0, &mut block);
        block
    }
}

impl OverlayDevice {
    /// Creates a layer with blocks of `block_size`, and at most `bytes_max` bytes of them. Writes
    /// that need more end with ENOSPC.
    pub fn new(base: SharedDevice, block_size: BlockSize, bytes_max: u64) -> Self {
        Self {
            base,
            block_size,
            bytes_max,
            used: AtomicBool::new(false),
            blocks: Arc::default(),
            was_full: AtomicBool::new(false),
            writer: Mutex::new(()),
        }
    }

    /// Returns another layer over the same base, with copies of the written blocks.
    pub fn copy(&self) -> Self {
        let _writer = self.writer.lock();
        let blocks = self.blocks.read().clone();
        let used = AtomicBool::new(!blocks.is_empty());
        let blocks = Arc::new(RwLock::new(blocks));
        Self { used, blocks, ..Self::new(Arc::clone(&self.base), self.block_size, self.bytes_max) }
    }

    /// Calls `visit` with the number and the contents of each written block, in order.
    pub fn for_each_written(&self, mut visit: impl FnMut(u64, &[u8])) {
        let mut whole = vec![0; self.block_size.len()];
        for (number, block) in &*self.blocks.read() {
            block.copy_to(0, &mut whole);
            visit(*number, &whole);
        }
    }

    /// Returns whether a block was written.
    pub fn is_written(&self, number: u64) -> bool {
        self.blocks.read().contains_key(&number)
    }

    /// Returns the size of the written blocks, in bytes. Blocks that end with many equal words take
    /// less memory.
    pub fn bytes_used(&self) -> u64 {
        self.blocks.read().len() as u64 * u64::from(self.block_size.bytes())
    }

    /// Removes the blocks that were written from the layer, and returns their contents by their
    /// number.
    pub fn take_blocks(&self) -> OverlayBlocks {
        let _writer = self.writer.lock();
        let blocks = std::mem::take(&mut *self.blocks.write());
        blocks.iter().map(|(number, block)| (*number, block.to_block(self.block_size))).collect()
    }

    /// Writes whole blocks: all of them or none. Errors: `InvalidArgument` if a block has another
    /// size than this layer's blocks or lies past the end of the device, ENOSPC without room.
    pub fn put_blocks(&self, new: OverlayBlocks) -> Result<()> {
        let blocks_max = self.block_size.blocks_for(self.base.size());
        let fits = |(number, block): (u64, &[u8])| {
            number < blocks_max && block.len() == self.block_size.len()
        };
        if !new.iter().map(|(number, block)| (*number, &**block)).all(fits) {
            return Err(Error::InvalidArgument(
                "blocks of another size, or past the end, cannot be put into a layer",
            ));
        }
        let _writer = self.writer.lock();
        let mut blocks = self.blocks.write();
        let added = new.keys().filter(|number| !blocks.contains_key(number)).count();
        if (blocks.len() + added) as u64 > self.bytes_max >> self.block_size.shift() {
            self.was_full.store(true, Ordering::Release);
            let length = (new.len() as u64) << self.block_size.shift();
            let (operation, offset, errno) = (IoOperation::Write, DeviceOffset(0), ENOSPC);
            return Err(IoError { operation, offset, length, errno }.into());
        }
        blocks.extend(new.iter().map(|(number, block)| (*number, Stored::new(block))));
        self.used.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether a write was refused because it needed more memory than the layer may take.
    pub fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Acquire)
    }

    /// Returns the numbers of the blocks that a range overlaps.
    fn blocks_of(&self, range: &Range<u64>) -> Range<u64> {
        let shift = self.block_size.shift();
        range.start >> shift..self.block_size.blocks_for(range.end)
    }

    /// Ends a read if the layer has all of its blocks. Otherwise returns the bio, to be submitted
    /// to the base. Its end then copies the layer's blocks over the base's data.
    fn read(&self, mut bio: Bio) -> Option<Bio> {
        let Ok(range) = bio.range_within(self.base.size()) else { return Some(bio) };
        let touched = self.blocks_of(&range);
        let blocks = self.blocks.read();
        let written = blocks.range(touched.clone()).count() as u64;
        if written == 0 {
            return Some(bio);
        }
        if written == touched.end - touched.start {
            copy_out(&blocks, self.block_size, range, bio.memory_mut());
            drop(blocks);
            bio.end(Ok(()));
            return None;
        }
        drop(blocks);
        let (blocks, block_size) = (Arc::clone(&self.blocks), self.block_size);
        // SAFETY: the parts are used only just before the bio's own end. By then, the base has
        // finished with the bio's memory, and no other thread uses it.
        let part = |one: &Segment| unsafe { one.part(0, one.len()) };
        let mut segments: Vec<Segment> = bio.segments().iter().map(part).collect();
        bio.before_end(move |result| {
            result?;
            copy_out(
                &blocks.read(),
                block_size,
                range,
                segments.iter_mut().map(Segment::bytes_mut),
            );
            Ok(())
        });
        Some(bio)
    }

    fn write(&self, bio: &Bio) -> Result<(), i32> {
        let range = bio.range_within(self.base.size())?;
        let mut source = Source { segments: bio.segments(), done: 0 };
        self.change(range, |target| source.copy_to(target))
    }

    /// Calls `fill` with each block's part of `range`, in order. On failure, changes nothing.
    fn change(&self, range: Range<u64>, mut fill: impl FnMut(&mut [u8])) -> Result<(), i32> {
        if range.is_empty() {
            return Ok(());
        }
        let touched = self.blocks_of(&range);
        let _writer = self.writer.lock();
        let edges = self.missing_edges(&range, &touched)?;
        self.used.store(true, Ordering::Release);
        let mut blocks = self.blocks.write();
        let mut whole = vec![0; self.block_size.len()];
        for number in touched {
            let start = number << self.block_size.shift();
            let part = within_block(&range, start, self.block_size);
            if let Some((_, edge)) = edges.iter().find(|edge| edge.0 == number) {
                whole.copy_from_slice(edge);
            } else if let Some(block) = blocks.get(&number).filter(|_| part.len() < whole.len()) {
                block.copy_to(0, &mut whole);
            }
            fill(&mut whole[part]);
            blocks.insert(number, Stored::new(&whole));
        }
        Ok(())
    }

    /// Checks that there is room for the blocks of `range`. Reads from the base the blocks that
    /// `range` covers only in part and that were not written yet: the first, the last or both.
    fn missing_edges(
        &self,
        range: &Range<u64>,
        touched: &Range<u64>,
    ) -> Result<Vec<Numbered>, i32> {
        let mut missing = Vec::new();
        {
            let blocks = self.blocks.read();
            let known = blocks.range(touched.clone()).count() as u64;
            let needed = (touched.end - touched.start - known).saturating_add(blocks.len() as u64);
            if needed > self.bytes_max >> self.block_size.shift() {
                self.was_full.store(true, Ordering::Release);
                return Err(ENOSPC);
            }
            let last = touched.end - 1;
            for number in [touched.start, last] {
                let part = within_block(range, number << self.block_size.shift(), self.block_size);
                let is_partial = part.len() < self.block_size.len();
                if is_partial && !blocks.contains_key(&number) && !missing.contains(&number) {
                    missing.push(number);
                }
            }
        }
        missing.into_iter().map(|number| Ok((number, self.read_base(number)?))).collect()
    }

    /// Returns the base's contents of a block, with zeroes past the end of the device.
    fn read_base(&self, number: u64) -> Result<Box<[u8]>, i32> {
        let start = number << self.block_size.shift();
        let mut block = vec![0; self.block_size.len()].into_boxed_slice();
        let length = (self.base.size() - start).min(block.len() as u64) as usize;
        let read = self.base.read_at(DeviceOffset(start), &mut block[..length]);
        read.map(|()| block).map_err(|error| match error {
            base::Error::Io(error) => error.errno,
            _ => EIO,
        })
    }
}

/// The bytes of segments, in order.
struct Source<'a> {
    segments: &'a [Segment],
    /// The number of bytes of the first segment that were copied already.
    done: usize,
}

impl Source<'_> {
    fn copy_to(&mut self, mut target: &mut [u8]) {
        while !target.is_empty() {
            let Some((first, rest)) = self.segments.split_first() else { return };
            let left = &first.bytes()[self.done..];
            let length = left.len().min(target.len());
            let (now, later) = target.split_at_mut(length);
            now.copy_from_slice(&left[..length]);
            target = later;
            self.done += length;
            if self.done == first.len() {
                self.segments = rest;
                self.done = 0;
            }
        }
    }
}

/// Returns the part of `range` in the block that begins at `start`, as indices into the block.
fn within_block(range: &Range<u64>, start: u64, size: BlockSize) -> Range<usize> {
    let length = u64::from(size.bytes());
    let from = range.start.saturating_sub(start).min(length);
    let to = range.end.saturating_sub(start).min(length);
    from as usize..to as usize
}

/// Copies the written blocks' parts of `range` to `memory`, which is the memory of the whole range.
fn copy_out<'a>(
    blocks: &StoredBlocks,
    size: BlockSize,
    range: Range<u64>,
    memory: impl Iterator<Item = &'a mut [u8]>,
) {
    let mut at = range.start;
    for target in memory {
        let covered = at..at + target.len() as u64;
        for (number, block) in blocks.range(at >> size.shift()..size.blocks_for(covered.end)) {
            let start = number << size.shift();
            let part = within_block(&covered, start, size);
            let first = (start.max(covered.start) - covered.start) as usize;
            block.copy_to(part.start, &mut target[first..first + part.len()]);
        }
        at = covered.end;
    }
}

impl BlockDevice for OverlayDevice {
    fn size(&self) -> u64 {
        self.base.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&self, batch: Vec<Bio>) {
        let only_reads = batch.iter().all(|bio| bio.operation() == BioOperation::Read);
        if only_reads && !self.used.load(Ordering::Acquire) {
            return self.base.submit(batch);
        }
        let mut below = Vec::with_capacity(batch.len());
        for bio in batch {
            match bio.operation() {
                BioOperation::Read => below.extend(self.read(bio)),
                BioOperation::Write => {
                    let result = self.write(&bio);
                    bio.end(result);
                }
            }
        }
        if !below.is_empty() {
            self.base.submit(below);
        }
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        range_within(IoOperation::Discard, offset, length, self.base.size())?;
        Ok(())
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let operation = IoOperation::WriteZeroes;
        let range = range_within(operation, offset, length, self.base.size())?;
        self.change(range, |target| target.fill(0))
            .map_err(|errno| IoError { operation, offset, length, errno }.into())
    }

    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        everything_from(offset, self.size())?;
        let shift = self.block_size.shift();
        let written = self.blocks.read().range(offset.0 >> shift..).next().map(|(number, _)| {
            let start = number << shift;
            let end = start.saturating_add(self.block_size.bytes().into()).min(self.size());
            DeviceOffset(start.max(offset.0))..DeviceOffset(end)
        });
        let below = self.base.next_data(offset);
        // The rest of the later one is found by the next call.
        [written, below].into_iter().flatten().min_by_key(|range| range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const BLOCK: BlockSize = BlockSize::from_bytes(1024).unwrap();

    fn overlay(size: usize, bytes_max: u64) -> (Arc<MemoryDevice>, OverlayDevice) {
        let base = Arc::new(MemoryDevice::new(vec![7; size]));
        (base.clone(), OverlayDevice::new(base, BLOCK, bytes_max))
    }

    fn write(device: &dyn BlockDevice, at: u64, length: usize) -> Result<()> {
        device.write_at(DeviceOffset(at), &vec![1; length])
    }

    /// The memory of the contents of the written blocks, in bytes.
    fn memory(overlay: &OverlayDevice) -> usize {
        overlay.blocks.read().values().map(|block| block.0.len()).sum()
    }

    #[test]
    fn blocks_of_repeated_words_take_little_memory() {
        let (_, overlay) = overlay(64 << 10, 1 << 20);
        let device: &dyn BlockDevice = &overlay;
        // An escaped block of a log that is a hole, and one of a filled chunk.
        for (number, word) in [(0_u64, [0; 4]), (1, *b"fill")] {
            let mut block = word.repeat(256);
            block[..4].copy_from_slice(b"head");
            device.write_at(DeviceOffset(number << 10), &block).unwrap();
        }
        overlay.write_zeroes(DeviceOffset(2 << 10), 32 << 10).unwrap();
        assert_eq!(overlay.bytes_used(), 34 << 10);
        assert!(memory(&overlay) <= 34 * 8, "{}", memory(&overlay));
        // Reads and writes of parts, at bytes that are not the first of a word.
        let mut bytes = [0; 15];
        device.read_at(DeviceOffset(1021), &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0headfillfill");
        device.write_at(DeviceOffset(1030), b"xyz").unwrap();
        device.read_at(DeviceOffset(1021), &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0headfixyzill");
        device.read_at(DeviceOffset(2033), &mut bytes).unwrap();
        assert_eq!(&bytes, b"illfillfillfill");
    }

    #[test]
    fn writes_do_not_change_the_base() {
        let (base, overlay) = overlay(10_000, 1 << 20);
        write(&overlay, 500, 5000).unwrap();
        overlay.write_zeroes(DeviceOffset(9000), 1000).unwrap();
        overlay.flush().unwrap();
        assert!(base.snapshot() == [7; 10_000]);
    }

    #[test]
    fn memory_is_bounded_and_a_write_without_room_changes_nothing() {
        let (_, overlay) = overlay(100 * 1024, 4 * 1024 + 1023);
        write(&overlay, 0, 2 * 1024).unwrap();
        let Err(Error::Io(error)) = write(&overlay, 1024, 4 * 1024) else { panic!() };
        assert_eq!(error.errno, ENOSPC);
        assert_eq!(overlay.bytes_used(), 2 * 1024);
        // Writing the same blocks again needs no room, and two more fit.
        write(&overlay, 0, 4 * 1024).unwrap();
        write(&overlay, 100, 3000).unwrap();
        assert_eq!(overlay.bytes_used(), 4 * 1024);
    }

    #[test]
    fn blocks_move_to_another_layer_whole() {
        let (_, upper) = overlay(10_000, 1 << 20);
        write(&upper, 1030, 4).unwrap();
        write(&upper, 4096, 1024).unwrap();
        let blocks = upper.take_blocks();
        assert_eq!(upper.bytes_used(), 0);
        let mut first = [7; 1024];
        first[6..10].fill(1);
        assert_eq!(blocks, [(1, first.into()), (4, [1; 1024].into())].into());

        let (base, lower) = overlay(10_000, 2 * 1024);
        write(&lower, 4096, 1).unwrap();
        lower.put_blocks(blocks.clone()).unwrap();
        let mut bytes = [0; 1024];
        let lower: &dyn BlockDevice = &lower;
        lower.read_at(DeviceOffset(1024), &mut bytes).unwrap();
        assert_eq!(bytes, first);
        lower.read_at(DeviceOffset(4096), &mut bytes).unwrap();
        assert_eq!(bytes, [1; 1024]);
        assert_eq!(base.snapshot(), [7; 10_000]);
    }

    #[test]
    fn blocks_without_room_are_refused_together() {
        let (_, overlay) = overlay(10_000, 2 * 1024);
        write(&overlay, 0, 1).unwrap();
        let blocks = OverlayBlocks::from([1, 2].map(|number| (number, [1; 1024].into())));
        assert!(matches!(overlay.put_blocks(blocks), Err(Error::Io(_))));
        assert_eq!(overlay.bytes_used(), 1024);
        assert!(overlay.was_full());
    }

    #[test]
    fn blocks_of_another_size_or_past_the_end_are_refused() {
        let (_, overlay) = overlay(10_000, 1 << 20);
        for (number, bytes) in [(1, 4096), (10, 1024), (u64::MAX, 1024)] {
            let blocks = [(0, [1; 1024].into()), (number, vec![1; bytes].into())].into();
            let refused = overlay.put_blocks(blocks);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{number}: {refused:?}");
            assert_eq!(overlay.bytes_used(), 0);
        }
        overlay.put_blocks([(9, [1; 1024].into())].into()).unwrap();
    }

    #[test]
    fn blocks_that_were_written_as_a_whole_do_not_need_the_base() {
        let (_, overlay) = overlay(4 * 1024, 1 << 20);
        write(&overlay, 1024, 1024).unwrap();
        let failing = OverlayDevice { base: Arc::new(Failing), ..overlay };
        let device: &dyn BlockDevice = &failing;
        let mut block = [0; 1024];
        device.read_at(DeviceOffset(1024), &mut block).unwrap();
        assert_eq!(block, [1; 1024]);
        device.read_at(DeviceOffset(1000), &mut block).unwrap_err();
        write(device, 2048, 1024).unwrap();
        write(device, 3072, 1023).unwrap_err();
        assert_eq!(failing.bytes_used(), 2048);
    }

    /// A device of 4 KiB that cannot be read.
    #[derive(Debug)]
    struct Failing;

    impl BlockDevice for Failing {
        fn size(&self) -> u64 {
            4096
        }

        fn is_read_only(&self) -> bool {
            true
        }

        fn submit(&self, batch: Vec<Bio>) {
            drop(batch);
        }

        fn flush(&self) -> Result<()> {
            Ok(())
        }

        fn discard(&self, _: DeviceOffset, _: u64) -> Result<()> {
            Ok(())
        }

        fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
            Ok(())
        }
    }
}
