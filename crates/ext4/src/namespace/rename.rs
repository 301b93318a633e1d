//! Renames, with replacement or exchange.
//! Not here: permissions, and whether a directory would be moved into itself.

use std::sync::Arc;

use base::attributes::{FileType, Timestamp};
use base::{Error, Location, Problem, Result};

use super::names::{drop_directory, drop_link};
use super::{
    INODE_CREDITS, can_have_more, count_subdirectory, is_directory, touch, uncount_subdirectory,
};
use crate::inode::Inode;
use crate::journal::Handle;
use crate::orphans::write::ORPHAN_CREDITS;

/// The effect of a rename on the names.
#[derive(Clone, Debug)]
pub enum RenameMode {
    /// Removes the old name. The inode that had the new name loses it.
    Move,
    /// Exchanges the inodes of both names.
    Exchange,
    /// Like a move, but the old name refers to this inode afterwards.
    Whiteout(Arc<Inode>),
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// The directory.
    pub directory: &'a Arc<Inode>,
    /// The name.
    pub name: &'a [u8],
}

impl Inode {
    /// Renames this inode, which has the name `from`, to `to`. `replaced` is the inode that has the
    /// name `to`, if there is one.
    pub fn rename(
        self: &Arc<Self>,
        from: Named<'_>,
        to: Named<'_>,
        replaced: Option<&Arc<Inode>>,
        mode: &RenameMode,
        time: Timestamp,
    ) -> Result<()> {
        from.directory.check_holds_names()?;
        to.directory.check_holds_names()?;
        self.check_name(from)?;
        match (replaced, mode) {
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            (None, _) => to.directory.check_absent(to.name)?,
            (Some(replaced), RenameMode::Exchange) => replaced.check_name(to)?,
            (Some(replaced), _) => {
                replaced.check_name(to)?;
                if replaced.number() == self.number() {
                    // Two names of one inode: both stay.
                    return Ok(());
                }
                self.check_replaces(replaced)?;
            }
        }
        let moves = from.directory.number() != to.directory.number();
        let replaces_directory = replaced.is_some_and(|one| is_directory(one));
        let comes = moves && is_directory(self) && !replaces_directory;
        let is_exchange = matches!(mode, RenameMode::Exchange);
        let comes_back = moves && is_exchange && !is_directory(self) && replaces_directory;
        if comes && !can_have_more(to.directory) || comes_back && !can_have_more(from.directory) {
            return Err(Error::TooManyLinks);
        }
        let credits = to.directory.credits_for_insert()
            + 4 * INODE_CREDITS
            + 2 * ORPHAN_CREDITS
            // The leaf of the old name, and the blocks with the parents of both directories.
            + 3;
        self.volume().change_with_space(credits, |handle| {
            let rename = Rename { moved: self, from, to, replaced, time };
            match mode {
                RenameMode::Exchange => rename.exchange(handle)?,
                RenameMode::Move => rename.replace(handle, None)?,
                RenameMode::Whiteout(whiteout) => rename.replace(handle, Some(whiteout))?,
            }
            touch(handle, from.directory, time)?;
            if moves { touch(handle, to.directory, time) } else { Ok(()) }
        })
    }

    /// Returns `Corrupt` if a name does not refer to this inode.
    fn check_name(&self, named: Named<'_>) -> Result<()> {
        let found = named.directory.lookup(named.name)?;
        if found == self.number() {
            return Ok(());
        }
        let problem =
            Problem::Mismatch { field: "inode", found: found.0, expected: self.number().0 };
        let location = Location::inode(named.directory.number());
        Err(Error::corrupt("directory entry", location, problem))
    }

    /// Returns an error if this inode cannot replace another one.
    fn check_replaces(&self, replaced: &Inode) -> Result<()> {
        match (is_directory(self), is_directory(replaced)) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) if !replaced.dir_is_empty()? => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }
}

/// A rename whose conditions were checked.
struct Rename<'a> {
    moved: &'a Arc<Inode>,
    from: Named<'a>,
    to: Named<'a>,
    replaced: Option<&'a Arc<Inode>>,
    time: Timestamp,
}

impl Rename<'_> {
    fn replace(&self, handle: &mut Handle<'_>, whiteout: Option<&Arc<Inode>>) -> Result<()> {
        let Self { moved, from, to, replaced, time } = *self;
        match replaced {
            Some(replaced) => {
                to.directory.dir_set_entry(handle, to.name, moved.number(), moved.kind())?;
                if is_directory(replaced) {
                    drop_directory(handle, replaced, time)?;
                    uncount_subdirectory(handle, to.directory)?;
                } else {
                    drop_link(handle, replaced, time)?;
                }
            }
            // Only this part can run out of space, so it comes first.
            None => to.directory.dir_insert(handle, to.name, moved.number(), moved.kind())?,
        }
        match whiteout {
            Some(whiteout) => {
                let (number, kind) = (whiteout.number(), FileType::CharacterDevice);
                from.directory.dir_set_entry(handle, from.name, number, kind)?;
                whiteout.volume().remove_orphan(handle, whiteout)?;
                whiteout.update(handle, |record| record.links = 1)?;
            }
            None => from.directory.dir_remove(handle, from.name).map(drop)?,
        }
        moved.update(handle, |record| record.changed = time)?;
        self.update_parents(handle, moved, from.directory, to.directory)
    }

    fn exchange(&self, handle: &mut Handle<'_>) -> Result<()> {
        let Self { moved, from, to, replaced, time } = *self;
        let Some(other) = replaced else { return Err(Error::NotFound) };
        to.directory.dir_set_entry(handle, to.name, moved.number(), moved.kind())?;
        from.directory.dir_set_entry(handle, from.name, other.number(), other.kind())?;
        for inode in [moved, other] {
            inode.update(handle, |record| record.changed = time)?;
        }
        if is_directory(moved) != is_directory(other) {
            self.update_parents(handle, moved, from.directory, to.directory)?;
            return self.update_parents(handle, other, to.directory, from.directory);
        }
        if is_directory(moved) && from.directory.number() != to.directory.number() {
            // The counts stay, and one that is at its limit must not pass it in between.
            moved.dir_set_parent(handle, to.directory.number())?;
            other.dir_set_parent(handle, from.directory.number())?;
        }
        Ok(())
    }

    /// Updates the parent of a moved directory, and the link counts of the parents.
    fn update_parents(
        &self,
        handle: &mut Handle<'_>,
        moved: &Inode,
        from: &Inode,
        to: &Inode,
    ) -> Result<()> {
        if !is_directory(moved) || from.number() == to.number() {
            return Ok(());
        }
        moved.dir_set_parent(handle, to.number())?;
        count_subdirectory(handle, to)?;
        uncount_subdirectory(handle, from)
    }
}
