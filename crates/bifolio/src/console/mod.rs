//! Standard output, standard error and the exit status of a command.

pub(crate) mod failure;
pub(crate) mod log;
pub(crate) mod log_file;
pub(crate) mod signals;

use std::io::{self, BufWriter, Stdout, Write};

use serde::Serialize;

use crate::console::failure::{Failure, Result, Status};
use crate::format::{json, text};

/// Output of a command, and the worst status that was reported.
pub struct Console {
    out: BufWriter<Stdout>,
    /// Whether names are written without escapes.
    is_raw: bool,
    worst: Status,
    /// The exit status if standard output cannot be written.
    output_status: Status,
}

/// Prints a warning to standard error. For use before the first output, because it does not flush
/// standard output.
pub fn warn(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "bifolio: warning: {text}");
}

impl Console {
    /// Creates a console for the streams of the process. With `is_raw`, it writes names without
    /// escapes.
    pub fn standard(is_raw: bool) -> Self {
        let out = BufWriter::with_capacity(64 * 1024, io::stdout());
        Self { out, is_raw, worst: Status::Success, output_status: Status::Failed }
    }

    /// Writes bytes unchanged.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.out.write_all(bytes);
        written.map_err(|error| Failure::output(&error, self.output_status))
    }

    /// Writes text.
    pub fn print(&mut self, text: impl std::fmt::Display) -> Result<()> {
        let written = write!(self.out, "{text}");
        written.map_err(|error| Failure::output(&error, self.output_status))
    }

    /// Writes a value as JSON.
    pub fn print_json(&mut self, value: &impl Serialize) -> Result<()> {
        let written = json::write(&mut self.out, value);
        written.map_err(|error| Failure::output(&error.into(), self.output_status))
    }

    /// Writes a name from an image, with escapes: in a pipe, too, since it often leads to a
    /// terminal or to a program that takes a line break for the end of a name.
    pub fn print_name(&mut self, name: &[u8]) -> Result<()> {
        if self.is_raw { self.write(name) } else { self.print(text::escape(name)) }
    }

    /// Flushes standard output.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.out.flush();
        flushed.map_err(|error| Failure::output(&error, self.output_status))
    }

    /// Reports a failure that does not end the command, but sets its exit status.
    pub fn report(&mut self, failure: &Failure) {
        // Keeps the order of the two streams.
        let _ = self.out.flush();
        if failure.status() != Status::BrokenPipe {
            let _ = writeln!(io::stderr(), "bifolio: {failure}");
        }
        self.worst = self.worst.max(failure.status());
    }

    /// Reports a failure and returns `None`. Errors: failures that are fatal.
    pub fn tolerate<T>(&mut self, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(failure) if failure.is_fatal() => Err(failure),
            Err(failure) => {
                self.report(&failure);
                Ok(None)
            }
        }
    }

    /// Sets the exit status for the case that standard output cannot be written.
    pub fn set_output_status(&mut self, status: Status) {
        self.output_status = status;
    }

    /// Raises the exit status to at least `status`.
    pub fn raise_status(&mut self, status: Status) {
        self.worst = self.worst.max(status);
    }

    /// Prints a warning to standard error.
    pub fn warn(&mut self, text: impl std::fmt::Display) {
        let _ = self.out.flush();
        warn(text);
    }

    /// Ends the command. Returns the exit status of the worst failure.
    pub fn finish(mut self, outcome: Result<()>) -> Status {
        if let Err(failure) = outcome.and_then(|()| self.flush()) {
            self.report(&failure);
        }
        self.worst
    }
}
