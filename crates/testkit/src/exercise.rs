//! What programs share that do things at random to files beside models of them. Not here: which things,
//! and doing them.
//!
//! `BIFOLIO_EXERCISE_OPERATIONS` says how many operations a run has, and `BIFOLIO_EXERCISE_SEED` which
//! ones. A failure tells its seed; with it all is the same again, but for when the background writes.
#![allow(clippy::print_stderr, reason = "a run that fails says what it has done")]

use std::collections::VecDeque;
use std::ops::Range;

use crate::Random;

/// Operations that are told when a run fails.
const TOLD: usize = 24;

/// A number that the environment gives.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// Some operations on one kind of volume: how many, by which numbers, and which were the last. Tells
/// that if it is dropped in a panic.
#[derive(Debug)]
pub struct Run {
    kind: String,
    seed: u64,
    step: u64,
    operations: u64,
    last: VecDeque<String>,
    /// The numbers that choose what is done.
    pub random: Random,
}

impl Run {
    /// As many operations as the environment says, or else `operations`. Runs with different `salt`s do
    /// different things.
    pub fn new(kind: String, salt: u64, operations: u64) -> Self {
        let operations = number("BIFOLIO_EXERCISE_OPERATIONS").unwrap_or(operations);
        let seed = number("BIFOLIO_EXERCISE_SEED").unwrap_or(1);
        let random = Random(seed << 20 ^ salt);
        Self { kind, seed, step: 0, operations, last: VecDeque::new(), random }
    }

    /// Begins with the next operation, if there is one: the number of those before it.
    pub fn next_step(&mut self) -> Option<u64> {
        let step = self.step;
        self.step += 1;
        (step < self.operations).then_some(step)
    }

    /// Takes note of an operation.
    pub fn note(&mut self, operation: String) {
        if self.last.len() == TOLD {
            self.last.pop_front();
        }
        self.last.push_back(operation);
    }

    /// One of several things, each as often as its number says, against the others.
    pub fn choose<T: Copy>(&mut self, shares: &[(T, u64)]) -> T {
        let mut number = self.random.below(shares.iter().map(|(_, share)| share).sum());
        for &(thing, share) in shares {
            match number.checked_sub(share) {
                Some(left) => number = left,
                None => return thing,
            }
        }
        unreachable!("the number is less than all shares together")
    }

    /// A range of bytes below `size_max`, mostly where a file of `size` bytes has something.
    pub fn place(&mut self, size: u64, size_max: u64) -> Range<u64> {
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
            eprintln!("{kind}, seed {seed}, after {step} operations, at last {last:#?}");
        }
    }
}

/// The bytes that a file should have.
#[derive(Debug)]
pub struct Model {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Model {
    /// Of an empty file.
    pub fn new(name: &'static str) -> Self {
        Self { name, bytes: Vec::new() }
    }

    /// The file's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How many bytes there are.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The part of `range` that the file has.
    pub fn within(&self, range: &Range<u64>) -> Range<u64> {
        range.start.min(self.size())..range.end.min(self.size())
    }

    /// What lies in `range`, as far as the file has it.
    pub fn expected(&self, range: &Range<u64>) -> &[u8] {
        &self.bytes[indices(&self.within(range))]
    }

    /// Panics unless `found` is what lies in `range`.
    #[track_caller]
    pub fn compare(&self, found: &[u8], range: &Range<u64>) {
        let expected = self.expected(range);
        assert_eq!(found.len(), expected.len(), "{}: {range:?}", self.name);
        if found == expected {
            return;
        }
        let differs = found.iter().zip(expected).position(|(found, wanted)| found != wanted);
        if let Some(at) = differs {
            let at_byte = range.start + at as u64;
            let (found, wanted) = (found[at], expected[at]);
            panic!("{}: {found:#x}, not {wanted:#x}, at {at_byte} of {range:?}", self.name);
        }
    }

    /// Panics unless all that is said to be a hole in `range` is zeroes. `data` and `hole` find the next
    /// of each from a byte on; there may be no more data.
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

    /// Bytes to write to `range`. The model has them now.
    pub fn new_data(&mut self, range: &Range<u64>, random: &mut Random) -> Vec<u8> {
        let fill = random.below(255) as u8 + 1;
        let byte = |at: u64| fill.wrapping_add((at / 512) as u8).wrapping_mul(at as u8 | 1);
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

    /// Has at least `size` bytes.
    pub fn grow(&mut self, size: u64) {
        self.truncate(self.size().max(size));
    }

    /// Has `size` bytes.
    pub fn truncate(&mut self, size: u64) {
        self.bytes.resize(size as usize, 0);
    }

    /// Makes zeroes of what is in `range`.
    pub fn clear(&mut self, range: &Range<u64>) {
        let range = indices(&self.within(range));
        self.bytes[range].fill(0);
    }

    /// Takes `range` out.
    pub fn collapse(&mut self, range: &Range<u64>) {
        self.bytes.drain(indices(range));
    }

    /// Has zeroes in `range`, and behind it what was there.
    pub fn insert(&mut self, range: &Range<u64>) {
        let Range { start, end } = indices(range);
        self.bytes.splice(start..start, vec![0; end - start]);
    }
}

fn indices(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}
