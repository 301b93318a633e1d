//! A model of a file of a fixed size that several threads change at any offset, and its possible
//! contents after a power cut.
//!
//! One clock gives the begin and the end of each change. Of two changes that overlap in time,
//! either may remain. After a sync that began after the end of a change, contents from before that
//! change cannot return. So each byte comes from a change that was not replaced in this way.

use std::ops::Range;

/// A change of a range.
#[derive(Debug)]
struct Change {
    range: Range<usize>,
    /// The new contents.
    data: Vec<u8>,
    begun: u64,
    /// `u64::MAX` until the change ends.
    ended: u64,
    /// The point of the recording from which on the change is durable without a sync.
    durable: Option<usize>,
}

/// A sync of a range.
#[derive(Debug)]
struct Sync {
    range: Range<usize>,
    begun: u64,
    /// The point of the recording at its end.
    point: usize,
}

/// A change that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Begun(usize);

/// The history of a file that is all zeroes at first.
#[derive(Debug)]
pub struct Races {
    size: usize,
    clock: u64,
    changes: Vec<Change>,
    syncs: Vec<Sync>,
}

impl Races {
    /// Creates the history of a file of `size` zeroes.
    pub fn new(size: usize) -> Self {
        Self { size, clock: 0, changes: Vec::new(), syncs: Vec::new() }
    }

    /// Returns the current time, which is after the end of all changes so far.
    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Records the begin of a change that writes `data` at `at`.
    pub fn begin(&mut self, at: usize, data: Vec<u8>) -> Begun {
        let (range, begun) = (at..at + data.len(), self.now());
        assert!(range.end <= self.size, "the file keeps its size");
        self.changes.push(Change { range, data, begun, ended: u64::MAX, durable: None });
        Begun(self.changes.len() - 1)
    }

    /// Records the end of a change, and the point of the recording from which on it is durable, if
    /// it is.
    pub fn end(&mut self, Begun(change): Begun, durable: Option<usize>) {
        let now = self.now();
        self.changes[change].ended = now;
        self.changes[change].durable = durable;
    }

    /// Records a sync that began at the time `begun` and ended at `point` of the recording.
    pub fn synced(&mut self, range: Range<usize>, begun: u64, point: usize) {
        self.syncs.push(Sync { range, begun, point });
    }

    /// Fails with a description if a cut at `point` cannot leave these contents.
    pub fn check(&self, point: usize, found: &[u8]) -> Result<(), String> {
        if found.len() != self.size {
            return Err(format!("{} bytes, not {}", found.len(), self.size));
        }
        let ranges = self.changes.iter().map(|one| &one.range);
        let ranges = ranges.chain(self.syncs.iter().map(|one| &one.range));
        let mut ends: Vec<usize> = ranges.flat_map(|range| [range.start, range.end]).collect();
        ends.extend([0, self.size]);
        ends.sort_unstable();
        ends.dedup();
        for pair in ends.windows(2) {
            let part = pair[0]..pair[1];
            let possible = self.possible(&part, point);
            let found = &found[part.clone()];
            if possible.iter().any(|data| data.as_ref() == found) {
                continue;
            }
            // Changes are not atomic, in particular not stores to mappings. So compare the bytes.
            for (index, byte) in found.iter().enumerate() {
                if !possible.iter().any(|data| data[index] == *byte) {
                    let (at, count) = (part.start + index, possible.len());
                    let history = self.history(at);
                    return Err(format!(
                        "{byte:#x} at {at}, which none of {count} changes wrote, of {history}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Fails with a description if the changes, which have all ended, cannot leave these contents
    /// without a power cut.
    pub fn check_now(&mut self, found: &[u8]) -> Result<(), String> {
        let begun = self.now();
        self.synced(0..self.size, begun, usize::MAX);
        let checked = self.check(usize::MAX, found);
        self.syncs.pop();
        checked
    }

    /// Describes the changes and syncs of a byte of the file, by the times of their begins.
    fn history(&self, at: usize) -> String {
        let changes = self.changes.iter().filter(|one| one.range.contains(&at)).map(|one| {
            let byte = one.data[at - one.range.start];
            let durable = one.durable.map_or(String::new(), |point| format!(" durable at {point}"));
            (one.begun, format!("{}..{}: {byte:#x}{durable}", one.begun, one.ended))
        });
        let syncs = self.syncs.iter().filter(|one| one.range.contains(&at));
        let syncs = syncs.map(|one| (one.begun, format!("{}: sync to {}", one.begun, one.point)));
        let mut all: Vec<_> = changes.chain(syncs).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", ")
    }

    /// Returns the possible contents of a part of the file that each change and sync covers
    /// completely or not at all.
    fn possible(&self, part: &Range<usize>, point: usize) -> Vec<std::borrow::Cow<'_, [u8]>> {
        let covers = |range: &Range<usize>| range.start <= part.start && part.end <= range.end;
        let syncs: Vec<&Sync> =
            self.syncs.iter().filter(|one| one.point <= point && covers(&one.range)).collect();
        let changes: Vec<&Change> = self.changes.iter().filter(|one| covers(&one.range)).collect();
        let is_durable = |one: &Change| {
            one.durable.is_some_and(|durable| durable <= point)
                || syncs.iter().any(|sync| one.ended < sync.begun)
        };
        // The begin of the last durable change. Changes that had ended before cannot return.
        let begun = changes.iter().filter(|one| is_durable(one)).map(|one| one.begun).max();
        let possible = changes.iter().filter(|one| begun.is_none_or(|begun| one.ended >= begun));
        let data =
            possible.map(|one| &one.data[part.start - one.range.start..part.end - one.range.start]);
        let mut possible: Vec<_> = data.map(std::borrow::Cow::Borrowed).collect();
        if begun.is_none() {
            possible.push(vec![0; part.len()].into());
        }
        possible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_change_removes_earlier_changes_but_not_concurrent_ones() {
        let mut races = Races::new(4);
        let first = races.begin(0, vec![1; 4]);
        races.end(first, None);
        let racing = [races.begin(0, vec![2; 4]), races.begin(1, vec![3; 3])];
        racing.into_iter().for_each(|one| races.end(one, None));
        let begun = races.now();
        let late = races.begin(0, vec![4; 4]);
        races.synced(0..4, begun, 10);
        races.end(late, Some(20));
        for (point, found, may_be) in [
            (9, [0, 0, 1, 2], true),
            (9, [5, 0, 0, 0], false),
            (9, [3, 0, 0, 0], false),
            (10, [0, 2, 2, 2], false),
            (10, [1, 2, 2, 2], false),
            (10, [2, 3, 2, 4], true),
            (20, [4, 4, 4, 4], true),
            (20, [2, 4, 4, 4], false),
        ] {
            assert_eq!(races.check(point, &found).is_ok(), may_be, "{found:?} at {point}");
        }
    }

    #[test]
    fn a_later_change_replaces_an_earlier_one_once_it_is_durable() {
        let mut races = Races::new(2);
        let first = races.begin(0, vec![1; 2]);
        races.end(first, Some(5));
        let second = races.begin(1, vec![2; 1]);
        races.end(second, Some(8));
        assert!(races.check(4, &[0, 0]).is_ok() && races.check(5, &[0, 1]).is_err());
        assert!(races.check(7, &[1, 1]).is_ok() && races.check(8, &[1, 1]).is_err());
        assert!(races.check(8, &[1, 2]).is_ok() && races.check(8, &[1, 2, 0]).is_err());
    }
}
