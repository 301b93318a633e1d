//! Support for random operations on files that are compared with models. Not here: the operations.
//!
//! `BIFOLIO_EXERCISE_OPERATIONS` is the number of operations of a run, and `BIFOLIO_EXERCISE_SEED`
//! chooses them. A failure prints its seed, with which the run can be repeated, except for the
//! times of background writeback.
#![allow(clippy::print_stderr, reason = "a run that fails prints its last operations")]

use std::collections::VecDeque;
use std::ops::Range;

use crate::Random;
use crate::host::environment::number;

/// The number of last operations that are printed if a run fails.
const PRINTED: usize = 24;

/// A run of random operations on one kind of volume. Prints its seed and the last operations if it
/// is dropped in a panic.
#[derive(Debug)]
pub struct Run {
    kind: String,
    seed: u64,
    step: u64,
    operations: u64,
    last: VecDeque<String>,
    /// The source of all choices.
    pub random: Random,
}

impl Run {
    /// Returns a run of `operations` operations, or of the number in the environment. Runs with
    /// different `salt`s choose different operations.
    pub fn new(kind: String, salt: u64, operations: u64) -> Self {
        let operations = number("BIFOLIO_EXERCISE_OPERATIONS").unwrap_or(operations);
        let seed = number("BIFOLIO_EXERCISE_SEED").unwrap_or(1);
        let random = Random(seed << 20 ^ salt);
        Self { kind, seed, step: 0, operations, last: VecDeque::new(), random }
    }

    /// Begins the next operation, and returns its number. Returns `None` after the last one.
    pub fn next_step(&mut self) -> Option<u64> {
        let step = self.step;
        self.step += 1;
        (step < self.operations).then_some(step)
    }

    /// Records an operation, to be printed if the run fails.
    pub fn note(&mut self, operation: String) {
        if self.last.len() == PRINTED {
            self.last.pop_front();
        }
        self.last.push_back(operation);
    }

    /// Chooses one of several values, with probabilities in proportion to their numbers.
    pub fn choose<T: Copy>(&mut self, shares: &[(T, u64)]) -> T {
        let mut number = self.random.below(shares.iter().map(|(_, share)| share).sum());
        for &(value, share) in shares {
            match number.checked_sub(share) {
                Some(left) => number = left,
                None => return value,
            }
        }
        unreachable!("the number is less than the sum of all shares")
    }

    /// Chooses a range of bytes below `size_max`, which usually begins within a file of `size`
    /// bytes.
    pub fn choose_range(&mut self, size: u64, size_max: u64) -> Range<u64> {
        let random = &mut self.random;
        let reach = if random.below(4) == 0 { size_max } else { size.clamp(1, size_max) };
        let at = random.below(reach);
        let length_max =
            [1 << 20, 150_000, 30_000, 30_000, 5000, 5000, 600][random.below(7) as usize];
        at..(at + 1 + random.below(length_max)).min(size_max)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { kind, seed, step, last, .. } = self;
            eprintln!("{kind}, seed {seed}, after {step} operations, the last ones: {last:#?}");
        }
    }
}

/// A model of a file: its expected contents.
#[derive(Debug)]
pub struct Model {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Model {
    /// Returns the model of an empty file.
    pub fn new(name: &'static str) -> Self {
        Self { name, bytes: Vec::new() }
    }

    /// Returns the file's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the part of `range` that is within the file.
    pub fn within(&self, range: &Range<u64>) -> Range<u64> {
        range.start.min(self.size())..range.end.min(self.size())
    }

    /// Returns the contents of the part of `range` that is within the file.
    pub fn expected(&self, range: &Range<u64>) -> &[u8] {
        &self.bytes[indices(&self.within(range))]
    }

    /// Panics unless `found` is equal to the contents of `range`.
    #[track_caller]
    pub fn compare(&self, found: &[u8], range: &Range<u64>) {
        let expected = self.expected(range);
        assert_eq!(found.len(), expected.len(), "{}: {range:?}", self.name);
        if found == expected {
            return;
        }
        let differs = found.iter().zip(expected).position(|(found, wanted)| found != wanted);
        if let Some(at) = differs {
            let position = range.start + at as u64;
            let (found, wanted) = (found[at], expected[at]);
            panic!("{}: {found:#x}, not {wanted:#x}, at {position} in {range:?}", self.name);
        }
    }

    /// Panics unless all reported holes in `range` have zeroes. `data` and `hole` find the next
    /// data and the next hole from a byte on. There may be no more data.
    pub fn check_holes(
        &self,
        range: &Range<u64>,
        data: impl Fn(u64) -> Option<u64>,
        hole: impl Fn(u64) -> u64,
    ) {
        let Range { start: mut at, end } = self.within(range);
        while at < end {
            let next = data(at).unwrap_or(self.size());
            let zeroes = &self.bytes[indices(&(at..next))];
            assert!(zeroes.iter().all(|&byte| byte == 0), "{}: no hole at {at}", self.name);
            at = next;
            if at < end {
                at = hole(at);
            }
        }
    }

    /// Chooses new data for `range`, and writes it to the model.
    pub fn new_data(&mut self, range: &Range<u64>, random: &mut Random) -> Vec<u8> {
        let fill = random.below(255) as u8 + 1;
        // A part of the data does not compress.
        let seed = if random.below(4) == 0 { random.draw() | 1 } else { 0 };
        let byte = |at: u64| {
            let noise = (at.wrapping_mul(seed) >> 32) as u8;
            fill.wrapping_add((at / 512) as u8).wrapping_mul(at as u8 | 1) ^ noise
        };
        let data: Vec<u8> = range.clone().map(byte).collect();
        self.write(range.start, &data);
        data
    }

    /// Writes `data` at byte `at`.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        let end = at + data.len() as u64;
        self.grow(end);
        self.bytes[indices(&(at..end))].copy_from_slice(data);
    }

    /// Extends the file to at least `size` bytes.
    pub fn grow(&mut self, size: u64) {
        self.truncate(self.size().max(size));
    }

    /// Sets the size.
    pub fn truncate(&mut self, size: u64) {
        self.bytes.resize(size as usize, 0);
    }

    /// Zeroes `range`.
    pub fn clear(&mut self, range: &Range<u64>) {
        let range = indices(&self.within(range));
        self.bytes[range].fill(0);
    }

    /// Removes `range`, and moves the data behind it.
    pub fn collapse(&mut self, range: &Range<u64>) {
        self.bytes.drain(indices(range));
    }

    /// Inserts zeroes at `range`, and moves the data from there on behind it.
    pub fn insert(&mut self, range: &Range<u64>) {
        let Range { start, end } = indices(range);
        self.bytes.splice(start..start, vec![0; end - start]);
    }
}

fn indices(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}
