//! The orphans of a volume that is being opened: their search, and the same validation as in Linux.
//! Not here: deleting and truncating them (`namespace/release.rs`).
//!
//! A corrupt orphan ends the list. The orphans after it cannot be found any more, and the list is
//! emptied. e2fsck finds them.

use std::collections::HashSet;
use std::sync::Arc;

use base::{Error, InodeNumber, Location, Problem, Result};

use crate::core::Core;
use crate::inode::Inode;
use crate::ondisk::superblock::STATE_ERRORS;
use crate::volume::Volume;

pub(crate) const ORPHAN_LIST: &str = "orphan list";
/// The maximum number of errors that are kept. A hostile orphan file may have millions.
const ERRORS_MAX: usize = 16;

/// Errors of entries that cannot be orphans, and of orphans whose deletion or truncation cannot be
/// completed.
#[derive(Default)]
pub(crate) struct OrphanErrors {
    /// The first errors.
    pub first: Vec<Error>,
    /// The number of errors that are not kept.
    pub others: u64,
}

impl OrphanErrors {
    /// Adds an error.
    pub(crate) fn add(&mut self, error: Error) {
        if self.first.len() < ERRORS_MAX {
            self.first.push(error);
        } else {
            self.others += 1;
        }
    }
}

/// The orphan list of a volume.
#[derive(Debug, Default)]
pub(crate) struct FoundList {
    /// The numbers of the orphans, in the order of the list. Inodes would take far more memory, and
    /// a hostile volume can have millions of orphans.
    pub orphans: Vec<InodeNumber>,
    /// The corruption that ends the list, if any.
    pub corruption: Option<Error>,
}

impl FoundList {
    /// Reads the list that begins in the superblock. Errors: only those of the device.
    pub(crate) fn read(volume: &Arc<Volume>) -> Result<Self> {
        let (mut list, mut known) = (Self::default(), HashSet::new());
        let mut next = volume.superblock().inodes.last_orphan;
        while let Some(number) = next {
            let inode = match validate(volume, number, ORPHAN_LIST) {
                Ok(inode) => inode,
                Err(error @ Error::Io(_)) => return Err(error),
                Err(error) => {
                    list.corruption = Some(error);
                    break;
                }
            };
            let record = inode.record();
            if !known.insert(number) {
                // As in Linux, an inode to truncate ends the list if it occurs again. An inode to
                // delete would not be in use any more, so its second occurrence is corruption.
                if record.links == 0 {
                    list.corruption = Some(fault(ORPHAN_LIST, number, Problem::Cycle));
                }
                break;
            }
            // The list is linked through the time of deletion.
            next = (record.deleted != 0).then_some(InodeNumber(record.deleted.into()));
            list.orphans.push(number);
        }
        Ok(list)
    }
}

/// Returns the inode that `structure` lists as an orphan. Errors: `Corrupt` if it cannot be an
/// orphan. An orphan is in use, neither reserved nor special, and has a valid map root. If it has
/// names, its type can be truncated.
pub(crate) fn validate(
    volume: &Arc<Volume>,
    number: InodeNumber,
    structure: &'static str,
) -> Result<Inode> {
    let geometry = volume.geometry();
    let (min, max) = (u64::from(geometry.first_inode), u64::from(geometry.inode_count));
    let in_range = |field, found, min| {
        if (min..=max).contains(&found) {
            return Ok(());
        }
        Err(fault(structure, number, Problem::Range { field, found, min, max }))
    };
    in_range("inode", number.0, min)?;
    volume.check_not_special(structure, number)?;
    let (group, index) = geometry.inode_position(number)?;
    if !volume.inode_bitmap(&volume.group(group)?)?.is_set(index) {
        return Err(fault(structure, number, Problem::Missing("mark in the inode bitmap")));
    }
    let inode = match volume.special_inode(number) {
        Err(Error::NotFound) => return Err(fault(structure, number, Problem::Missing("inode"))),
        inode => inode?,
    };
    inode.check_block_references()?;
    let record = inode.record();
    in_range("next orphan", record.deleted.into(), 0)?;
    if record.links > 0 && !inode.has_map() {
        return Err(fault(structure, number, Problem::Missing("data to be truncated")));
    }
    Ok(inode)
}

fn fault(structure: &'static str, number: InodeNumber, problem: Problem) -> Error {
    Error::corrupt(structure, Location::inode(number), problem)
}

/// Returns whether the volume's superblock records errors. Linux does not trust the orphans of such
/// a volume.
pub(crate) fn has_errors(core: &Core) -> bool {
    core.superblock().raw().state.get() & STATE_ERRORS != 0
}
