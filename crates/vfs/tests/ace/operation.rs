//! The operations of the sequences, on a few files and directories, and what must exist before each
//! of them.

use base::attributes::{AttributeChange, Timestamp, XattrMode};
use base::{FileOffset, Result};
use iomap::DIRECT_ALIGNMENT;
use vfs::{
    Credentials, Fallocate, File, Follow, MapAccess, Privileges, Volume, WriteAt, WriteSync,
};

use crate::common::{WRITE, bytes, store};

/// The size of a file that exists before an operation, in bytes. Its last block is not full.
const SIZE: usize = 10_000;
const BLOCK: u64 = 4096;
/// The extended attribute of the operations.
const XATTR: &[u8] = b"user.ace";

/// The place of a write in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Start,
    Across,
    Append,
}

/// The way of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Cached,
    Direct,
    Mapped,
}

/// An operation. Paths are absolute.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Create(&'static str),
    MakeDirectory(&'static str),
    Allocate(&'static str, Fallocate),
    Write(&'static str, Place, Way),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    /// With whether the new name exists before.
    Rename(&'static str, &'static str, bool),
    RenameDirectory(&'static str, &'static str, bool),
    Symlink(&'static str, &'static str),
    Truncate(&'static str, u64),
    SetXattr(&'static str),
    RemoveXattr(&'static str),
    SetMode(&'static str),
    SetOwners(&'static str),
    SetTime(&'static str),
    SetModeOfDirectory(&'static str),
    RemoveDirectory(&'static str),
}

use Operation::*;

/// Returns all operations with all their arguments.
pub fn all() -> Vec<Operation> {
    let mut all = vec![
        Create("/foo"),
        Create("/A/foo"),
        Create("/A/bar"),
        Create("/B/foo"),
        MakeDirectory("/A"),
        MakeDirectory("/B"),
        MakeDirectory("/A/C"),
        Link("/foo", "/bar"),
        Link("/foo", "/A/bar"),
        Link("/A/foo", "/A/bar"),
        Link("/A/foo", "/B/foo"),
        Unlink("/foo"),
        Unlink("/A/foo"),
        Unlink("/A/bar"),
        RenameDirectory("/A", "/B", false),
        RenameDirectory("/A", "/B", true),
        RenameDirectory("/A/C", "/B/C", false),
        Symlink("/foo", "/bar"),
        Symlink("/foo", "/A/bar"),
        SetModeOfDirectory("/A"),
        RemoveDirectory("/A"),
        RemoveDirectory("/A/C"),
    ];
    let pairs = [
        ("/foo", "/bar"),
        ("/foo", "/A/bar"),
        ("/A/foo", "/A/bar"),
        ("/A/foo", "/B/foo"),
        ("/A/bar", "/foo"),
    ];
    all.extend(
        pairs.into_iter().flat_map(|(from, to)| [Rename(from, to, false), Rename(from, to, true)]),
    );
    for file in ["/foo", "/A/foo"] {
        let modes = [
            Fallocate::Allocate { keep_size: false },
            Fallocate::Allocate { keep_size: true },
            Fallocate::PunchHole,
            Fallocate::ZeroRange { keep_size: false },
            Fallocate::ZeroRange { keep_size: true },
            Fallocate::CollapseRange,
            Fallocate::InsertRange,
        ];
        all.extend(modes.map(|mode| Allocate(file, mode)));
        for place in [Place::Start, Place::Across, Place::Append] {
            all.extend([Write(file, place, Way::Cached), Write(file, place, Way::Direct)]);
        }
        all.push(Write(file, Place::Start, Way::Mapped));
        all.extend([0, 5_000, 30_000].map(|size| Truncate(file, size)));
        all.extend([SetXattr(file), RemoveXattr(file)]);
        all.extend([SetMode(file), SetOwners(file), SetTime(file)]);
    }
    all
}

impl Operation {
    /// Returns the paths whose inodes or names the operation or its preparation changes. It changes
    /// everything below those of directories.
    pub fn paths(self) -> Vec<&'static str> {
        match self {
            Link(from, to) | Rename(from, to, _) | RenameDirectory(from, to, _) => vec![from, to],
            Symlink(original, link) => vec![original, link],
            _ => vec![self.target()],
        }
    }

    /// Returns whether the operation gives something another name.
    pub fn is_rename(self) -> bool {
        matches!(self, Rename(..) | RenameDirectory(..))
    }

    /// Returns whether the operation changes the data or the blocks of a regular file.
    pub fn changes_data(self) -> bool {
        matches!(self, Allocate(..) | Write(..) | Truncate(..))
    }

    /// Returns the path that a sync after the operation is about: the new name, if there is one.
    pub fn target(self) -> &'static str {
        match self {
            Create(path) | MakeDirectory(path) | Unlink(path) | RemoveDirectory(path) => path,
            Allocate(path, _) | Write(path, ..) | Truncate(path, _) => path,
            SetXattr(path) | RemoveXattr(path) => path,
            SetMode(path) | SetOwners(path) | SetTime(path) | SetModeOfDirectory(path) => path,
            Link(_, to) | Rename(_, to, _) | RenameDirectory(_, to, _) => to,
            // A symbolic link cannot be opened.
            Symlink(original, _) => original,
        }
    }

    /// Makes what the operation needs, and removes what it must not find. `letter` is in new files.
    pub fn prepare(self, volume: &Volume, letter: u8) -> Result<()> {
        let file = |path| make_file(volume, path, letter);
        match self {
            Create(path) | MakeDirectory(path) => absent(volume, path),
            Allocate(path, _) | Write(path, ..) | Truncate(path, _) => file(path),
            SetXattr(path) | Unlink(path) => file(path),
            SetMode(path) | SetOwners(path) | SetTime(path) => file(path),
            SetModeOfDirectory(path) => make_directory(volume, path),
            RemoveXattr(path) => {
                file(path)?;
                set_xattr(volume, path, letter)
            }
            Link(from, to) | Symlink(from, to) | Rename(from, to, false) => {
                file(from)?;
                absent(volume, to)
            }
            Rename(from, to, true) => {
                file(from)?;
                file(to)
            }
            RenameDirectory(from, to, exists) => {
                make_directory(volume, from)?;
                absent(volume, to)?;
                if exists { make_directory(volume, to) } else { Ok(()) }
            }
            RemoveDirectory(path) => {
                absent(volume, path)?;
                make_directory(volume, path)
            }
        }
    }

    /// Carries out the operation. `letter` is in new data, and new attributes depend on it.
    pub fn run(self, volume: &Volume, letter: u8) -> Result<()> {
        match self {
            Create(path) => volume.create_new(path).map(drop),
            MakeDirectory(path) => volume.create_dir(path),
            Allocate(path, mode) => {
                let range = match mode {
                    Fallocate::Allocate { .. } => SIZE as u64 - 500..5 * BLOCK,
                    Fallocate::CollapseRange | Fallocate::InsertRange => BLOCK..2 * BLOCK,
                    _ => BLOCK - 300..2 * BLOCK + 100,
                };
                open(volume, path)?.fallocate(mode, bytes(range), Privileges::Keep)
            }
            Write(path, place, way) => write(&open(volume, path)?, place, way, letter),
            Link(from, to) => volume.hard_link(from, to),
            Unlink(path) => volume.remove_file(path),
            Rename(from, to, _) | RenameDirectory(from, to, _) => volume.rename(from, to),
            Symlink(original, link) => volume.symlink(original, link),
            Truncate(path, size) => open(volume, path)?.set_len(size),
            SetXattr(path) => set_xattr(volume, path, letter),
            RemoveXattr(path) => volume.resolve(path.as_bytes(), Follow::No)?.remove_xattr(XATTR),
            SetMode(path) | SetModeOfDirectory(path) => {
                let permissions = Some(0o700 | u16::from(letter & 7));
                set(volume, path, &AttributeChange { permissions, ..AttributeChange::default() })
            }
            SetOwners(path) => {
                let [uid, gid] = [1000, 2000].map(|first| Some(first + u32::from(letter)));
                set(volume, path, &AttributeChange { uid, gid, ..AttributeChange::default() })
            }
            SetTime(path) => {
                let seconds = 1_000_000_000 + i64::from(letter);
                let modified = Some(Timestamp { seconds, nanoseconds: 123_456_789 });
                set(volume, path, &AttributeChange { modified, ..AttributeChange::default() })
            }
            RemoveDirectory(path) => volume.remove_dir(path),
        }
    }
}

/// Returns the path of the directory that contains `path`.
pub fn parent_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

pub fn open(volume: &Volume, path: &str) -> Result<File> {
    volume.resolve(path.as_bytes(), Follow::No)?.open_for(WRITE)
}

fn set(volume: &Volume, path: &str, change: &AttributeChange) -> Result<()> {
    volume.resolve(path.as_bytes(), Follow::No)?.set_attributes(change, &Credentials::ROOT)
}

fn set_xattr(volume: &Volume, path: &str, letter: u8) -> Result<()> {
    let node = volume.resolve(path.as_bytes(), Follow::No)?;
    node.set_xattr(XATTR, &[letter; 40], XattrMode::Either, Privileges::Keep)
}

fn write(file: &File, place: Place, way: Way, letter: u8) -> Result<()> {
    let size = file.metadata()?.size;
    let at = match place {
        Place::Start => 0,
        Place::Across => size.saturating_sub(BLOCK) / BLOCK * BLOCK,
        Place::Append => size,
    };
    let length = 2 * BLOCK as usize;
    match way {
        Way::Cached => file.write_all_at(&vec![letter; length + 77], at),
        Way::Direct => {
            let at = at / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
            let place = WriteAt::Offset(FileOffset(at));
            file.write_direct(place, &vec![letter; length], Privileges::Keep, WriteSync::None)
                .map(drop)
        }
        Way::Mapped => {
            let length = length.min(size as usize);
            let map = file.map(bytes(0..size), MapAccess::ReadWrite)?;
            store(&map, at, &vec![letter; length]);
            Ok(())
        }
    }
}

/// Makes a file with contents, and the directories above it.
fn make_file(volume: &Volume, path: &str, letter: u8) -> Result<()> {
    match volume.symlink_metadata(path) {
        Ok(found) if found.kind == base::attributes::FileType::Regular => {
            // An earlier operation may have emptied it.
            let size = found.size as usize;
            if size < SIZE {
                open(volume, path)?.write_all_at(&vec![letter; SIZE - size], found.size)?;
            }
            return Ok(());
        }
        Ok(_) => absent(volume, path)?,
        Err(_) => make_parent(volume, path)?,
    }
    volume.write(path, vec![letter; SIZE])
}

fn make_directory(volume: &Volume, path: &str) -> Result<()> {
    make_parent(volume, path)?;
    if volume.exists(path)? { Ok(()) } else { volume.create_dir(path) }
}

fn make_parent(volume: &Volume, path: &str) -> Result<()> {
    match parent_of(path) {
        "/" => Ok(()),
        parent => make_directory(volume, parent),
    }
}

/// Removes a path with all below it, and makes the directories above it.
fn absent(volume: &Volume, path: &str) -> Result<()> {
    make_parent(volume, path)?;
    match volume.symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(found) if found.is_dir() => volume.remove_dir_all(path),
        Ok(_) => volume.remove_file(path),
    }
}
