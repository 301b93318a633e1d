//! Delays of what makes changes durable, for the sake of data that should become durable with them.
//! Not here: what is delayed, and the choice of data (`vfs/node/replacing.rs`).

use std::collections::BTreeSet;

/// The delays in progress, numbered in the order in which they began.
#[derive(Debug, Default)]
pub struct SyncDelays {
    open: BTreeSet<u64>,
    next: u64,
}

impl SyncDelays {
    /// Begins a delay. Returns its number.
    pub fn begin(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number);
        number
    }

    /// Ends a delay. Returns whether it was in progress.
    pub fn end(&mut self, number: u64) -> bool {
        self.open.remove(&number)
    }

    /// Ends all delays in progress. Returns whether there were any.
    pub fn end_all(&mut self) -> bool {
        !std::mem::take(&mut self.open).is_empty()
    }

    /// Returns the number of delays that have begun.
    pub fn begun(&self) -> u64 {
        self.next
    }

    /// Returns whether one of the first `count` delays is in progress. Nothing waits for later
    /// ones: with many threads, there might always be one.
    pub fn has_any_of_first(&self, count: u64) -> bool {
        self.open.first().is_some_and(|&first| first < count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_delays_do_not_count() {
        let mut delays = SyncDelays::default();
        let (first, second) = (delays.begin(), delays.begin());
        let begun = delays.begun();
        let third = delays.begin();
        assert!(delays.end(first) && delays.has_any_of_first(begun));
        assert!(delays.end(second) && !delays.has_any_of_first(begun));
        assert!(delays.has_any_of_first(delays.begun()));
        assert!(delays.end_all() && !delays.end(third) && !delays.end_all());
    }
}
