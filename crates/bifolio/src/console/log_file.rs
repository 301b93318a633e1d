//! Log files of mounts, opened so that another user cannot direct what root logs to a file of their
//! choice. Not here: the log's lines (`log`).
//!
//! The kernel has similar rules (protected_symlinks, protected_hardlinks, protected_regular and
//! protected_fifos in proc(5)), but hosts may not enable them, and they apply to few directories.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::console::failure::{Failure, Result};

/// The maximum number of symbolic links on the way to a file.
const LINKS_MAX: usize = 40;
/// The permissions of a new file, before the umask.
const MODE: Mode = Mode::from_raw_mode(0o644);

/// Opens or creates the file at `path` for appending.
///
/// # Errors
///
/// The path leads through a symbolic link of another user than this one and root; the file is not a
/// regular file; or others can write to its directory, and the file belongs to another user or has
/// a further name.
pub fn open(path: &Path) -> Result<File> {
    let (directory, name) = find(path)?;
    let failed = |errno: Errno| {
        Failure::host(path, "cannot open the log file", &std::io::Error::from(errno))
    };
    let refused = |reason: &str| {
        Failure::new(path, format!("cannot use it as the log file: {reason}"))
            .advise("choose a file in a directory that only you can write to")
    };
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let around = rustix::fs::fstat(&directory).map_err(failed)?;
    // Not opened first: opening a device may have effects.
    match rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if !is_regular(&found) => return Err(refused("it is not a regular file")),
        // The kernel may refuse it, too, but without a reason.
        Ok(found) if is_others(&around) && !is_own(found.st_uid) => {
            return Err(refused("it belongs to another user"));
        }
        Ok(_) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let file = rustix::fs::openat(&directory, &name, flags, MODE).map_err(failed)?;
    let found = rustix::fs::fstat(&file).map_err(failed)?;
    if !is_regular(&found) {
        return Err(refused("it is not a regular file"));
    }
    if is_others(&around) && !is_own(found.st_uid) {
        return Err(refused("it belongs to another user"));
    }
    if is_others(&around) && found.st_nlink > 1 {
        return Err(refused("it has a further name, which may belong to another user"));
    }
    Ok(file.into())
}

/// Returns whether the file is of this user or root.
fn is_own(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

fn is_regular(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

/// Returns whether other users can create names in the directory.
fn is_others(directory: &Stat) -> bool {
    !is_own(directory.st_uid) || directory.st_mode & 0o022 != 0
}

/// Returns the directory of the file at `path`, opened, and the file's name in it. Follows symbolic
/// links of this user and of root, in the last component, too.
fn find(path: &Path) -> Result<(OwnedFd, OsString)> {
    let failed = |errno: Errno| {
        Failure::host(path, "cannot open the log file", &std::io::Error::from(errno))
    };
    let open_directory = |at: &OwnedFd, name: &Path| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(at, name, flags, Mode::empty())
    };
    let start = |name: &str| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, name, flags, Mode::empty()).map_err(failed)
    };
    let mut at = start(".")?;
    let mut rest: VecDeque<OsString> = parts(path);
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == "/" {
            at = start("/")?;
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat(&at, &name, flags, Mode::empty()) {
            Err(Errno::NOENT) if rest.is_empty() => return Ok((at, name)),
            found => found.map_err(failed)?,
        };
        let status = rustix::fs::fstat(&found).map_err(failed)?;
        if FileType::from_raw_mode(status.st_mode) == FileType::Symlink {
            links += 1;
            if links > LINKS_MAX {
                return Err(failed(Errno::LOOP));
            }
            if !is_own(status.st_uid) {
                let text = "cannot open the log file: it is behind a symbolic link of another user";
                return Err(Failure::new(path, text).advise("use the path without the link"));
            }
            let target = rustix::fs::readlinkat(&found, "", Vec::new()).map_err(failed)?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            for part in parts(&target).into_iter().rev() {
                rest.push_front(part);
            }
        } else if rest.is_empty() {
            return Ok((at, name));
        } else {
            at = open_directory(&at, Path::new(&name)).map_err(failed)?;
        }
    }
    Err(failed(Errno::ISDIR))
}

/// Returns the components of a path, without ones that lead nowhere.
fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter(|component| !matches!(component, Component::CurDir));
    named.map(|component| component.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn is_refused(path: &Path, reason: &str) {
        let refused = open(path).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }

    #[test]
    fn own_links_are_followed_and_files_created() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        symlink("real/../real", folder.path().join("link")).unwrap();
        symlink("link/new", folder.path().join("file")).unwrap();
        for path in ["file", "link/new", "real/./new"] {
            use std::io::Write;
            open(&folder.path().join(path)).unwrap().write_all(b"x").unwrap();
        }
        assert_eq!(std::fs::read(folder.path().join("real/new")).unwrap(), b"xxx");
        symlink("loop", folder.path().join("loop")).unwrap();
        is_refused(&folder.path().join("loop"), "symbolic links");
        is_refused(folder.path(), "not a regular file");
        is_refused(&folder.path().join("absent/new"), "No such file");
    }

    #[test]
    fn what_a_stranger_has_put_there_is_refused() {
        assert!(rustix::process::geteuid().is_root(), "only root can give files to others");
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("private"), "").unwrap();
        std::fs::write(path("theirs"), "").unwrap();
        std::fs::hard_link(path("private"), path("second")).unwrap();
        symlink("private", path("link")).unwrap();
        symlink(".", path("directory")).unwrap();
        for name in ["theirs", "link", "directory"] {
            std::os::unix::fs::lchown(path(name), Some(65_534), None).unwrap();
        }
        // Only root can have put these there.
        open(&path("second")).unwrap();
        open(&path("theirs")).unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        is_refused(&path("link"), "link of another user");
        is_refused(&path("directory/new"), "link of another user");
        is_refused(&path("second"), "further name");
        is_refused(&path("theirs"), "belongs to another user");
        rustix::fs::mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        is_refused(&path("pipe"), "not a regular file");
        is_refused(Path::new("/dev/null"), "not a regular file");
        assert!(std::fs::read(path("private")).unwrap().is_empty());
    }
}
