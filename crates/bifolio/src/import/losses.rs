//! Metadata that a copy into an image leaves out: attributes that cannot be read, and records of
//! archives that have no counterpart. It is counted, and reported once at the end.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::console::Console;
use crate::format::text;

/// Maximum number of kinds that are counted on their own: an archive can have any number of names.
const KINDS_MAX: usize = 64;

/// Counts of files, by what was left out of them, and why.
#[derive(Debug, Default)]
pub struct Losses {
    counts: RefCell<BTreeMap<(Vec<u8>, String), Count>>,
}

#[derive(Debug)]
struct Count {
    files: u64,
    first: Vec<u8>,
}

impl Losses {
    /// Counts `what`, which was left out of the file at `path`.
    pub fn add(&self, what: &[u8], reason: impl Into<String>, path: &[u8]) {
        let mut counts = self.counts.borrow_mut();
        let mut kind = (what.to_vec(), reason.into());
        if counts.len() >= KINDS_MAX && !counts.contains_key(&kind) {
            kind = (b"other metadata".to_vec(), "there are too many kinds to list".to_owned());
        }
        let count = counts.entry(kind);
        count.or_insert_with(|| Count { files: 0, first: path.to_vec() }).files += 1;
    }

    /// Prints a warning for each kind.
    pub fn warn(&self, console: &mut Console) {
        for ((what, reason), Count { files, first }) in &*self.counts.borrow() {
            let (s, was) = if *files == 1 { ("", "was") } else { ("s", "were") };
            let (what, first) = (text::escape(what), text::escape(first));
            console.warn(format_args!(
                "{what} of {files} file{s} {was} not copied, the first is {first}: {reason}"
            ));
        }
    }
}

/// The losses of one file.
#[derive(Clone, Copy, Debug)]
pub struct Lost<'a> {
    /// The counts of the command.
    pub losses: &'a Losses,
    /// The path of the file, for messages.
    pub path: &'a [u8],
}

impl Lost<'_> {
    /// Counts `what`, which was left out of the file.
    pub fn add(&self, what: &[u8], reason: impl Into<String>) {
        self.losses.add(what, reason, self.path);
    }
}
