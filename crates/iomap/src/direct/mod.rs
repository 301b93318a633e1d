//! Direct I/O: between the device and the caller's memory, around the cache, with as many requests of
//! a caller in flight as it likes (ARCHITECTURE.md, invariant 9).
//!
//! - `request.rs`: one request of a caller, and waiting for it
//! - `plan.rs`: which runs of the device a request covers, and in what state
//! - `admit.rs`: which writes may go, over which runs, and what is done before
//! - `batch.rs`: the bios of some requests, submitted together
//! - `call.rs`: a request under way
//! - `waited.rs`: reads and overwrites that their caller waits for
//! - `alone.rs`: writes that need the inode's lock alone
//! - `tail.rs`: what is known of the device past the end of a file
//! - `end.rs`: what has ended: the format hears of it, the cache forgets it, the caller is told
//! - `in_flight.rs`: requests that have not ended
//!
//! The caller holds the inode's lock, together with others or alone, until its requests are submitted.
//! They need no lock after that: whoever takes blocks away, moves them, or writes to the cache waits for
//! them (`wait_for_direct`). Of direct writes to the same bytes any may win.
//! Not here: which lock a request needs, and who may do what.

mod admit;
mod alone;
mod batch;
mod call;
mod end;
mod in_flight;
mod plan;
mod request;
mod tail;
mod waited;

use std::ops::Range;
use std::sync::Arc;

use pagecache::PAGE_SHIFT;

pub use self::admit::Refused;
pub use self::alone::write_direct_alone;
pub use self::batch::DirectBatch;
pub(crate) use self::end::{DirectEnds, EndedCalls};
pub(crate) use self::in_flight::InFlight;
pub use self::request::{DirectDone, DirectRequest};
pub(crate) use self::tail::DirectTail;
pub use self::waited::{overwrite_direct, read_direct};
use crate::barrier::Entered;
use crate::file::WritableFile;
use crate::truncate::for_each_folio;
use crate::writeback::{write_back_and_wait, write_back_entered};

/// What positions and lengths of direct requests are multiples of, in bytes: the sector of a device.
pub const DIRECT_ALIGNMENT: u64 = 512;

/// When the extents of preallocated blocks are split of which a part is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitExtents {
    /// At the end of I/O, out of what the volume keeps for that; before it while that is low.
    #[default]
    AtEnd,
    /// Before the I/O.
    Before,
}

/// How direct writes are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectOptions {
    /// Overwrites of blocks that the file has, written or preallocated, hold the inode's lock together
    /// with others. Otherwise alone, until they have ended.
    pub shared_overwrites: bool,
    /// When extents are split.
    pub split: SplitExtents,
}

impl Default for DirectOptions {
    fn default() -> Self {
        Self { shared_overwrites: true, split: SplitExtents::default() }
    }
}

/// Waits until no direct request of the file is in flight. The caller holds the inode's lock alone, so
/// that none begins.
pub fn wait_for_direct(file: &WritableFile) {
    file.direct.wait_none();
}

/// Whether the cache has anything of these bytes.
pub(crate) fn is_cached(file: &WritableFile, range: &Range<u64>) -> bool {
    file.mapping().has_cached(range.start >> PAGE_SHIFT..range.end.div_ceil(1 << PAGE_SHIFT))
}

/// Has the device have what the cache has of these bytes, before they are read from it. An error in
/// writing is not repeated here.
pub(crate) fn clean_cache(
    file: &Arc<WritableFile>,
    range: &Range<u64>,
    entered: Option<&Arc<Entered>>,
) {
    match entered {
        _ if !is_cached(file, range) => {}
        Some(entered) => write_back_entered(file, range.clone(), Arc::clone(entered)),
        None => write_back_and_wait(file, range.clone()),
    }
}

/// Takes these bytes out of the cache, once they are on the device, before they are written around it.
/// Whether all of them are: what somebody writes meanwhile stays.
pub(crate) fn clear_cache(
    file: &Arc<WritableFile>,
    range: &Range<u64>,
    entered: Option<&Arc<Entered>>,
) -> bool {
    if !is_cached(file, range) {
        return true;
    }
    clean_cache(file, range, entered);
    forget(file, range)
}

/// Takes what is not dirty of these bytes out of the cache; whether that was all. Waits for whoever fills
/// folios, or writes them back.
fn forget(file: &Arc<WritableFile>, range: &Range<u64>) -> bool {
    let mut all = true;
    for_each_folio(file, range.clone(), |folio| {
        let length = folio.folio().len();
        match folio.folio().dirty_run(0, length, false) == length {
            true => file.mapping.remove(folio),
            false => all = false,
        }
    });
    all
}
