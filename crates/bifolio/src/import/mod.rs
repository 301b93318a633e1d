//! Copies of files and trees of the host, and of archives, into an image.
//! Not here: command lines, opening and closing images.
//!
//! The tree of the host is walked by paths, so the limit of the host for paths bounds its depth.

mod contents;
mod directories;
mod metadata;
mod source;
mod unpack;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use base::attributes::{AttributeChange, DeviceNumber, FileType};
use base::{Error, InodeNumber};
use vfs::{Creation, Credentials, Node, RenameFlags, Volume};

use crate::console::Console;
use crate::copy::{LeftOut, cached_bytes_max, temporary_name};
use crate::failure::{self, Failure, Result};
use crate::target::Target;
use crate::writing::Writing;

pub use source::Source;
pub use unpack::{Unpacker, check_uncompressed};

/// Options of a copy into an image.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether owners, permissions, times, extended attributes and hard links are preserved.
    pub preserve: bool,
    /// Whether directories are copied.
    pub recursive: bool,
    /// The owner of copies if owners are not preserved.
    pub by: Credentials,
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
    left_out: LeftOut,
}

/// Error of the copy of one file.
#[derive(Debug)]
enum CopyError {
    /// An action on the host that failed, and its error.
    Host(&'static str, io::Error),
    /// An action in the image that failed, and its error.
    Image(&'static str, Error),
    /// Another error, as text.
    Other(&'static str),
    /// The command must stop.
    Fatal(Failure),
}

const CANNOT_CREATE: &str = "cannot create the copy";
const IS_DIRECTORY: &str = "is a directory and was not copied; `cp -r` and `cp -a` copy it";
const IS_SPECIAL: &str = "is a special file and was not copied; `cp -r` and `cp -a` copy it";

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
        let links = HashMap::new();
        let left_out = LeftOut::default();
        Self { options, volume, writing, console, image, links, left_out }
    }

    /// Copies the file or directory at `from`. Reports failures.
    pub fn copy(&mut self, from: &Path, destination: &Destination) -> Result<()> {
        self.copy_entry(from, destination)
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
            Destination::Name(directory, name) => self.check_not_image(&original).and_then(|()| {
                let permissions = self.plain_permissions(&original);
                self.copy_file(&file, None, permissions, directory, name)
            }),
        };
        self.report_left_out(&path, &original, outcome)
    }

