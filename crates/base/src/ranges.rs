//! A set of numbers, such as bytes or blocks, as ranges. Not here: what the numbers count.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers as ranges that neither touch nor overlap: ends by starts.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// The least number; none of an empty set.
    pub fn first(&self) -> Option<u64> {
        self.0.first_key_value().map(|(&start, _)| start)
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// The range that contains `at`, if that is in the set.
    pub fn containing(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.0.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// Whether `at` is in the set.
    pub fn contains(&self, at: u64) -> bool {
        self.containing(at).is_some()
    }

    /// The numbers around `at`, which is not in the set, up to those that are; without `u64::MAX`.
    pub fn gap_around(&self, at: u64) -> Range<u64> {
        let before = self.0.range(..=at).next_back().map_or(0, |(_, &end)| end);
        before..self.next_from(at).unwrap_or(u64::MAX)
    }

    /// The least number of the set from `at` on.
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

    /// Removes what there is of `range`; gives how many numbers that were.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_what_a_set_of_numbers_is(
            steps in prop::collection::vec((any::<bool>(), 0..60_u64, 0..20_u64), 1..60),
        ) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (is_insert, start, length) in steps {
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
