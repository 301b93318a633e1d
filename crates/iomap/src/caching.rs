//! What becomes of the folios that a read or a write makes. Not here: either.

use std::ops::Range;

use pagecache::Mapping;

/// Whether what is read and written stays in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Caching {
    /// It does, as long as there is room. Folios that uncached reads and writes have made become like
    /// others when they are used.
    #[default]
    Kept,
    /// Folios that this makes leave when what was asked for has been copied out of them, or has been
    /// written back; those that are there already stay. They are cached until then, like others: all
    /// that reads and writes through the cache goes together.
    Dropbehind,
}

/// Has folios that end in `pages`, and that [`Caching::Dropbehind`] has made, leave the cache.
pub(crate) fn leave(mapping: &Mapping, mut pages: Range<u64>) {
    // No folio is smaller.
    pages.end = pages.end.next_multiple_of(1 << mapping.order_min());
    while let Some(page) = mapping.next_cached(pages.clone()) {
        pages.start = page + 1;
        // One that is not found has left, or comes just now.
        if let Some(folio) = mapping.get(page) {
            let end = folio.index() + folio.pages();
            if end <= pages.end {
                folio.done_with();
            }
            pages.start = end;
        }
    }
}
