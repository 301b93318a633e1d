//! The line of progress on a terminal. Not `indicatif`, whose questions about the terminal the
//! confinement refuses.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use vfs::CheckProgress;

/// The time between two changes of the line.
const INTERVAL: Duration = Duration::from_millis(200);
/// Moves to the beginning of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

/// A line on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Progress {
    is_shown: bool,
    /// Whether the line has text now.
    has_text: bool,
    /// The time of the next change.
    next: Instant,
}

impl Progress {
    /// Returns an empty line, which is shown if standard error is a terminal.
    pub fn new() -> Self {
        let is_shown = io::stderr().is_terminal();
        Self { is_shown, has_text: false, next: Instant::now() + INTERVAL }
    }

    /// Returns whether progress is shown.
    pub fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Shows progress, but not more often than the eye can follow.
    pub fn show(&mut self, progress: CheckProgress, now: Instant) {
        if self.is_shown && now >= self.next {
            self.next = now + INTERVAL;
            self.has_text = true;
            let percent = percent(progress);
            // An error has no consequences for the check.
            let _ = write!(io::stderr(), "{CLEAR}checking {}: {percent}%", progress.part);
        }
    }

    /// Removes the text, before other text is printed.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.has_text) {
            let _ = write!(io::stderr(), "{CLEAR}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn percent(progress: CheckProgress) -> u64 {
    let CheckProgress { done, total, .. } = progress;
    u64::try_from(u128::from(done) * 100 / u128::from(total.max(1))).unwrap_or(100).min(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_without_size_has_no_percentage_above_100() {
        let of = |done, total| percent(CheckProgress { part: "groups", done, total });
        assert_eq!([of(0, 0), of(5, 0), of(1, 3), of(u64::MAX, u64::MAX)], [0, 100, 33, 100]);
    }
}
