//! The calls of `std::fs` on a volume, with the names and meanings of the standard library's. Not
//! here: calls on whole trees (`names/tree.rs`), options for opening (`open_options.rs`), and
//! changes by path with credentials (`names/path_change.rs`).
//!
//! Paths begin at the volume's root, also relative ones. Symbolic links do not lead out of the
//! volume. All calls act as root, since a user who can write to the image can change all of it
//! anyway.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::attributes::{AttributeChange, Attributes, FileType};
use base::{Error, FileOffset, Result};
use fs::Credentials;

use crate::file::File;
use crate::names::namespace::Creation;
use crate::names::path::{self, Follow};
use crate::names::rename::RenameFlags;
use crate::node::Node;
use crate::std::open_options::OpenOptions;
use crate::std::read_dir::ReadDir;
use crate::volume::Volume;

/// The permissions of new directories.
const DIRECTORY_PERMISSIONS: u16 = 0o755;

/// Returns the bytes of a path.
pub(crate) fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Returns the path with these bytes.
pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

impl Volume {
    /// Opens the regular file at `path` for reading. [`OpenOptions`] open files in other ways.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens the regular file at `path` for writing. A file that does not exist is created, with
    /// the permissions 0o644, and an existing one is truncated to zero bytes.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// Creates a regular file with the permissions 0o644, and opens it for reading and writing.
    /// Errors: `Exists` if `path` exists.
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(self, path)
    }

    /// Returns the contents of the regular file at `path`.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        let mut contents = Vec::new();
        loop {
            let part = file.lend(FileOffset(contents.len() as u64), usize::MAX)?;
            if part.is_empty() {
                return Ok(contents);
            }
            // The size in a damaged image may be any number.
            contents.try_reserve(part.len()).map_err(|_| Error::OutOfMemory)?;
            contents.extend_from_slice(&part);
        }
    }

    /// Returns the contents of the regular file at `path` as text. Errors: `InvalidUtf8` if they
    /// are not valid UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        String::from_utf8(self.read(path)?).map_err(|_| Error::InvalidUtf8)
    }

    /// Creates a file with these contents, or replaces all contents of an existing one. See
    /// [`create`](Self::create).
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_all_at(contents.as_ref(), 0)
    }

    /// Returns an iterator over the entries of the directory at `path`, without "." and "..", in
    /// the order of the directory.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir<'_>> {
        let directory = self.node_at(path.as_ref(), Follow::Yes)?;
        directory.require_directory()?;
        Ok(ReadDir::new(self, directory, path.as_ref()))
    }

    /// Creates a directory with the permissions 0o755.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let what = Creation::of(FileType::Directory, DIRECTORY_PERMISSIONS);
        self.create_at(bytes_of(path.as_ref()), &what, &Credentials::ROOT).map(drop)
    }

    /// Removes the file at `path`. A symbolic link at the end of `path` is not followed. Errors:
    /// `IsDirectory` for a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.remove_of(bytes_of(path.as_ref()), Some(false), &Credentials::ROOT)
    }

    /// Removes the empty directory at `path`. Errors: `NotEmpty`; `NotDirectory` for other files.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.remove_of(bytes_of(path.as_ref()), Some(true), &Credentials::ROOT)
    }

    /// Renames `from` to `to`. A file at `to` is replaced, and so is an empty directory by a
    /// directory.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (bytes_of(from.as_ref()), bytes_of(to.as_ref()));
        self.rename_at(from, to, RenameFlags::default(), &Credentials::ROOT)
    }

    /// Adds the name `link` to the file `original`. A symbolic link at the end of `original` is not
    /// followed.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        self.link_at(bytes_of(original.as_ref()), bytes_of(link.as_ref()))
    }

    /// Creates the symbolic link `link` with the target `original`, which need not exist.
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let what = Creation::symlink(bytes_of(original.as_ref()));
        self.create_at(bytes_of(link.as_ref()), &what, &Credentials::ROOT).map(drop)
    }

    /// Returns the target of the symbolic link at `path`.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let node = self.node_at(path.as_ref(), Follow::No)?;
        let target = node.read_link()?;
        node.note_access();
        Ok(OsString::from_vec(target).into())
    }

    /// Returns the attributes of the file, directory or other node at `path`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        Ok(self.node_at(path.as_ref(), Follow::Yes)?.attributes())
    }

    /// [`metadata`](Self::metadata), but does not follow a symbolic link at the end of `path`.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        Ok(self.node_at(path.as_ref(), Follow::No)?.attributes())
    }

    /// Sets the permissions, with setuid, setgid and sticky, of the node at `path`.
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: Permissions) -> Result<()> {
        self.node_at(path.as_ref(), Follow::Yes)?.set_permissions(&permissions)
    }

    /// Returns whether `path` exists, following symbolic links. Returns `false` also if a parent is
    /// missing. Other failures are errors.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.node_at(path.as_ref(), Follow::Yes) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the node at `path`. Errors: `NotFound` also for an empty path, as in the kernel.
    /// [`resolve`](Self::resolve) takes paths as bytes.
    pub fn node_at(&self, path: impl AsRef<Path>, follow: Follow) -> Result<Arc<Node>> {
        let path = bytes_of(path.as_ref());
        path::check_nonempty(path)?;
        self.resolve(path, follow)
    }
}

impl Node {
    /// Sets the permissions, with setuid, setgid and sticky, as root.
    pub(crate) fn set_permissions(&self, permissions: &Permissions) -> Result<()> {
        let permissions = Some((permissions.mode() & 0o7777) as u16);
        let change = AttributeChange { permissions, ..AttributeChange::default() };
        self.set_attributes(&change, &Credentials::ROOT)
    }
}
