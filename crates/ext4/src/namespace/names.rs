//! Adding and removing names of existing inodes.
//! Not here: new inodes, and renames.

use std::sync::Arc;

use base::attributes::Timestamp;
use base::{Error, InodeNumber, Location, Problem, Result};

use super::{INODE_CREDITS, LINKS_MAX, is_directory, touch, uncount_subdirectory};
use crate::inode::Inode;
use crate::journal::Handle;
use crate::orphans::write::ORPHAN_CREDITS;

impl Inode {
    /// Adds a name in this directory to `inode`, which is not a directory.
    pub fn link(&self, name: &[u8], inode: &Arc<Inode>, time: Timestamp) -> Result<()> {
        self.check_holds_names()?;
        if is_directory(inode) {
            return Err(Error::NotPermitted("a directory cannot have hard links"));
        }
        if inode.record().links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        self.check_absent(name)?;
        let credits = self.credits_for_insert() + 2 * INODE_CREDITS + ORPHAN_CREDITS;
        self.volume().change_with_space(credits, |handle| {
            self.dir_insert(handle, name, inode.number(), inode.kind())?;
            inode.update(handle, |record| {
                record.links += 1;
                record.changed = time;
            })?;
            if inode.record().links == 1 {
                self.volume().update_orphan(handle, inode)?;
            }
            touch(handle, self, time)
        })
    }

    /// Removes the name of `inode`, which is not a directory, from this directory. Without a name,
    /// the inode exists until it is released.
    pub fn unlink(&self, name: &[u8], inode: &Arc<Inode>, time: Timestamp) -> Result<()> {
        self.check_holds_names()?;
        if is_directory(inode) {
            return Err(Error::IsDirectory);
        }
        self.volume().change(self.credits_for_removal(), |handle| {
            self.remove_name(handle, name, inode.number())?;
            drop_link(handle, inode, time)?;
            touch(handle, self, time)
        })
    }

    /// Removes the empty directory `inode` from this directory.
    pub fn rmdir(&self, name: &[u8], inode: &Arc<Inode>, time: Timestamp) -> Result<()> {
        self.check_holds_names()?;
        if !is_directory(inode) {
            return Err(Error::NotDirectory);
        }
        if !inode.dir_is_empty()? {
            return Err(Error::NotEmpty);
        }
        self.volume().change(self.credits_for_removal(), |handle| {
            self.remove_name(handle, name, inode.number())?;
            drop_directory(handle, inode, time)?;
            uncount_subdirectory(handle, self)?;
            touch(handle, self, time)
        })
    }

    fn credits_for_removal(&self) -> u32 {
        // A leaf and both inodes.
        1 + 2 * INODE_CREDITS + ORPHAN_CREDITS
    }

    /// Removes a name. Errors: `Corrupt` if it does not refer to this inode.
    fn remove_name(&self, handle: &mut Handle<'_>, name: &[u8], inode: InodeNumber) -> Result<()> {
        let found = self.lookup(name)?;
        if found != inode {
            let problem = Problem::Mismatch { field: "inode", found: found.0, expected: inode.0 };
            return Err(Error::corrupt("directory entry", Location::inode(self.number()), problem));
        }
        self.dir_remove(handle, name).map(drop)
    }
}

/// Decrements the link count. Without links, the inode becomes an orphan.
pub(super) fn drop_link(
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    time: Timestamp,
) -> Result<()> {
    let links = inode.record().links;
    if links == 0 {
        let problem = Problem::Invalid { field: "link count", found: 0 };
        return Err(Error::corrupt("inode", Location::inode(inode.number()), problem));
    }
    inode.update(handle, |record| {
        record.links -= 1;
        record.changed = time;
    })?;
    // In this order: an end of I/O that finds an inode with links removes it from the orphans.
    if links == 1 { inode.volume().add_orphan(handle, inode) } else { Ok(()) }
}

/// Makes a removed directory, which is empty, an orphan.
pub(super) fn drop_directory(
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    time: Timestamp,
) -> Result<()> {
    inode.volume().add_orphan(handle, inode)?;
    inode.update(handle, |record| {
        record.links = 0;
        record.changed = time;
    })
}
