//! Copies of files and trees of the host, and of archives, into an image.
//! Not here: command lines, opening and closing images.

mod casefolded;
mod contents;
mod directories;
mod from_image;
mod hard_link;
mod input;
mod losses;
mod metadata;
mod source;
mod tree;
mod unpack;
mod whiteouts;
mod xattrs;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::attributes::{AttributeChange, DeviceNumber, FileType};
use base::{Error, InodeNumber};
use rustix::fs::{FileType as HostType, Stat};
use vfs::{Creation, Credentials, Node, RenameFlags, Volume};

use crate::console::Console;
use crate::console::failure::{self, Failure, Result};
use crate::copy::{Full, IS_MADE, LeftOut, cached_bytes_max, temporary_name};
use crate::format::text;
use crate::images::target::Target;
use crate::images::writing::Writing;
use crate::tree::links::{self, LINKS_MAX, Leads};

pub use from_image::InImage;
pub use input::check_uncompressed;
use losses::{Losses, Lost};
pub use metadata::{DOES_NOT_FIT, is_full};
pub use source::Source;
use tree::{Entry, Opened, Walk};
pub use unpack::{UnpackOptions, Unpacker};
use xattrs::Xattrs;

/// Options of a copy into an image.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether owners, permissions, times, extended attributes and hard links are preserved.
    pub preserve: bool,
    /// Whether directories are copied.
    pub recursive: bool,
    /// Whether symbolic links to directories are followed below the destination.
    pub keep_directory_links: bool,
    /// The owner of copies if owners are not preserved.
    pub by: Credentials,
    /// The owner of copies instead of a preserved one.
    pub owner: Option<u32>,
    /// The group of copies instead of a preserved one.
    pub group: Option<u32>,
    /// The permissions of all copies, instead of the permissions of the originals.
    pub permissions: Option<u16>,
}

/// Destination of a copy.
#[derive(Clone, Debug)]
pub enum Destination {
    /// This name in this directory.
    Name(Arc<Node>, Vec<u8>),
    /// This directory, for the contents of the original.
    Into(Arc<Node>),
}

/// Copier into one image.
pub struct Importer<'a> {
    options: &'a Options,
    volume: &'a Volume,
    writing: &'a Writing,
    console: &'a mut Console,
    /// The device and inode number of the image file. `None` if they could not be found.
    image: Option<(u64, u64)>,
    /// The copies of files with several names, by device and inode number of the original.
    links: HashMap<(u64, u64), InodeNumber>,
    /// The copies of files. None of them is replaced, so no other file gets its number.
    made: HashSet<InodeNumber>,
    left_out: LeftOut,
    losses: Losses,
    /// The directories from the destination down to that of the current copy.
    directories: Vec<Arc<Node>>,
}

