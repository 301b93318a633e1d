//! Recovery of names: a replayed new inode has its name and its directory, and the directory gets
//! the name. Another inode with this name loses it. Not here: deleting an inode that has no name
//! left (`replay`).

use base::{Error, InodeNumber, Location, Problem, Result};

use super::STRUCTURE;
use super::chain::ChainNode;
use crate::dir::edit::NewEntry;
use crate::dir::entries::code_of_file_type;
use crate::dir::{DirectoryShape, stored_hash};
use crate::edit::{Editor, EntryEditor};
use crate::ondisk::node::{NAME_BYTES_MAX, RawInode};

/// The outcome of the recovery of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RecoveredName {
    /// Whether the name was added. Otherwise the directory had it already.
    pub(super) is_new: bool,
    /// The inode that had this name, with one link less.
    pub(super) replaced: Option<InodeNumber>,
}

/// Gives the inode of `node`, whose fields are `raw`, its name.
pub(super) fn recover_name(
    editor: &mut Editor<'_>,
    node: &ChainNode,
    raw: &RawInode,
) -> Result<RecoveredName> {
    let location = node.location();
    let number = InodeNumber(raw.parent.get().into());
    let directory = match editor.inode(number) {
        Err(Error::NotFound) => {
            let problem = Problem::Missing("the directory of its name");
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        directory => directory?,
    };
    let shape = directory.directory_shape().map_err(|error| match error {
        Error::NotDirectory => {
            let problem = Problem::Invalid { field: "parent", found: number.0 };
            Error::corrupt(STRUCTURE, location, problem)
        }
        error => error,
    })?;
    let (name, hash) = stored_name(raw, &shape, location)?;
    let mut parent = EntryEditor { editor, number };
    let mut recovered = RecoveredName::default();
    if let Some(found) = parent.find(name, hash)? {
        if found.inode == node.inode {
            return Ok(recovered);
        }
        parent.remove(&found)?;
        unlink(&mut parent, found.inode, raw)?;
        recovered.replaced = Some(found.inode);
        if parent.find(name, hash)?.is_some() {
            let problem = Problem::Repeated("its name");
            return Err(Error::corrupt("directory", Location::inode(number), problem));
        }
    }
    let kind = code_of_file_type(parent.editor.inode(node.inode)?.attributes().kind);
    parent.add(&NewEntry { name, hash, inode: node.inode, kind })?;
    // The true time of the change is lost. It was not later than that of the inode.
    parent.editor.edit_inode(number, |directory| {
        (directory.ctime, directory.ctime_nsec) = (raw.ctime, raw.ctime_nsec);
        (directory.mtime, directory.mtime_nsec) = (raw.ctime, raw.ctime_nsec);
    })?;
    recovered.is_new = true;
    Ok(recovered)
}

/// Returns the name that an inode stores, as the directory `shape` has it, and its hash. Errors:
/// `Corrupt`.
pub(crate) fn stored_name<'r>(
    raw: &'r RawInode,
    shape: &DirectoryShape,
    location: Location,
) -> Result<(&'r [u8], u32)> {
    let length = raw.name_length.get() as usize;
    let name = raw.name.get(..length).filter(|name| !name.is_empty()).ok_or_else(|| {
        let (found, max) = (raw.name_length.get().into(), NAME_BYTES_MAX as u64);
        let problem = Problem::Range { field: "name length", found, min: 1, max };
        Error::corrupt(STRUCTURE, location, problem)
    })?;
    let forbidden = name.iter().find(|byte| [0, b'/'].contains(byte)).filter(|_| !shape.encrypted);
    if let Some(byte) = forbidden {
        let problem = Problem::Invalid { field: "name byte", found: (*byte).into() };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    if matches!(name, b"." | b"..") {
        let problem = Problem::Invalid { field: "name length", found: length as u64 };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    if let Some(hash) = stored_hash(name, shape.casefold, shape.encrypted) {
        return Ok((name, hash));
    }
    // The hash needs the key, so it is stored behind the name.
    let hash = raw.name.get(length..).and_then(|rest| rest.first_chunk());
    let missing = || Error::corrupt(STRUCTURE, location, Problem::Missing("the hash of its name"));
    Ok((name, u32::from_le_bytes(*hash.ok_or_else(missing)?)))
}

/// Takes a link from the inode that had the name. A directory loses that of "." as well, and the
/// parent that of "..". The inode changes with `by`, which has the name now.
fn unlink(parent: &mut EntryEditor<'_, '_>, number: InodeNumber, by: &RawInode) -> Result<()> {
    let inode = match parent.editor.inode(number) {
        Err(Error::NotFound) => {
            let problem = Problem::Invalid { field: "inode", found: number.0 };
            return Err(Error::corrupt("directory entry", Location::inode(parent.number), problem));
        }
        inode => inode?,
    };
    let is_dir = inode.attributes().is_dir();
    parent.editor.edit_inode(number, |raw| {
        let lost = if is_dir { 2 } else { 1 };
        raw.links.set(raw.links.get().saturating_sub(lost));
        (raw.ctime, raw.ctime_nsec) = (by.ctime, by.ctime_nsec);
        if is_dir {
            raw.size.set(0);
        }
    })?;
    if is_dir {
        parent.editor.edit_inode(parent.number, |raw| {
            raw.links.set(raw.links.get().saturating_sub(1));
        })?;
    }
    Ok(())
}
