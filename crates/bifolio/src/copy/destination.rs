//! Directories and temporary files of a copy on the host. Directories stay open, and files have
//! temporary names until they are complete. Not here: the data of copies, and their owners,
//! permissions and times.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use vfs::Node;

use super::hard_links::FirstName;
use super::names::Names;
use super::place::{Place, open_directory};
use crate::tree::directory;

/// Maximum number of temporary names that are tried.
const ATTEMPTS_MAX: u32 = 100;

/// Directory of the copy. Its owner, permissions and times are set after its contents are complete,
/// which is when the last reference is released.
#[derive(Debug)]
pub struct Directory {
    /// The parent directory. `None` for the directory in which the copy starts.
    pub parent: Option<Arc<Directory>>,
    /// Its name and those of the directories above it. `None` for the directory in which the copy
    /// starts.
    pub names: Option<Arc<Names>>,
    /// The original directory. `None` for an existing directory that only contains copies.
    pub source: Option<Arc<Node>>,
    /// Whether the copy created the directory. Until its attributes are set, only this process's
    /// user has access.
    pub is_new: bool,
    /// The device and inode number of the source image, which no copy may replace. `None` if they
    /// are not known.
    image: Option<(u64, u64)>,
    fd: OwnedFd,
    /// Where copies for the directory are made, once that is known.
    place: OnceLock<Place>,
}

impl Directory {
    /// Returns the directory `fd`, in which the copy starts. `is_new` says whether it was created
    /// for the copy. The source image has the device and inode number `image`.
    pub fn at_start(
        fd: OwnedFd,
        source: Option<Arc<Node>>,
        is_new: bool,
        image: Option<(u64, u64)>,
    ) -> Self {
        let (parent, names, place) = (None, None, place(is_new));
        Self { parent, names, source, is_new, image, fd, place }
    }

    /// Creates the directory `name` in `parent`, with access only for its owner. Opens it if it
    /// exists.
    pub fn create(parent: &Arc<Self>, name: &[u8], source: Arc<Node>) -> io::Result<Arc<Self>> {
        let (fd, is_new) = parent.create_directory(name)?;
        let names = Some(Names::below(parent.names.as_ref(), name));
        let (parent, image) = (Some(Arc::clone(parent)), parent.image);
        let (source, place) = (Some(source), place(is_new));
        Ok(Arc::new(Self { parent, names, source, is_new, image, fd, place }))
    }

    /// Creates and opens the directory `name`, with access only for its owner. Opens it if it
    /// exists. Returns whether it is new. Then it certainly is the created one.
    pub fn create_directory(&self, name: &[u8]) -> io::Result<(OwnedFd, bool)> {
        check_name(name)?;
        match open_directory(self.fd.as_fd(), name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => return Ok((outcome?, false)),
        }
        let Place::Inside(inside, _) = self.place()? else {
            let is_new = match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            return Ok((open_directory(self.fd.as_fd(), name)?, is_new));
        };
        let temporary = temporary_name();
        rustix::fs::mkdirat(inside, &temporary, Mode::RWXU)?;
        let moved = open_directory(inside.as_fd(), temporary.as_bytes()).and_then(|fd| {
            rustix::fs::renameat(inside, &temporary, &self.fd, name)?;
            Ok(fd)
        });
        if moved.is_err() {
            let _ = rustix::fs::unlinkat(inside, &temporary, AtFlags::REMOVEDIR);
        }
        Ok((moved?, true))
    }

    /// Returns the place in which copies are made before they get their names in this directory.
    fn place(&self) -> io::Result<&Place> {
        if let Some(place) = self.place.get() {
            return Ok(place);
        }
        let mut found = Some(Place::find(self)?);
        let place = self.place.get_or_init(|| found.take().unwrap_or(Place::Itself));
        // Another thread was faster.
        if let Some(unused) = found {
            unused.end(self);
        }
        Ok(place)
    }

