//! The host's side of a copy: directories that are held open, and files that have temporary names until they
//! are complete. Not here: the data of copies, and their owners, permissions and times.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use vfs::Node;

/// How often a temporary name is tried that turns out to be taken.
const ATTEMPTS_MAX: u32 = 100;

/// A directory of the copy. Its owner, permissions and times are set when everything in it is done,
/// which is when its last holder lets go of it.
#[derive(Debug)]
pub struct Directory {
    /// The directory around it, unless it is where the copy starts.
    pub parent: Option<Arc<Directory>>,
    /// Its name in that directory.
    pub name: Vec<u8>,
    /// The directory of which it is a copy, and that one's path in the image. `None` for an existing directory that
    /// only contains copies.
    pub source: Option<(Arc<Node>, Vec<u8>)>,
    /// Whether the copy made it.
    pub is_new: bool,
    /// Device and inode number of the source image, which no copy replaces.
    image: (u64, u64),
    fd: OwnedFd,
}

impl Directory {
    /// Returns a directory that is there already, as a person names it: symbolic links on the way are
    /// followed.
    pub fn existing(
        path: &Path,
        source: Option<(Arc<Node>, Vec<u8>)>,
        image: &Path,
    ) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let image = identity(&rustix::fs::stat(image)?);
        Ok(Self { parent: None, name: Vec::new(), source, is_new: false, image, fd })
    }

    /// Creates the directory `name` in `parent`, which only its owner may enter, or opens the existing one.
    pub fn make(
        parent: &Arc<Self>,
        name: &[u8],
        source: (Arc<Node>, Vec<u8>),
    ) -> io::Result<Arc<Self>> {
        check_name(name)?;
        let is_new = match rustix::fs::mkdirat(&parent.fd, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&parent.fd, name, flags, Mode::empty())?;
        let (parent, image) = (Some(Arc::clone(parent)), parent.image);
        Ok(Arc::new(Self { parent, name: name.to_vec(), source: Some(source), is_new, image, fd }))
    }

    /// Returns the names that lead here from where the copy starts.
    pub fn names(&self) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let mut here = Some(self);
        while let Some(directory) = here {
            if directory.parent.is_some() {
                names.push(directory.name.clone());
            }
            here = directory.parent.as_deref();
        }
        names.reverse();
        names
    }

    /// Enters the directory that `names` lead to from here, following no symbolic link.
    fn descend(&self, names: &[Vec<u8>]) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        for name in names {
            check_name(name)?;
            fd = rustix::fs::openat(&fd, name.as_slice(), flags, Mode::empty())?;
        }
        Ok(fd)
    }

    /// Makes an entry under a temporary name by calling `make` until a name is free.
    pub fn temporary(
        &self,
        mut make: impl FnMut(BorrowedFd<'_>, &str) -> rustix::io::Result<()>,
    ) -> io::Result<Temporary<'_>> {
        for _ in 0..ATTEMPTS_MAX {
            let name = temporary_name();
            match make(self.fd.as_fd(), &name) {
                Ok(()) => return Ok(Temporary { directory: self, name, is_placed: false }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Returns an empty file to write to, under a temporary name.
    pub fn temporary_file(&self) -> io::Result<(Temporary<'_>, std::fs::File)> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = None;
        let temporary = self.temporary(|directory, name| {
            file = Some(rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
            Ok(())
        })?;
        let file = file.ok_or(Errno::EXIST)?;
        Ok((temporary, file.into()))
    }

    /// Links the file `name`, in the directory at the path `names` from `start`, to a name here.
    pub fn link(
        &self,
        start: &Self,
        names: &[Vec<u8>],
        name: &[u8],
        new_name: &[u8],
    ) -> io::Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        let from = start.descend(names)?;
        let temporary = self.temporary(|directory, temporary| {
            rustix::fs::linkat(&from, name, directory, temporary, AtFlags::empty())
        })?;
        // When the name is a link to this file already, renaming leaves both, and dropping removes
        // the temporary one.
        let (directory, temporary_name) = temporary.place_of();
        self.check_place(new_name)?;
        Ok(rustix::fs::renameat(directory, temporary_name, directory, new_name)?)
    }

    /// Refuses the name that the image itself has here.
    fn check_place(&self, name: &[u8]) -> io::Result<()> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if identity(&there) == self.image => {
                Err(io::Error::other("the copy would replace the source image"))
            }
            _ => Ok(()),
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An entry that is removed unless it gets its name.
#[derive(Debug)]
pub struct Temporary<'a> {
    directory: &'a Directory,
    name: String,
    is_placed: bool,
}

impl Temporary<'_> {
    /// Returns the directory and the name there.
    pub fn place_of(&self) -> (BorrowedFd<'_>, &str) {
        (self.directory.fd.as_fd(), &self.name)
    }

    /// Renames it to its final name. An existing file of that name is replaced, but no directory.
    pub fn place(mut self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        self.directory.check_place(name)?;
        rustix::fs::renameat(&self.directory.fd, &self.name, &self.directory.fd, name)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_placed {
            // If even this fails, the name itself tells that the file is not whole.
            let _ = rustix::fs::unlinkat(&self.directory.fd, &self.name, AtFlags::empty());
        }
    }
}

/// Returns the identity of a file: its device and inode number.
fn identity(file: &rustix::fs::Stat) -> (u64, u64) {
    (file.st_dev, file.st_ino)
}

/// Refuses names that would lead elsewhere: the host would take them for paths.
pub fn check_name(name: &[u8]) -> io::Result<()> {
    let leads_elsewhere = name.is_empty() || name == b"." || name == b"..";
    if leads_elsewhere || name.contains(&b'/') || name.contains(&0) {
        let text = "the name is invalid on the host";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

/// Returns a name that no image can guess, so that none can hold a file that takes its place.
pub fn temporary_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    format!(".bifolio-{:016x}.partial", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b".a", b"-", b"\xff\n"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }
}
