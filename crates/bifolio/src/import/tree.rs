//! Walk of a tree of the host by descriptors. Each entry is looked up in its open directory, and no
//! symbolic link is followed, so other processes that change the tree meanwhile lead the walk to no
//! file outside of it. Not here: copying, extended attributes (`xattrs.rs`).
//!
//! The limit of the host for paths bounds the depth.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::CopyError;
use super::xattrs::Xattrs;

/// Maximum length of a path in Linux, with the zero at the end.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum number of open directories beside the first one. Others are opened again when the walk
/// returns to them.
const OPEN_MAX: usize = 8;
const LISTING_BYTES: usize = 64 << 10;

/// What tells one inode from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    device: u64,
    inode: u64,
    kind: FileType,
}

impl Identity {
    /// Returns the identity of a file.
    pub fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino, kind: kind(stat) }
    }
}

/// Returns the type of a file.
pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// An entry of a directory of the host.
#[derive(Debug)]
pub struct Entry {
    /// Its attributes, which are those of the open file if there is one.
    pub stat: Stat,
    /// The open file.
    pub opened: Opened,
}

/// An open file.
#[derive(Debug)]
pub enum Opened {
    /// A directory.
    Directory(OwnedFd),
    /// A regular file.
    File(File),
    /// Nothing: other files are not opened, which could change their state.
    Nothing,
}

/// The directories from the top of a tree down to the current one. Without any, names are paths.
#[derive(Debug, Default)]
pub struct Walk {
    /// The path of the current directory.
    path: Vec<u8>,
    levels: Vec<Level>,
    /// Memory for listings.
    buffer: Vec<MaybeUninit<u8>>,
}

#[derive(Debug)]
struct Level {
    /// The name in the directory above.
    name: OsString,
    identity: Identity,
    /// The length of the path of the directory above.
    parent_bytes: usize,
    /// The directory. That of the first level stays open.
    opened: Option<OwnedFd>,
}

impl Walk {
    /// Returns the path of an entry of the current directory, for messages.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.path.clone())).join(name)
    }

    /// Finds the entry `name` of the current directory, and opens it if it is a regular file or a
    /// directory. Errors: [`CopyError::Replaced`] if it is replaced meanwhile, twice.
    pub fn look(&mut self, name: &OsStr) -> Result<Entry, CopyError> {
        let seen = self.examine(name)?;
        match self.open(name, seen) {
            // Also the case of a directory on which a file system is mounted when it is opened.
            Err(CopyError::Replaced) => {
                let seen = self.examine(name)?;
                self.open(name, seen)
            }
            outcome => outcome,
        }
    }

    /// Returns the attributes of the entry `name` of the current directory.
    pub fn examine(&mut self, name: &OsStr) -> Result<Stat, CopyError> {
        let cannot_copy = |error: Errno| CopyError::Host("cannot copy", error.into());
        if self.path.len() + 1 + name.len() >= PATH_BYTES_MAX && !self.levels.is_empty() {
            return Err(cannot_copy(Errno::NAMETOOLONG));
        }
        let directory = self.current()?;
        rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(cannot_copy)
    }

    /// Opens the entry `name` of the current directory, which had the attributes `seen`, if it is a
    /// regular file or a directory.
    pub fn open(&mut self, name: &OsStr, seen: Stat) -> Result<Entry, CopyError> {
        let parent = self.current()?;
        let (stat, opened) = match kind(&seen) {
            FileType::Directory => {
                let (directory, stat) = open_directory(parent, name, Identity::of(&seen))?;
                (stat, Opened::Directory(directory))
            }
            FileType::RegularFile => {
                // Opening does not block if a pipe has replaced the file.
                let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
                let (file, stat) =
                    open_as(parent, name, flags, Identity::of(&seen), "cannot open")?;
                (stat, Opened::File(file.into()))
            }
            _ => (seen, Opened::Nothing),
        };
        Ok(Entry { stat, opened })
    }

    /// Makes an entry of the current directory the current directory.
    pub fn enter(&mut self, name: &OsStr, stat: &Stat, directory: OwnedFd) {
        let parent_bytes = self.path.len();
        self.path = self.path_of(name).into_os_string().into_vec();
        self.levels.push(Level {
            name: name.to_owned(),
            identity: Identity::of(stat),
            parent_bytes,
            opened: Some(directory),
        });
        self.close_above(self.levels.len() - 1);
    }

    /// Makes the directory above the current one the current directory.
    pub fn leave(&mut self) {
        let Some(left) = self.levels.pop() else { return };
        self.path.truncate(left.parent_bytes);
        let (Some(above), Some(directory)) = (self.levels.last_mut(), left.opened) else { return };
        if above.opened.is_none() {
            // Fails if the left directory was moved meanwhile. Then, names lead to the one above.
            let parent = open_directory(directory.as_fd(), OsStr::new(".."), above.identity);
            above.opened = parent.ok().map(|(parent, _)| parent);
        }
    }

    /// Returns the names in the current directory.
    pub fn names(&mut self) -> Result<Vec<OsString>, CopyError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(LISTING_BYTES, MaybeUninit::uninit());
        let names = self.current().and_then(|directory| {
            let mut names = Vec::new();
            let mut entries = RawDir::new(directory, &mut buffer);
            while let Some(entry) = entries.next() {
                let entry = entry.map_err(|error| CopyError::Host("cannot read", error.into()))?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    names.push(OsStr::from_bytes(name).to_owned());
                }
            }
            Ok(names)
        });
        self.buffer = buffer;
        names
    }

    /// Returns the target of the symbolic link `name` in the current directory, which had the
    /// attributes `seen`.
    pub fn read_link(&mut self, name: &OsStr, seen: &Stat) -> Result<Vec<u8>, CopyError> {
        let target = rustix::fs::readlinkat(self.current()?, name, Vec::new());
        let is_same = Identity::of(&self.examine(name)?) == Identity::of(seen);
        match target {
            Ok(target) if is_same => Ok(target.into_bytes()),
            Err(error) if is_same => Err(CopyError::Host("cannot read", error.into())),
            _ => Err(CopyError::Replaced),
        }
    }

    /// Returns the extended attributes of the entry `name` of the current directory, which had the
    /// attributes `seen` and is not open.
    pub fn xattrs_of(&mut self, name: &OsStr, seen: &Stat) -> Result<Xattrs<'static>, CopyError> {
        let path = self.path_of(name);
        let directory = (!self.levels.is_empty()).then(|| self.current()).transpose()?;
        Ok(Xattrs::of_entry(directory, name, path, Identity::of(seen)))
    }

    /// Returns the extended attributes of the current directory.
    pub fn xattrs(&mut self) -> Result<Xattrs<'_>, CopyError> {
        Ok(Xattrs::Open(self.current()?))
    }

    /// Returns the current directory. If it was closed, names lead to it from the nearest one above
    /// that is open.
    fn current(&mut self) -> Result<BorrowedFd<'_>, CopyError> {
        let is_open = |level: &Level| level.opened.is_some();
        if !self.levels.last().is_none_or(is_open) {
            let nearest = self.levels.iter().rposition(is_open).unwrap_or_default();
            for number in nearest + 1..self.levels.len() {
                let Level { name, identity, .. } = &self.levels[number];
                let (opened, _) = open_directory(self.opened(number - 1), name, *identity)?;
                self.levels[number].opened = Some(opened);
                self.close_above(number);
            }
        }
        Ok(self.levels.len().checked_sub(1).map_or(CWD, |last| self.opened(last)))
    }

    /// Returns the directory of a level, which is open.
    fn opened(&self, number: usize) -> BorrowedFd<'_> {
        self.levels.get(number).and_then(|level| level.opened.as_ref()).map_or(CWD, OwnedFd::as_fd)
    }

    /// Closes the directory that is too far above the level `number`, which was opened.
    fn close_above(&mut self, number: usize) {
        if let Some(far @ 1..) = number.checked_sub(OPEN_MAX) {
            self.levels[far].opened = None;
        }
    }
}

