//! What is measured: one way of reading one file.

use std::fmt;

use bench::length_name;

/// What the file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Blocks with data.
    Data,
    /// Nothing.
    Hole,
}

/// What the cache holds before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The whole file.
    Cached,
    /// Nothing; its memory was never used.
    Cold,
    /// Other data, all over; every folio must be reclaimed first.
    Full,
}

/// One way of reading a file, from its start to its end.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What the file holds.
    pub content: Content,
    /// What the cache holds before.
    pub state: State,
    /// Bytes that each call reads.
    pub length: usize,
    /// Threads that each read an equal part of the file, through an open file each.
    pub threads: usize,
}

/// Bytes that calls read.
const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

impl Case {
    /// Every case with this number of threads.
    pub fn all(threads: usize) -> impl Iterator<Item = Self> {
        let states = [State::Cached, State::Cold, State::Full];
        states.into_iter().flat_map(move |state| {
            [Content::Data, Content::Hole].into_iter().flat_map(move |content| {
                LENGTHS.into_iter().map(move |length| Self { content, state, length, threads })
            })
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Cached => "cached",
            State::Cold => "cold",
            State::Full => "full",
        };
        let content = match self.content {
            Content::Data => "data",
            Content::Hole => "hole",
        };
        f.pad(&format!("{state} {content} {}", length_name(self.length)))
    }
}
