//! Destinations in an image: the directory and the name of a new file.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use base::Error;
use base::attributes::FileType;
use vfs::{Creation, Credentials, Follow, Node, Volume};

use crate::console::failure::{Failure, Result, Subject};
use crate::copy::temporary_name;
use crate::images::target::Target;
use crate::tree::directory;

/// Maximum number of temporary names that are tried.
const ATTEMPTS_MAX: u32 = 100;
/// Maximum number of symbolic links that lead to a missing file, as in Linux.
const LINKS_MAX: u32 = 40;
/// Permissions of created files, before the umask.
const PERMISSIONS: u16 = 0o666;
/// The message for a path that ends in `/`, `.` or `..`.
pub const NO_NAME: &str = "does not end in the name of a file or directory";

/// Returns the failure of a destination that several sources need as a directory, if it is none:
/// `no_directory` does not take it for one, it has another type, or it does not exist.
pub fn refuse_several(destination: impl Subject, no_directory: bool, exists: bool) -> Failure {
    if no_directory {
        return Failure::new("--no-target-directory", "applies only to a single source").usage();
    }
    let state = if exists { "is not a directory" } else { "does not exist" };
    Failure::new(destination, state).advise("several sources need a directory as the destination")
}

/// A file that was just created.
pub struct NewFile {
    pub node: Arc<Node>,
    directory: Arc<Node>,
    name: Vec<u8>,
}

impl NewFile {
    /// Removes the file after something else has failed, which is what is reported, also if this
    /// fails.
    pub fn remove(&self, volume: &Volume) {
        let _ = volume.unlink(&self.directory, &self.name, &Credentials::ROOT);
    }
}

impl Target {
    /// Returns the target for the entry `name` of this directory.
    pub fn join(&self, name: &[u8]) -> Self {
        Self { image: self.image.clone(), path: directory::join(&self.path, name) }
    }

    /// Returns the directory that contains the last name of the path, and that name.
    pub fn parent_and_name(&self, volume: &Volume) -> Result<(Arc<Node>, Vec<u8>)> {
        let name = self.file_name().ok_or_else(|| Failure::new(self, NO_NAME))?;
        let directory = volume.resolve(self.directory_path(), Follow::Yes);
        Ok((directory.map_err(|error| Failure::library(self, &error))?, name.to_vec()))
    }

    /// Creates an empty file, which belongs to root. A symbolic link to a missing file is followed.
    pub fn create_file(&self, volume: &Volume, umask: u16) -> Result<NewFile> {
        let missing = self.missing_file(volume)?;
        let (directory, name) = missing.parent_and_name(volume)?;
        let creation = Creation { umask, ..Creation::of(FileType::Regular, PERMISSIONS) };
        let made = volume.create_in(&directory, &name, &creation, &Credentials::ROOT);
        let node = made.map_err(|error| Failure::action(self, "cannot create", &error))?;
        Ok(NewFile { node, directory, name })
    }

    /// Returns the path at which a file is missing: this one, or that to which symbolic links at
    /// its end lead.
    fn missing_file(&self, volume: &Volume) -> Result<Self> {
        let failure = |error| Failure::library(self, &error);
        let mut path = self.path.clone();
        for _ in 0..LINKS_MAX {
            let target = match volume.resolve(&path, Follow::No) {
                Ok(node) if node.kind() == FileType::Symlink => {
                    node.read_link().map_err(failure)?
                }
                _ => return Ok(Self { path, ..self.clone() }),
            };
            path = match target.first() {
                Some(b'/') => target,
                _ => {
                    let name = path.iter().rposition(|byte| *byte == b'/');
                    path.truncate(name.map_or(0, |slash| slash + 1));
                    [path, target].concat()
                }
            };
        }
        Err(failure(Error::SymlinkLoop))
    }

    /// Returns whether `count` sources go into the target: it is a directory, or a symbolic link to
    /// one, and `no_directory` does not take it for the new name. Fails for several sources
    /// otherwise.
    pub fn takes_sources(&self, volume: &Volume, no_directory: bool, count: usize) -> Result<bool> {
        let kind = if no_directory { None } else { self.kind(volume)? };
        let is_directory = kind == Some(FileType::Directory);
        if count > 1 && !is_directory {
            return Err(refuse_several(self, no_directory, kind.is_some()));
        }
        Ok(is_directory)
    }

    /// Refuses a path that ends in "/", if it is no directory: it cannot be the name of a new file.
    pub fn require_file_name(&self, is_directory: bool) -> Result<()> {
        if !is_directory && self.path.ends_with(b"/") {
            return Err(Failure::library(self, &Error::NotDirectory));
        }
        Ok(())
    }

    /// Returns the type of the target, or of what it links to, if it exists.
    fn kind(&self, volume: &Volume) -> Result<Option<FileType>> {
        match volume.resolve(&self.path, Follow::Yes) {
            Ok(node) => Ok(Some(node.kind())),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(Failure::library(self, &error)),
        }
    }

    /// Refuses a target that is an inode's number.
    pub fn refuse_inode_number(&self) -> Result<()> {
        match self.inode_number() {
            None => Ok(()),
            Some(_) => {
                let text = "names an inode by its number, which only commands that read can do";
                Err(Failure::new(self, text).usage())
            }
        }
    }

    /// Refuses a destination in another image, and a source that is named by its number: the number
    /// of a damaged or reserved inode would be recorded as an error of the volume.
    pub fn require_same_image(&self, destination: &Self) -> Result<()> {
        self.refuse_inode_number()?;
        let identity = |target: &Self| {
            let image = target.image.metadata().ok()?;
            Some((image.dev(), image.ino()))
        };
        if self.image == destination.image || identity(self) == identity(destination) {
            return Ok(());
        }
        Err(Failure::new(destination, "is not in the same image as the source").usage())
    }

    /// Calls `make` with temporary paths in the target's directory until one does not exist.
    /// Returns that path.
    pub fn temporary_sibling(
        &self,
        mut make: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        for _ in 0..ATTEMPTS_MAX {
            let path = directory::join(self.directory_path(), temporary_name().as_bytes());
            match make(&path) {
                Ok(()) => return Ok(path),
                Err(Error::Exists) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Exists)
    }

    /// Returns the path up to its last name.
    fn directory_path(&self) -> &[u8] {
        let end = self.path.iter().rposition(|&byte| byte != b'/').unwrap_or(0);
        let start = self.path[..end].iter().rposition(|&byte| byte == b'/');
        &self.path[..start.map_or(1, |slash| slash + 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_path_ends_before_the_last_name() {
        let directory = |path: &str| {
            let target = Target { image: "i".into(), path: path.into() };
            String::from_utf8_lossy(target.directory_path()).into_owned()
        };
        assert_eq!(directory("/a"), "/");
        assert_eq!(directory("/a//"), "/");
        assert_eq!(directory("/a/b"), "/a/");
        assert_eq!(directory("/a//b/c/"), "/a//b/");
    }
}