/// Opens the directory `name` for reading. Errors: it is not the `expected` one.
fn open_directory(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    expected: Identity,
) -> Result<(OwnedFd, Stat), CopyError> {
    open_as(parent, name, OFlags::DIRECTORY, expected, "cannot read")
}

/// Opens the file `name` for reading. Does not follow symbolic links. Errors: it is not the
/// `expected` file, or the action `action` failed.
fn open_as(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
    expected: Identity,
    action: &'static str,
) -> Result<(OwnedFd, Stat), CopyError> {
    let failed = |error: Errno| CopyError::Host(action, io::Error::from(error));
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(opened) => opened,
        // A symbolic link, a file that is no directory, and a socket.
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Err(CopyError::Replaced),
        Err(error) => return Err(failed(error)),
    };
    let stat = rustix::fs::fstat(&opened).map_err(failed)?;
    match Identity::of(&stat) == expected {
        true => Ok((opened, stat)),
        false => Err(CopyError::Replaced),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;
    use testkit::{command, must};

    use super::super::losses::{Losses, Lost};
    use super::*;

    /// Creates files by a script in the folder `top` of a new one, and begins a walk of it.
    fn walk(script: &str) -> (TempDir, PathBuf, Walk) {
        let folder = must(TempDir::new(), "a folder");
        let top = folder.path().join("top");
        must(fs::create_dir(&top), "the top");
        run(&top, script);
        let mut walk = Walk::default();
        enter(&mut walk, top.as_os_str()).expect("the top");
        (folder, top, walk)
    }

    fn run(folder: &Path, script: &str) {
        command::run(std::process::Command::new("sh").args(["-ec", script]).current_dir(folder));
    }

    fn enter(walk: &mut Walk, name: &OsStr) -> Result<(), CopyError> {
        let entry = walk.look(name)?;
        match entry.opened {
            Opened::Directory(directory) => walk.enter(name, &entry.stat, directory),
            other => panic!("{name:?} is no directory: {other:?}"),
        }
        Ok(())
    }

    /// Checks that what replaces an entry after its attributes were read is not opened, and is
    /// found by the next look.
    #[track_caller]
    fn check_replaced(replace: &str) {
        let script = "echo public > file; mkdir dir; echo public > dir/file; mkfifo pipe
            ln -s public link; setfattr -n user.x -v public file pipe link 2>/dev/null || :
            mkdir ../secret; echo secret > ../secret/file; ln -s ../secret to-directory
            ln -s ../secret/file to-file; ln -s secret other; echo secret > regular; mkfifo fifo";
        let (_folder, top, mut walk) = walk(script);
        for name in ["file", "dir", "link", "pipe"] {
            let name = OsStr::new(name);
            let seen = walk.examine(name).expect("the entry");
            run(&top, &format!("mv {0} old; {replace} {0}", name.display()));
            let outcome = match kind(&seen) {
                FileType::RegularFile | FileType::Directory => walk.open(name, seen).map(drop),
                FileType::Symlink => walk.read_link(name, &seen).map(drop),
                _ => Ok(()),
            };
            let lost = Lost { losses: &Losses::default(), path: b"" };
            let xattrs =
                walk.xattrs_of(name, &seen).and_then(|found| found.for_each(lost, |_, _| Ok(())));
            for outcome in [outcome, xattrs] {
                let is_open = matches!(kind(&seen), FileType::Fifo) && outcome.is_ok();
                let is_refused = matches!(outcome, Err(CopyError::Replaced));
                assert!(is_refused || is_open, "{name:?}, {replace}: {outcome:?}");
            }
            let found = walk.look(name).expect("another entry");
            assert_ne!(Identity::of(&found.stat), Identity::of(&seen));
            run(&top, &format!("mv {0} new; mv old {0}; rm -r new", name.display()));
        }
    }

    #[test]
    fn what_replaces_an_entry_is_not_opened() {
        for target in ["to-file", "to-directory", "other", "regular", "fifo"] {
            check_replaced(&format!("cp -a {target}"));
        }
        check_replaced("cp -a ../secret");
    }

    #[test]
    fn few_directories_of_a_deep_tree_are_open_and_those_above_are_found_again() {
        let depth = 100;
        let script = format!(
            "for i in $(seq {depth}); do echo $i > file; mkdir dir; cd dir; done; echo > file"
        );
        let (_folder, _top, mut walk) = walk(&script);
        for _ in 0..depth {
            enter(&mut walk, OsStr::new("dir")).expect("a directory");
        }
        for level in (0..depth).rev() {
            walk.leave();
            let Entry { opened: Opened::File(file), .. } =
                walk.look(OsStr::new("file")).expect("a file")
            else {
                panic!("no file");
            };
            let text = must(io::read_to_string(file), "a file");
            assert_eq!(text.trim(), (level + 1).to_string());
            let open = walk.levels.iter().filter(|level| level.opened.is_some()).count();
            assert!(open <= OPEN_MAX + 1, "{open} are open at level {level}");
            assert_eq!(walk.names().expect("the names").len(), 2);
        }
    }

    #[test]
    fn a_replaced_directory_above_is_not_entered_again() {
        let script = "mkdir -p a/a/a/a/a/a/a/a/a/a/a/a; echo public > a/a/file
            mkdir ../secret; echo secret > ../secret/file; cp -a a ../moved";
        // What replaces a/a, whether it is refused, and the text of a/a/file.
        for (replace, is_refused) in [
            ("mv a/a old; ln -s ../../secret a/a", false),
            ("mv a/a/a/a/a old; mv a/a kept; ln -s ../../secret a/a", true),
            ("mv a/a/a/a/a old; mv a/a kept; cp -r ../secret a/a", true),
            ("mv a/a/a/a/a old", false),
        ] {
            let (_folder, top, mut walk) = walk(script);
            for _ in 0..12 {
                enter(&mut walk, OsStr::new("a")).expect("a directory");
            }
            run(&top, replace);
            for level in (0..12).rev() {
                walk.leave();
                let found = walk.look(OsStr::new("file"));
                let is_right = match (level, found) {
                    (2, Ok(Entry { opened: Opened::File(file), .. })) => {
                        !is_refused && must(io::read_to_string(file), "a file") == "public\n"
                    }
                    // Those that were closed, from the replaced one on.
                    (2..=4, Err(CopyError::Replaced)) => is_refused || level > 2,
                    // They have no such file.
                    (level, Err(CopyError::Host(..))) => level != 2,
                    _ => false,
                };
                assert!(is_right, "{replace}: level {level}");
            }
        }
    }

    #[test]
    fn the_depth_is_that_of_paths() {
        let (_folder, _top, mut walk) = walk("");
        let name = "x".repeat(200);
        let name = OsStr::new(&name);
        let mut depth = 0;
        let error = loop {
            let parent = walk.current().expect("a directory");
            must(rustix::fs::mkdirat(parent, name, Mode::RWXU), "a directory");
            match enter(&mut walk, name) {
                Ok(()) => depth += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, CopyError::Host("cannot copy", _)), "{error:?}");
        assert_eq!(depth, 20);
    }
}
