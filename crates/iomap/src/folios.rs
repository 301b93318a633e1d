//! The cached folios of a range of a file.

use std::ops::Range;
use std::sync::Arc;

use pagecache::{LockedFolio, PAGE_SHIFT};

use crate::file::WritableFile;

/// Returns the pages with these bytes.
pub(crate) fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start >> PAGE_SHIFT..range.end.div_ceil(1 << PAGE_SHIFT)
}

/// Calls `work` for each folio that has bytes of `range`, locked and not under writeback.
pub(crate) fn for_each_folio(
    file: &Arc<WritableFile>,
    range: Range<u64>,
    mut work: impl FnMut(LockedFolio),
) {
    let mut pages = pages_of(&range);
    while let Some(page) = file.mapping.next_cached(pages.clone()) {
        pages.start = page;
        let Some(folio) = file.mapping.get(page) else { continue };
        let folio = file.mapping.lock(&folio);
        if !file.mapping.holds(&folio) {
            continue;
        }
        folio.wait_writeback();
        let end = folio.folio().index() + folio.folio().pages();
        work(folio);
        pages.start = end;
    }
}

/// Returns whether the cache has any folio of these bytes.
pub(crate) fn is_cached(file: &WritableFile, range: &Range<u64>) -> bool {
    file.mapping().has_cached(pages_of(range))
}

/// Returns whether the cache has data of these bytes that the device does not have yet.
pub(crate) fn has_unwritten(file: &WritableFile, range: &Range<u64>) -> bool {
    file.mapping().has_unwritten(&pages_of(range))
}

/// Removes clean folios of these bytes from the cache. Returns whether all were clean. Waits for
/// folios that are locked or under writeback.
pub(crate) fn invalidate(file: &Arc<WritableFile>, range: &Range<u64>) -> bool {
    let mut all_clean = true;
    for_each_folio(file, range.clone(), |folio| {
        let length = folio.folio().len();
        if folio.folio().dirty_run(0, length, false) == length {
            file.mapping.remove(folio);
        } else {
            all_clean = false;
        }
    });
    all_clean
}
