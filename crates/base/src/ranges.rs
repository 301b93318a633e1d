//! A set of numbers as ranges. Not here: the unit of the numbers, such as bytes or blocks.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers as ranges that are neither adjacent nor overlap, as end by start.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Returns the least number, or `None` if the set is empty.
    pub fn first(&self) -> Option<u64> {
        self.0.first_key_value().map(|(&start, _)| start)
    }

    /// Returns the ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// Returns the range that contains `at`, if `at` is in the set.
    pub fn containing(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.0.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// Returns whether `at` is in the set.
    pub fn contains(&self, at: u64) -> bool {
        self.containing(at).is_some()
    }

    /// Returns the largest range around `at` that has no number of the set. It ends before
    /// `u64::MAX`. `at` is not in the set.
    pub fn gap_around(&self, at: u64) -> Range<u64> {
        let before = self.0.range(..=at).next_back().map_or(0, |(_, &end)| end);
        before..self.next_from(at).unwrap_or(u64::MAX)
    }

    /// Returns the least number of the set from `at` on.
    pub fn next_from(&self, at: u64) -> Option<u64> {
        if self.contains(at) {
            return Some(at);
        }
        self.0.range(at..).next().map(|(&start, _)| start)
    }

    /// Returns how many numbers of `range` are not in the set.
    pub fn missing(&self, range: &Range<u64>) -> u64 {
        let length = range.end.saturating_sub(range.start);
        let first = self.containing(range.start).map(|found| found.start).unwrap_or(range.start);
        let within = self
            .0
            .range(first..range.end.max(first))
            .map(|(&start, &end)| end.min(range.end).saturating_sub(start.max(range.start)));
        length - within.sum::<u64>()
    }

    /// Adds all numbers of `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let Range { mut start, mut end } = range;
        // Merges all existing ranges that overlap it or are adjacent.
        while let Some((&other_start, &other_end)) = self.0.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            start = start.min(other_start);
            end = end.max(other_end);
            self.0.remove(&other_start);
        }
        self.0.insert(start, end);
    }

    /// Removes all numbers of `range`. Returns how many were in the set.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let mut removed = 0;
        // Goes backwards through the existing ranges that overlap it.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_agree_with_a_set_of_numbers(
            operations in prop::collection::vec((any::<bool>(), 0..60_u64, 0..20_u64), 1..60),
        ) {
            let mut ranges = Ranges::default();
            let mut set = BTreeSet::new();
            for (is_insert, start, length) in operations {
                let range = start..start + length;
                let missing = range.clone().filter(|at| !set.contains(at)).count() as u64;
                prop_assert_eq!(ranges.missing(&range), missing);
                if is_insert {
                    ranges.insert(range.clone());
                    set.extend(range);
                } else {
                    prop_assert_eq!(ranges.remove(range.clone()), length - missing);
                    set.retain(|at| !range.contains(at));
                }
                prop_assert_eq!(ranges.first(), set.first().copied());
                let all: Vec<Range<u64>> = ranges.iter().collect();
                prop_assert!(all.windows(2).all(|two| two[0].end < two[1].start));
                prop_assert!(all.into_iter().flatten().eq(set.iter().copied()));
                for at in 0..90 {
                    prop_assert_eq!(ranges.contains(at), set.contains(&at));
                    prop_assert_eq!(ranges.next_from(at), set.range(at..).next().copied());
                    if !set.contains(&at) {
                        let before = set.range(..at).next_back().map_or(0, |last| last + 1);
                        let after = set.range(at..).next().copied().unwrap_or(u64::MAX);
                        prop_assert_eq!(ranges.gap_around(at), before..after);
                    }
                }
            }
        }
    }
}
