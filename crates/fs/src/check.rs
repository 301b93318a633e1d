//! The receiver of the findings of a consistency check. Not here: what is checked.

use std::ops::ControlFlow;

use base::{Error, Location, Problem, Result, Unsupported};

/// The receiver of findings.
pub struct Report<'f> {
    found: &'f mut dyn FnMut(Error) -> ControlFlow<()>,
    /// The number of findings.
    pub findings: u64,
    /// Whether the check ends, because its caller or a limit says so.
    pub has_ended: bool,
    is_partial: bool,
}

impl<'f> Report<'f> {
    /// Returns a report that calls `found` for each finding, until it breaks.
    pub fn new(found: &'f mut dyn FnMut(Error) -> ControlFlow<()>) -> Self {
        Self { found, findings: 0, has_ended: false, is_partial: false }
    }

    /// Returns whether no part was skipped.
    pub fn is_complete(&self) -> bool {
        !self.has_ended && !self.is_partial
    }

    /// Reports an error.
    pub fn add(&mut self, error: Error) {
        if !self.has_ended {
            self.findings += 1;
            self.has_ended = (self.found)(error).is_break();
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
