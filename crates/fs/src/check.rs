//! The receiver of the findings and of the progress of a consistency check. Not here: what is
//! checked.

use std::ops::ControlFlow;

use base::{Error, Location, Problem, Result, Unsupported};

/// How far a check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckProgress {
    /// The part of the volume that is being checked, such as "inodes".
    pub part: &'static str,
    /// How much of the part was checked, in units that depend on the part.
    pub done: u64,
    /// How much the part has.
    pub total: u64,
}

/// An observer of a check. The check ends early if a method breaks.
pub trait CheckObserver {
    /// Called for each finding: [`Error::Corrupt`] for an inconsistency, [`Error::Io`] for a part
    /// that cannot be read, [`Error::Unsupported`] for a part that is not checked.
    fn found(&mut self, error: Error) -> ControlFlow<()>;

    /// Called often, also while a check finds nothing.
    fn advanced(&mut self, progress: CheckProgress) -> ControlFlow<()> {
        let _ = progress;
        ControlFlow::Continue(())
    }
}

/// An observer that calls a function for each finding.
pub struct OnFinding<'f>(pub &'f mut dyn FnMut(Error) -> ControlFlow<()>);

impl CheckObserver for OnFinding<'_> {
    fn found(&mut self, error: Error) -> ControlFlow<()> {
        (self.0)(error)
    }
}

/// The receiver of findings and of progress.
pub struct Report<'f> {
    observer: &'f mut dyn CheckObserver,
    /// The number of findings.
    pub findings: u64,
    /// Whether the check ends, because its observer or a limit says so.
    pub has_ended: bool,
    is_partial: bool,
    progress: CheckProgress,
}

impl<'f> Report<'f> {
    /// Returns a report to `observer`.
    pub fn new(observer: &'f mut dyn CheckObserver) -> Self {
        let progress = CheckProgress::default();
        Self { observer, findings: 0, has_ended: false, is_partial: false, progress }
    }

    /// Reports progress. Returns whether the check continues.
    pub fn advance(&mut self, part: &'static str, done: u64, total: u64) -> bool {
        self.progress = CheckProgress { part, done, total };
        self.go_on()
    }

    /// Reports the same progress again, in a part that may take long. Returns whether the check
    /// continues.
    pub fn go_on(&mut self) -> bool {
        self.has_ended = self.has_ended || self.observer.advanced(self.progress).is_break();
        !self.has_ended
    }

    /// Returns whether no part was skipped.
    pub fn is_complete(&self) -> bool {
        !self.has_ended && !self.is_partial
    }

    /// Reports an error.
    pub fn add(&mut self, error: Error) {
        if !self.has_ended {
            self.findings += 1;
            self.has_ended = self.observer.found(error).is_break();
        }
    }

    /// Reports a part of the check that is skipped because it would take too long.
    pub fn skip_part(&mut self, part: &'static str) {
        self.is_partial = true;
        self.add(Unsupported::Operation(part).into());
    }

    /// Ends the check, because the rest would take too long. `part` is the first skipped part.
    pub fn end_early(&mut self, part: &'static str) {
        self.skip_part(part);
        self.has_ended = true;
    }

    /// Reports an inconsistency.
    pub fn corrupt(&mut self, structure: &'static str, location: Location, problem: Problem) {
        self.add(Error::corrupt(structure, location, problem));
    }

    /// Reports an inconsistency of the directory entry `name`. `location` is in the directory.
    pub fn corrupt_entry(
        &mut self,
        structure: &'static str,
        location: Location,
        name: &[u8],
        problem: Problem,
    ) {
        self.add(Error::corrupt(structure, location, problem).of_entry(name));
    }

    /// Returns the value of `result`, or reports its error and returns `None`.
    pub fn ok<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Reports a mismatch if two numbers are not equal.
    pub fn compare(
        &mut self,
        structure: &'static str,
        location: Location,
        field: &'static str,
        found: u64,
        expected: u64,
    ) {
        if found != expected {
            self.corrupt(structure, location, Problem::Mismatch { field, found, expected });
        }
    }
}
