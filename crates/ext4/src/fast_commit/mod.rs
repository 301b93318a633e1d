//! Fast commits: changes that Linux writes between two full transactions, one tag for each. Their
//! effects are collected first. Then the ordinary writer applies them. Not here: the log of
//! transactions (`jbd2`), and writing fast commits.

mod apply;
mod area;
mod claim;
mod image;
mod names;
pub mod ondisk;
mod outcome;
mod ranges;
mod reseal;

use std::sync::Arc;

pub use area::{Change, read_commits};
use base::{Error, InodeNumber, Result};

use self::outcome::Outcome;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::volume::Volume;

/// Brings a volume that is being recovered to the state that `commits` establish.
pub(crate) fn replay(volume: &Arc<Volume>, commits: &[Vec<Change>]) -> Result<()> {
    reseal::reseal(volume, commits)?;
    Outcome::collect(Arc::clone(volume), commits)?.apply()
}

/// Returns whether the inode's block area contains a block map or an extent tree.
fn has_map(volume: &Arc<Volume>, record: &InodeRecord) -> bool {
    !record.flags.contains(InodeFlags::INLINE_DATA)
        && Inode::new(Arc::clone(volume), record.clone()).has_map()
}

/// Reads an inode that fast commits name. Returns `None` if it is not in use on the volume.
fn existing_record(volume: &Volume, number: InodeNumber) -> Result<Option<InodeRecord>> {
    if volume.is_inode_unwritten(number)? {
        return Ok(None);
    }
    match volume.inode_record(number) {
        Err(Error::NotFound) => Ok(None),
        record => record.map(Some),
    }
}
