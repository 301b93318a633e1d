//! Progress bar of a copy, and reports from its threads.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use crate::console::Console;
use crate::console::failure::Failure;
use crate::format::text;

/// Maximum number of characters of a path that are shown.
const PATH_CHARACTERS_MAX: usize = 50;

/// Progress bar and console, shared by the threads of a copy.
pub struct Progress<'a> {
    console: Mutex<&'a mut Console>,
    bar: ProgressBar,
}

impl<'a> Progress<'a> {
    /// Creates a progress bar, which is visible if standard error is a terminal.
    pub fn new(console: &'a mut Console) -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {bytes} at {bytes_per_sec}, {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Self { console: Mutex::new(console), bar }
    }

    /// Shows the path of a file, and the number of files with it.
    pub fn begin_file(&self, path: &[u8], files: u64) {
        if !self.bar.is_hidden() {
            let path = text::escape(path);
            let characters = path.chars().count();
            let tail: String =
                path.chars().skip(characters.saturating_sub(PATH_CHARACTERS_MAX)).collect();
            self.bar.set_message(format!("{files} files: {tail}"));
        }
    }

    /// Adds to the number of written bytes.
    pub fn add_bytes(&self, count: u64) {
        self.bar.inc(count);
    }

    /// Reports a failure that does not end the copy.
    pub fn report(&self, failure: &Failure) {
        self.bar.suspend(|| self.console.lock().report(failure));
    }

    /// Prints a warning.
    pub fn warn(&self, text: &str) {
        self.bar.suspend(|| self.console.lock().warn(text));
    }

    /// Removes the progress bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
