//! Runs of a file's blocks, and spans: parts of a file of which all runs are known.
//! Not here: maps on disk, and caching (`extent_status.rs`).

use std::ops::Range;

use base::{FileBlock, FsBlock};

/// The number of runs that a format reads from a map at once. More would cost random reads too
/// much, and fewer sequential reads.
pub const RUNS_AT_ONCE: usize = 64;

/// Allocated blocks that are adjacent in the file and on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first file block.
    pub start: FileBlock,
    /// The number of blocks, at least 1.
    pub length: u64,
    /// The first volume block.
    pub block: FsBlock,
    /// Whether the blocks were never written, so that they read as zeroes.
    pub unwritten: bool,
}

impl Run {
    /// Returns the file block after the last.
    pub fn end(&self) -> FileBlock {
        FileBlock(self.start.0 + self.length)
    }

    /// Returns the part of the run in `range`.
    pub fn within(&self, range: &Range<FileBlock>) -> Option<Self> {
        let start = self.start.max(range.start);
        let end = self.end().min(range.end);
        let skipped = start.0 - self.start.0;
        (start < end).then(|| Self {
            start,
            length: end.0 - start.0,
            block: FsBlock(self.block.0 + skipped),
            ..*self
        })
    }

    /// Returns whether `next` begins where this run ends, both in the file and on the device.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.end() == next.start
            && self.block.0 + self.length == next.block.0
            && self.unwritten == next.unwritten
    }

    /// Adds the run to the end of a list. Joins it with the last run if it continues that one.
    pub fn push_onto(self, runs: &mut Vec<Self>) {
        match runs.last_mut() {
            Some(last) if last.is_followed_by(&self) => last.length += self.length,
            _ => runs.push(self),
        }
    }
}

/// A part of a file with all of its runs. Between the runs are holes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first file block.
    pub start: FileBlock,
    /// The file block after the last.
    pub end: FileBlock,
    /// The runs of the span, in order, without overlap.
    pub runs: Vec<Run>,
}

/// The run or hole around a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// No blocks are allocated.
    Hole {
        /// The first file block.
        start: FileBlock,
        /// The file block after the last.
        end: FileBlock,
    },
    /// Blocks are allocated.
    Run(Run),
}

impl Piece {
    /// Returns the first file block.
    pub fn start(&self) -> FileBlock {
        match self {
            Self::Hole { start, .. } => *start,
            Self::Run(run) => run.start,
        }
    }

    /// Returns the file block after the last.
    pub fn end(&self) -> FileBlock {
        match self {
            Self::Hole { end, .. } => *end,
            Self::Run(run) => run.end(),
        }
    }

    /// Returns this piece and `next` as one piece, if `next` continues this one.
    pub fn joined(&self, next: &Self) -> Option<Self> {
        match (self, next) {
            (Self::Hole { start, end }, Self::Hole { start: next_start, end: next_end })
                if end == next_start =>
            {
                Some(Self::Hole { start: *start, end: *next_end })
            }
            (Self::Run(run), Self::Run(next)) if run.is_followed_by(next) => {
                Some(Self::Run(Run { length: run.length + next.length, ..*run }))
            }
            _ => None,
        }
    }
}

impl Span {
    /// Returns a span without runs.
    pub fn hole(start: FileBlock, end: FileBlock) -> Self {
        Self { start, end, runs: Vec::new() }
    }

    /// Returns whether `at` is in the span.
    pub fn contains(&self, at: FileBlock) -> bool {
        (self.start..self.end).contains(&at)
    }

    /// Returns the run or hole around `at`, which is in the span.
    pub fn piece_at(&self, at: FileBlock) -> Piece {
        let after = self.runs.partition_point(|run| run.start <= at);
        let before = after.checked_sub(1).and_then(|index| self.runs.get(index));
        match before {
            Some(run) if at < run.end() => Piece::Run(*run),
            before => Piece::Hole {
                start: before.map_or(self.start, Run::end),
                end: self.runs.get(after).map_or(self.end, |run| run.start),
            },
        }
    }

