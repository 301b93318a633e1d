//! Renames: to a new name, over an existing name, and exchanges of two names.

use std::collections::HashSet;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, InodeNumber, Location, Problem, Result};
use fs::{Credentials, NewInode, RenameMode, RenameTarget};

use crate::names::namespace::{Creation, check_name, with_inheritance};
use crate::node::locked::Locked;
use crate::node::rights;
use crate::node::{Life, Node};
use crate::volume::Volume;
use crate::volume::clock::now;

/// The flags of a rename, as for renameat2(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameFlags {
    /// Fail if the new name exists.
    pub no_replace: bool,
    /// Exchange the two names.
    pub exchange: bool,
    /// Leave a whiteout at the old name, for overlay file systems.
    pub whiteout: bool,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
struct Named<'a> {
    directory: &'a Arc<Node>,
    name: &'a [u8],
}

/// The inodes that the names had before they were locked.
struct Found {
    moved: Arc<Node>,
    replaced: Option<Arc<Node>>,
    /// The directories' counts of changes at that time.
    changes: (u64, u64),
}

impl Volume {
    /// Renames `name` in `directory` to `to_name` in `to_directory`. Does nothing if both are names
    /// of one inode.
    pub fn rename_in(
        &self,
        (directory, name): (&Arc<Node>, &[u8]),
        (to_directory, to_name): (&Arc<Node>, &[u8]),
        flags: RenameFlags,
        by: &Credentials,
    ) -> Result<()> {
        self.check_writable()?;
        self.require_own(directory)?;
        self.require_own(to_directory)?;
        check_name(name)?;
        check_name(to_name)?;
        to_directory.require_directory()?;
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Error::InvalidArgument("an exchange cannot be combined with other flags"));
        }
        let from = Named { directory, name };
        let to = Named { directory: to_directory, name: to_name };
        loop {
            let found = self.find(from, to)?;
            match &found.replaced {
                None if flags.exchange => return Err(Error::NotFound),
                Some(_) if flags.no_replace => return Err(Error::Exists),
                _ => {}
            }
            found.write_back(flags);
            // No other thread moves directories until the rename is done, so that the check for
            // loops stays valid.
            let moves = found.moves_directory(from, to).then(|| self.shared.moves.lock());
            if moves.is_some() {
                self.check_no_loop(&found, from, to, flags)?;
            }
            let replaced = found.replaced.as_ref();
            let nodes = [Some(from.directory), Some(to.directory), Some(&found.moved), replaced];
            let mut locked = Locked::new(nodes);
            let changes =
                (locked.state(from.directory).changes, locked.state(to.directory).changes);
            if changes == found.changes {
                self.rename_found(&found, from, to, flags, by, &mut locked)?;
                drop((locked, moves));
                to.directory.sync_names()?;
                return from.directory.sync_names();
            }
        }
    }

    fn find(&self, from: Named<'_>, to: Named<'_>) -> Result<Found> {
        let (moved, from_changes) = self.lookup_to_change(from.directory, from.name)?;
        let (replaced, to_changes) = self.lookup_or_absent(to)?;
        Ok(Found { moved, replaced, changes: (from_changes, to_changes) })
    }

    /// Returns the node of a name, if there is one, and the directory's count of changes at that
    /// time.
    fn lookup_or_absent(&self, named: Named<'_>) -> Result<(Option<Arc<Node>>, u64)> {
        let changes = named.directory.lock_shared().map_or(0, |state| state.changes);
        match self.lookup_to_change(named.directory, named.name) {
            Ok((node, changes)) => Ok((Some(node), changes)),
            // If the name was added and removed in between, the count has grown since.
            Err(Error::NotFound) => Ok((None, changes)),
            Err(error) => Err(error),
        }
    }

    /// Fails if a directory would be moved into itself. The caller holds the lock against moves of
    /// directories.
    fn check_no_loop(
        &self,
        found: &Found,
        from: Named<'_>,
        to: Named<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let loops = Error::InvalidArgument("a directory cannot be moved into itself");
        if self.ancestors(to.directory)?.contains(&found.moved.number()) {
            return Err(loops);
        }
        let Some(replaced) = &found.replaced else { return Ok(()) };
        if self.ancestors(from.directory)?.contains(&replaced.number()) {
            return Err(if flags.exchange { loops } else { Error::NotEmpty });
        }
        Ok(())
    }

    /// Returns the inode numbers of a directory and of all directories above it.
    fn ancestors(&self, directory: &Arc<Node>) -> Result<HashSet<InodeNumber>> {
        let root = self.shared.file_system.root();
        let mut ancestors = HashSet::new();
        let mut here = Arc::clone(directory);
        while ancestors.insert(here.number()) {
            if here.number() == root {
                return Ok(ancestors);
            }
            here = self.lookup(&here, b"..")?;
        }
        let location = Location::inode(here.number());
        Err(Error::corrupt("directory", location, Problem::Cycle))
    }

    fn rename_found(
        &self,
        found: &Found,
        from: Named<'_>,
        to: Named<'_>,
        flags: RenameFlags,
        by: &Credentials,
        locked: &mut Locked<'_>,
    ) -> Result<()> {
        let moved = &found.moved;
        let replaced = found.replaced.as_ref();
        locked.begin_change(from.directory)?;
        locked.begin_change(to.directory)?;
        if replaced.is_some_and(|replaced| replaced.number() == moved.number()) {
            return Ok(());
        }
        check_allowed(found, from, to, flags, by)?;
        // The entry ".." of a moved directory changes, too.
        for node in [Some(moved), replaced].into_iter().flatten() {
            locked.state(node).changes += 1;
        }
        let whiteout =
            if flags.whiteout { Some(self.make_whiteout(from.directory, by)?) } else { None };
        let mode = match &whiteout {
            Some(whiteout) => RenameMode::Whiteout(&**whiteout.inode()),
            None if flags.exchange => RenameMode::Exchange,
            None => RenameMode::Move,
        };
        let target = RenameTarget {
            directory: &**to.directory.inode(),
            name: to.name,
            replaced: replaced.map(|node| &**node.inode()),
        };
        from.directory.inode().rename(from.name, &**moved.inode(), target, mode, now())?;
        if let Some(whiteout) = whiteout {
            // No other thread has the node yet.
            whiteout.lock_nested().life = Life::Named;
            self.shared.nodes.set_named(&whiteout);
            self.shared.removals.cancel();
        }
        if let (Some(replaced), false) = (replaced, flags.exchange) {
            self.note_lost_name(replaced, locked);
        }
        Ok(())
    }

    /// Creates a whiteout, a character device 0:0, without a name. It inherits from the directory
    /// like other inodes. The caller holds the directory's lock.
    fn make_whiteout(&self, directory: &Arc<Node>, by: &Credentials) -> Result<Arc<Node>> {
        let what = Creation::of(FileType::CharacterDevice, 0);
        let make = |new: &NewInode<'_>| directory.inode().create_unnamed(new);
        let _making = self.shared.making.read();
        let inode = with_inheritance(directory, &what, by, make)?;
        Ok(self.new_node(inode, Life::Nameless))
    }
}

