//! Creation, linking and removal of names. Not here: renames, paths, and the permission to write to
//! a directory.

use std::sync::Arc;

use base::attributes::{DeviceNumber, FileType, Timestamp};
use base::{Error, Location, Problem, Result};
use fs::acl::{self, Acl};
use fs::{Credentials, NewInode};

use crate::node::locked::Locked;
use crate::node::rights::{self, SETGID};
use crate::node::{Life, Node};
use crate::volume::Volume;
use crate::volume::clock::now;

/// The maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The maximum length of a symbolic link's target, in bytes: PATH_MAX without the NUL.
const TARGET_BYTES_MAX: usize = 4095;

/// The attributes of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct Creation<'a> {
    /// The type.
    pub kind: FileType,
    /// The requested low 12 bits of `st_mode`.
    pub permissions: u16,
    /// The permissions to remove from the requested ones. Ignored if the directory has a default
    /// ACL.
    pub umask: u16,
    /// The device number, for character and block devices.
    pub device: DeviceNumber,
    /// The target, for symbolic links.
    pub target: &'a [u8],
    /// The time of creation, or `None` for the current time.
    pub created: Option<Timestamp>,
}

impl<'a> Creation<'a> {
    /// Returns the attributes of an inode with this type and these permissions.
    pub fn of(kind: FileType, permissions: u16) -> Self {
        let device = DeviceNumber::default();
        Self { kind, permissions, umask: 0, device, target: b"", created: None }
    }

    /// Returns the attributes of a symbolic link.
    pub fn symlink(target: &'a [u8]) -> Self {
        Self { target, ..Self::of(FileType::Symlink, 0o777) }
    }

    fn check(&self) -> Result<()> {
        if self.kind != FileType::Symlink {
            return Ok(());
        }
        match self.target {
            [] => Err(Error::NotFound),
            target if target.contains(&0) => {
                Err(Error::InvalidArgument("the link's target contains NUL"))
            }
            target if target.len() > TARGET_BYTES_MAX => Err(Error::NameTooLong),
            _ => Ok(()),
        }
    }
}

impl Volume {
    /// Creates an inode with the name `name` in `directory`.
    pub fn create_in(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
        what: &Creation<'_>,
        by: &Credentials,
    ) -> Result<Arc<Node>> {
        self.check_writable()?;
        self.require_own(directory)?;
        directory.require_directory()?;
        check_new_name(name)?;
        what.check()?;
        let mut locked = Locked::new([Some(directory)]);
        locked.begin_change(directory)?;
        rights::may_change(&directory.attributes())?;
        let making = self.shared.making.read();
        let inode =
            with_inheritance(directory, what, by, |new| directory.inode().create(name, new))
                .map_err(|error| self.lack(error))?;
        let node = self.new_node(inode, Life::Named);
        drop(making);
        drop(locked);
        directory.sync_names()?;
        Ok(node)
    }

    /// Returns the error of a creation. A lack of space that is one of inodes becomes `NoInodes`.
    fn lack(&self, error: Error) -> Error {
        if error != Error::NoSpace {
            return error;
        }
        let free = self.statfs();
        if free.inodes_free == 0 && free.blocks_free > 0 { Error::NoInodes } else { error }
    }

    /// Creates a file without a name near `directory`. It is deleted after its last use, unless it
    /// was linked.
    pub fn create_unnamed(
        &self,
        directory: &Arc<Node>,
        what: &Creation<'_>,
        by: &Credentials,
    ) -> Result<Arc<Node>> {
        self.check_writable()?;
        self.require_own(directory)?;
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
            with_inheritance(directory, what, by, |new| directory.inode().create_unnamed(new))
                .map_err(|error| self.lack(error))?;
        Ok(self.new_node(inode, Life::Nameless))
    }

