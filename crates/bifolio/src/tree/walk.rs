//! Depth-first walk through a tree in an image, without recursion. Not here: the visitors.
//!
//! Bounds, for any image: each directory is entered once (a second name of a directory is reported
//! as corruption, so loops end); paths longer than [`PATH_BYTES_MAX`] are not entered; and the
//! number of entries in memory has a limit: about [`ENTRIES_MAX`] in the order of inodes, and that
//! of `directory::read_sorted` in the order of names.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem};
use vfs::{Node, Volume};

use crate::console::failure::Result;
use crate::tree::directory::{self, Batch, Entry};

/// Maximum length of a path. Equal to the longest path that the library resolves.
pub const PATH_BYTES_MAX: usize = 64 * 1024;

/// Number of entries that a walk in the order of inodes keeps in memory, for all directories that
/// it is in. A larger number sorts more of a large directory at once, so that each block of inodes
/// is read and changed fewer times.
const ENTRIES_MAX: usize = 256 << 10;
/// Minimum number of entries that are read at a time, even if [`ENTRIES_MAX`] entries are in
/// memory.
const ENTRIES_MIN: usize = 64;

/// A node that the walk visits.
#[derive(Debug)]
pub struct Visit<'a> {
    /// Its path in the image.
    pub path: &'a [u8],
    /// Its name in its directory; empty at the start.
    pub name: &'a [u8],
    /// The number of levels below the start.
    pub depth: usize,
    /// The node.
    pub node: &'a Arc<Node>,
    /// Whether this is the last entry of its directory. Valid only in a sorted walk.
    pub is_last: bool,
}

/// Decision of a visitor on how the walk continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Enter the node if it is a directory.
    Enter,
    /// Continue after the node.
    Skip,
    /// End the walk.
    Quit,
}

/// Callbacks of a walk.
pub trait Visitor {
    /// Called for each entry before its node is loaded. After [`Flow::Skip`], the walk continues
    /// without the node.
    fn meet(&mut self, path: &[u8], entry: &Entry) -> Result<Flow> {
        let _ = (path, entry);
        Ok(Flow::Enter)
    }

    /// Called for each node. Directories are visited before their contents.
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow>;

    /// Called after the contents of a directory for which `arrive` returned [`Flow::Enter`].
    fn leave(&mut self, visit: &Visit<'_>) -> Result<()>;

    /// Called in a sorted walk if the directory at `path` is sorted in parts.
    fn sorted_in_parts(&mut self, path: &[u8]) {
        let _ = path;
    }

    /// Called if `path`, or a part of the directory at `path`, cannot be read. The walk continues
    /// after it.
    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()>;
}

/// Order of the entries of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// By inode number, which is close to the order on the device. Large directories are sorted in
    /// batches.
    Inode,
    /// By the bytes of the names. Directories that are too large are sorted in parts.
    Sorted {
        /// Whether names that begin with a dot are included.
        hidden: bool,
    },
}

/// Walks from `start`, whose path is `path`.
pub fn walk(
    volume: &Volume,
    start: Arc<Node>,
    path: &[u8],
    order: Order,
    visitor: &mut impl Visitor,
) -> Result<()> {
    let mut walk = Walk {
        volume,
        order,
        path: path.to_vec(),
        frames: Vec::new(),
        entered: HashSet::new(),
        pending: 0,
    };
    if !walk.arrive(start, b"", 0, true, visitor)? {
        return Ok(());
    }
    while let Some(depth) = walk.frames.len().checked_sub(1) {
        if !walk.advance(depth, visitor)? {
            return Ok(());
        }
    }
    Ok(())
}

struct Walk<'v> {
    volume: &'v Volume,
    order: Order,
    /// The path of the directory on top of `frames`.
    path: Vec<u8>,
    frames: Vec<Frame>,
    entered: HashSet<InodeNumber>,
    /// The number of pending entries in all frames.
    pending: usize,
}

/// A directory that the walk is in.
struct Frame {
    node: Arc<Node>,
    name: Vec<u8>,
    /// The length of the directory's path.
    path_bytes: usize,
    is_last: bool,
    /// Entries that were read and not visited.
    pending: VecDeque<Entry>,
    /// The cursor of the entries after them.
    next: Option<DirCursor>,
}

