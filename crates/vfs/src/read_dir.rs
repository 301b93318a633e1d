//! The entries of a directory as an iterator.
//! Not here: entries as a format returns them, with cursors (`Node::read_dir`).

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::attributes::{Attributes, DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem, Result};

use crate::node::Node;
use crate::std_path::bytes_of;
use crate::volume::Volume;

/// The maximum number of entries that are in memory.
const BATCH: usize = 1024;

/// An entry as it is in memory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    inode: InodeNumber,
    kind: Option<FileType>,
}

/// Some entries of a directory, without "." and "..", and the cursor of the entries after them.
pub(crate) struct Batch {
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) next: Option<DirCursor>,
}

impl Batch {
    /// Reads the next entries from `from` on. An empty batch means the end of the directory.
    pub(crate) fn read(directory: &Node, mut from: DirCursor) -> Result<Self> {
        let mut entries = VecDeque::new();
        loop {
            let (mut next, mut count) = (None, 0);
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
                let place = Location::inode(directory.number());
                return Err(Error::corrupt("directory", place, Problem::Cycle));
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
/// Entries are read in batches. Names that are added or removed meanwhile may or may not appear. After an error the
/// iterator ends.
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
        let (entries, next) = (VecDeque::new(), Some(DirCursor::default()));
        Self { volume, directory, path: path.into(), entries, next }
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

    /// Returns the path: that of the directory as [`Volume::read_dir`] got it, and the name.
    pub fn path(&self) -> PathBuf {
        self.path.join(&self.name)
    }

    /// Returns the inode number.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// Returns the type, which is read from the inode only if the directory does not record it.
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

    /// Returns the node that has the name now. Errors: `NotFound` if it was removed meanwhile.
    pub fn node(&self) -> Result<Arc<Node>> {
        self.volume.lookup(&self.directory, bytes_of(Path::new(&self.name)))
    }
}
