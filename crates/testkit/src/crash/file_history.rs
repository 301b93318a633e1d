//! A model of a file that one thread at a time writes: its contents over time, and the contents
//! that a power cut may leave.

use std::ops::Range;

use super::snapshot::Snapshot;
use crate::Random;

/// The size of parts that are compared as a whole before their bytes are compared.
const PART: usize = 512;
/// All bytes of a file.
const WHOLE: Range<usize> = 0..usize::MAX;

/// A file's contents over time.
#[derive(Clone, Debug)]
pub struct FileHistory {
    /// The file's unique number on the volume.
    number: u64,
    versions: Vec<Vec<u8>>,
    durable: Vec<Durable>,
    shifts: Vec<Shifted>,
    /// Whether each version begins with the previous one.
    is_appended_to: bool,
    /// The number of equal bytes that follow each other in written data.
    run_bytes: usize,
}

/// Bytes of a version that are durable from a point of the recording on.
#[derive(Clone, Debug)]
struct Durable {
    point: usize,
    version: usize,
    range: Range<usize>,
}

/// A range was collapsed or inserted, or the whole file was replaced. A cut leaves this done as a
/// whole or not at all.
#[derive(Clone, Copy, Debug)]
struct Shifted {
    /// The version after the change.
    version: usize,
    /// The first byte that may have moved.
    from: usize,
}

impl FileHistory {
    /// Returns the history of an empty file. `number` is unique among the files of the volume.
    pub fn new(number: u64, is_appended_to: bool) -> Self {
        let versions = vec![Vec::new()];
        let (durable, shifts) = (Vec::new(), Vec::new());
        Self { number, versions, durable, shifts, is_appended_to, run_bytes: 1 }
    }

    /// Returns the history of an empty file with data that can be compressed to a small part of its
    /// size.
    pub fn compressible(number: u64) -> Self {
        Self { run_bytes: 64, ..Self::new(number, false) }
    }

    /// Returns the history of a file whose contents are durable from the beginning on.
    pub fn holding(number: u64, contents: Vec<u8>) -> Self {
        Self { versions: vec![contents], ..Self::new(number, false) }
    }

    /// Returns the current contents of the file.
    pub fn now(&self) -> &[u8] {
        self.versions.last().map_or(&[], Vec::as_slice)
    }

    /// Returns the index of the current version.
    pub fn version(&self) -> usize {
        self.versions.len() - 1
    }

