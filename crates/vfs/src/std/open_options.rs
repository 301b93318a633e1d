//! Options for opening a file by its path, like `std::fs::OpenOptions`.
//! Not here: options for opening a volume (`volume/mod.rs`).

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, Result};
use fs::Credentials;

use crate::file::{File, OpenMode};
use crate::names::namespace::Creation;
use crate::names::path::Follow;
use crate::node::Node;
use crate::std::path::{bytes_of, path_of};
use crate::volume::Volume;

/// The maximum number of symbolic links that lead to a file which must be created. Linux follows as
/// many in one walk.
const ATTEMPTS_MAX: u32 = 40;

/// Options for opening a regular file by its path, with the names and meanings of
/// [`std::fs::OpenOptions`]. An existing file keeps its contents unless
/// [`truncate`](Self::truncate) is set.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    permissions: u16,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Returns options with nothing set. New files get the permissions 0o644.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            permissions: 0o644,
        }
    }

    /// Sets whether the file is opened for reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Sets whether the file is opened for writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Sets whether the file is opened for writing, and every write goes to its end.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Sets whether an existing file is truncated to zero bytes. Needs [`write`](Self::write).
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Sets whether a file that does not exist is created. Needs [`write`](Self::write) or
    /// [`append`](Self::append).
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Sets whether the file must be created: nothing may exist at the path, not even a symbolic
    /// link. Then [`create`](Self::create) and [`truncate`](Self::truncate) are ignored.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Sets the permissions of a file that is created. There is no umask.
    pub fn mode(&mut self, permissions: u16) -> &mut Self {
        self.permissions = permissions;
        self
    }

    /// Opens the file at `path`, as root. Errors: `InvalidArgument` for the combinations of options
    /// that `std::fs::OpenOptions` refuses; `IsDirectory` and `WrongType` for nodes that are not
    /// regular files.
    pub fn open(&self, volume: &Volume, path: impl AsRef<Path>) -> Result<File> {
        self.check()?;
        let mode = OpenMode { write: self.write || self.append, append: self.append };
        let (node, is_new) = self.node(volume, bytes_of(path.as_ref()))?;
        let mut file = node.open_for(mode)?;
        file.can_read = self.read;
        if self.truncate && !is_new {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Returns the node to open, and whether it was created.
    fn node(&self, volume: &Volume, path: &[u8]) -> Result<(Arc<Node>, bool)> {
        let what = Creation::of(FileType::Regular, self.permissions);
        let create = |path: &[u8]| volume.create_at(path, &what, &Credentials::ROOT);
        if path.ends_with(b"/") && (self.create || self.create_new) {
            volume.parent_of(path)?;
            return Err(Error::IsDirectory);
        }
        if self.create_new {
            return create(path).map(|node| (node, true));
        }
        let mut path = Cow::Borrowed(path);
        for _ in 0..ATTEMPTS_MAX {
            match volume.node_at(path_of(&path), Follow::Yes) {
                Err(Error::NotFound) if self.create => {}
                found => return found.map(|node| (node, false)),
            }
            match create(&path) {
                // A symbolic link to a name that does not exist, or a file that another thread has
                // just created.
                Err(Error::Exists) => path = followed(volume, path)?,
                created => return created.map(|node| (node, true)),
            }
        }
        Err(Error::SymlinkLoop)
    }

    fn check(&self) -> Result<()> {
        if !self.read && !self.write && !self.append {
            return Err(Error::InvalidArgument(
                "a file is opened for reading, writing or appending",
            ));
        }
        let is_changed = self.create || self.create_new || self.truncate;
        if is_changed && !self.write && !self.append {
            return Err(Error::InvalidArgument(
                "a file is created or truncated only if it is opened for writing",
            ));
        }
        if self.append && self.truncate && !self.create_new {
            return Err(Error::InvalidArgument("a file that is opened to append is not truncated"));
        }
        Ok(())
    }
}

/// Returns the path to which a symbolic link at `path` leads, or `path` if it is no link.
fn followed<'p>(volume: &Volume, path: Cow<'p, [u8]>) -> Result<Cow<'p, [u8]>> {
    let node = match volume.resolve(&path, Follow::No) {
        Err(Error::NotFound) => return Ok(path),
        found => found?,
    };
    if node.kind() != FileType::Symlink {
        return Ok(path);
    }
    let target = node.read_link()?;
    if target.starts_with(b"/") {
        return Ok(Cow::Owned(target));
    }
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    Ok(Cow::Owned([&path[..name], &target].concat()))
}
