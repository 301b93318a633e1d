//! Changes of a tree that a kernel and this library make by turns to one volume: the same steps for
//! both. What comes out is compared with what the running kernel makes of them elsewhere.

mod on_host;
mod on_volume;
mod plan;

use serde::{Deserialize, Serialize};

pub use on_host::OnHost;
pub use on_volume::OnVolume;
pub use plan::{Plan, Turn};

/// The folder of the files that are changed without being synced when a turn is broken off.
pub const UNSYNCED: &str = "unsynced";

/// Bytes without a pattern: see [`contents`](crate::tree::contents).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Bytes {
    /// What they are made from.
    pub seed: u64,
    /// How many they are.
    pub length: usize,
}

impl Bytes {
    fn make(self) -> Vec<u8> {
        crate::tree::contents(self.seed, self.length)
    }
}

/// One change. Paths are relative to the top.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Makes a directory.
    Mkdir(String),
    /// Makes a FIFO.
    Fifo(String),
    /// Makes a symbolic link with a target of so many bytes.
    Symlink(String, usize),
    /// Writes to a byte of a file, which is made if it is not there.
    Write(String, u64, Bytes),
    /// Writes to the end of a file.
    Append(String, Bytes),
    /// Sets a file's size.
    SetSize(String, u64),
    /// Allocates a range, which has no data then, and leaves the size.
    Allocate(String, u64, u64),
    /// Makes a range a hole.
    Punch(String, u64, u64),
    /// Gives a file one more name.
    Link(String, String),
    /// Moves a name, over one that may be there.
    Rename(String, String),
    /// Exchanges two names.
    Exchange(String, String),
    /// Removes a name, or an empty directory.
    Remove(String),
    /// Removes a file's name and then writes to the file, which stays open.
    RemoveOpen(String, Bytes),
    /// Sets an extended attribute.
    SetXattr(String, String, Bytes),
    /// Removes one.
    RemoveXattr(String, String),
    /// Sets an access control list with so many users.
    SetAcl(String, u16),
    /// Sets the permissions.
    SetMode(String, u16),
    /// Sets owner and group.
    SetOwner(String, u32, u32),
    /// Has a file be durable.
    Sync(String),
}