    /// Returns bytes to be written at `at`. They differ from those of other files and of other
    /// writes, and from the contents of free blocks.
    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let seed = self.number << 32 | (self.versions.len() as u64) << 16;
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at as u64);
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let end = length.min(bytes.len() + self.run_bytes);
            bytes.resize(end, 1 + random.below(200) as u8);
        }
        bytes
    }

    /// Records that `data` was written at `at`.
    pub fn write(&mut self, at: usize, data: &[u8]) {
        let mut next = self.now().to_vec();
        next.resize(next.len().max(at + data.len()), 0);
        next[at..at + data.len()].copy_from_slice(data);
        self.versions.push(next);
    }

    /// Records that the file has `size` bytes now.
    pub fn set_size(&mut self, size: usize) {
        let mut next = self.now().to_vec();
        next.resize(size, 0);
        self.versions.push(next);
    }

    /// Records that `range` was zeroed.
    pub fn clear(&mut self, range: Range<usize>) {
        let mut next = self.now().to_vec();
        let end = range.end.min(next.len());
        next[range.start.min(end)..end].fill(0);
        self.versions.push(next);
    }

    /// Records that `range` was collapsed, or inserted as a hole. A cut leaves this done or not
    /// done, and the data behind it was on the device before.
    pub fn shift(&mut self, range: Range<usize>, inserts: bool) {
        let mut next = self.now().to_vec();
        let from = range.start;
        if inserts {
            next.splice(range.start..range.start, std::iter::repeat_n(0, range.len()));
        } else {
            next.drain(range);
        }
        self.versions.push(next);
        self.shifts.push(Shifted { version: self.version(), from });
    }

    /// Records that the whole contents were replaced by `data`. A cut leaves this done or not done.
    pub fn replace(&mut self, data: &[u8]) {
        self.versions.push(data.to_vec());
        self.shifts.push(Shifted { version: self.version(), from: 0 });
    }

    /// Records that `version` is durable from `point` on.
    pub fn is_durable(&mut self, point: usize, version: usize) {
        self.durable.push(Durable { point, version, range: WHOLE });
    }

    /// Records that a range of `version` is durable from `point` on, and can be read back.
    pub fn is_durable_in(&mut self, point: usize, version: usize, range: Range<usize>) {
        // An empty range promises nothing, not even a size.
        if !range.is_empty() {
            self.durable.push(Durable { point, version, range });
        }
    }

    /// Returns the point of the last sync before `point`.
    pub fn synced(&self, point: usize) -> usize {
        let syncs = self.durable.iter().filter(|one| one.range == WHOLE && one.point <= point);
        syncs.map(|one| one.point).max().unwrap_or(0)
    }

    /// Fails with a description if a cut at `point` cannot leave these contents. The size and each
    /// byte must be those of the last durable version or of a later one; a byte may also be zero if
    /// it was outside of the file in one of these versions. Data is shifted as a whole. A file that
    /// was only appended to has a prefix of its contents.
    pub fn check(&self, point: usize, found: &[u8]) -> Result<(), String> {
        self.check_since(point, 0, found)
    }

    /// Checks the file at `path` in a snapshot, like [`check`](Self::check).
    pub fn check_at(&self, path: &str, point: usize, found: &Snapshot) -> Result<(), String> {
        let checked = self.check(point, found.file(path)?);
        checked.map_err(|what| format!("{path} has {what}"))
    }

    /// Checks the contents like [`check`](Self::check), if `version` is also known to be durable.
    pub fn check_since(&self, point: usize, version: usize, found: &[u8]) -> Result<(), String> {
        let durable = self.durable.iter().filter(|one| one.point <= point).cloned();
        let mut durable: Vec<Durable> = durable.collect();
        durable.push(Durable { point: 0, version, range: WHOLE });
        let newest = durable.iter().map(|one| one.version).max().unwrap_or(0);
        let begins = self.shifts.iter().map(|shift| shift.version);
        let ends = begins.clone().map(|begin| begin - 1).chain([self.version()]);
        // Between two shifts, data does not move.
        let between: Vec<_> = [0].into_iter().chain(begins).zip(ends).collect();
        let mut wrong_sizes = Vec::new();
        let mut wrong_bytes = Vec::new();
        for (begin, end) in between.into_iter().rev().take_while(|(_, end)| *end >= newest) {
            if let Err(what) = self.check_size(begin, end, &durable, found.len()) {
                wrong_sizes.push(what);
            } else if let Err(what) = self.check_bytes(end, &durable, found) {
                wrong_bytes.push(what);
            } else {
                return Ok(());
            }
        }
        // If the size is right, wrong bytes are the better description.
        wrong_bytes.append(&mut wrong_sizes);
        Err(wrong_bytes.join("; or else "))
    }

    /// Checks whether the file may have `length` bytes if the last shift that a cut has left is
    /// that of version `begin`. The next shift is after version `end`.
    fn check_size(
        &self,
        begin: usize,
        end: usize,
        durable: &[Durable],
        length: usize,
    ) -> Result<(), String> {
        let whole = durable.iter().filter(|one| one.range == WHOLE).map(|one| one.version).max();
        let since = whole.unwrap_or(0).max(begin);
        let sizes = |since: usize| self.versions[since..=end].iter().map(Vec::len);
        let (mut min, max) = (sizes(since).min().unwrap_or(0), sizes(since).max().unwrap_or(0));
        for one in durable.iter().filter(|one| one.version >= since) {
            let kept = sizes(one.version).min().unwrap_or(0);
            min = min.max(kept.min(one.range.end));
        }
        if (min..=max).contains(&length) {
            Ok(())
        } else {
            Err(format!("{length} bytes, not {min} to {max}"))
        }
    }

    /// Checks whether these bytes can be those of versions up to `end`.
    fn check_bytes(&self, end: usize, durable: &[Durable], found: &[u8]) -> Result<(), String> {
        let length = found.len();
        if self.is_appended_to {
            let differs =
                found.iter().zip(self.now()).position(|(found, expected)| found != expected);
            return match differs {
                Some(at) => Err(format!("{:#x} at {at} of {length}, appended to", found[at])),
                None => Ok(()),
            };
        }
        for (start, part) in (0..).step_by(PART).zip(found.chunks(PART)) {
            let (whole_part, bytes) = (start..start + part.len(), start..);
            let since = self.since(&whole_part, end, durable);
            let is_one = |version: &Vec<u8>| version.get(whole_part.clone()) == Some(part);
            let is_torn_promise = durable.iter().any(|one| {
                let covered = one.range.start <= start && one.range.end >= whole_part.end;
                one.version > since
                    && one.range.start < whole_part.end
                    && !covered
                    && one.range.end > start
            });
            if !is_torn_promise && self.versions[since..=end].iter().rev().any(is_one) {
                continue;
            }
            for (at, byte) in bytes.zip(part) {
                let since = self.since(&(at..at + 1), end, durable);
                let mut versions = self.versions[since..=end].iter();
                if !versions.any(|one| one.get(at).copied().unwrap_or(0) == *byte) {
                    return Err(format!("{byte:#x} at {at} of {length}"));
                }
            }
        }
        Ok(())
    }

    /// Returns the oldest version up to `end` whose bytes may be in the whole `range`.
    fn since(&self, range: &Range<usize>, end: usize, durable: &[Durable]) -> usize {
        let covers = |one: &&Durable| {
            one.version <= end && one.range.start <= range.start && range.end <= one.range.end
        };
        let promised = durable.iter().filter(covers).map(|one| one.version);
        let moved = self.shifts.iter().filter(|one| one.version <= end && one.from <= range.start);
        promised.chain(moved.map(|one| one.version)).max().unwrap_or(0)
    }

    /// Returns whether each byte of `found` is zero or was at this offset of the file at some time.
    pub fn is_all_of_it(&self, found: &[u8]) -> bool {
        found.iter().enumerate().all(|(at, byte)| {
            *byte == 0 || self.versions.iter().any(|one| one.get(at) == Some(byte))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file of 1,024 bytes of 1, durable at point 10.
    fn synced() -> FileHistory {
        let mut history = FileHistory::new(1, false);
        history.write(0, &[1; 1024]);
        history.is_durable(10, history.version());
        history
    }

    #[test]
    fn synced_data_remains_and_later_writes_may_remain() {
        let mut history = synced();
        history.write(512, &[2; 1024]);
        let torn = [vec![1; 700], vec![2; 324]].concat();
        for found in [vec![1; 1024], torn, [vec![1; 512], vec![2; 1024]].concat()] {
            assert_eq!(history.check(10, &found), Ok(()));
        }
        let grown = [vec![1; 1024], vec![0; 512]].concat();
        assert_eq!(history.check(10, &grown), Ok(()));
        for found in [vec![1; 1000], vec![1; 1025], vec![3; 1024], vec![0; 1024], vec![]] {
            assert!(history.check(10, &found).is_err(), "{} bytes", found.len());
        }
        assert_eq!(history.check(9, &[]), Ok(()));
    }

    #[test]
    fn a_synced_range_remains_in_a_file_that_is_long_enough() {
        let mut history = synced();
        history.write(1024, &[2; 1024]);
        history.is_durable_in(20, history.version(), 1024..1400);
        let found = [vec![1; 1024], vec![2; 376]].concat();
        assert_eq!(history.check(20, &found), Ok(()));
        assert!(history.check(20, &found[..1399]).is_err());
        let rest = [vec![1; 1024], vec![2; 376], vec![0; 648]].concat();
        assert_eq!(history.check(20, &rest), Ok(()));
        let lost = [vec![1; 1024], vec![2; 300], vec![0; 724]].concat();
        assert_eq!(history.check(19, &lost), Ok(()));
        assert!(history.check(20, &lost).is_err());
        history.set_size(1200);
        assert_eq!(history.check(20, &found[..1200]), Ok(()));
    }

    #[test]
    fn a_replacement_is_done_as_a_whole_or_not_at_all() {
        let mut history = synced();
        history.replace(&[2; 600]);
        for found in [vec![1; 1024], vec![2; 600]] {
            assert_eq!(history.check(10, &found), Ok(()));
            assert_eq!(history.check_since(10, history.version(), &found).is_ok(), found[0] == 2);
        }
        for found in [vec![], vec![2; 512], vec![1; 600], [vec![2; 512], vec![0; 88]].concat()] {
            assert!(history.check(10, &found).is_err(), "{} bytes", found.len());
        }
    }

    #[test]
    fn a_shift_is_done_as_a_whole_or_not_at_all() {
        for inserts in [false, true] {
            let mut history = FileHistory::new(1, false);
            history.write(0, &[vec![1; 512], vec![2; 512], vec![3; 512]].concat());
            history.is_durable(10, history.version());
            let before = history.now().to_vec();
            history.write(0, &[4; 512]);
            let written = history.now().to_vec();
            history.shift(512..1024, inserts);
            let after = history.now().to_vec();
            let mut unwritten = after.clone();
            unwritten[..512].fill(1);
            for found in [&before, &written, &after, &unwritten] {
                assert_eq!(history.check(10, found), Ok(()));
            }
            let mut mixed = if inserts { after.clone() } else { before.clone() };
            mixed[512..1024].copy_from_slice(&[3; 512]);
            assert!(history.check(10, &mixed).is_err());
            history.is_durable_in(20, history.version(), 0..1);
            assert!(history.check(20, &before).is_err());
            let mut partly = unwritten;
            partly[0] = 4;
            assert_eq!(history.check(20, &partly), Ok(()));
        }
    }
}
