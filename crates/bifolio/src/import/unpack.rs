//! Unpacking of archives into an image. Names are relative to one directory: symbolic links are not followed, and
//! names with `..` are refused.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, InodeNumber};
use vfs::{Creation, Credentials, Node, Volume};

use super::directories::Directories;
use super::metadata::{self, Preserved};
use super::{CopyError, IS_REPLACED, contents, create_complete, report};
use crate::archive::{ArchiveReader, Kind, Member, Xattrs};
use crate::console::Console;
use crate::copy::LeftOut;
use crate::failure::{Failure, Result};
use crate::writing::Writing;

/// Permissions of directories that are not in the archive.
const DIRECTORY_PERMISSIONS: u16 = 0o755;

/// Unpacker of an archive into one directory.
pub struct Unpacker<'a> {
    volume: &'a Volume,
    /// The directory to which names are relative.
    root: Arc<Node>,
    /// The number of leading components to remove from each path.
    strip: usize,
    writing: &'a Writing,
    console: &'a mut Console,
    /// Directories whose attributes are set at the end.
    directories: Directories,
    left_out: LeftOut,
    /// The paths of members that were not unpacked. Hard links to them are not unpacked, either.
    left_out_paths: HashSet<Vec<u8>>,
    /// The directories that were removed since `directories` got them. Others may have their numbers.
    removed: HashSet<InodeNumber>,
}

impl<'a> Unpacker<'a> {
    /// Creates an unpacker to the directory `root`.
    pub fn new(
        volume: &'a Volume,
        root: Arc<Node>,
        strip: usize,
        writing: &'a Writing,
        console: &'a mut Console,
    ) -> Self {
        Self {
            volume,
            root,
            strip,
            writing,
            console,
            directories: Directories::default(),
            left_out: LeftOut::default(),
            left_out_paths: HashSet::new(),
            removed: HashSet::new(),
        }
    }

    /// Unpacks all members of the archive `input`, which is at `name`, to `image`. Reports members that fail. Errors:
    /// the archive cannot be read.
    pub fn unpack(mut self, name: &Path, input: impl Read, image: &Path) -> Result<()> {
        let outcome = self.unpack_all(name, input);
        if let Some(failure) = self.left_out.failure(image.as_os_str().as_bytes()) {
            self.console.report(&failure);
        }
        outcome
    }

    fn unpack_all(&mut self, name: &Path, input: impl Read) -> Result<()> {
        let mut archive = ArchiveReader::new(input);
        let read = self.unpack_members(&mut archive);
        let directories = std::mem::take(&mut self.directories);
        directories.for_each(|directory| {
            self.writing.check_interrupted()?;
            if self.removed.contains(&directory.number) {
                return Ok(());
            }
            let outcome = self.volume.node(directory.number).map_err(CopyError::from);
            let outcome =
                outcome.and_then(|node| set_metadata(&node, directory.preserved, directory.xattrs));
            self.report(directory.path, outcome)
        })?;
        match read {
            Ok(()) => Ok(()),
            Err(CopyError::Host(action, error)) => Err(Failure::host(name, action, &error)),
            Err(CopyError::Fatal(failure)) => Err(failure),
            Err(CopyError::Image(action, error)) => Err(Failure::action(name, action, &error)),
            Err(CopyError::Replaced) => Err(Failure::new(name, IS_REPLACED)),
            Err(CopyError::Other(what)) => Err(Failure::new(name, what)),
        }
    }

