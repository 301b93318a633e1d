//! What a server in the background prints on standard error, which its guard passes on to the
//! system log. The confined server cannot reach the log itself. The guard does not trust it, so
//! lines have a maximum length, and their number a limit.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::system_log::{Severity, SystemLog};
use super::task::Task;
use crate::retry::retry;

/// The maximum size of a line, in bytes. The rest of a longer one is dropped.
const LINE_BYTES_MAX: usize = 2048;
/// The interval for [`LINES_MAX`].
const INTERVAL: Duration = Duration::from_secs(30);
/// The maximum number of lines in an interval.
const LINES_MAX: u32 = 200;
/// What every message of this program begins with on standard error, and the system log adds
/// itself.
const PREFIX: &str = "bifolio: ";
/// What warnings begin with.
const WARNING: &str = "warning: ";

/// Creates the pipe. Returns the guard's end and the server's end. The server never waits for the
/// guard, which may have been stopped: messages are lost instead.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)?;
    Ok((reader, writer))
}

/// Starts a task that passes on lines from `reader` until all other ends are closed.
pub fn start(reader: OwnedFd, log: Arc<SystemLog>) -> Result<Task<()>, Errno> {
    Task::start(move || {
        let mut lines = Lines::new(|severity, line: &str| log.send(severity, line));
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = retry(|| rustix::io::read(&reader, &mut bytes)) {
            lines.add(&bytes[..length], Instant::now());
        }
        lines.end();
    })
}

/// Divides bytes into lines, and passes on a limited number of them.
struct Lines<F> {
    pass_on: F,
    /// The line that has not ended yet, without what exceeds its maximum size.
    line: Vec<u8>,
    /// The begin of the current interval, and the number of lines in it.
    interval: Option<(Instant, u32)>,
    /// The number of lines that were dropped in it.
    dropped: u32,
}

impl<F: FnMut(Severity, &str)> Lines<F> {
    fn new(pass_on: F) -> Self {
        Self { pass_on, line: Vec::new(), interval: None, dropped: 0 }
    }

    /// Adds bytes that were read at the time `now`.
    fn add(&mut self, bytes: &[u8], now: Instant) {
        let mut parts = bytes.split(|byte| *byte == b'\n');
        let mut part = parts.next();
        while let Some(bytes) = part {
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
            part = parts.next();
            if part.is_some() {
                self.end_line(now);
            }
        }
    }

    fn end_line(&mut self, now: Instant) {
        let line = std::mem::take(&mut self.line);
        let begins = self.interval.is_none_or(|(begin, _)| now.duration_since(begin) >= INTERVAL);
        if begins {
            self.report_dropped();
            self.interval = Some((now, 0));
        }
        let Some((_, count)) = &mut self.interval else { return };
        if *count >= LINES_MAX {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        *count += 1;
        let line = String::from_utf8_lossy(&line);
        let line = line.strip_prefix(PREFIX).unwrap_or(&line);
        let is_warning = line.starts_with(WARNING);
        (self.pass_on)(if is_warning { Severity::Warning } else { Severity::Error }, line);
    }

    fn report_dropped(&mut self) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let text = format!("{dropped} more messages of the server were dropped");
            (self.pass_on)(Severity::Warning, &text);
        }
    }

    /// Passes on the last line, which may have no end.
    fn end(&mut self) {
        if !self.line.is_empty() {
            self.end_line(Instant::now());
        }
        self.report_dropped();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_on(parts: &[&[u8]]) -> Vec<(Severity, String)> {
        let mut passed = Vec::new();
        let mut lines = Lines::new(|severity, line: &str| passed.push((severity, line.to_owned())));
        let now = Instant::now();
        parts.iter().for_each(|part| lines.add(part, now));
        lines.end();
        drop(lines);
        passed
    }

    #[test]
    fn parts_of_lines_become_lines_with_a_severity() {
        let passed = passed_on(&[b"bifolio: war", b"ning: a\nbifolio: b\n", b"thread panicked"]);
        let expected = [
            (Severity::Warning, "warning: a".to_owned()),
            (Severity::Error, "b".to_owned()),
            (Severity::Error, "thread panicked".to_owned()),
        ];
        assert_eq!(passed, expected);
    }

    #[test]
    fn long_lines_are_cut_and_too_many_are_counted() {
        let passed = passed_on(&[&vec![b'x'; 100_000], b"\n", "y\n".repeat(1000).as_bytes()]);
        assert_eq!(passed[0].1.len(), LINE_BYTES_MAX);
        assert_eq!(passed.len(), LINES_MAX as usize + 1);
        assert_eq!(passed.last().unwrap().1, "801 more messages of the server were dropped");
    }

    #[test]
    fn the_server_does_not_wait_for_a_guard_that_does_not_read() {
        let (_reader, writer) = pipe().unwrap();
        let refused = loop {
            if let Err(errno) = rustix::io::write(&writer, &[0; 4096]) {
                break errno;
            }
        };
        assert_eq!(refused, Errno::AGAIN);
    }
}
