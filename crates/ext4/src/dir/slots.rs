//! The used entries of a run of bytes. Not here: which bytes (`list.rs`, `inline.rs`).

use std::ops::ControlFlow;

use base::Result;
use base::attributes::{DirCursor, DirEntry};

use super::block::DirFormat;

/// The function that receives the entries.
pub(crate) type Emit<'e> = &'e mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>;

/// Lists the used entries of `bytes`, which begin at cursor `start`, from cursor `from` on.
pub(crate) fn list_slots(
    format: &DirFormat,
    bytes: &[u8],
    location: base::Location,
    start: DirCursor,
    from: DirCursor,
    emit: Emit<'_>,
) -> Result<ControlFlow<()>> {
    for slot in format.slots(bytes, location) {
        let slot = slot?;
        let Some(inode) = slot.inode else { continue };
        if start.0 + (slot.start as u64) < from.0 {
            continue;
        }
        let entry = DirEntry {
            name: format.stored_name(&slot, location)?,
            inode,
            kind: format.file_type(&slot),
            next: DirCursor(start.0 + slot.end as u64),
        };
        if emit(entry).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