    /// Replaces the part from `start` to `end` by `run`, or by a hole. Ignores the parts of both
    /// outside the span.
    pub fn set(&mut self, start: FileBlock, end: FileBlock, run: Option<Run>) {
        let range = start.max(self.start)..end.min(self.end);
        if range.is_empty() {
            return;
        }
        let first = self.runs.partition_point(|run| run.end() <= range.start);
        let last = self.runs.partition_point(|run| run.start < range.end);
        // With the neighbours, with which the new run may be joined.
        let changed = first.saturating_sub(1)..(last + 1).min(self.runs.len());
        let before = FileBlock(0)..range.start;
        let after = range.end..FileBlock(u64::MAX);
        let mut runs = Vec::with_capacity(changed.len() + 2);
        let old = &self.runs[changed.clone()];
        old.iter().filter_map(|old| old.within(&before)).for_each(|run| run.push_onto(&mut runs));
        run.and_then(|run| run.within(&range)).into_iter().for_each(|run| run.push_onto(&mut runs));
        old.iter().filter_map(|old| old.within(&after)).for_each(|run| run.push_onto(&mut runs));
        self.runs.splice(changed, runs);
    }

    /// Returns whether blocks are allocated at or after `at`.
    pub fn has_run_from(&self, at: FileBlock) -> bool {
        self.runs.last().is_some_and(|run| run.end() > at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, length: u64, block: u64) -> Run {
        Run { start: FileBlock(start), length, block: FsBlock(block), unwritten: false }
    }

    #[test]
    fn runs_that_continue_each_other_are_joined() {
        let mut runs = Vec::new();
        run(0, 4, 100).push_onto(&mut runs);
        run(4, 4, 104).push_onto(&mut runs);
        run(8, 1, 200).push_onto(&mut runs);
        Run { unwritten: true, ..run(9, 1, 201) }.push_onto(&mut runs);
        assert_eq!(runs.len(), 3);
        assert_eq!(runs[0], run(0, 8, 100));
    }

    #[test]
    fn a_span_returns_its_runs_and_the_holes_between_them() {
        let (start, end) = (FileBlock(10), FileBlock(50));
        let span = Span { start, end, runs: vec![run(20, 5, 100), run(30, 5, 200)] };
        let hole = |start, end| Piece::Hole { start: FileBlock(start), end: FileBlock(end) };
        for (at, expected) in [
            (10, hole(10, 20)),
            (19, hole(10, 20)),
            (20, Piece::Run(run(20, 5, 100))),
            (24, Piece::Run(run(20, 5, 100))),
            (25, hole(25, 30)),
            (34, Piece::Run(run(30, 5, 200))),
            (35, hole(35, 50)),
        ] {
            assert_eq!(span.piece_at(FileBlock(at)), expected, "{at}");
        }
    }

    #[test]
    fn changes_of_a_span_replace_and_join_its_runs() {
        let (start, end) = (FileBlock(10), FileBlock(50));
        let mut span = Span { start, end, runs: vec![run(20, 5, 100), run(30, 5, 200)] };
        span.set(FileBlock(25), FileBlock(30), Some(run(25, 5, 105)));
        assert_eq!(span.runs, [run(20, 10, 100), run(30, 5, 200)]);
        span.set(FileBlock(0), FileBlock(22), None);
        assert_eq!(span.runs, [run(22, 8, 102), run(30, 5, 200)]);
        let unwritten = Run { unwritten: true, ..run(24, 2, 104) };
        span.set(FileBlock(24), FileBlock(26), Some(unwritten));
        assert_eq!(span.runs, [run(22, 2, 102), unwritten, run(26, 4, 106), run(30, 5, 200)]);
        span.set(FileBlock(24), FileBlock(26), Some(run(24, 2, 104)));
        assert_eq!(span.runs, [run(22, 8, 102), run(30, 5, 200)]);
        span.set(FileBlock(45), FileBlock(60), Some(run(45, 15, 300)));
        assert_eq!(span.runs.last(), Some(&run(45, 5, 300)));
        span.set(FileBlock(50), FileBlock(60), Some(run(50, 10, 400)));
        assert_eq!(span.runs.len(), 3);
        span.set(FileBlock(10), FileBlock(50), None);
        assert_eq!(span, Span::hole(start, end));
    }
}
