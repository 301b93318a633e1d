//! Making, linking and removing names. Not here: renames, paths, whether the caller may write to
//! the directory at all.

use std::sync::Arc;

use base::attributes::{DeviceNumber, FileType, Timestamp};
use base::{Error, Place, Problem, Result};

use crate::acl::{self, Acl};
use crate::clock::now;
use crate::file_system::NewInode;
use crate::locked::Locked;
use crate::node::{Life, Node};
use crate::rights::{self, Credentials, SETGID};
use crate::volume::Volume;

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The longest target of a symbolic link, in bytes: PATH_MAX without the NUL.
const TARGET_BYTES_MAX: usize = 4095;

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Creation<'a> {
    /// The type.
    pub kind: FileType,
    /// The low 12 bits of `st_mode`, as the caller asks for them.
    pub permissions: u16,
    /// Permissions that are taken from those, except where a default ACL says what is granted.
    pub umask: u16,
    /// For character and block devices.
    pub device: DeviceNumber,
    /// For symbolic links: what they lead to.
    pub target: &'a [u8],
    /// The time of creation; now, unless it is given.
    pub created: Option<Timestamp>,
}

impl<'a> Creation<'a> {
    /// Anything that needs no more than a type and permissions.
    pub fn of(kind: FileType, permissions: u16) -> Self {
        let device = DeviceNumber::default();
        Self { kind, permissions, umask: 0, device, target: b"", created: None }
    }

    /// A symbolic link.
    pub fn symlink(target: &'a [u8]) -> Self {
        Self { target, ..Self::of(FileType::Symlink, 0o777) }
    }

    fn check(&self) -> Result<()> {
        if self.kind != FileType::Symlink {
            return Ok(());
        }
        match self.target {
            [] => Err(Error::NotFound),
            target if target.contains(&0) => Err(Error::InvalidArgument("a link target with NUL")),
            target if target.len() > TARGET_BYTES_MAX => Err(Error::NameTooLong),
            _ => Ok(()),
        }
    }
}

impl Volume {
    /// Makes an inode with a name.
    pub fn create(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
        what: &Creation<'_>,
        by: &Credentials,
    ) -> Result<Arc<Node>> {
        self.check_writable()?;
        directory.require_directory()?;
        check_new_name(name)?;
        what.check()?;
        let mut locked = Locked::new([Some(directory)]);
        locked.begin_change(directory)?;
        rights::may_change(&directory.attributes())?;
        let making = self.shared.making.read();
        let inode =
            with_inheritance(directory, what, by, |new| directory.inode().create(name, new))?;
        let node = self.new_node(inode, Life::Named);
        drop(making);
        drop(locked);
        directory.sync_names()?;
        Ok(node)
    }

    /// Makes a file without a name, which goes when its last user does, unless it was linked.
    pub fn create_unnamed(
        &self,
        directory: &Arc<Node>,
        what: &Creation<'_>,
        by: &Credentials,
    ) -> Result<Arc<Node>> {
        self.check_writable()?;
        directory.require_directory()?;
        if what.kind == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        what.check()?;
        let mut locked = Locked::new([Some(directory)]);
        locked.begin_change(directory)?;
        rights::may_change(&directory.attributes())?;
        let _making = self.shared.making.read();
        let inode =
            with_inheritance(directory, what, by, |new| directory.inode().create_unnamed(new))?;
        Ok(self.new_node(inode, Life::Nameless))
    }

    /// Gives a file one more name.
    pub fn link(&self, directory: &Arc<Node>, name: &[u8], node: &Arc<Node>) -> Result<()> {
        self.check_writable()?;
        directory.require_directory()?;
        check_new_name(name)?;
        if node.kind() == FileType::Directory {
            return match directory.lookup(name) {
                Ok(_) => Err(Error::Exists),
                Err(Error::NotFound) => Err(Error::NotPermitted("directories have one name")),
                Err(error) => Err(error),
            };
        }
        let mut locked = Locked::new([Some(directory), Some(node)]);
        locked.begin_change(directory)?;
        rights::may_change(&directory.attributes())?;
        rights::may_overwrite(&node.attributes())?;
        let life = locked.state(node).life;
        if life == Life::Removed {
            return Err(Error::NotFound);
        }
        directory.inode().link(name, &**node.inode(), now())?;
        if life == Life::Nameless {
            locked.state(node).life = Life::Named;
            // What was written while it had no name was nobody's to write back.
            if let (Some(writeback), false) = (&self.shared.writeback, node.is_written_back()) {
                writeback.note(node);
            }
            self.shared.nodes.get_name(node);
        }
        drop(locked);
        directory.sync_names()
    }

