//! Unpacking of an archive into an image. Names are relative to one directory: symbolic links are never
//! followed, and names with `..` are refused.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, InodeNumber};
use vfs::{Creation, Credentials, Node, Volume};

use super::metadata::{self, Kept};
use super::{Trouble, contents, make_whole, report};
use crate::archive::{ArchiveReader, Kind, Member};
use crate::console::Console;
use crate::copy::LeftOut;
use crate::failure::{Failure, Result};
use crate::writing::Writing;

/// The permissions of directories without a member.
const DIRECTORY_PERMISSIONS: u16 = 0o755;

/// The unpacking of an archive into one directory.
pub struct Unpacker<'a> {
    volume: &'a Volume,
    /// The directory to which names are relative.
    root: Arc<Node>,
    /// The number of leading components to remove from each path.
    strip: usize,
    writing: &'a Writing<'a>,
    console: &'a mut Console,
    /// Directories whose attributes are set at the end: their permissions might prevent files in them, which also
    /// change their times. Of several members for one directory, the last counts.
    directories: BTreeMap<InodeNumber, Member>,
    left_out: LeftOut,
    /// The paths of members that were left out. Links to them are left out, too.
    left_out_paths: HashSet<Vec<u8>>,
}

impl<'a> Unpacker<'a> {
    /// Returns an unpacker to `root`, a directory.
    pub fn new(
        volume: &'a Volume,
        root: Arc<Node>,
        strip: usize,
        writing: &'a Writing<'a>,
        console: &'a mut Console,
    ) -> Self {
        Self {
            volume,
            root,
            strip,
            writing,
            console,
            directories: BTreeMap::new(),
            left_out: LeftOut::default(),
            left_out_paths: HashSet::new(),
        }
    }

    /// Unpacks all members of the archive `input`, which is called `name`, to `image`. Members that fail are
    /// reported. Errors: the archive cannot be read.
    pub fn unpack(mut self, name: &Path, input: impl Read, image: &Path) -> Result<()> {
        let outcome = self.unpack_all(name, input);
        if let Some(failure) = self.left_out.failure(image.as_os_str().as_bytes()) {
            self.console.report(&failure);
        }
        outcome
    }

    fn unpack_all(&mut self, name: &Path, input: impl Read) -> Result<()> {
        let mut archive = ArchiveReader::new(input);
        let read = self.members(&mut archive);
        let directories = std::mem::take(&mut self.directories);
        for (number, member) in directories {
            self.writing.check_interrupted()?;
            let kept = self.volume.node(number).map_err(Trouble::from);
            let kept = kept.and_then(|directory| keep(&directory, &member));
            self.report(&member, kept)?;
        }
        match read {
            Ok(()) => Ok(()),
            Err(Trouble::Host(action, error)) => Err(Failure::host(name, action, &error)),
            Err(Trouble::Fatal(failure)) => Err(failure),
            Err(Trouble::Image(action, error)) => Err(Failure::action(name, action, &error)),
            Err(Trouble::Other(what)) => Err(Failure::new(name, what)),
        }
    }

    fn members<R: Read>(&mut self, archive: &mut ArchiveReader<R>) -> Result<(), Trouble> {
        let cannot_read = |error| Trouble::Host("cannot read the rest", error);
        while let Some(member) = archive.next_member().map_err(cannot_read)? {
            self.writing.check_interrupted().map_err(Trouble::Fatal)?;
            let outcome = match self.member(&member, archive) {
                // What cannot be read here ends the archive.
                Err(Trouble::Host(_, error)) => return Err(cannot_read(error)),
                outcome => outcome,
            };
            if outcome.is_ok() && member.has_worded_acl {
                let path = Path::new(OsStr::from_bytes(&member.path));
                self.console.warn(format_args!(
                    "{}: the access control list was not unpacked, because it is stored as text; create the archive with tar --xattrs",
                    path.display()
                ));
            }
            self.report_left_out(&member, outcome).map_err(Trouble::Fatal)?;
        }
        Ok(())
    }

    fn report(&mut self, member: &Member, outcome: Result<(), Trouble>) -> Result<()> {
        report(self.console, Path::new(OsStr::from_bytes(&member.path)), outcome)
    }

    /// Reports a member that was not unpacked, like [`report`](Self::report). If the image is full, counts
    /// the member for the report at the end.
    fn report_left_out(&mut self, member: &Member, outcome: Result<(), Trouble>) -> Result<()> {
        let action = match (&outcome, &member.kind) {
            (Err(Trouble::Image(action, Error::NoSpace)), _) => *action,
            (Err(Trouble::Image(action, _)), Kind::HardLink(path))
                if self.left_out_paths.contains(path) =>
            {
                *action
            }
            _ => return self.report(member, outcome),
        };
        let path = Path::new(OsStr::from_bytes(&member.path));
        let failure = Failure::action(path, action, &Error::NoSpace);
        self.left_out.add(&member.path, member.size, failure);
        self.left_out_paths.insert(member.path.clone());
        Ok(())
    }

