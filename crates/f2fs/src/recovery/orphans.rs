//! Deletion of the inodes that had no name at the time of the checkpoint.

use base::{Error, InodeNumber, Location, Problem, Result};

use crate::edit::{Editor, delete_inode, nid_of};

/// Deletes an orphan of the checkpoint. No reader can see it afterwards, even after an error.
///
/// # Errors
///
/// `Corrupt` if the number is that of the root directory, of an inode of the format, or of one that
/// has names, which stay. Those of reading the orphan's nodes: nodes that were not read are still
/// counted.
pub(super) fn delete_orphan(editor: &Editor<'_>, number: InodeNumber) -> Result<()> {
    if number <= editor.volume.geometry().root {
        let problem = Problem::Invalid { field: "inode number", found: number.0 };
        return Err(Error::corrupt("orphan block", Location::inode(number), problem));
    }
    let inode = match editor.inode(number) {
        // Linux lists an inode once. A number that is listed again, or is free, has nothing to
        // delete.
        Err(Error::NotFound) => return Ok(()),
        inode => inode,
    };
    match inode {
        Ok(inode) if inode.attributes().links > 0 => {
            let (found, expected) = (inode.attributes().links.into(), 0);
            let problem = Problem::Mismatch { field: "link count", found, expected };
            Err(Error::corrupt("orphan", Location::inode(number), problem))
        }
        Ok(inode) => delete_inode(editor, &inode),
        Err(error) => {
            if u64::from(nid_of(number).0) == number.0 {
                editor.overlay.write().free_node(nid_of(number))?;
            }
            Err(error)
        }
    }
}
