//! Directory entries, sorted by name or in batches in the order of the directory.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem};
use vfs::{Node, Volume};

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
    /// The cursor of the next batch. `None` at the end of the directory. An error if the rest cannot be read.
    pub next: Result<Option<DirCursor>, Error>,
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

/// Reads all entries of `directory` and sorts them by the bytes of their names. If the rest of the directory cannot
/// be read, returns the entries before it and the error.
pub fn read_sorted(directory: &Node) -> (Vec<Entry>, Result<(), Error>) {
    let Batch { mut entries, next } = read_batch(directory, DirCursor::default(), usize::MAX);
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    (entries, next.map(drop))
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
