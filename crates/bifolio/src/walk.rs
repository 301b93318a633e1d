//! Walks a tree in an image, depth first, without recursion. Not here: what is done at each node.
//!
//! Bounds, whatever the image says: each directory is entered once (a second way in is reported as
//! corruption, so loops end), paths longer than [`PATH_BYTES_MAX`] are not entered, and a walk in the order
//! of inodes holds about [`ENTRIES_MAX`] entries in memory.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem};
use vfs::{Node, Volume};

use crate::directory::{self, Batch, Entry};
use crate::failure::Result;

/// As long as the longest path that the library resolves.
pub const PATH_BYTES_MAX: usize = 64 * 1024;

/// The number of entries that a walk in the order of inodes reads ahead, in all directories that it is in. A larger
/// number orders more of a large directory, so that each block of its inodes is read and changed fewer times.
const ENTRIES_MAX: usize = 256 << 10;
/// The number of entries of one directory that it reads at a time when it holds as many as that.
const ENTRIES_MIN: usize = 64;

/// A node that the walk has come to.
#[derive(Debug)]
pub struct Stop<'a> {
    /// Its path in the image.
    pub path: &'a [u8],
    /// Its name in its directory; empty at the start.
    pub name: &'a [u8],
    /// How many steps it lies below the start.
    pub depth: usize,
    /// The node.
    pub node: &'a Arc<Node>,
    /// Whether no other name follows in its directory. Known only in a sorted walk.
    pub last: bool,
}

/// Where to go from a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// Into it.
    Enter,
    /// On to its next sibling.
    Skip,
    /// Nowhere: the walk is over.
    Quit,
}

/// What is done on a walk.
pub trait Visitor {
    /// Called at each node, before what is in it.
    fn arrive(&mut self, stop: &Stop<'_>) -> Result<Then>;

    /// Called after everything in a directory that was to be entered.
    fn leave(&mut self, stop: &Stop<'_>) -> Result<()>;

    /// Something below `path`, or `path` itself, could not be read. The walk goes on beside it.
    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()>;
}

/// The order of names within a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// By the number of the inode, which is close to the order on the device; a large directory in batches.
    Inode,
    /// By the bytes of the names, with those that begin with a dot or without them.
    Sorted {
        /// Whether names that begin with a dot are among them.
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
        waiting: 0,
    };
    if !walk.arrive(start, b"", 0, true, visitor)? {
        return Ok(());
    }
    while let Some(depth) = walk.frames.len().checked_sub(1) {
        if !walk.step(depth, visitor)? {
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
    /// The number of entries that wait in all frames.
    waiting: usize,
}

/// A directory that the walk is in.
struct Frame {
    node: Arc<Node>,
    name: Vec<u8>,
    /// How long the path of the directory is.
    path_bytes: usize,
    last: bool,
    waiting: VecDeque<Entry>,
    next: Option<DirCursor>,
}

impl Walk<'_> {
    /// Takes the next name of the directory on top, or leaves it. False to end the walk.
    fn step(&mut self, depth: usize, visitor: &mut impl Visitor) -> Result<bool> {
        let Some(entry) = self.next_entry(visitor)? else {
            if let Some(frame) = self.frames.pop() {
                let Frame { node, name, path_bytes, last, .. } = &frame;
                self.path.truncate(*path_bytes);
                visitor.leave(&Stop { path: &self.path, name, depth, node, last: *last })?;
            }
            return Ok(true);
        };
        let Some(frame) = self.frames.last() else { return Ok(false) };
        let (path_bytes, last) = (frame.path_bytes, frame.waiting.is_empty());
        self.path.truncate(path_bytes);
        self.path = directory::join(&self.path, &entry.name);
        let going_on = match directory::node(self.volume, &entry) {
            Ok(node) => self.arrive(node, &entry.name, depth + 1, last, visitor)?,
            Err(error) => {
                visitor.failed(&self.path, &error)?;
                true
            }
        };
        Ok(going_on)
    }

    fn arrive(
        &mut self,
        node: Arc<Node>,
        name: &[u8],
        depth: usize,
        last: bool,
        visitor: &mut impl Visitor,
    ) -> Result<bool> {
        let then = visitor.arrive(&Stop { path: &self.path, name, depth, node: &node, last })?;
        if then == Then::Enter && node.kind() == FileType::Directory {
            match self.check_entry(&node) {
                Ok(()) => self.enter(node, name.to_vec(), last),
                Err(error) => {
                    visitor.failed(&self.path, &error)?;
                    visitor.leave(&Stop { path: &self.path, name, depth, node: &node, last })?;
                }
            }
        }
        Ok(then != Then::Quit)
    }

    fn check_entry(&mut self, node: &Node) -> Result<(), Error> {
        if self.path.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if !self.entered.insert(node.number()) {
            let place = Location::inode(node.number());
            return Err(Error::corrupt("directory", place, Problem::Cycle));
        }
        Ok(())
    }

    fn enter(&mut self, node: Arc<Node>, name: Vec<u8>, last: bool) {
        let (path_bytes, waiting) = (self.path.len(), VecDeque::new());
        let next = Some(DirCursor::default());
        self.frames.push(Frame { node, name, path_bytes, last, waiting, next });
    }

    /// The next name in the directory on top.
    fn next_entry(&mut self, visitor: &mut impl Visitor) -> Result<Option<Entry>> {
        let Some(frame) = self.frames.last_mut() else { return Ok(None) };
        while frame.waiting.is_empty() {
            let Some(from) = frame.next.take() else { return Ok(None) };
            let Batch { entries, next } = match self.order {
                Order::Inode => {
                    let entries_max = ENTRIES_MAX.saturating_sub(self.waiting) / 2;
                    let mut batch =
                        directory::batch(&frame.node, from, entries_max.max(ENTRIES_MIN));
                    batch.entries.sort_by_key(|entry| entry.inode);
                    batch
                }
                Order::Sorted { hidden } => {
                    let (mut entries, outcome) = directory::sorted(&frame.node);
                    entries.retain(|entry| hidden || !entry.is_hidden());
                    Batch { entries, next: outcome.map(|()| None) }
                }
            };
            frame.waiting.extend(entries.into_iter().filter(|entry| !entry.is_dot()));
            self.waiting += frame.waiting.len();
            match next {
                Ok(next) => frame.next = next,
                Err(error) => {
                    self.path.truncate(frame.path_bytes);
                    visitor.failed(&self.path, &error)?;
                }
            }
        }
        let entry = frame.waiting.pop_front();
        self.waiting -= usize::from(entry.is_some());
        Ok(entry)
    }
}
