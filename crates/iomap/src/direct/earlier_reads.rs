//! Reads of a file that have begun before a format gave a range other blocks: while any of them is
//! in flight, the old blocks must not be used for anything else. Not here: what a format does with
//! the old blocks meanwhile.
//!
//! ```text
//! reader                         format                          writer of another file
//! maps block A
//!                                gives the range block B
//!                                                                writes to A
//! reads A: the other file's data
//! ```
//!
//! Each read that is in flight is seen, and nothing waits for one:
//!
//! - A fill has a locked folio in the mapping before it maps the range, and reads only blocks of it
//!   that are not uptodate.
//! - A direct read is counted before it does.
//! - Other reads compare generations at their end.

use std::ops::Range;
use std::sync::{Arc, Weak};

use pagecache::{FolioRef, PAGE_SHIFT};

use crate::file::WritableFile;

/// Reads that may still read the old blocks of a range of a file.
#[derive(Debug)]
pub struct EarlierReads {
    file: Weak<WritableFile>,
    range: Range<u64>,
    /// Whether fills of the range may be in flight.
    are_fills: bool,
    /// The counters that may have direct reads in flight.
    direct: [bool; 2],
}

impl EarlierReads {
    /// Returns the reads that may read the old blocks of `range`, in bytes, or `None` if there are
    /// none. The format has given the range other blocks before, and then changed the generation.
    /// Blocks of encoded data are read for the whole cluster.
    pub fn of(file: &Arc<WritableFile>, range: Range<u64>) -> Option<Self> {
        let mut reads =
            Self { file: Arc::downgrade(file), range, are_fills: true, direct: [true; 2] };
        reads.may_be_in_flight().then_some(reads)
    }

    /// Looks again. Returns whether any of the reads may be in flight. Takes no lock but those of
    /// the cache, and waits for nothing.
    pub fn may_be_in_flight(&mut self) -> bool {
        // Direct reads hold the file. A fill of a dropped file has no reader that could use what it
        // reads.
        let Some(file) = self.file.upgrade() else { return false };
        self.are_fills = self.are_fills && may_be_filled(&file, &self.range);
        let are_direct = file.direct_reads.look(&mut self.direct);
        self.are_fills || are_direct
    }
}

/// Returns whether a fill that has begun earlier may read any of these bytes.
fn may_be_filled(file: &WritableFile, range: &Range<u64>) -> bool {
    let mapping = &file.mapping;
    let mut page = range.start >> PAGE_SHIFT;
    let end = range.end.div_ceil(1 << PAGE_SHIFT);
    if !mapping.has_cached(page..end) {
        return false;
    }
    while page < end {
        match mapping.get(page) {
            Some(folio) => {
                match mapping.try_lock(&folio) {
                    // A fill that began earlier would have it locked.
                    Some(locked) if mapping.holds(&locked) => {}
                    // Writeback or another change has it locked, maybe one that waits for these
                    // blocks.
                    None if is_uptodate(&folio, range) => {}
                    _ => return true,
                }
                page = folio.index() + folio.pages();
            }
            None if mapping.has_cached(page..page + 1) => return true,
            None => page += 1,
        }
    }
    false
}

/// Returns whether all blocks of `folio` with bytes of `range` are uptodate. Fills read no such
/// blocks.
fn is_uptodate(folio: &FolioRef<'_>, range: &Range<u64>) -> bool {
    let end = folio.position() + folio.len() as u64;
    let start = range.start.max(folio.position());
    let length = range.end.min(end).saturating_sub(start) as usize;
    folio.uptodate_len((start - folio.position()) as usize, length) == length
}