    /// Removes the name of anything but a directory.
    pub fn unlink(&self, directory: &Arc<Node>, name: &[u8], by: &Credentials) -> Result<()> {
        check_name(name)?;
        self.with_entry(directory, name, |node, locked| {
            if node.kind() == FileType::Directory {
                return Err(Error::IsDirectory);
            }
            rights::may_remove(&directory.attributes(), &node.attributes(), by)?;
            directory.inode().unlink(name, &**node.inode(), now())?;
            self.note_lost_name(node, locked);
            Ok(())
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, directory: &Arc<Node>, name: &[u8], by: &Credentials) -> Result<()> {
        check_name(name)?;
        self.with_entry(directory, name, |node, locked| {
            node.require_directory()?;
            rights::may_remove(&directory.attributes(), &node.attributes(), by)?;
            directory.inode().rmdir(name, &**node.inode(), now())?;
            self.note_lost_name(node, locked);
            Ok(())
        })
    }

    /// Calls `change` with what `name` stands for, and with that and the directory locked.
    fn with_entry<R>(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
        change: impl FnOnce(&Arc<Node>, &mut Locked<'_>) -> Result<R>,
    ) -> Result<R> {
        self.check_writable()?;
        loop {
            let (node, changes) = self.lookup_to_change(directory, name)?;
            let mut locked = Locked::new([Some(directory), Some(&node)]);
            if locked.state(directory).changes != changes {
                continue;
            }
            locked.begin_change(directory)?;
            let changed = change(&node, &mut locked)?;
            drop(locked);
            directory.sync_names()?;
            return Ok(changed);
        }
    }

    /// The node that `name` stands for, and the number of changes of the directory up to which it
    /// does.
    pub(crate) fn lookup_to_change(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(Arc<Node>, u64)> {
        let lock = directory.lock_shared();
        let number = directory.lookup_locked(name)?;
        if number == directory.number() {
            let place = Place::inode(number);
            return Err(Error::corrupt("directory entry", place, Problem::Cycle));
        }
        let node = self.entry_node(directory.number(), number)?;
        Ok((node, lock.map_or(0, |state| state.changes)))
    }

    /// Sees whether an inode that lost a name has any left. Without one its last user deletes it.
    pub(crate) fn note_lost_name(&self, node: &Arc<Node>, locked: &mut Locked<'_>) {
        if node.attributes().links == 0 {
            locked.state(node).life = Life::Removed;
            self.shared.nodes.lose_name(node);
            if let Some(writeback) = &self.shared.writeback {
                writeback.forget(node.number());
            }
        }
    }

    /// The node of an inode that was just made.
    pub(crate) fn new_node(
        &self,
        inode: Arc<dyn crate::file_system::Inode>,
        life: Life,
    ) -> Arc<Node> {
        let number = inode.attributes().inode;
        let node = Arc::new(Node::new(number, inode, Arc::clone(&self.shared), life));
        self.shared.nodes.insert_new(&node, life == Life::Named);
        node
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.shared.is_writable { Ok(()) } else { Err(Error::ReadOnly) }
    }
}

/// Calls `make` with what `what` becomes in `directory`, whose lock is held.
pub(crate) fn with_inheritance<R>(
    directory: &Node,
    what: &Creation<'_>,
    by: &Credentials,
    make: impl FnOnce(&NewInode<'_>) -> Result<R>,
) -> Result<R> {
    let parent = directory.attributes();
    let mut permissions = what.permissions & 0o7777;
    let mut gid = by.gid;
    if parent.permissions & SETGID != 0 {
        gid = parent.gid;
        let runs_as_group = permissions & (SETGID | 0o010) == SETGID | 0o010;
        if what.kind == FileType::Directory {
            permissions |= SETGID;
        } else if runs_as_group && !by.may_set_gid_bit(gid) {
            permissions &= !SETGID;
        }
    }
    let default = match (what.kind, directory.inode().get_xattr(acl::DEFAULT)) {
        (FileType::Symlink, _) | (_, Err(Error::NoAttribute)) => None,
        (_, value) => Acl::parse(&value?)?,
    };
    let mut xattrs: Vec<(&[u8], &[u8])> = Vec::new();
    let (access_value, default_value);
    match &default {
        Some(default) => {
            let (granted, access) = acl::inherit(default, permissions);
            permissions = granted;
            if let Some(access) = access {
                access_value = access.to_value();
                xattrs.push((acl::ACCESS, &access_value));
            }
            if what.kind == FileType::Directory {
                default_value = default.to_value();
                xattrs.push((acl::DEFAULT, &default_value));
            }
        }
        None if what.kind != FileType::Symlink => permissions &= !(what.umask & 0o777),
        None => {}
    }
    let time = now();
    make(&NewInode {
        kind: what.kind,
        permissions,
        uid: by.uid,
        gid,
        device: what.device,
        target: what.target,
        xattrs: &xattrs,
        time,
        created: what.created.unwrap_or(time),
    })
}

/// Refuses what is no name of an entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(Error::InvalidArgument("an empty name")),
        b"." | b".." => Err(Error::InvalidArgument("\".\" and \"..\" stay")),
        name if name.contains(&b'/') || name.contains(&0) => {
            Err(Error::InvalidArgument("a name with '/' or NUL"))
        }
        name if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}

/// Refuses what cannot become the name of an entry.
fn check_new_name(name: &[u8]) -> Result<()> {
    match name {
        b"." | b".." => Err(Error::Exists),
        name => check_name(name),
    }
}