    /// Returns the path of the original directory. `start` is the path of what is copied: the
    /// source of this directory, or of one above it.
    pub fn path_in_image(&self, start: &[u8]) -> Vec<u8> {
        let mut levels = 0;
        let mut here = self.parent.as_deref();
        while let Some(parent) = here.filter(|parent| parent.source.is_some()) {
            levels += 1;
            here = parent.parent.as_deref();
        }
        let names = Names::path(self.names.as_ref());
        let mut path = start.to_vec();
        for name in &names[names.len().saturating_sub(levels)..] {
            directory::push(&mut path, name);
        }
        path
    }

    /// Opens the directory at the path `names`, relative to this directory. Does not follow
    /// symbolic links.
    fn descend(&self, names: &[&[u8]]) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        for name in names {
            check_name(name)?;
            fd = rustix::fs::openat(&fd, *name, flags, Mode::empty())?;
        }
        Ok(fd)
    }

    /// Creates an entry with a temporary name, where no other user can replace it until it is
    /// renamed. Calls `make` with different names until a name does not exist.
    pub fn temporary(
        &self,
        make: impl FnMut(BorrowedFd<'_>, &str) -> rustix::io::Result<()>,
    ) -> io::Result<Temporary<'_>> {
        self.temporary_in(self.place()?.directory(self), make)
    }

    fn temporary_in<'a>(
        &'a self,
        place: BorrowedFd<'a>,
        mut make: impl FnMut(BorrowedFd<'_>, &str) -> rustix::io::Result<()>,
    ) -> io::Result<Temporary<'a>> {
        for _ in 0..ATTEMPTS_MAX {
            let name = temporary_name();
            match make(place, &name) {
                Ok(()) => return Ok(Temporary { directory: self, place, name, is_renamed: false }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Creates an empty file with a temporary name, and opens it for writing. Another user may
    /// rename it, but the open file stays the created one.
    pub fn temporary_file(&self) -> io::Result<(Temporary<'_>, std::fs::File)> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = None;
        let temporary = self.temporary_in(self.fd.as_fd(), |directory, name| {
            file = Some(rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
            Ok(())
        })?;
        let file = file.ok_or(Errno::EXIST)?;
        Ok((temporary, file.into()))
    }

    /// Creates a hard link `new_name` in this directory. The linked file is `first`, whose
    /// directories are below `start`.
    ///
    /// Errors: of the host, also if another process has given the name of `first` to another file.
    pub fn link(&self, start: &Self, first: &FirstName, new_name: &[u8]) -> io::Result<()> {
        let name = first.name.as_slice();
        check_name(name)?;
        check_name(new_name)?;
        let from = start.descend(&Names::path(first.directory.as_ref()))?;
        let temporary = self.temporary(|directory, temporary| {
            rustix::fs::linkat(&from, name, directory, temporary, AtFlags::empty())
        })?;
        // No other user can replace the temporary name.
        if temporary.identity()? != first.identity {
            return Err(io::Error::other("another process has replaced the first copy"));
        }
        // If the new name is a link to this file already, rename(2) keeps both names, and dropping
        // `temporary` removes the temporary name.
        let (place, temporary_name) = temporary.location();
        self.check_replaceable(new_name, is_special(&temporary.stat()?))?;
        Ok(rustix::fs::renameat(place, temporary_name, &self.fd, new_name)?)
    }

    /// Errors: `name` in this directory is the source image, or a device, a pipe or a socket that a
    /// copy of another kind would replace. Programs expect such files to get the data, which the
    /// confined process cannot write to them.
    fn check_replaceable(&self, name: &[u8], by_special: bool) -> io::Result<()> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(existing) if Some((existing.st_dev, existing.st_ino)) == self.image => {
                Err(io::Error::other("the copy would replace the source image"))
            }
            Ok(existing) if is_special(&existing) && !by_special => {
                Err(io::Error::other("the copy would replace a special file"))
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

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(place) = self.place.get() {
            place.end(self);
        }
        // Without recursion, for which a deep tree would have too many levels.
        let mut parent = self.parent.take();
        while let Some(mut last) = parent.and_then(Arc::into_inner) {
            parent = last.parent.take();
        }
    }
}

/// Returns the place of a directory, if it is known since the directory is new.
fn place(is_new: bool) -> OnceLock<Place> {
    if is_new { Place::Itself.into() } else { OnceLock::new() }
}

/// What tells a copy from other files of the host. A file that gets the inode number of a copy that
/// was removed is told from it if it belongs to another user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    device: u64,
    inode: u64,
    user: u32,
}

impl Identity {
    /// Returns the identity of a file with these facts.
    pub fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino, user: stat.st_uid }
    }
}

