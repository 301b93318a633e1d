//! Directory listings as iterators.
//! Not here: listings with cursors (`Node::read_dir`).

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::attributes::{Attributes, DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem, Result};

use crate::node::Node;
use crate::std::path::bytes_of;
use crate::volume::Volume;

/// The maximum number of entries of an iterator that are in memory.
const BATCH: usize = 1024;

/// An entry in memory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    inode: InodeNumber,
    kind: Option<FileType>,
}

/// Consecutive entries of a directory, without "." and "..".
pub(crate) struct Batch {
    pub(crate) entries: VecDeque<Entry>,
    /// The cursor of the entries after these. `None` at the end of the directory.
    pub(crate) next: Option<DirCursor>,
}

impl Batch {
    /// Reads the entries from `from` on. The batch is empty only at the end of the directory.
    pub(crate) fn read(directory: &Node, mut from: DirCursor) -> Result<Self> {
        let mut entries = VecDeque::new();
        loop {
            let mut next = None;
            let mut count = 0;
            directory.read_dir(from, &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    let (name, inode, kind) = (entry.name.to_vec(), entry.inode, entry.kind);
                    entries.push_back(Entry { name, inode, kind });
                }
                count += 1;
                if count < BATCH {
                    return ControlFlow::Continue(());
                }
                next = Some(entry.next);
                ControlFlow::Break(())
            })?;
            if next == Some(from) {
                let location = Location::inode(directory.number());
                return Err(Error::corrupt("directory", location, Problem::Cycle));
            }
            match next {
                Some(next) if entries.is_empty() => from = next,
                next => return Ok(Self { entries, next }),
            }
        }
    }
}

/// An iterator over the entries of a directory, without "." and "..". See [`Volume::read_dir`].
///
/// Entries are read in batches. Names that are added or removed during the iteration may or may not
/// appear. The iterator ends after an error.
#[derive(Debug)]
pub struct ReadDir<'v> {
    volume: &'v Volume,
    directory: Arc<Node>,
    path: Arc<Path>,
    entries: VecDeque<Entry>,
    next: Option<DirCursor>,
}

impl<'v> ReadDir<'v> {
    pub(crate) fn new(volume: &'v Volume, directory: Arc<Node>, path: &Path) -> Self {
        let next = Some(DirCursor::default());
        Self { volume, directory, path: path.into(), entries: VecDeque::new(), next }
    }
}

impl<'v> Iterator for ReadDir<'v> {
    type Item = Result<DirEntry<'v>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.entries.is_empty() {
            let from = self.next.take()?;
            match Batch::read(&self.directory, from) {
                Ok(batch) => {
                    self.entries = batch.entries;
                    self.next = batch.next;
                    self.directory.note_access();
                }
                Err(error) => return Some(Err(error)),
            }
        }
        let Entry { name, inode, kind } = self.entries.pop_front()?;
        Some(Ok(DirEntry {
            volume: self.volume,
            directory: Arc::clone(&self.directory),
            path: Arc::clone(&self.path),
            name: OsString::from_vec(name),
            inode,
            kind,
        }))
    }
}

/// An entry of a directory that [`ReadDir`] returns.
#[derive(Clone, Debug)]
pub struct DirEntry<'v> {
    volume: &'v Volume,
    directory: Arc<Node>,
    path: Arc<Path>,
    name: OsString,
    inode: InodeNumber,
    kind: Option<FileType>,
}

impl DirEntry<'_> {
    /// Returns the name, without the directory.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the path: the argument of [`Volume::read_dir`] joined with the name.
    pub fn path(&self) -> PathBuf {
        self.path.join(&self.name)
    }

    /// Returns the inode number.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// Returns the type. Reads the inode only if the directory does not record the type.
    pub fn file_type(&self) -> Result<FileType> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => Ok(self.node()?.kind()),
        }
    }

    /// Returns the attributes. A symbolic link is not followed.
    pub fn metadata(&self) -> Result<Attributes> {
        Ok(self.node()?.attributes())
    }

    /// Returns the node that has the name now. Errors: `NotFound` if the name was removed.
    pub fn node(&self) -> Result<Arc<Node>> {
        self.volume.lookup(&self.directory, bytes_of(Path::new(&self.name)))
    }
}
