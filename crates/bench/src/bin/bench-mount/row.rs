//! The rows: each is one way of reading a file.

use std::fmt;

use bench::length_name;

/// The size of the file in bytes.
pub const FILE_BYTES: u64 = 128 << 20;
/// The number of calls of each thread in rows with random reads.
const RANDOM_CALLS: u64 = 4096;

/// The contents of memory before the read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nothing of the file. The image, which is on tmpfs, has just been mounted.
    Cold,
    /// The server's cache has the whole file, and the kernel's cache has none of it.
    Served,
    /// The kernel's cache has the whole file.
    Cached,
}

/// One way of reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The contents of memory before the read.
    pub state: State,
    /// Whether the file is open with O_DIRECT.
    pub direct: bool,
    /// Whether offsets are random, rather than ascending.
    pub random: bool,
    /// The number of bytes that each call reads.
    pub length: usize,
    /// The number of threads. Each has its own open file. It reads an equal part of the file, or
    /// makes [`RANDOM_CALLS`] calls.
    pub threads: u64,
}

impl Row {
    /// All rows.
    pub const ALL: [Self; 10] = [
        Self::buffered(State::Cold, 128 << 10),
        Self::buffered(State::Cold, 1 << 20),
        Self::buffered(State::Served, 128 << 10),
        Self::buffered(State::Served, 1 << 20),
        Self::buffered(State::Cached, 4 << 10),
        Self::buffered(State::Cached, 1 << 20),
        Self::direct(false, 1 << 20, 1),
        Self::direct(false, 1 << 20, 2),
        Self::direct(true, 4 << 10, 1),
        Self::direct(true, 4 << 10, 2),
    ];

    const fn buffered(state: State, length: usize) -> Self {
        Self { state, direct: false, random: false, length, threads: 1 }
    }

    const fn direct(random: bool, length: usize, threads: u64) -> Self {
        Self { state: State::Served, direct: true, random, length, threads }
    }

    /// Returns the number of bytes that all threads read together.
    pub fn bytes(&self) -> u64 {
        self.calls() * self.threads * self.length as u64
    }

    fn calls(&self) -> u64 {
        let calls_for_part = FILE_BYTES / self.length as u64 / self.threads;
        if self.random { RANDOM_CALLS } else { calls_for_part }
    }

    /// Returns the offsets that a thread reads, in order. Threads are numbered from 0.
    pub fn offsets(&self, thread: u64) -> impl Iterator<Item = u64> {
        let (length, calls, random) = (self.length as u64, self.calls(), self.random);
        let mut state = thread.wrapping_add(1);
        (0..calls).map(move |call| {
            if !random {
                return (thread * calls + call) * length;
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % (FILE_BYTES / length) * length
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.direct, self.state) {
            (true, _) => "direct",
            (false, State::Cold) => "cold",
            (false, State::Served) => "served",
            (false, State::Cached) => "cached",
        };
        let order = if self.random { " random" } else { "" };
        let threads = if self.threads > 1 { ", 2 threads" } else { "" };
        f.pad(&format!("{kind}{order} {}{threads}", length_name(self.length)))
    }
}
