//! The entries of one directory: all of them by name, or in batches as they are stored.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem};
use vfs::{Node, Volume};

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// What it stands for.
    pub inode: InodeNumber,
    /// The directory that it is in.
    pub directory: InodeNumber,
    /// Its type, where the directory says it.
    pub kind: Option<FileType>,
}

impl Entry {
    /// Whether it is "." or "..".
    pub fn is_dot(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }

    /// Whether `ls` hides it.
    pub fn is_hidden(&self) -> bool {
        self.name.starts_with(b".")
    }
}

/// Some entries, and what comes after them.
#[derive(Debug)]
pub struct Batch {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where the next batch begins; `None` at the end. On an error the rest cannot be read.
    pub next: Result<Option<DirCursor>, Error>,
}

/// The next entries of `directory` from `from` on, `entries_max` at most, "." and ".." among them.
pub fn batch(directory: &Node, from: DirCursor, entries_max: usize) -> Batch {
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

/// The node that an entry stands for.
pub fn node(volume: &Volume, entry: &Entry) -> Result<Arc<Node>, Error> {
    volume.entry_node(entry.directory, entry.inode)
}

/// All entries of `directory` in the order of their bytes, and what kept the rest from being read.
pub fn sorted(directory: &Node) -> (Vec<Entry>, Result<(), Error>) {
    let Batch { mut entries, next } = batch(directory, DirCursor::default(), usize::MAX);
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    (entries, next.map(drop))
}

/// The path of `name` in the directory at `path`.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(path.len() + 1 + name.len());
    joined.extend_from_slice(path);
    if !path.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}
