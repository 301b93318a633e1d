//! What a file may hold after a power cut: what was in it after each operation, and what of that
//! was promised to be durable.

use std::ops::Range;

use testkit::Random;

/// Where a file may be torn: parts of this many bytes are compared as a whole first.
const PART: usize = 512;

/// A file's contents over time.
#[derive(Clone, Debug)]
pub struct FileHistory {
    /// A number of its own among the files of a volume.
    number: u64,
    versions: Vec<Vec<u8>>,
    /// Points of a recording from which on a version, by its index, was durable.
    durable: Vec<(usize, usize)>,
    /// Whether each version begins with the one before.
    is_appended_to: bool,
}

impl FileHistory {
    pub fn new(number: u64, is_appended_to: bool) -> Self {
        Self { number, versions: vec![Vec::new()], durable: Vec::new(), is_appended_to }
    }

    pub fn now(&self) -> &[u8] {
        self.versions.last().map_or(&[], Vec::as_slice)
    }

    /// The index of the version that there is now.
    pub fn version(&self) -> usize {
        self.versions.len() - 1
    }

    /// Bytes to be written at `at`, such as no other file and no other write has there, and no free
    /// block before.
    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let seed = self.number << 32 | (self.versions.len() as u64) << 16;
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at as u64);
        (0..length).map(|_| 1 + random.below(200) as u8).collect()
    }

    /// Notes that `data` was written at `at`.
    pub fn write(&mut self, at: usize, data: &[u8]) {
        let mut next = self.now().to_vec();
        next.resize(next.len().max(at + data.len()), 0);
        next[at..at + data.len()].copy_from_slice(data);
        self.versions.push(next);
    }

    pub fn set_size(&mut self, size: usize) {
        let mut next = self.now().to_vec();
        next.resize(size, 0);
        self.versions.push(next);
    }

    /// Notes that what lies in `range` is zeroes now.
    pub fn clear(&mut self, range: Range<usize>) {
        let mut next = self.now().to_vec();
        let end = range.end.min(next.len());
        next[range.start.min(end)..end].fill(0);
        self.versions.push(next);
    }

    /// Notes that `range` was taken out, or put in as a hole.
    pub fn shift(&mut self, range: Range<usize>, inserts: bool) {
        let mut next = self.now().to_vec();
        if inserts {
            next.splice(range.start..range.start, std::iter::repeat_n(0, range.len()));
        } else {
            next.drain(range);
        }
        self.versions.push(next);
    }

    /// Notes that `version` is durable from `point` on.
    pub fn is_durable(&mut self, point: usize, version: usize) {
        self.durable.push((point, version));
    }

    /// When it was synced last before `point`.
    pub fn synced(&self, point: usize) -> usize {
        self.durable.iter().map(|(from, _)| *from).filter(|&from| from <= point).max().unwrap_or(0)
    }

    /// Whether a cut at `point` may have left this: each byte as it was when the file was synced
    /// last or at some time since, or zero where it was not in the file at some time; and no fewer
    /// or more bytes than at some time. Of a file that was only appended to, nothing but a part from
    /// its beginning.
    pub fn check(&self, point: usize, found: &[u8]) -> Result<(), String> {
        let durable = self.durable.iter().filter(|(from, _)| *from <= point);
        let since = &self.versions[durable.map(|(_, version)| *version).max().unwrap_or(0)..];
        let sizes = since.iter().map(Vec::len);
        let (min, max) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        let length = found.len();
        if !(min..=max).contains(&length) {
            return Err(format!("{length} bytes, not {min} to {max}"));
        }
        if self.is_appended_to {
            let differs =
                found.iter().zip(self.now()).position(|(found, expected)| found != expected);
            return match differs {
                Some(at) => Err(format!("{:#x} at {at} of {length}, appended to", found[at])),
                None => Ok(()),
            };
        }
        for (start, part) in (0..).step_by(PART).zip(found.chunks(PART)) {
            let was = |one: &&Vec<u8>| one.get(start..start + part.len()) == Some(part);
            if since.iter().rev().any(|one| was(&one)) {
                continue;
            }
            for (at, byte) in (start..).zip(part) {
                if !since.iter().any(|one| one.get(at).copied().unwrap_or(0) == *byte) {
                    return Err(format!("{byte:#x} at {at} of {length}"));
                }
            }
        }
        Ok(())
    }

    /// Whether there is nothing in `found` but zeroes and, in its place, what was in the file at some
    /// time.
    pub fn is_all_of_it(&self, found: &[u8]) -> bool {
        found.iter().enumerate().all(|(at, byte)| {
            *byte == 0 || self.versions.iter().any(|one| one.get(at) == Some(byte))
        })
    }
}