/// Error of the copy of one file.
#[derive(Debug)]
enum CopyError {
    /// An action on the host that failed, and its error.
    Host(&'static str, io::Error),
    /// An action in the image that failed, and its error.
    Image(&'static str, Error),
    /// Another process has replaced the file since its attributes were read.
    Replaced,
    /// A symbolic link to a directory is at the place of a directory. Its path below the
    /// destination.
    Link(Vec<u8>),
    /// Another error, as text.
    Other(Cow<'static, str>),
    /// The command must stop.
    Fatal(Failure),
}

const CANNOT_CREATE: &str = "cannot create the copy";
const IS_REPLACED: &str = "was replaced by another process while it was copied, and was not copied";
const IS_MOVED: &str =
    "was moved by another process while it was copied; its extended attributes were not copied";
const LEADS_OUT: &str = "was not copied: a symbolic link in the image leads out of the destination";
const IS_DIRECTORY: &str = "is a directory and was not copied; `cp -r` and `cp -a` copy it";
const IS_SPECIAL: &str = "is a special file and was not copied; `cp -r` and `cp -a` copy it, and \
     `put -` copies what can be read from it";

impl From<Error> for CopyError {
    fn from(error: Error) -> Self {
        Self::Image(CANNOT_CREATE, error)
    }
}

impl<'a> Importer<'a> {
    /// Creates an importer to `volume`, which is in the image of `destination`.
    pub fn new(
        options: &'a Options,
        volume: &'a Volume,
        destination: &Target,
        writing: &'a Writing,
        console: &'a mut Console,
    ) -> Self {
        let image = writing.identity(destination);
        let (links, made) = (HashMap::new(), HashSet::new());
        let (left_out, losses, directories) = (LeftOut::default(), Losses::default(), Vec::new());
        Self {
            options,
            volume,
            writing,
            console,
            image,
            links,
            made,
            left_out,
            losses,
            directories,
        }
    }

    /// Copies the file or directory at `from`. Reports failures.
    pub fn copy(&mut self, from: &Path, destination: &Destination) -> Result<()> {
        self.directories.clear();
        self.copy_entry(&mut Walk::default(), from.as_os_str(), destination)
    }

    /// Copies the data of a file that is open already. Reports failures.
    pub fn copy_opened(&mut self, source: Source, destination: &Destination) -> Result<()> {
        self.writing.check_interrupted()?;
        let Source { path, opened } = source;
        let (original, file) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.report(&path, Err(error)),
        };
        let outcome = match destination {
            Destination::Into(_) => Err(Error::NotDirectory.into()),
            Destination::Name(directory, name) => self
                .check_not_image(&original)
                .and_then(|()| self.check_not_made(directory, name))
                .and_then(|()| {
                    let permissions = self.plain_permissions(&original);
                    let lost = Lost { losses: &self.losses, path: path.as_os_str().as_bytes() };
                    self.copy_file(&file, None, permissions, (directory, name), lost)
                })
                .and_then(|()| self.note_made(directory, name).map(drop)),
        };
        self.report_left_out(&path, &original, outcome)
    }

    /// Copies all data of `stream`, which is standard input, to the name `name` in `directory`.
    /// Reports failures.
    pub fn copy_stream(&mut self, stream: &File, directory: &Arc<Node>, name: &[u8]) -> Result<()> {
        let permissions = 0o666 & !self.writing.umask;
        let lost = Lost { losses: &self.losses, path: name };
        let outcome = self.copy_file(stream, None, permissions, (directory, name), lost);
        self.report(Path::new("standard input"), outcome)
    }

    /// Reports the files that were not copied because the image `destination` is full, and metadata
    /// that was not copied.
    pub fn finish(self, destination: &Path) {
        if let Some(failure) = self.left_out.failure(destination.as_os_str().as_bytes()) {
            self.console.report(&failure);
        }
        self.losses.warn(self.console);
    }

    fn report(&mut self, from: &Path, outcome: Result<(), CopyError>) -> Result<()> {
        report(self.console, from, outcome)
    }

    /// Reports a failed copy. If the image is full, counts the file for the report at the end
    /// instead.
    fn report_left_out(
        &mut self,
        from: &Path,
        original: &Stat,
        outcome: Result<(), CopyError>,
    ) -> Result<()> {
        let Err(CopyError::Image(action, error @ (Error::NoSpace | Error::NoInodes))) = &outcome
        else {
            return self.report(from, outcome);
        };
        let failure = Failure::action(from, action, error);
        let bytes = file_bytes(original);
        self.left_out.add(from.as_os_str().as_bytes(), bytes, failure, Full::of(error));
        Ok(())
    }

    /// Copies the entry `name` of the current directory of `walk`.
    fn copy_entry(
        &mut self,
        walk: &mut Walk,
        name: &OsStr,
        destination: &Destination,
    ) -> Result<()> {
        self.writing.check_interrupted()?;
        let from = walk.path_of(name);
        let Entry { stat, opened } = match walk.look(name) {
            Err(error) => return self.report(&from, Err(error)),
            Ok(entry) => entry,
        };
        let file = match opened {
            Opened::Directory(directory) => {
                walk.enter(name, &stat, directory);
                let outcome = self.copy_directory(walk, &from, &stat, destination);
                walk.leave();
                return self.report(&from, outcome);
            }
            Opened::File(file) => Some(file),
            Opened::Nothing => None,
        };
        let outcome = match destination {
            Destination::Into(_) => Err(Error::NotDirectory.into()),
            Destination::Name(directory, copy) => {
                let original = Original { name, path: from.clone(), stat: &stat, file };
                self.copy_other(walk, &original, directory, copy)
            }
        };
        self.report_left_out(&from, &stat, outcome)
    }

    /// Copies the current directory of `walk`, which is at `from`.
    fn copy_directory(
        &mut self,
        walk: &mut Walk,
        from: &Path,
        original: &Stat,
        destination: &Destination,
    ) -> Result<(), CopyError> {
        if !self.options.recursive {
            return Err(CopyError::Other(IS_DIRECTORY.into()));
        }
        let entries = walk.names()?;
        let (directories, is_new) = match destination {
            Destination::Into(directory) => (vec![Arc::clone(directory)], false),
            Destination::Name(directory, name) => {
                if self.directories.is_empty() {
                    self.directories.push(Arc::clone(directory));
                }
                match self.create_directory(&self.owner_of(original), directory, name) {
                    Ok(made) => made,
                    Err(error) => {
                        if matches!(error, CopyError::Image(_, Error::NoSpace | Error::NoInodes)) {
                            let (files, bytes) = count_inside(walk, entries);
                            self.left_out.add_more(files, bytes);
                        }
                        let reported = self.report_left_out(from, original, Err(error));
                        return reported.map_err(CopyError::Fatal);
                    }
                }
            }
        };
        let Some(copy) = directories.last().map(Arc::clone) else { return Ok(()) };
        let above = std::mem::replace(&mut self.directories, directories);
        let ended = entries.into_iter().try_for_each(|name| {
            let destination = Destination::Name(Arc::clone(&copy), name.as_bytes().to_vec());
            self.copy_entry(walk, &name, &destination).map_err(CopyError::Fatal)
        });
        self.directories = above;
        // Also after a signal: the directory is not left with the permissions that it has until it
        // is complete.
        let completed = self.complete_directory(walk, from, original, (&copy, is_new));
        ended.and(completed)
    }

    /// Sets the attributes of the copy of the current directory of `walk`, which is at `from`.
    fn complete_directory(
        &self,
        walk: &mut Walk,
        from: &Path,
        original: &Stat,
        (copy, is_new): (&Node, bool),
    ) -> Result<(), CopyError> {
        let lost = Lost { losses: &self.losses, path: from.as_os_str().as_bytes() };
        match (self.options.preserve, is_new) {
            (true, _) => match walk.xattrs() {
                Ok(xattrs) => metadata::preserve(original, &xattrs, copy, self.options, lost),
                Err(error) => {
                    metadata::preserve_plain(original, copy, self.options, lost)?;
                    Err(if matches!(error, CopyError::Replaced) {
                        CopyError::Other(IS_MOVED.into())
                    } else {
                        error
                    })
                }
            },
            (false, true) => set_permissions(copy, self.plain_permissions(original)),
            (false, false) => Ok(()),
        }
    }

    /// Returns the directories from the destination down to the directory `name`, and whether that
    /// is new. A new directory is created with access only for its owner.
    fn create_directory(
        &self,
        by: &Credentials,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(Vec<Arc<Node>>, bool), CopyError> {
        let below = |node| [&self.directories[..], &[node]].concat();
        match self.volume.lookup(directory, name) {
            Ok(node) if node.kind() == FileType::Directory => Ok((below(node), false)),
            Ok(node) if node.kind() == FileType::Symlink => {
                match links::follow(self.volume, &self.directories, &node, &mut { LINKS_MAX })? {
                    Leads::Directory(found) if self.options.keep_directory_links => {
                        Ok((found, false))
                    }
                    Leads::Directory(_) => Err(CopyError::Link(name.to_vec())),
                    Leads::Outside => Err(CopyError::Other(LEADS_OUT.into())),
                    Leads::File(_) | Leads::Nowhere => Err(Error::NotDirectory.into()),
                }
            }
            Ok(_) => Err(Error::NotDirectory.into()),
            Err(Error::NotFound) => {
                let creation = Creation::of(FileType::Directory, 0o700);
                let made = self.volume.create_in(directory, name, &creation, by)?;
                Ok((below(made), true))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Copies an entry of the current directory of `walk` that is no directory.
    fn copy_other(
        &mut self,
        walk: &mut Walk,
        original: &Original<'_>,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(), CopyError> {
        let stat = original.stat;
        self.check_not_image(stat)?;
        self.check_not_made(directory, name)?;
        let key = identity(stat);
        let is_linked = self.options.preserve && stat.st_nlink > 1;
        if let Some(&copy) = self.links.get(&key).filter(|_| is_linked) {
            let copy = self.volume.node(copy)?;
            return create_complete(self.volume, directory, name, |_, name| {
                self.volume.link(directory, name, &copy)?;
                Ok(())
            });
        }
        let xattrs = match &original.file {
            _ if !self.options.preserve => None,
            Some(file) => Some(Xattrs::Open(file.as_fd())),
            None => Some(walk.xattrs_of(original.name, stat)?),
        };
        if let Some(file) = &original.file {
            let permissions = self.plain_permissions(stat);
            let preserved = xattrs.as_ref().map(|xattrs| (stat, xattrs));
            let lost = Lost { losses: &self.losses, path: original.path.as_os_str().as_bytes() };
            self.copy_file(file, preserved, permissions, (directory, name), lost)?;
        } else {
            self.copy_special(walk, original, xattrs.as_ref(), directory, name)?;
        }
        let copy = self.note_made(directory, name)?;
        if is_linked {
            self.links.insert(key, copy);
        }
        Ok(())
    }

    /// Copies a symbolic link, a device, a pipe or a socket. Preserves its metadata if `xattrs` is
    /// set.
    fn copy_special(
        &self,
        walk: &mut Walk,
        original: &Original<'_>,
        xattrs: Option<&Xattrs<'_>>,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(), CopyError> {
        let stat = original.stat;
        let kind = special_kind(stat);
        if kind != FileType::Symlink && !self.options.recursive {
            return Err(CopyError::Other(IS_SPECIAL.into()));
        }
        let target = match kind {
            FileType::Symlink => walk.read_link(original.name, stat)?,
            _ => Vec::new(),
        };
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let permissions = match kind {
            FileType::Symlink => 0o777,
            _ => self.plain_permissions(stat),
        };
        let creation = Creation {
            device: DeviceNumber { major, minor },
            target: &target,
            ..Creation::of(kind, permissions)
        };
        create_complete(self.volume, directory, name, |_, name| {
            let by = &self.owner_of(stat);
            let copy = self.volume.create_in(directory, name, &creation, by)?;
            let lost = Lost { losses: &self.losses, path: original.path.as_os_str().as_bytes() };
            match xattrs {
                Some(xattrs) => metadata::preserve(stat, xattrs, &copy, self.options, lost),
                None => Ok(()),
            }
        })
    }

    /// Copies the data of a file and, if `preserved` is set, its metadata.
    fn copy_file(
        &self,
        file: &File,
        preserved: Option<(&Stat, &Xattrs<'_>)>,
        permissions: u16,
        (directory, name): (&Arc<Node>, &[u8]),
        lost: Lost<'_>,
    ) -> Result<(), CopyError> {
        create_complete(self.volume, directory, name, |replaced, name| {
            let by = match preserved {
                Some((original, _)) => self.owner_of(original),
                None => self.options.by.clone(),
            };
            // Only the owner can read the copy until it is complete.
            let creation = Creation::of(FileType::Regular, 0o600);
            let copy = self.volume.create_in(directory, name, &creation, &by)?;
            let check_interrupted = || self.writing.check_interrupted().map_err(CopyError::Fatal);
            contents::copy(file, &copy, cached_bytes_max(self.volume), check_interrupted)?;
            match (preserved, replaced) {
                (Some((original, xattrs)), _) => {
                    metadata::preserve(original, xattrs, &copy, self.options, lost)
                }
                (None, Some(replaced)) if replaced.kind() == FileType::Regular => {
                    metadata::take_over(replaced, self.options.permissions, &copy, lost)
                }
                (None, _) => set_permissions(&copy, permissions),
            }
        })
    }

    /// Errors: `name` is a copy.
    fn check_not_made(&self, directory: &Arc<Node>, name: &[u8]) -> Result<(), CopyError> {
        match self.volume.lookup(directory, name) {
            Ok(node) if self.made.contains(&node.number()) => Err(CopyError::Other(IS_MADE.into())),
            _ => Ok(()),
        }
    }

    /// Records the copy `name`. Returns its number.
    fn note_made(&mut self, directory: &Arc<Node>, name: &[u8]) -> Result<InodeNumber, CopyError> {
        let number = self.volume.lookup(directory, name)?.number();
        self.made.insert(number);
        Ok(number)
    }

    /// Errors: the original is the image.
    fn check_not_image(&self, original: &Stat) -> Result<(), CopyError> {
        match self.image {
            Some(image) if image == identity(original) => {
                Err(CopyError::Other("is the destination image".into()))
            }
            _ => Ok(()),
        }
    }

    fn owner_of(&self, original: &Stat) -> Credentials {
        self.owner_of_ids(original.st_uid, original.st_gid)
    }

    /// Returns the credentials with the owner of the copy of a file with this owner and group.
    fn owner_of_ids(&self, uid: u32, gid: u32) -> Credentials {
        match self.options.preserve {
            true => Credentials {
                uid: self.options.owner.unwrap_or(uid),
                gid: self.options.group.unwrap_or(gid),
                ..Credentials::ROOT
            },
            false => self.options.by.clone(),
        }
    }

    fn plain_permissions(&self, original: &Stat) -> u16 {
        let kept = permissions(original) & 0o777 & !self.writing.umask;
        self.options.permissions.unwrap_or(kept)
    }
}

/// An entry of a directory of the host that is no directory.
struct Original<'a> {
    name: &'a OsStr,
    /// The path, for messages.
    path: PathBuf,
    stat: &'a Stat,
    /// The open file, if it is a regular one.
    file: Option<File>,
}

/// Creates a file by calling `make` with its name, or with a temporary name if it replaces an
/// existing file. Removes the file if `make` fails.
fn create_complete(
    volume: &Volume,
    directory: &Arc<Node>,
    name: &[u8],
    make: impl FnOnce(Option<&Node>, &[u8]) -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let by = &Credentials::ROOT;
    let replaced = match volume.lookup(directory, name) {
        Ok(node) if node.kind() == FileType::Directory => return Err(Error::IsDirectory.into()),
        Ok(node) => Some(node),
        Err(Error::NotFound) => None,
        Err(error) => return Err(error.into()),
    };
    let temporary = temporary_name();
    let made_name = if replaced.is_some() { temporary.as_bytes() } else { name };
    let made = make(replaced.as_deref(), made_name).and_then(|()| {
        if replaced.is_some() {
            let (from, to) = ((directory, made_name), (directory, name));
            volume.rename_in(from, to, RenameFlags::default(), by)?;
            // If both are names of one file, rename(2) does nothing, and the temporary name is
            // left.
            match volume.unlink(directory, made_name, by) {
                Err(Error::NotFound) => {}
                removed => removed?,
            }
        }
        Ok(())
    });
    if made.is_err() {
        // The first error is reported, also if this fails.
        let _ = volume.unlink(directory, made_name, by);
    }
    made
}

/// Reports a failure that is not fatal. Errors: a fatal failure.
fn report(
    console: &mut Console,
    from: impl failure::Subject,
    outcome: Result<(), CopyError>,
) -> Result<()> {
    let failure = match outcome {
        Ok(()) => return Ok(()),
        Err(CopyError::Fatal(failure)) => return Err(failure),
        Err(CopyError::Host(action, error)) => Failure::host(from, action, &error),
        Err(CopyError::Image(action, error)) => Failure::action(from, action, &error),
        Err(CopyError::Replaced) => Failure::new(from, IS_REPLACED),
        Err(CopyError::Link(link)) => Failure::new(from, link_text(&link)),
        Err(CopyError::Other(what)) => Failure::new(from, what),
    };
    console.report(&failure);
    Ok(())
}

/// Returns the text about a symbolic link to a directory that is in the way.
fn link_text(link: &[u8]) -> String {
    let link = text::escape(link);
    format!(
        "was not copied: {link} is a symbolic link to a directory in the image; use --keep-directory-symlink to follow \
         it, or remove it first"
    )
}

/// Counts the entries `names` of the current directory of `walk` and all below, and the bytes of
/// the files. Skips what cannot be read.
fn count_inside(walk: &mut Walk, names: Vec<OsString>) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    let mut levels = vec![names];
    while let Some(names) = levels.last_mut() {
        let Some(name) = names.pop() else {
            levels.pop();
            if !levels.is_empty() {
                walk.leave();
            }
            continue;
        };
        files += 1;
        let Ok(found) = walk.examine(&name) else { continue };
        bytes += file_bytes(&found);
        if tree::kind(&found) != HostType::Directory {
            continue;
        }
        if let Ok(Entry { stat, opened: Opened::Directory(directory) }) = walk.open(&name, found) {
            walk.enter(&name, &stat, directory);
            levels.push(walk.names().unwrap_or_default());
        }
    }
    (files, bytes)
}

/// Returns the number of bytes of a regular file, and 0 for other files.
fn file_bytes(file: &Stat) -> u64 {
    let is_regular = tree::kind(file) == HostType::RegularFile;
    u64::try_from(file.st_size).ok().filter(|_| is_regular).unwrap_or_default()
}

fn identity(file: &Stat) -> (u64, u64) {
    (file.st_dev, file.st_ino)
}

/// Returns the low 12 bits of the mode.
fn permissions(file: &Stat) -> u16 {
    (file.st_mode & 0o7777) as u16
}

fn special_kind(original: &Stat) -> FileType {
    match tree::kind(original) {
        HostType::Symlink => FileType::Symlink,
        HostType::CharacterDevice => FileType::CharacterDevice,
        HostType::BlockDevice => FileType::BlockDevice,
        HostType::Fifo => FileType::Fifo,
        _ => FileType::Socket,
    }
}

fn set_permissions(node: &Node, permissions: u16) -> Result<(), CopyError> {
    let permissions = Some(permissions);
    set_attributes(node, &AttributeChange { permissions, ..AttributeChange::default() })
}

fn set_attributes(node: &Node, change: &AttributeChange) -> Result<(), CopyError> {
    node.set_attributes(change, &Credentials::ROOT)
        .map_err(|error| CopyError::Image("cannot set the attributes of the copy", error))
}

/// Returns the last name of a path of the host. Returns `None` if the path ends in `.` or `..`,
/// which means the contents of the directory.
pub fn file_name(path: &OsStr) -> Option<&[u8]> {
    let name = path.as_bytes().rsplit(|&byte| byte == b'/').find(|name| !name.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}
