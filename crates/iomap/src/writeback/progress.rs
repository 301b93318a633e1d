//! The order in which writes past the size on the disk complete: the size follows the data, and
//! does not pass data in flight (docs/design/io.md, invariant 4). Not here: the write of the size
//! (the format's end of I/O).

use std::collections::BTreeMap;
use std::ops::Range;

use base::Ranges;

/// The progress of one file, in bytes from its start. `E` is a write that has ended.
#[derive(Debug)]
pub(crate) struct Progress<E> {
    /// The size on the disk.
    on_disk: u64,
    /// Ranges in flight whose end was behind the size on the disk when they were submitted.
    in_flight: Ranges,
    /// Writes that have ended and were not taken, by the byte after the last of each, and a
    /// sequence number.
    ended: BTreeMap<(u64, u64), E>,
    /// The last sequence number.
    number: u64,
}

impl<E> Progress<E> {
    pub(crate) fn new(size: u64) -> Self {
        Self { on_disk: size, in_flight: Ranges::default(), ended: BTreeMap::new(), number: 0 }
    }

    /// Returns the size on the disk.
    pub(crate) fn on_disk(&self) -> u64 {
        self.on_disk
    }

    /// Records that `range` is in flight. Until its write has ended, no later data of the file
    /// completes, except data before the size on the disk.
    pub(crate) fn begin(&mut self, range: Range<u64>) {
        if range.end > self.on_disk {
            self.in_flight.insert(range);
        }
    }

    /// Returns whether a write that has ended completes at once, and no other write waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.first().is_none() && self.ended.is_empty()
    }

    /// Records that the write of `ranges` has ended. It may have failed.
    pub(crate) fn end(&mut self, ranges: impl IntoIterator<Item = Range<u64>>, ended: E) {
        let mut last = 0;
        for range in ranges {
            last = last.max(range.end);
            self.in_flight.remove(range);
        }
        self.number += 1;
        self.ended.insert((last, self.number), ended);
    }

    /// Removes and returns the ended writes that end at or before the first byte in flight. The
    /// size on the disk may grow with them.
    pub(crate) fn take_ended(&mut self) -> Vec<E> {
        let until = self.in_flight.first().unwrap_or(u64::MAX).max(self.on_disk);
        let left = self.ended.split_off(&(until.saturating_add(1), 0));
        std::mem::replace(&mut self.ended, left).into_values().collect()
    }

    /// Records that the size on the disk has grown to `size`, if it was less.
    pub(crate) fn grew(&mut self, size: u64) {
        self.on_disk = self.on_disk.max(size);
    }

    /// Records that the caller is about to set the size of the file to `size`, in memory and on the
    /// disk. No data behind it is in flight, and no data before it for which the old size waits.
    pub(crate) fn set_size(&mut self, size: u64) {
        debug_assert!(self.in_flight.iter().all(|range| range.start < size), "I/O past the size");
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
    fn writes_complete_in_the_order_of_the_file() {
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
    fn no_write_waits_for_data_before_the_size_on_the_disk() {
        let mut progress = Progress::new(8192);
        progress.begin(0..8192);
        progress.begin(8192..9000);
        assert_eq!(end(&mut progress, 8192..9000, 1), [1]);
        progress.grew(9000);
        assert_eq!(end(&mut progress, 0..8192, 0), [0]);
    }

    #[test]
    fn writes_wait_for_the_block_with_the_size_on_the_disk() {
        let mut progress = Progress::new(1500);
        progress.begin(1024..2048);
        progress.begin(8192..9216);
        assert_eq!(end(&mut progress, 8192..9216, 1), []);
        assert_eq!(end(&mut progress, 1024..2048, 0), [0, 1]);
    }

    #[test]
    fn writes_before_the_size_on_the_disk_do_not_wait() {
        let mut progress = Progress::new(8192);
        progress.begin(8192..12_288);
        assert_eq!(end(&mut progress, 0..4096, 0), [0]);
        assert_eq!(end(&mut progress, 8192..12_288, 1), [1]);
    }

    #[test]
    fn a_write_of_several_ranges_waits_for_the_data_before_the_last() {
        let mut progress = Progress::new(0);
        for range in [0..1024, 4096..5120, 8192..9216] {
            progress.begin(range);
        }
        progress.end([0..1024, 8192..9216], 0);
        assert_eq!(progress.take_ended(), []);
        assert_eq!(end(&mut progress, 4096..5120, 1), [1, 0]);
    }
}
