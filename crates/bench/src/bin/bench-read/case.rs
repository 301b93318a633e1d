//! The rows: each is one way of reading a file.

use std::fmt;

use bench::length_name;

/// The contents of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Blocks with data.
    Data,
    /// One hole.
    Hole,
}

/// The state of the cache before the read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It contains the whole file.
    Cached,
    /// It is empty, and its memory was never used.
    Cold,
    /// It is full of other data, so that every folio must be reclaimed first.
    Full,
}

/// One way of reading a file, from its start to its end.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The contents of the file.
    pub content: Content,
    /// The state of the cache before the read.
    pub state: State,
    /// The number of bytes that each call reads.
    pub length: usize,
    /// The number of threads. Each reads an equal part of the file, through its own open file.
    pub threads: usize,
}

/// The numbers of bytes that calls read.
pub const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

impl Case {
    /// Returns the name of the row on the command line.
    pub fn row_name(&self) -> String {
        let plural = if self.threads == 1 { "thread" } else { "threads" };
        format!("{self} ({} {plural})", self.threads)
    }

    /// Returns all cases with this number of threads.
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
