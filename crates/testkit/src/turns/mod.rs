//! Changes of a tree that a kernel and this library make to one volume in turns, with the same
//! kinds of steps. The result is compared with that of the running kernel on another volume.

mod on_host;
mod on_volume;
mod plan;

use serde::{Deserialize, Serialize};

pub use on_host::OnHost;
pub use on_volume::OnVolume;
pub use plan::{Plan, Turn};

/// The folder with files that are changed without a sync before a turn is interrupted.
pub const UNSYNCED: &str = "unsynced";

/// Pseudo-random bytes: see [`contents`](crate::tree::contents).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Bytes {
    /// The seed.
    pub seed: u64,
    /// The number of bytes.
    pub length: usize,
}

impl Bytes {
    /// Returns the bytes.
    pub(crate) fn make(self) -> Vec<u8> {
        crate::tree::contents(self.seed, self.length)
    }
}

/// A change. Paths are relative to the top.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Creates a directory.
    Mkdir(String),
    /// Creates a FIFO.
    Fifo(String),
    /// Creates a symbolic link with a target of so many bytes.
    Symlink(String, usize),
    /// Writes to a file at an offset. Creates the file if it does not exist.
    Write(String, u64, Bytes),
    /// Writes to the end of a file.
    Append(String, Bytes),
    /// Sets a file's size.
    SetSize(String, u64),
    /// Preallocates a range, given by offset and length, without changing the size.
    Allocate(String, u64, u64),
    /// Makes a range, given by offset and length, a hole.
    Punch(String, u64, u64),
    /// Removes a range of whole blocks, given by offset and length, from a file. The rest moves
    /// there.
    Collapse(String, u64, u64),
    /// Adds a name to a file.
    Link(String, String),
    /// Renames a file, and may replace another one.
    Rename(String, String),
    /// Exchanges two names.
    Exchange(String, String),
    /// Removes a name, or an empty directory.
    Remove(String),
    /// Removes a file's name, and then writes to the file, which stays open.
    RemoveOpen(String, Bytes),
    /// Sets an extended attribute.
    SetXattr(String, String, Bytes),
    /// Removes an extended attribute.
    RemoveXattr(String, String),
    /// Sets an access control list with so many users.
    SetAcl(String, u16),
    /// Sets the permissions.
    SetMode(String, u16),
    /// Sets the owner and the group.
    SetOwner(String, u32, u32),
    /// Creates a file of f2fs, pins it, and gives it so many bytes, all of which have blocks.
    Pin(String, u64),
    /// Cleans all sections of a volume of f2fs, which has the directory.
    Clean(String),
    /// Sets the project of a directory, which new inodes in it take over.
    SetProject(String, u32),
    /// Makes a file durable.
    Sync(String),
}

impl Step {
    /// Returns the step for a tree in the folder `folder`.
    pub fn below(mut self, folder: &str) -> Self {
        let move_path = |path: &mut String| *path = format!("{folder}/{path}");
        match &mut self {
            Self::Link(one, other) | Self::Rename(one, other) | Self::Exchange(one, other) => {
                move_path(one);
                move_path(other);
            }
            Self::Mkdir(path)
            | Self::Fifo(path)
            | Self::Symlink(path, _)
            | Self::Write(path, ..)
            | Self::Append(path, _)
            | Self::SetSize(path, _)
            | Self::Allocate(path, ..)
            | Self::Punch(path, ..)
            | Self::Collapse(path, ..)
            | Self::Remove(path)
            | Self::RemoveOpen(path, _)
            | Self::SetXattr(path, ..)
            | Self::RemoveXattr(path, _)
            | Self::SetAcl(path, _)
            | Self::SetMode(path, _)
            | Self::SetOwner(path, ..)
            | Self::Pin(path, _)
            | Self::Clean(path)
            | Self::SetProject(path, _)
            | Self::Sync(path) => move_path(path),
        }
        self
    }

    /// Returns the bytes that the step writes, or sets as a value.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Write(_, _, bytes)
            | Self::Append(_, bytes)
            | Self::RemoveOpen(_, bytes)
            | Self::SetXattr(_, _, bytes) => Some(*bytes),
            _ => None,
        }
    }
}