/// Entry with a temporary name. It is removed unless it is renamed to its final name.
#[derive(Debug)]
pub struct Temporary<'a> {
    directory: &'a Directory,
    /// Where it has the temporary name.
    place: BorrowedFd<'a>,
    name: String,
    is_renamed: bool,
}

impl Temporary<'_> {
    /// Returns the directory that has the temporary name, and this name.
    pub fn location(&self) -> (BorrowedFd<'_>, &str) {
        (self.place, &self.name)
    }

    /// Returns the identity of a symbolic link, a special file, or a hard link.
    pub fn identity(&self) -> io::Result<Identity> {
        Ok(Identity::of(&self.stat()?))
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(self.place, &self.name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Renames the entry to its final name. Replaces an existing file, but not a directory.
    pub fn rename(mut self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        self.directory.check_replaceable(name, is_special(&self.stat()?))?;
        rustix::fs::renameat(self.place, &self.name, &self.directory.fd, name)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            // If this fails, the name shows that the file is not complete.
            let _ = rustix::fs::unlinkat(self.place, &self.name, AtFlags::empty());
        }
    }
}

/// Returns whether this is a device, a pipe or a socket.
fn is_special(stat: &Stat) -> bool {
    let kind = FileType::from_raw_mode(stat.st_mode);
    !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
}

/// Errors: the host would interpret the name as a path to another directory.
pub fn check_name(name: &[u8]) -> io::Result<()> {
    let is_special = name.is_empty() || name == b"." || name == b"..";
    if is_special || name.contains(&b'/') || name.contains(&0) {
        let text = "the name is invalid on the host";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}

/// Returns a random name. An image cannot contain a file with this name on purpose, because the
/// name is unpredictable.
pub fn temporary_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    format!(".bifolio-{:016x}.partial", hasher.finish())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use testkit::must;

    #[test]
    fn a_name_that_leads_to_another_file_is_not_linked() {
        let folder = must(tempfile::tempdir(), "a directory");
        let start = || {
            let fd = must(File::open(folder.path()), "the directory");
            Directory::at_start(fd.into(), None, true, None)
        };
        let inside = Directory::create_directory(&start(), b"inside");
        let (inside, _) = must(inside, "a directory");
        let inside = Directory::at_start(inside, None, true, None);
        let path = folder.path().join("inside/first");
        must(fs::write(&path, "copy"), "the first copy");
        let identity = Identity::of(&must(rustix::fs::stat(&path), "the first copy"));
        let first = FirstName {
            directory: Some(Names::below(None, b"inside")),
            name: b"first".to_vec(),
            identity,
        };
        must(inside.link(&start(), &first, b"link"), "a link");
        let linked = must(rustix::fs::stat(folder.path().join("inside/link")), "the link");
        assert_eq!((Identity::of(&linked), linked.st_nlink), (identity, 2));

        // The owner of the directory replaces the first copy.
        must(fs::write(folder.path().join("secret"), "secret"), "another file");
        must(fs::rename(folder.path().join("secret"), &path), "the first copy");
        let refused = inside.link(&start(), &first, b"other").expect_err("another file");
        assert!(refused.to_string().contains("has replaced the first copy"), "{refused}");
        let names = must(fs::read_dir(folder.path().join("inside")), "the directory");
        let mut names: Vec<_> = names.map(|entry| must(entry, "an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["first", "link"]);
        assert_eq!(must(rustix::fs::stat(&path), "the file").st_nlink, 1);
    }

    #[test]
    fn names_that_are_paths_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b".a", b"-", b"\xff\n"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }
}
