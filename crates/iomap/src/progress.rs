//! How far the size on the disk has followed the size in memory.
//! Not here: writing the size (the format's end of I/O).
//!
//! The size on the disk grows with the data that reached the device. When the file's end moves out
//! of the block that the size on the disk ends in, that block may hold anything past the end: until
//! what the cache has of it is on the disk, the size must not pass it (ARCHITECTURE.md, invariant 4).

use std::ops::Range;

use base::BlockSize;

/// The progress of one file, in bytes from its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    block_size: BlockSize,
    /// The size on the disk.
    on_disk: u64,
    /// What the size on the disk could be but for the tail.
    reached: u64,
    /// The first byte of the block that has to be written before the size may grow.
    tail: Option<u64>,
}

impl Progress {
    pub(crate) fn new(block_size: BlockSize, size: u64) -> Self {
        Self { block_size, on_disk: size, reached: size, tail: None }
    }

    /// The size on the disk.
    pub(crate) fn on_disk(&self) -> u64 {
        self.on_disk
    }

    fn start_of_block(&self, at: u64) -> u64 {
        at >> self.block_size.shift() << self.block_size.shift()
    }

    /// The first byte of the block that the size on the disk must not pass before it is written, if
    /// the file's end moves from `size` to `end`.
    pub(crate) fn tail_of(&self, size: u64, end: u64) -> Option<u64> {
        let tail = self.start_of_block(size);
        let ends_within = size > tail && self.on_disk > tail;
        (ends_within && self.start_of_block(end.saturating_sub(1)) > tail).then_some(tail)
    }

    /// Has the size on the disk wait for the block that begins at `tail`, which is dirty, and not
    /// on its way to the device.
    pub(crate) fn wait_for(&mut self, tail: u64) {
        self.tail = Some(tail);
    }

    /// The first byte of the block that the size on the disk waits for.
    pub(crate) fn tail(&self) -> Option<u64> {
        self.tail
    }

    /// Notes that the writing of `ranges` has ended, of which what was written reaches to `reached`.
    /// Gives the size that the file may have on the disk now. The waiting for a tail ends even when
    /// it could not be written: its owner hears of that, and nothing would end it ever after.
    pub(crate) fn end(
        &mut self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        reached: u64,
    ) -> u64 {
        self.reached = self.reached.max(reached);
        if let Some(tail) = self.tail {
            if ranges.into_iter().any(|range| range.contains(&tail)) {
                self.tail = None;
            }
        }
        if self.tail.is_none() {
            self.on_disk = self.on_disk.max(self.reached);
        }
        self.on_disk
    }

    /// Notes that the size on the disk is still `before`: the format could not have it grow.
    pub(crate) fn did_not_grow(&mut self, before: u64) {
        self.on_disk = before;
    }

    /// Notes that the file is about to be given the size `size`, in memory and on the disk. Nothing
    /// past it is on its way to the device, and nothing before it that the old size waits for.
    pub(crate) fn set_size(&mut self, size: u64) {
        *self = Self::new(self.block_size, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(size: u64) -> Progress {
        Progress::new(BlockSize::from_bytes(1024).unwrap(), size)
    }

    fn end(progress: &mut Progress, range: Range<u64>, reached: u64) -> u64 {
        progress.end(std::iter::once(range), reached)
    }

    #[test]
    fn the_size_follows_the_data() {
        let mut progress = progress(0);
        assert_eq!(end(&mut progress, 0..1024, 700), 700);
        assert_eq!(end(&mut progress, 0..1024, 300), 700);
        assert_eq!(end(&mut progress, 4096..8192, 8000), 8000);
    }

    #[test]
    fn the_size_does_not_pass_a_tail_that_is_not_written() {
        let mut progress = progress(1500);
        progress.wait_for(progress.tail_of(1500, 9000).unwrap());
        assert_eq!(end(&mut progress, 8192..9216, 9000), 1500);
        assert_eq!(end(&mut progress, 3072..4096, 4096), 1500);
        assert_eq!(end(&mut progress, 0..2048, 2048), 9000);
    }

    #[test]
    fn only_the_block_of_the_size_on_the_disk_is_waited_for() {
        let progress = progress(1500);
        assert_eq!(progress.tail_of(1500, 2049), Some(1024));
        assert_eq!(progress.tail_of(1500, 2048), None, "the end stays in the block");
        assert_eq!(progress.tail_of(2500, 9000), None, "a block that is new");
        let mut aligned = progress;
        aligned.set_size(2048);
        assert_eq!(aligned.tail_of(2048, 9000), None);
    }

    #[test]
    fn a_new_size_is_the_size_on_the_disk() {
        let mut progress = progress(1500);
        progress.wait_for(1024);
        end(&mut progress, 8192..9216, 9000);
        progress.set_size(100);
        assert_eq!(end(&mut progress, 0..1024, 60), 100);
    }
}