    /// Copies all data of `stream`, which is standard input, to the name `name` in `directory`. Reports failures.
    pub fn copy_stream(
        &mut self,
        stream: &fs::File,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<()> {
        let permissions = 0o666 & !self.writing.umask;
        let outcome = self.copy_file(stream, None, permissions, directory, name);
        self.report(Path::new("standard input"), outcome)
    }

    /// Reports the files that were not copied because the image `destination` is full.
    pub fn finish(self, destination: &Path) {
        if let Some(failure) = self.left_out.failure(destination.as_os_str().as_bytes()) {
            self.console.report(&failure);
        }
    }

    fn report(&mut self, from: &Path, outcome: Result<(), CopyError>) -> Result<()> {
        report(self.console, from, outcome)
    }

    /// Reports a failed copy. If the image is full, counts the file, or the directory and its contents, for the
    /// report at the end instead.
    fn report_left_out(
        &mut self,
        from: &Path,
        original: &Metadata,
        outcome: Result<(), CopyError>,
    ) -> Result<()> {
        let Err(CopyError::Image(action, Error::NoSpace)) = &outcome else {
            return self.report(from, outcome);
        };
        let failure = Failure::action(from, action, &Error::NoSpace);
        let bytes = if original.is_file() { original.len() } else { 0 };
        self.left_out.add(from.as_os_str().as_bytes(), bytes, failure);
        if original.is_dir() {
            let (files, bytes) = count_inside(from);
            self.left_out.add_more(files, bytes);
        }
        Ok(())
    }

    fn copy_entry(&mut self, from: &Path, destination: &Destination) -> Result<()> {
        self.writing.check_interrupted()?;
        let original = match fs::symlink_metadata(from) {
            Err(error) => return self.report(from, Err(CopyError::Host("cannot copy", error))),
            Ok(original) => original,
        };
        if original.is_dir() {
            let outcome = self.copy_directory(from, &original, destination);
            return self.report(from, outcome);
        }
        let outcome = match destination {
            Destination::Into(_) => Err(Error::NotDirectory.into()),
            Destination::Name(directory, name) => self.copy_other(from, &original, directory, name),
        };
        self.report_left_out(from, &original, outcome)
    }

    fn copy_directory(
        &mut self,
        from: &Path,
        original: &Metadata,
        destination: &Destination,
    ) -> Result<(), CopyError> {
        if !self.options.recursive {
            return Err(CopyError::Other(IS_DIRECTORY));
        }
        let entries = fs::read_dir(from).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
        });
        let entries = entries.map_err(|error| CopyError::Host("cannot read", error))?;
        let (copy, is_new) = match destination {
            Destination::Into(directory) => (Arc::clone(directory), false),
            Destination::Name(directory, name) => {
                match self.create_directory(original, directory, name) {
                    Ok(made) => made,
                    Err(error) => {
                        let reported = self.report_left_out(from, original, Err(error));
                        return reported.map_err(CopyError::Fatal);
                    }
                }
            }
        };
        for name in entries {
            let destination = Destination::Name(Arc::clone(&copy), name.as_bytes().to_vec());
            self.copy_entry(&from.join(&name), &destination).map_err(CopyError::Fatal)?;
        }
        match (self.options.preserve, is_new) {
            (true, _) => metadata::preserve(from, original, &copy),
            (false, true) => set_permissions(&copy, self.plain_permissions(original)),
            (false, false) => Ok(()),
        }
    }

    /// Returns the directory `name`, and whether it is new. A new directory is created with access only for its
    /// owner.
    fn create_directory(
        &self,
        original: &Metadata,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(Arc<Node>, bool), CopyError> {
        match self.volume.lookup(directory, name) {
            Ok(node) if node.kind() == FileType::Directory => Ok((node, false)),
            Ok(_) => Err(Error::NotDirectory.into()),
            Err(Error::NotFound) => {
                let creation = Creation::of(FileType::Directory, 0o700);
                let made =
                    self.volume.create_in(directory, name, &creation, &self.owner_of(original))?;
                Ok((made, true))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn copy_other(
        &mut self,
        from: &Path,
        original: &Metadata,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(), CopyError> {
        self.check_not_image(original)?;
        let key = identity(original);
        let is_linked = self.options.preserve && original.nlink() > 1;
        if let Some(&copy) = self.links.get(&key).filter(|_| is_linked) {
            let copy = self.volume.node(copy)?;
            return create_complete(self.volume, directory, name, |_, name| {
                self.volume.link(directory, name, &copy)?;
                Ok(())
            });
        }
        if original.is_file() {
            let file = source::open(from)?;
            let permissions = self.plain_permissions(original);
            let preserved = self.options.preserve.then_some((from, original));
            self.copy_file(&file, preserved, permissions, directory, name)?;
        } else {
            self.copy_special(from, original, directory, name)?;
        }
        if is_linked {
            let copy = self.volume.lookup(directory, name)?;
            self.links.insert(key, copy.number());
        }
        Ok(())
    }

    /// Copies a symbolic link, a device, a pipe or a socket.
    fn copy_special(
        &self,
        from: &Path,
        original: &Metadata,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(), CopyError> {
        let kind = special_kind(original);
        if kind != FileType::Symlink && !self.options.recursive {
            return Err(CopyError::Other(IS_SPECIAL));
        }
        let target = match kind {
            FileType::Symlink => fs::read_link(from),
            _ => Ok(Path::new("").into()),
        };
        let target = target.map_err(|error| CopyError::Host("cannot read", error))?;
        let (major, minor) =
            (rustix::fs::major(original.rdev()), rustix::fs::minor(original.rdev()));
        let permissions = match kind {
            FileType::Symlink => 0o777,
            _ => self.plain_permissions(original),
        };
        let creation = Creation {
            device: DeviceNumber { major, minor },
            target: target.as_os_str().as_bytes(),
            ..Creation::of(kind, permissions)
        };
        create_complete(self.volume, directory, name, |_, name| {
            let copy =
                self.volume.create_in(directory, name, &creation, &self.owner_of(original))?;
            match self.options.preserve {
                true => metadata::preserve(from, original, &copy),
                false => Ok(()),
            }
        })
    }

    /// Copies the data of a file and, if `preserved` is set, its metadata.
    fn copy_file(
        &self,
        file: &fs::File,
        preserved: Option<(&Path, &Metadata)>,
        permissions: u16,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(), CopyError> {
        create_complete(self.volume, directory, name, |replaced, name| {
            let by = match preserved {
                Some((_, original)) => self.owner_of(original),
                None => self.options.by.clone(),
            };
            // Only the owner can read the copy until it is complete.
            let creation = Creation::of(FileType::Regular, 0o600);
            let copy = self.volume.create_in(directory, name, &creation, &by)?;
            let check_interrupted = || self.writing.check_interrupted().map_err(CopyError::Fatal);
            contents::copy(file, &copy, cached_bytes_max(self.volume), check_interrupted)?;
            match (preserved, replaced) {
                (Some((from, original)), _) => metadata::preserve(from, original, &copy),
                // The owner and permissions stay as if the existing file had been overwritten.
                (None, Some(replaced)) if replaced.kind() == FileType::Regular => {
                    let attributes = replaced.attributes();
                    let permissions =
                        self.options.permissions.unwrap_or(attributes.permissions & 0o777);
                    set_attributes(
                        &copy,
                        &AttributeChange {
                            permissions: Some(permissions),
                            uid: Some(attributes.uid),
                            gid: Some(attributes.gid),
                            ..AttributeChange::default()
                        },
                    )
                }
                (None, _) => set_permissions(&copy, permissions),
            }
        })
    }

    /// Errors: the original is the image.
    fn check_not_image(&self, original: &Metadata) -> Result<(), CopyError> {
        match self.image {
            Some(image) if image == identity(original) => {
                Err(CopyError::Other("is the destination image"))
            }
            _ => Ok(()),
        }
    }

    fn owner_of(&self, original: &Metadata) -> Credentials {
        match self.options.preserve {
            true => Credentials { uid: original.uid(), gid: original.gid(), ..Credentials::ROOT },
            false => self.options.by.clone(),
        }
    }

    fn plain_permissions(&self, original: &Metadata) -> u16 {
        let kept = (original.mode() & 0o777) as u16 & !self.writing.umask;
        self.options.permissions.unwrap_or(kept)
    }
}

/// Creates a file by calling `make` with its name, or with a temporary name if it replaces an existing file. Removes
/// the file if `make` fails.
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
            // If both are names of one file, rename(2) does nothing, and the temporary name is left.
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
        Err(CopyError::Other(what)) => Failure::new(from, what),
    };
    console.report(&failure);
    Ok(())
}

/// Counts the files and directories below a directory of the host, and the bytes of the files. Skips entries that
/// cannot be read.
fn count_inside(directory: &Path) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            files += 1;
            match entry.metadata() {
                Ok(inside) if inside.is_dir() => directories.push(entry.path()),
                Ok(inside) if inside.is_file() => bytes += inside.len(),
                _ => {}
            }
        }
    }
    (files, bytes)
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn special_kind(original: &Metadata) -> FileType {
    let kind = original.file_type();
    if kind.is_symlink() {
        FileType::Symlink
    } else if kind.is_char_device() {
        FileType::CharacterDevice
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else if kind.is_fifo() {
        FileType::Fifo
    } else {
        FileType::Socket
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

/// Returns the last name of a path of the host. Returns `None` if the path ends in `.` or `..`, which means the
/// contents of the directory.
pub fn file_name(path: &OsStr) -> Option<&[u8]> {
    let name = path.as_bytes().rsplit(|&byte| byte == b'/').find(|name| !name.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}