impl Found {
    /// Writes back files that are about to replace other files.
    fn write_back(&self, flags: RenameFlags) {
        let Some(replaced) = &self.replaced else { return };
        if replaced.number() == self.moved.number() {
            return;
        }
        self.moved.write_back_before_rename();
        if flags.exchange {
            replaced.write_back_before_rename();
        }
    }

    /// Returns whether a directory gets another parent.
    fn moves_directory(&self, from: Named<'_>, to: Named<'_>) -> bool {
        let is_directory = |node: &Arc<Node>| node.kind() == FileType::Directory;
        from.directory.number() != to.directory.number()
            && (is_directory(&self.moved) || self.replaced.as_ref().is_some_and(is_directory))
    }
}

/// Fails if the types do not fit, or the caller has no permission.
fn check_allowed(
    found: &Found,
    from: Named<'_>,
    to: Named<'_>,
    flags: RenameFlags,
    by: &Credentials,
) -> Result<()> {
    let (from, to) = (from.directory.attributes(), to.directory.attributes());
    rights::may_remove(&from, &found.moved.attributes(), by)?;
    rights::may_enter(&to, &found.moved.attributes())?;
    let Some(replaced) = &found.replaced else { return rights::may_change(&to) };
    rights::may_remove(&to, &replaced.attributes(), by)?;
    if flags.exchange {
        rights::may_enter(&from, &replaced.attributes())?;
    }
    let is_directory = |node: &Arc<Node>| node.kind() == FileType::Directory;
    match (is_directory(&found.moved), is_directory(replaced)) {
        (true, false) if !flags.exchange => Err(Error::NotDirectory),
        (false, true) if !flags.exchange => Err(Error::IsDirectory),
        _ => Ok(()),
    }
}