    fn unpack_members<R: Read>(&mut self, archive: &mut ArchiveReader<R>) -> Result<(), CopyError> {
        let cannot_read = |error| CopyError::Host("cannot read the rest", error);
        loop {
            let member = archive.next_member();
            // The signal often ends the program, too, from which the archive comes.
            self.writing.check_interrupted().map_err(CopyError::Fatal)?;
            let Some(member) = member.map_err(cannot_read)? else { return Ok(()) };
            let outcome = match self.unpack_member(&member, archive) {
                // An error while the archive is read ends the command.
                Err(CopyError::Host(_, error)) => {
                    self.writing.check_interrupted().map_err(CopyError::Fatal)?;
                    return Err(cannot_read(error));
                }
                outcome => outcome,
            };
            if outcome.is_ok() && member.has_text_acl {
                let text = "the access control list was not unpacked, because it is stored as text";
                let warning = Failure::new(member.path.as_slice(), text);
                self.console.warn(warning.advise("create the archive with tar --xattrs"));
            }
            self.report_left_out(&member, outcome).map_err(CopyError::Fatal)?;
        }
    }

    fn report(&mut self, path: &[u8], outcome: Result<(), CopyError>) -> Result<()> {
        report(self.console, Path::new(OsStr::from_bytes(path)), outcome)
    }

    /// Reports a member that was not unpacked. If the image is full, counts the member for the report at the end
    /// instead.
    fn report_left_out(&mut self, member: &Member, outcome: Result<(), CopyError>) -> Result<()> {
        let action = match (&outcome, &member.kind) {
            (Err(CopyError::Image(action, Error::NoSpace)), _) => *action,
            (Err(CopyError::Image(action, _)), Kind::HardLink(path))
                if self.left_out_paths.contains(path) =>
            {
                *action
            }
            _ => return self.report(&member.path, outcome),
        };
        let path = Path::new(OsStr::from_bytes(&member.path));
        let failure = Failure::action(path, action, &Error::NoSpace);
        self.left_out.add(&member.path, member.size, failure);
        self.left_out_paths.insert(member.path.clone());
        Ok(())
    }

    fn unpack_member<R: Read>(
        &mut self,
        member: &Member,
        archive: &mut ArchiveReader<R>,
    ) -> Result<(), CopyError> {
        let Some(names) = self.names(&member.path)? else { return Ok(()) };
        let Some((name, parents)) = names.split_last() else {
            // The destination directory itself.
            return match member.kind {
                Kind::Inode(FileType::Directory) => {
                    self.directories.add(self.root.number(), member);
                    Ok(())
                }
                _ => Err(CopyError::Other("was not unpacked: the name is empty")),
            };
        };
        let directory = self.directory_at(parents)?;
        let by = Credentials { uid: member.uid, gid: member.gid, ..Credentials::ROOT };
        self.remove_other_kind(member, &directory, name)?;
        match &member.kind {
            Kind::Unknown(byte) => {
                tracing::debug!("a member of the unknown kind {byte}");
                Err(CopyError::Other("was not unpacked: the type is unknown"))
            }
            Kind::HardLink(path) => {
                let target = self.node_at(path)?;
                create_complete(self.volume, &directory, name, |_, name| {
                    Ok(self.volume.link(&directory, name, &target)?)
                })
            }
            Kind::Inode(FileType::Directory) => {
                let created = match self.volume.lookup(&directory, name) {
                    Ok(existing) => existing,
                    Err(Error::NotFound) => {
                        // Only the owner can enter the directory until it is complete.
                        let creation = Creation::of(FileType::Directory, 0o700);
                        self.volume.create_in(&directory, name, &creation, &by)?
                    }
                    Err(error) => return Err(error.into()),
                };
                self.removed.remove(&created.number());
                self.directories.add(created.number(), member);
                Ok(())
            }
            Kind::Inode(FileType::Regular) => {
                create_complete(self.volume, &directory, name, |_, name| {
                    let creation = Creation::of(FileType::Regular, 0o600);
                    let file = self.volume.create_in(&directory, name, &creation, &by)?;
                    let check_interrupted =
                        || self.writing.check_interrupted().map_err(CopyError::Fatal);
                    contents::unpack(member, &mut *archive, &file, check_interrupted)?;
                    set_metadata(&file, &Preserved::of_member(member), &member.xattrs)
                })
            }
            &Kind::Inode(kind) => create_complete(self.volume, &directory, name, |_, name| {
                let target = match kind {
                    FileType::Symlink => &member.target[..],
                    _ => b"",
                };
                let permissions =
                    if kind == FileType::Symlink { 0o777 } else { member.permissions };
                let creation =
                    Creation { device: member.device, target, ..Creation::of(kind, permissions) };
                let created = self.volume.create_in(&directory, name, &creation, &by)?;
                set_metadata(&created, &Preserved::of_member(member), &member.xattrs)
            }),
        }
    }

