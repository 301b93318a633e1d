//! The cache's part in direct I/O: data in the cache of bytes that are read or written around it.

use std::ops::Range;
use std::sync::Arc;

use crate::file::WritableFile;
use crate::folios::{has_unwritten, invalidate, is_cached};
use crate::writeback::write_back_and_wait;

/// Writes back cached dirty data of these bytes before they are read from the device. The file's
/// errors have the errors of that.
pub(super) fn clean_cache(file: &Arc<WritableFile>, range: &Range<u64>) {
    if has_unwritten(file, range) {
        write_back_and_wait(file, range.clone());
    }
}

/// Writes back these bytes and removes them from the cache, before they are written on the device.
/// Returns whether all are removed: data that other threads write concurrently stays.
pub(super) fn clear_cache(file: &Arc<WritableFile>, range: &Range<u64>) -> bool {
    if !is_cached(file, range) {
        return true;
    }
    clean_cache(file, range);
    invalidate(file, range)
}
