//! The choice whether folios that a read or a write adds stay in the cache. Not here: reads and
//! writes.

use std::ops::Range;

use pagecache::Mapping;

/// The choice whether folios that a read or a write adds stay in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Caching {
    /// They stay while there is room. Such a read or write also keeps dropbehind folios that it
    /// finds.
    #[default]
    Kept,
    /// They are *dropbehind*: they leave the cache after their data was copied to the reader, or
    /// written back. Until then, other reads and writes find them in the cache. Folios that were
    /// cached before stay.
    Dropbehind,
}

/// Removes dropbehind folios that end in `pages` from the cache, once they have no other
/// references.
pub(crate) fn drop_behind(mapping: &Mapping, mut pages: Range<u64>) {
    // Whole folios of the smallest size.
    pages.end = pages.end.next_multiple_of(1 << mapping.order_min());
    while let Some(page) = mapping.next_cached(pages.clone()) {
        pages.start = page + 1;
        // If the folio is not found, it was removed, or is just being inserted.
        if let Some(folio) = mapping.get(page) {
            let end = folio.index() + folio.pages();
            if end <= pages.end {
                folio.set_done();
            }
            pages.start = end;
        }
    }
}
