//! Directory entries, sorted by name or in batches in the order of the directory.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem};
use vfs::{Node, Volume};

/// The warning about a directory of which [`read_sorted`] returned only the first entries.
pub const SORTED_IN_PARTS: &str =
    "there are too many entries to sort them together: they are sorted in parts";
/// The number of entries that a command with sorted output keeps in memory, for all directories
/// that it is in.
const SORTED_ENTRIES_MAX: usize = 2 << 20;
/// Minimum number of entries that are read at a time, even if [`SORTED_ENTRIES_MAX`] entries are in
/// memory.
const SORTED_ENTRIES_MIN: usize = 64;

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode that the entry names.
    pub inode: InodeNumber,
    /// The directory that contains the entry.
    pub directory: InodeNumber,
    /// The type. `None` if the directory does not record types.
    pub kind: Option<FileType>,
}

impl Entry {
    /// Returns whether the name is "." or "..".
    pub fn is_dot(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }

    /// Returns whether the entry is a subdirectory. Loads the node if the directory does not record
    /// types. False if this fails.
    pub fn is_subdirectory(&self, volume: &Volume) -> bool {
        let is_directory = |kind| kind == FileType::Directory;
        let recorded = self.kind.map(is_directory);
        !self.is_dot()
            && recorded.unwrap_or_else(|| {
                volume.node(self.inode).is_ok_and(|node| is_directory(node.kind()))
            })
    }

    /// Returns whether `ls` hides the entry, because its name begins with a dot.
    pub fn is_hidden(&self) -> bool {
        self.name.starts_with(b".")
    }
}

/// Entries of a directory, and the cursor of the entries after them.
#[derive(Debug)]
pub struct Batch {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The cursor of the next batch. `None` at the end of the directory. An error if the rest
    /// cannot be read.
    pub next: Result<Option<DirCursor>, Error>,
}

impl Batch {
    /// Returns whether there are entries after these.
    pub fn has_more(&self) -> bool {
        matches!(self.next, Ok(Some(_)))
    }
}

/// Reads up to `entries_max` entries of `directory`, with "." and "..", from `from` on.
pub fn read_batch(directory: &Node, from: DirCursor, entries_max: usize) -> Batch {
    let mut entries = Vec::new();
    let mut next = None;
    let outcome = directory.read_dir(from, &mut |entry| {
        let (name, inode, kind) = (entry.name.to_vec(), entry.inode, entry.kind);
        entries.push(Entry { name, inode, directory: directory.number(), kind });
        if entries.len() < entries_max {
            return ControlFlow::Continue(());
        }
        next = Some(entry.next);
        ControlFlow::Break(())
    });
    let next = match outcome {
        Err(error) => Err(error),
        Ok(()) if next == Some(from) => {
            Err(Error::corrupt("directory", Location::inode(directory.number()), Problem::Cycle))
        }
        Ok(()) => Ok(next),
    };
    Batch { entries, next }
}

/// Returns the node of an entry.
pub fn node(volume: &Volume, entry: &Entry) -> Result<Arc<Node>, Error> {
    volume.entry_node(entry.directory, entry.inode)
}

/// Reads entries of `directory` from `from` on, and sorts them by the bytes of their names. `kept`
/// is the number of entries that the caller keeps in memory. Returns all entries, or those that
/// half of the remaining room is enough for: a directory in a small image may repeat its blocks,
/// and have as many entries as fit into the volume.
pub fn read_sorted(directory: &Node, from: DirCursor, kept: usize) -> Batch {
    let entries_max = (SORTED_ENTRIES_MAX.saturating_sub(kept) / 2).max(SORTED_ENTRIES_MIN);
    let mut batch = read_batch(directory, from, entries_max);
    batch.entries.sort_by(|a, b| a.name.cmp(&b.name));
    batch
}

/// Returns the path of the entry `name` in the directory at `path`.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(path.len() + 1 + name.len());
    joined.extend_from_slice(path);
    push(&mut joined, name);
    joined
}

/// Appends the entry `name` to the path of its directory.
pub fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
