//! Which writes of a file are on their way to the device past the size on the disk, and in which order
//! their ends count: the size on the disk follows the data, and passes nothing that is still on its way
//! (ARCHITECTURE.md, invariant 4).
//! Not here: writing the size (the format's end of I/O).

use std::collections::BTreeMap;
use std::ops::Range;

use base::Ranges;

/// The progress of one file, in bytes from its start. `E` is the end of a write.
#[derive(Debug)]
pub(crate) struct Progress<E> {
    /// The size on the disk.
    on_disk: u64,
    /// What is on its way to the device, and did not lie before the size on the disk when it set out.
    under_way: Ranges,
    /// Writes that have ended and were not taken, by the byte after the last of each, and a number.
    ended: BTreeMap<(u64, u64), E>,
    /// How many writes ever waited in there.
    number: u64,
}

impl<E> Progress<E> {
    pub(crate) fn new(size: u64) -> Self {
        Self { on_disk: size, under_way: Ranges::default(), ended: BTreeMap::new(), number: 0 }
    }

    /// The size on the disk.
    pub(crate) fn on_disk(&self) -> u64 {
        self.on_disk
    }

    /// Notes that `range` is on its way to the device. Until it has ended, no write behind it counts as
    /// ended, unless that lies before the size on the disk.
    pub(crate) fn begin(&mut self, range: Range<u64>) {
        if range.end > self.on_disk {
            self.under_way.insert(range);
        }
    }

    /// Whether a write that has ended now has nothing to wait for, and nothing waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.first().is_none() && self.ended.is_empty()
    }

    /// Notes that the write of `ranges` has ended, which may have failed.
    pub(crate) fn end(&mut self, ranges: impl IntoIterator<Item = Range<u64>>, ended: E) {
        let mut last = 0;
        for range in ranges {
            last = last.max(range.end);
            self.under_way.remove(range);
        }
        self.number += 1;
        self.ended.insert((last, self.number), ended);
    }

    /// Takes those writes that have ended of which nothing lies behind what is on its way. The size on
    /// the disk may grow with them.
    pub(crate) fn take_ended(&mut self) -> Vec<E> {
        let until = self.under_way.first().unwrap_or(u64::MAX).max(self.on_disk);
        let left = self.ended.split_off(&(until.saturating_add(1), 0));
        std::mem::replace(&mut self.ended, left).into_values().collect()
    }

    /// Notes that the format has let the size on the disk grow to `size`, if it was less.
    pub(crate) fn grew(&mut self, size: u64) {
        self.on_disk = self.on_disk.max(size);
    }

    /// Notes that the file is about to be given the size `size`, in memory and on the disk. Nothing
    /// past it is on its way to the device, and nothing before it that the old size waits for.
    pub(crate) fn set_size(&mut self, size: u64) {
        debug_assert!(self.under_way.iter().all(|range| range.start < size), "I/O past the size");
        self.on_disk = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(progress: &mut Progress<u32>, range: Range<u64>, name: u32) -> Vec<u32> {
        progress.end([range], name);
        progress.take_ended()
    }

    #[test]
    fn ends_count_in_the_order_of_the_file() {
        let mut progress = Progress::new(0);
        for range in [0..4096, 4096..8192, 8192..12_288] {
            progress.begin(range);
        }
        assert_eq!(end(&mut progress, 8192..12_288, 2), []);
        assert_eq!(end(&mut progress, 0..4096, 0), [0]);
        progress.grew(4096);
        assert_eq!(end(&mut progress, 4096..8192, 1), [1, 2]);
    }

    #[test]
    fn nothing_waits_for_what_lies_before_the_size_on_the_disk() {
        let mut progress = Progress::new(8192);
        progress.begin(0..8192);
        progress.begin(8192..9000);
        assert_eq!(end(&mut progress, 8192..9000, 1), [1]);
        progress.grew(9000);
        assert_eq!(end(&mut progress, 0..8192, 0), [0]);
    }

    #[test]
    fn all_waits_for_the_block_that_the_size_on_the_disk_ends_in() {
        let mut progress = Progress::new(1500);
        progress.begin(1024..2048);
        progress.begin(8192..9216);
        assert_eq!(end(&mut progress, 8192..9216, 1), []);
        assert_eq!(end(&mut progress, 1024..2048, 0), [0, 1]);
    }

    #[test]
    fn what_lies_before_the_size_on_the_disk_waits_for_nothing() {
        let mut progress = Progress::new(8192);
        progress.begin(8192..12_288);
        assert_eq!(end(&mut progress, 0..4096, 0), [0]);
        assert_eq!(end(&mut progress, 8192..12_288, 1), [1]);
    }

    #[test]
    fn a_write_of_several_places_waits_for_what_lies_before_the_last() {
        let mut progress = Progress::new(0);
        for range in [0..1024, 4096..5120, 8192..9216] {
            progress.begin(range);
        }
        progress.end([0..1024, 8192..9216], 0);
        assert_eq!(progress.take_ended(), []);
        assert_eq!(end(&mut progress, 4096..5120, 1), [1, 0]);
    }
}
