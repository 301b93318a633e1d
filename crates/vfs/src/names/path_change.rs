//! Changes by path, on behalf of a user. Paths are bytes, and begin at the root. An empty path is
//! `NotFound`. Not here: the changes themselves (`namespace.rs`, `rename.rs`), and changes as root
//! (`std/path.rs`).

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, Result};
use fs::Credentials;

use crate::names::namespace::Creation;
use crate::names::path::{self, Follow};
use crate::names::rename::RenameFlags;
use crate::node::Node;
use crate::volume::Volume;

/// The last name of a path, and its directory.
struct Target<'a> {
    directory: Arc<Node>,
    name: &'a [u8],
    /// Whether the path ends with a slash, so that it must lead to a directory.
    is_directory: bool,
}

impl Volume {
    /// Creates an empty regular file. Errors: `Exists` if `path` exists.
    pub fn create_file(
        &self,
        path: &[u8],
        permissions: u16,
        by: &Credentials,
    ) -> Result<Arc<Node>> {
        self.create_at(path, &Creation::of(FileType::Regular, permissions), by)
    }

    /// Creates a directory.
    pub fn mkdir(&self, path: &[u8], permissions: u16, by: &Credentials) -> Result<Arc<Node>> {
        self.create_at(path, &Creation::of(FileType::Directory, permissions), by)
    }

    /// Creates an inode of any type at `path`.
    pub fn create_at(
        &self,
        path: &[u8],
        what: &Creation<'_>,
        by: &Credentials,
    ) -> Result<Arc<Node>> {
        let target = self.target(path)?.ok_or(Error::Exists)?;
        if what.kind != FileType::Directory {
            self.refuse_slash(&target)?;
        }
        self.create_in(&target.directory, target.name, what, by)
    }

    /// Adds a name to the file at `path`. A symbolic link at its end is not followed.
    pub fn link_at(&self, path: &[u8], new_path: &[u8]) -> Result<()> {
        path::check_nonempty(path)?;
        path::check_nonempty(new_path)?;
        let node = self.resolve(path, Follow::No)?;
        let target = self.target(new_path)?.ok_or(Error::Exists)?;
        self.refuse_slash(&target)?;
        self.link(&target.directory, target.name, &node)
    }

    /// Removes the file or the empty directory at `path`. A symbolic link at its end is not
    /// followed.
    pub fn remove(&self, path: &[u8], by: &Credentials) -> Result<()> {
        self.remove_of(path, None, by)
    }

    /// [`remove`](Self::remove). If `is_directory` is given, fails for the other types.
    pub(crate) fn remove_of(
        &self,
        path: &[u8],
        is_directory: Option<bool>,
        by: &Credentials,
    ) -> Result<()> {
        let root = || Error::InvalidArgument("the root directory cannot be removed");
        let target = self.target(path)?.ok_or_else(root)?;
        let node = self.lookup(&target.directory, target.name)?;
        match node.kind() {
            FileType::Directory if is_directory == Some(false) => Err(Error::IsDirectory),
            FileType::Directory => self.rmdir(&target.directory, target.name, by),
            _ if target.is_directory || is_directory == Some(true) => Err(Error::NotDirectory),
            _ => self.unlink(&target.directory, target.name, by),
        }
    }

    /// Returns the directory that contains the last name of `path`, and that name. Errors:
    /// `IsDirectory` for the root.
    pub(crate) fn parent_of<'a>(&self, path: &'a [u8]) -> Result<(Arc<Node>, &'a [u8])> {
        let target = self.target(path)?.ok_or(Error::IsDirectory)?;
        Ok((target.directory, target.name))
    }

    /// Renames `path` to `new_path`.
    pub fn rename_at(
        &self,
        path: &[u8],
        new_path: &[u8],
        flags: RenameFlags,
        by: &Credentials,
    ) -> Result<()> {
        path::check_nonempty(path)?;
        path::check_nonempty(new_path)?;
        let root = || Error::InvalidArgument("the root directory cannot be renamed or replaced");
        let from = self.target(path)?.ok_or_else(root)?;
        let to = self.target(new_path)?.ok_or_else(root)?;
        if from.is_directory || to.is_directory {
            self.lookup(&from.directory, from.name)?.require_directory()?;
        }
        self.rename_in((&from.directory, from.name), (&to.directory, to.name), flags, by)
    }

    /// Fails if the path of a new file, which is no directory, ends with a slash.
    fn refuse_slash(&self, target: &Target<'_>) -> Result<()> {
        if target.is_directory {
            self.lookup(&target.directory, target.name)?;
            return Err(Error::Exists);
        }
        Ok(())
    }

    /// Returns the last name of a path and its directory, or `None` if the path consists of slashes
    /// only.
    fn target<'a>(&self, path: &'a [u8]) -> Result<Option<Target<'a>>> {
        path::check_nonempty(path)?;
        let is_slash = |byte: &u8| *byte == b'/';
        let Some(end) = path.iter().rposition(|byte| !is_slash(byte)) else { return Ok(None) };
        let start = path[..end].iter().rposition(is_slash).map_or(0, |slash| slash + 1);
        let directory = self.resolve(&path[..start], Follow::Yes)?;
        directory.require_directory()?;
        let (name, is_directory) = (&path[start..=end], end + 1 < path.len());
        Ok(Some(Target { directory, name, is_directory }))
    }
}
