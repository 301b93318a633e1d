//! Insertion of the folios of a readahead window, and the submission of their reads.
//! Not here: the choice of the window (`readahead.rs`), and the source of the data (`fill.rs`).

use pagecache::{FolioRef, Insertion};

use crate::caching::Caching;
use crate::read::context::ReadContext;
use crate::read::fill::Fill;
use crate::read::readahead::ReadaheadWindow;

/// The result of [`populate`].
#[derive(Debug)]
pub(crate) struct Populated<'a> {
    /// The folio with the wanted page, if this call inserted it.
    pub(crate) wanted: Option<FolioRef<'a>>,
    /// Whether memory ran out before the end of the window.
    pub(crate) out_of_memory: bool,
}

/// Inserts folios where `window` has none, and submits the reads that fill them. Waits for the
/// device only if the reader wants clusters, which this thread decodes. Returns no errors: a reader
/// of a folio that was not filled reads it again, and gets the error.
pub(crate) fn populate<'a>(
    context: &ReadContext<'a>,
    window: &ReadaheadWindow,
    wanted: Option<u64>,
) -> Populated<'a> {
    let mut populated = Populated { wanted: None, out_of_memory: false };
    let mut fill = Fill::new(context, window.end, None);
    // The reader waits for the folios before the mark.
    let ahead = if wanted.is_some() { window.mark.unwrap_or(window.end) } else { window.start };
    let mut mark = window.mark;
    let mut index = window.start;
    while index < window.end {
        // The largest order that fits into the rest of the window.
        let room = (window.end - index).ilog2() as u8;
        let mut locked = match context.mapping.insert(index, window.order.min(room)) {
            Insertion::New(locked) => locked,
            Insertion::Exists { end } => {
                index = end;
                continue;
            }
            Insertion::NoMemory => {
                populated.out_of_memory = true;
                break;
            }
        };
        if context.options.caching == Caching::Dropbehind {
            locked.set_dropbehind();
        }
        if index >= ahead {
            fill.start_readahead();
        }
        let end = index + locked.folio().pages();
        if wanted.is_some_and(|wanted| (index..end).contains(&wanted)) {
            populated.wanted = Some(context.mapping.borrow(locked.folio()));
        }
        if mark.is_some_and(|mark| index >= mark) {
            mark = None;
            locked.set_readahead();
        }
        let length = locked.remaining();
        if fill.add(&mut locked, length).is_err() {
            // The rest of the window has no mapping. Its readers, if any, get the error.
            break;
        }
        index = end;
    }
    fill.submit();
    populated
}