    fn member<R: Read>(
        &mut self,
        member: &Member,
        archive: &mut ArchiveReader<R>,
    ) -> Result<(), Trouble> {
        let Some(names) = self.names(&member.path)? else { return Ok(()) };
        let Some((name, parents)) = names.split_last() else {
            // The directory itself that is unpacked to.
            return match member.kind {
                Kind::Inode(FileType::Directory) => {
                    self.directories.insert(self.root.number(), member.clone());
                    Ok(())
                }
                _ => Err(Trouble::Other("was not unpacked: the name is empty")),
            };
        };
        let directory = self.directory(parents)?;
        let by = Credentials { uid: member.uid, gid: member.gid, ..Credentials::ROOT };
        match &member.kind {
            Kind::Unknown(letter) => {
                tracing::debug!("a member of kind {letter}");
                Err(Trouble::Other("was not unpacked: the type is unknown"))
            }
            Kind::HardLink(path) => {
                let target = self.existing(path)?;
                make_whole(self.volume, &directory, name, |_, name| {
                    Ok(self.volume.link(&directory, name, &target)?)
                })
            }
            Kind::Inode(FileType::Directory) => {
                let made = match self.volume.lookup(&directory, name) {
                    Ok(there) if there.kind() == FileType::Directory => there,
                    Ok(_) => return Err(Error::NotDirectory.into()),
                    Err(Error::NotFound) => {
                        // Only the owner may enter until it is complete.
                        let what = Creation::of(FileType::Directory, 0o700);
                        self.volume.create_in(&directory, name, &what, &by)?
                    }
                    Err(error) => return Err(error.into()),
                };
                self.directories.insert(made.number(), member.clone());
                Ok(())
            }
            Kind::Inode(FileType::Regular) => {
                make_whole(self.volume, &directory, name, |_, name| {
                    let what = Creation::of(FileType::Regular, 0o600);
                    let file = self.volume.create_in(&directory, name, &what, &by)?;
                    let go_on = || self.writing.check_interrupted().map_err(Trouble::Fatal);
                    contents::unpack(member, &mut *archive, &file, go_on)?;
                    keep(&file, member)
                })
            }
            &Kind::Inode(kind) => make_whole(self.volume, &directory, name, |_, name| {
                let target = match kind {
                    FileType::Symlink => &member.target[..],
                    _ => b"",
                };
                let permissions =
                    if kind == FileType::Symlink { 0o777 } else { member.permissions };
                let what =
                    Creation { device: member.device, target, ..Creation::of(kind, permissions) };
                let made = self.volume.create_in(&directory, name, &what, &by)?;
                keep(&made, member)
            }),
        }
    }

    /// Returns the components of a path of the archive, or `None` if all of them are removed.
    fn names<'p>(&self, path: &'p [u8]) -> Result<Option<Vec<&'p [u8]>>, Trouble> {
        let names: Vec<_> =
            path.split(|&byte| byte == b'/').filter(|name| !matches!(name, [] | [b'.'])).collect();
        if names.contains(&&b".."[..]) {
            return Err(Trouble::Other("was not unpacked: the name contains .."));
        }
        match names.get(self.strip..) {
            Some([]) if self.strip > 0 => Ok(None),
            names => Ok(names.map(<[_]>::to_vec)),
        }
    }

    /// Returns the directory with this path. Missing directories are created.
    fn directory(&self, names: &[&[u8]]) -> Result<Arc<Node>, Trouble> {
        let mut directory = Arc::clone(&self.root);
        for name in names {
            directory = match self.volume.lookup(&directory, name) {
                Ok(node) => node,
                Err(Error::NotFound) => {
                    let what = Creation::of(FileType::Directory, DIRECTORY_PERMISSIONS);
                    self.volume.create_in(&directory, name, &what, &Credentials::ROOT)?
                }
                Err(error) => return Err(error.into()),
            };
            if directory.kind() != FileType::Directory {
                return Err(Trouble::Image(
                    "cannot unpack: a parent is not a directory",
                    Error::NotDirectory,
                ));
            }
        }
        Ok(directory)
    }

    /// Returns the node that an earlier member created at this path.
    fn existing(&self, path: &[u8]) -> Result<Arc<Node>, Trouble> {
        let mut node = Arc::clone(&self.root);
        for name in self.names(path)?.unwrap_or_default() {
            node = self.volume.lookup(&node, name).map_err(|error| {
                Trouble::Image("cannot create the hard link: its target does not exist", error)
            })?;
        }
        Ok(node)
    }
}

fn keep(copy: &Node, member: &Member) -> Result<(), Trouble> {
    let kept = Kept {
        uid: member.uid,
        gid: member.gid,
        permissions: member.permissions,
        accessed: member.accessed,
        modified: member.modified,
    };
    metadata::keep(copy, &kept, |copy| {
        let xattrs = member.xattrs();
        xattrs.iter().try_for_each(|(name, value)| metadata::set_xattr(copy, name, value))
    })
}

/// Returns the input with all of its bytes, or the name of the compression that its first bytes show.
pub fn uncompressed(mut input: impl Read) -> io::Result<Result<impl Read, &'static str>> {
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
