//! A set of numbers, such as bytes or blocks, as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers as ranges that neither touch nor overlap: ends by starts.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The least number.
    pub fn first(&self) -> Option<u64> {
        self.0.first_key_value().map(|(&start, _)| start)
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// The range with `at`.
    pub fn containing(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.0.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// Whether `at` is in the set.
    pub fn contains(&self, at: u64) -> bool {
        self.containing(at).is_some()
    }

    /// The numbers around `at`, which is not in the set, that are not either. The greatest of all is left out.
    pub fn gap_around(&self, at: u64) -> Range<u64> {
        let before = self.0.range(..=at).next_back().map_or(0, |(_, &end)| end);
        before..self.next_from(at).unwrap_or(u64::MAX)
    }

    /// The least number from `at` on.
    pub fn next_from(&self, at: u64) -> Option<u64> {
        if self.contains(at) {
            return Some(at);
        }
        self.0.range(at..).next().map(|(&start, _)| start)
    }

    /// How many of `range` are not in the set.
    pub fn missing(&self, range: &Range<u64>) -> u64 {
        let length = range.end.saturating_sub(range.start);
        let first = self.containing(range.start).map(|found| found.start).unwrap_or(range.start);
        let within = self
            .0
            .range(first..range.end.max(first))
            .map(|(&start, &end)| end.min(range.end).saturating_sub(start.max(range.start)));
        length - within.sum::<u64>()
    }

    /// Adds what is missing of `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Whatever overlaps or touches becomes one with it.
        while let Some((&before, &until)) = self.0.range(..=end).next_back() {
            if until < start {
                break;
            }
            start = start.min(before);
            end = end.max(until);
            self.0.remove(&before);
        }
        self.0.insert(start, end);
    }

    /// Removes what there is of `range`; gives how many that were.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let mut removed = 0;
        // From the last one back, as long as they have something of the range.
        while let Some((&start, &end)) = self.0.range(..range.end).next_back() {
            if end <= range.start || range.start >= range.end {
                break;
            }
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if end > range.end {
                self.0.insert(range.end, end);
            }
            removed += end.min(range.end) - start.max(range.start);
        }
        removed
    }
}