    /// Adds the name `name` in `directory` to a file.
    pub fn link(&self, directory: &Arc<Node>, name: &[u8], node: &Arc<Node>) -> Result<()> {
        self.check_writable()?;
        self.require_own(directory)?;
        self.require_own(node)?;
        directory.require_directory()?;
        check_new_name(name)?;
        if node.kind() == FileType::Directory {
            return match directory.lookup(name) {
                Ok(_) => Err(Error::Exists),
                Err(Error::NotFound) => {
                    Err(Error::NotPermitted("a directory cannot have hard links"))
                }
                Err(error) => Err(error),
            };
        }
        let mut locked = Locked::new([Some(directory), Some(node)]);
        locked.begin_change(directory)?;
        rights::may_change(&directory.attributes())?;
        rights::may_overwrite(&node.attributes())?;
        rights::may_enter(&directory.attributes(), &node.attributes())?;
        let life = locked.state(node).life;
        if life == Life::Removed {
            return Err(Error::NotFound);
        }
        directory.inode().link(name, &**node.inode(), now())?;
        if life == Life::Nameless {
            locked.state(node).life = Life::Named;
            // So far it had no background writeback, which is only for files with names.
            if let (Some(writeback), false) = (&self.shared.writeback, node.is_written_back()) {
                writeback.note(node);
            }
            self.shared.nodes.set_named(node);
            self.shared.removals.cancel();
        }
        drop(locked);
        directory.sync_names()
    }

    /// Removes a name of a file that is no directory.
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

    /// Calls `change` with the node of `name`. Both it and the directory are locked during the
    /// call.
    fn with_entry<R>(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
        change: impl FnOnce(&Arc<Node>, &mut Locked<'_>) -> Result<R>,
    ) -> Result<R> {
        self.check_writable()?;
        self.require_own(directory)?;
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

    /// Returns the node of `name`, and the directory's count of changes at that time.
    pub(crate) fn lookup_to_change(
        &self,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(Arc<Node>, u64)> {
        let lock = directory.lock_shared();
        let number = directory.lookup_locked(name)?;
        if number == directory.number() {
            let location = Location::inode(number);
            return Err(Error::corrupt("directory entry", location, Problem::Cycle));
        }
        let node = self.entry_node(directory.number(), number)?;
        Ok((node, lock.map_or(0, |state| state.changes)))
    }

    /// Records that an inode has lost a name. If it was the last one, the last user of the node
    /// deletes the inode.
    pub(crate) fn note_lost_name(&self, node: &Arc<Node>, locked: &mut Locked<'_>) {
        if node.attributes().links == 0 {
            locked.state(node).life = Life::Removed;
            self.shared.nodes.set_nameless(node);
            self.shared.removals.begin();
            if let Some(writeback) = &self.shared.writeback {
                writeback.remove(node.number());
            }
        }
    }

    /// Returns the node of an inode that was just created.
    pub(crate) fn new_node(&self, inode: Arc<dyn fs::Inode>, life: Life) -> Arc<Node> {
        let number = inode.attributes().inode;
        let node = Arc::new(Node::new(number, inode, Arc::clone(&self.shared), life));
        self.shared.nodes.insert_new(&node, life == Life::Named);
        if life == Life::Nameless {
            self.shared.removals.begin();
        }
        node
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.shared.is_writable { self.shared.mark_in_use() } else { Err(Error::ReadOnly) }
    }
}

/// Calls `make` with the attributes of a new inode, which include those inherited from `directory`.
/// The caller holds the directory's lock.
pub(crate) fn with_inheritance<R>(
    directory: &Node,
    what: &Creation<'_>,
    by: &Credentials,
    make: impl FnOnce(&NewInode<'_>) -> Result<R>,
) -> Result<R> {
    let parent = directory.attributes();
    let mut permissions = what.permissions & 0o7777;
    let mut gid = by.gid;
    if directory.volume().bsd_groups {
        // As in Linux, the setgid bit of the directory then has no effect.
        gid = parent.gid;
    } else if parent.permissions & SETGID != 0 {
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

/// Fails if `name` cannot be the name of an entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(Error::InvalidArgument("the name is empty")),
        b"." | b".." => {
            Err(Error::InvalidArgument("\".\" and \"..\" cannot be created, removed or renamed"))
        }
        name if name.contains(&b'/') || name.contains(&0) => {
            Err(Error::InvalidArgument("the name contains a slash or NUL"))
        }
        name if name.len() > NAME_BYTES_MAX => Err(Error::NameTooLong),
        _ => Ok(()),
    }
}

/// Fails if `name` cannot be the name of a new entry.
fn check_new_name(name: &[u8]) -> Result<()> {
    match name {
        b"." | b".." => Err(Error::Exists),
        name => check_name(name),
    }
}
