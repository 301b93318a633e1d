//! Places on the host in which copies are made before they get their final names: directories in
//! which no other user can replace them. Owners, attributes and times of symbolic links and special
//! files are set by name, and a new directory is opened by name; another user who could put a file
//! of root there would get that file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Stat};

use super::destination::{Directory, temporary_name};

/// The permissions to write of all but the owner. They also limit access control lists.
const OTHERS_WRITE: u32 = 0o022;

/// Place for the copies that are made for a directory.
#[derive(Debug)]
pub enum Place {
    /// The directory itself.
    Itself,
    /// A new directory in it, with access only for its owner, and its name.
    Inside(OwnedFd, String),
}

impl Place {
    /// Returns a place for `directory`. Errors: of the host, also if another process replaces the
    /// new directory.
    pub fn find(directory: &Directory) -> io::Result<Self> {
        let found = rustix::fs::fstat(directory)?;
        if found.st_uid == 0 && !others_rename(found.st_mode) {
            return Ok(Self::Itself);
        }
        // Who owns new files, and whether permissions have a meaning, depends on the file system. A
        // file that was opened when it was created tells.
        let (temporary, file) = directory.temporary_file()?;
        let own = rustix::fs::fstat(&file)?;
        drop((temporary, file));
        if is_exclusive(&found, &own) {
            return Ok(Self::Itself);
        }
        let name = temporary_name();
        rustix::fs::mkdirat(directory, &name, Mode::RWXU)?;
        let opened = open_directory(directory.as_fd(), name.as_bytes()).and_then(|inside| {
            // The owner of `directory` may have put another directory there. One that only this
            // user can write to is as good.
            match is_exclusive(&rustix::fs::fstat(&inside)?, &own) {
                true => Ok(inside),
                false => {
                    Err(io::Error::other("another process has replaced a temporary directory"))
                }
            }
        });
        match opened {
            Ok(inside) => Ok(Self::Inside(inside, name)),
            Err(error) => {
                remove(directory, &name);
                Err(error)
            }
        }
    }

    /// Returns the place for `directory`.
    pub fn directory<'a>(&'a self, directory: &'a Directory) -> BorrowedFd<'a> {
        match self {
            Self::Itself => directory.as_fd(),
            Self::Inside(inside, _) => inside.as_fd(),
        }
    }

    /// Removes what was made in `directory`.
    pub fn end(&self, directory: &Directory) {
        if let Self::Inside(_, name) = self {
            remove(directory, name);
        }
    }
}

fn remove(directory: &Directory, name: &str) {
    // If this fails, the name shows that the directory is temporary.
    let _ = rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR);
}

/// Opens the directory `name`. Does not follow symbolic links.
pub fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Returns whether only root, and the user who owns the new file `own`, can rename the entries of
/// `directory` that this process creates. Also true if the file system has no permissions, which
/// `own`, created with those of its owner only, shows.
fn is_exclusive(directory: &Stat, own: &Stat) -> bool {
    let has_permissions = own.st_mode & OTHERS_WRITE == 0;
    let is_owner = directory.st_uid == 0 || directory.st_uid == own.st_uid;
    is_owner && !(has_permissions && others_rename(directory.st_mode))
}

/// Returns whether others may come to rename entries of a directory with this mode. The sticky bit
/// does not prevent that: an entry that was given to its owner is this user's to rename, before it
/// has its other attributes.
fn others_rename(mode: u32) -> bool {
    mode & OTHERS_WRITE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_others_are_not_exclusive() {
        let stat = |user, mode| {
            let mut stat = rustix::fs::stat("/").expect("the root directory");
            stat.st_uid = user;
            stat.st_mode = mode;
            stat
        };
        for (directory, own, expected) in [
            ((0, 0o755), (0, 0o600), true),
            ((0, 0o1777), (0, 0o600), false),
            ((0, 0o777), (0, 0o600), false),
            ((0, 0o775), (7, 0o600), false),
            ((7, 0o755), (0, 0o600), false),
            ((7, 0o1777), (0, 0o600), false),
            ((7, 0o755), (7, 0o600), true),
            ((7, 0o775), (7, 0o600), false),
            ((0, 0o755), (7, 0o600), true),
            // No permissions.
            ((7, 0o777), (7, 0o777), true),
            ((8, 0o777), (7, 0o777), false),
        ] {
            let is_exclusive = is_exclusive(&stat(directory.0, directory.1), &stat(own.0, own.1));
            assert_eq!(is_exclusive, expected, "{directory:?} {own:?}");
        }
    }
}