impl Walk<'_> {
    /// Visits the next entry of the innermost directory, or leaves the directory after its last
    /// entry. Returns false to end the walk.
    fn advance(&mut self, depth: usize, visitor: &mut impl Visitor) -> Result<bool> {
        let Some(entry) = self.next_entry(visitor)? else {
            if let Some(frame) = self.frames.pop() {
                let Frame { node, name, path_bytes, is_last, .. } = &frame;
                self.path.truncate(*path_bytes);
                let is_last = *is_last;
                visitor.leave(&Visit { path: &self.path, name, depth, node, is_last })?;
            }
            return Ok(true);
        };
        let Some(frame) = self.frames.last() else { return Ok(false) };
        let is_last = frame.pending.is_empty() && frame.next.is_none();
        self.path.truncate(frame.path_bytes);
        directory::push(&mut self.path, &entry.name);
        match visitor.meet(&self.path, &entry)? {
            Flow::Enter => {}
            Flow::Skip => return Ok(true),
            Flow::Quit => return Ok(false),
        }
        let continues = match directory::node(self.volume, &entry) {
            Ok(node) => self.arrive(node, &entry.name, depth + 1, is_last, visitor)?,
            Err(error) => {
                visitor.failed(&self.path, &error)?;
                true
            }
        };
        Ok(continues)
    }

    fn arrive(
        &mut self,
        node: Arc<Node>,
        name: &[u8],
        depth: usize,
        is_last: bool,
        visitor: &mut impl Visitor,
    ) -> Result<bool> {
        let flow =
            visitor.arrive(&Visit { path: &self.path, name, depth, node: &node, is_last })?;
        if flow == Flow::Enter && node.kind() == FileType::Directory {
            match self.check_entry(&node) {
                Ok(()) => self.enter(node, name.to_vec(), is_last),
                Err(error) => {
                    visitor.failed(&self.path, &error)?;
                    visitor.leave(&Visit {
                        path: &self.path,
                        name,
                        depth,
                        node: &node,
                        is_last,
                    })?;
                }
            }
        }
        Ok(flow != Flow::Quit)
    }

    fn check_entry(&mut self, node: &Node) -> Result<(), Error> {
        if self.path.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if !self.entered.insert(node.number()) {
            let location = Location::inode(node.number());
            return Err(Error::corrupt("directory", location, Problem::Cycle));
        }
        Ok(())
    }

    fn enter(&mut self, node: Arc<Node>, name: Vec<u8>, is_last: bool) {
        let path_bytes = self.path.len();
        let pending = VecDeque::new();
        let next = Some(DirCursor::default());
        self.frames.push(Frame { node, name, path_bytes, is_last, pending, next });
    }

    /// Returns the next entry of the innermost directory.
    fn next_entry(&mut self, visitor: &mut impl Visitor) -> Result<Option<Entry>> {
        let Some(frame) = self.frames.last_mut() else { return Ok(None) };
        while frame.pending.is_empty() {
            let Some(from) = frame.next.take() else { return Ok(None) };
            let Batch { mut entries, next } = match self.order {
                Order::Inode => {
                    let entries_max = ENTRIES_MAX.saturating_sub(self.pending) / 2;
                    let mut batch =
                        directory::read_batch(&frame.node, from, entries_max.max(ENTRIES_MIN));
                    batch.entries.sort_by_key(|entry| entry.inode);
                    batch
                }
                Order::Sorted { hidden } => {
                    let mut batch = directory::read_sorted(&frame.node, from, self.pending);
                    if from == DirCursor::default() && batch.has_more() {
                        self.path.truncate(frame.path_bytes);
                        visitor.sorted_in_parts(&self.path);
                    }
                    batch.entries.retain(|entry| hidden || !entry.is_hidden());
                    batch
                }
            };
            entries.retain(|entry| !entry.is_dot());
            frame.pending = entries.into();
            self.pending += frame.pending.len();
            match next {
                Ok(next) => frame.next = next,
                Err(error) => {
                    self.path.truncate(frame.path_bytes);
                    visitor.failed(&self.path, &error)?;
                }
            }
        }
        let entry = frame.pending.pop_front();
        self.pending -= usize::from(entry.is_some());
        Ok(entry)
    }
}