    /// Removes an existing file of which a member makes a directory, or an empty directory of which it makes a file, as tar(1)
    /// does.
    fn remove_other_kind(
        &mut self,
        member: &Member,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(), CopyError> {
        let existing = match self.volume.lookup(directory, name) {
            Err(Error::NotFound) => return Ok(()),
            existing => existing?,
        };
        let is_directory = matches!(member.kind, Kind::Inode(FileType::Directory));
        match (existing.kind() == FileType::Directory, is_directory) {
            (true, false) if !matches!(member.kind, Kind::Unknown(_)) => {
                self.removed.insert(existing.number());
                Ok(self.volume.rmdir(directory, name, &Credentials::ROOT)?)
            }
            (false, true) => Ok(self.volume.unlink(directory, name, &Credentials::ROOT)?),
            _ => Ok(()),
        }
    }

    /// Returns the components of a path of the archive after --strip-components. `None` if none are left.
    fn names<'p>(&self, path: &'p [u8]) -> Result<Option<Vec<&'p [u8]>>, CopyError> {
        let names: Vec<_> =
            path.split(|&byte| byte == b'/').filter(|name| !matches!(name, [] | [b'.'])).collect();
        if names.contains(&&b".."[..]) {
            return Err(CopyError::Other("was not unpacked: the name contains .."));
        }
        match names.get(self.strip..) {
            Some([]) if self.strip > 0 => Ok(None),
            names => Ok(names.map(<[_]>::to_vec)),
        }
    }

    /// Returns the directory at this path. Creates missing directories.
    fn directory_at(&self, names: &[&[u8]]) -> Result<Arc<Node>, CopyError> {
        let mut directory = Arc::clone(&self.root);
        for name in names {
            directory = match self.volume.lookup(&directory, name) {
                Ok(node) => node,
                Err(Error::NotFound) => {
                    let creation = Creation::of(FileType::Directory, DIRECTORY_PERMISSIONS);
                    self.volume.create_in(&directory, name, &creation, &Credentials::ROOT)?
                }
                Err(error) => return Err(error.into()),
            };
            if directory.kind() != FileType::Directory {
                return Err(CopyError::Image(
                    "cannot unpack: a parent is not a directory",
                    Error::NotDirectory,
                ));
            }
        }
        Ok(directory)
    }

    /// Returns the node at a path of the archive, for a hard link.
    fn node_at(&self, path: &[u8]) -> Result<Arc<Node>, CopyError> {
        let mut node = Arc::clone(&self.root);
        for name in self.names(path)?.unwrap_or_default() {
            node = self.volume.lookup(&node, name).map_err(|error| {
                CopyError::Image("cannot create the hard link: its target does not exist", error)
            })?;
        }
        Ok(node)
    }
}

fn set_metadata(copy: &Node, preserved: &Preserved, xattrs: &Xattrs) -> Result<(), CopyError> {
    metadata::apply(copy, preserved, |copy| {
        xattrs.iter().try_for_each(|(name, value)| metadata::set_xattr(copy, name, value))
    })
}

/// Returns a reader of the whole input. If its first bytes show a compression, returns the name of the compression
/// instead.
pub fn check_uncompressed(mut input: impl Read) -> io::Result<Result<impl Read, &'static str>> {
    let mut start = Vec::new();
    input.by_ref().take(6).read_to_end(&mut start)?;
    let compressions: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ];
    let found = compressions.iter().find(|(magic, _)| start.starts_with(magic));
    Ok(match found {
        Some((_, compression)) => Err(compression),
        None => Ok(io::Cursor::new(start).chain(input)),
    })
}
