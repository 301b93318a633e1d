//! Standard output and standard error of one run, and the exit status of the failures that were reported.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use crate::failure::{Failure, Result, Status};
use crate::format::text;

/// The output of a command.
pub struct Console {
    out: BufWriter<Stdout>,
    terminal: bool,
    worst: Status,
}

/// Prints a warning to standard error, before there is any output.
pub fn warn(text: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "bifolio: warning: {text}");
}

impl Console {
    /// Returns the process's own streams.
    pub fn standard() -> Self {
        let out = io::stdout();
        let terminal = out.is_terminal();
        Self { out: BufWriter::with_capacity(64 * 1024, out), terminal, worst: Status::Success }
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| Failure::output(&error))
    }

    /// Writes text.
    pub fn print(&mut self, text: impl std::fmt::Display) -> Result<()> {
        write!(self.out, "{text}").map_err(|error| Failure::output(&error))
    }

    /// Writes a name from an image. It is escaped if standard output is a terminal.
    pub fn name(&mut self, name: &[u8]) -> Result<()> {
        if self.terminal { self.print(text::escape(name)) } else { self.write(name) }
    }

    /// Flushes standard output.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|error| Failure::output(&error))
    }

    /// Reports a failure that does not end the command, but sets its exit status.
    pub fn report(&mut self, failure: &Failure) {
        // Keep the order that a reader of both streams sees.
        let _ = self.out.flush();
        if failure.status() != Status::BrokenPipe {
            let _ = writeln!(io::stderr(), "bifolio: {failure}");
        }
        self.worst = self.worst.max(failure.status());
    }

    /// Reports a failure, unless it is fatal.
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

    /// Raises the exit status to at least this one.
    pub fn end_with(&mut self, status: Status) {
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
