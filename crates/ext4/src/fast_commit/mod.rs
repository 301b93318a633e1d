//! Fast commits: changes that Linux writes between two full transactions, one tag for each.
//! Not here: the log of transactions (`jbd2`), and writing fast commits.

mod apply;
mod area;
mod follow;
mod names;
pub mod ondisk;

use std::sync::Arc;

pub use area::{Change, read_commits};
use base::Result;

use self::follow::Outcome;
use crate::recovery::edit::Editor;
use crate::recovery::orphans::Orphans;

/// Brings the volume in `editor` to the state that `commits` establish. Nothing is written yet.
pub(crate) fn replay(
    editor: &mut Editor,
    orphans: &Orphans,
    commits: &[Vec<Change>],
) -> Result<()> {
    Outcome::of(Arc::clone(&editor.volume), commits)?.apply(editor, orphans)
}
