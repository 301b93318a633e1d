//! The count of failures to clean the blocks of a pinned file, in its inode. As in Linux, cleaning
//! in the foreground counts them, once for each file, if there are no other sections to gain. Linux
//! also unpins a file at the greatest count.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{InodeNumber, Result};

use crate::core::Core;
use crate::edit::Editor;
use crate::write::writer::WriterState;

/// The greatest count.
const FAILURES_MAX: u32 = 2048;

impl WriterState {
    /// Counts a failure for each of these files. The next checkpoint makes the counts durable.
    pub(crate) fn count_failures(&self, volume: &Arc<Core>, pinned: &BTreeSet<InodeNumber>) {
        for number in pinned {
            if !self.has_room(self.to_write(volume)) {
                return;
            }
            if let Err(error) = count_failure(volume, *number) {
                tracing::debug!(inode = %number, %error, "a failure to clean is not counted");
            }
        }
    }
}

fn count_failure(volume: &Arc<Core>, number: InodeNumber) -> Result<()> {
    let failures = volume.inode(number)?.pin_failures();
    if failures.is_none_or(|failures| failures >= FAILURES_MAX) {
        return Ok(());
    }
    volume.overlay_or_new().write().begin();
    let edited = Editor::new(volume).edit_inode(number, |raw| {
        raw.current_depth.set(raw.current_depth.get() + 1);
    });
    volume.overlay_or_new().write().end(edited.is_ok());
    edited?;
    volume.residents().find(number).iter().try_for_each(|inode| inode.refresh())
}
