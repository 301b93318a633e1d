//! Windows: clusters behind the last ones of a file that grows, kept for it in memory, so that files
//! which grow in turns do not come to lie between each other.
//! Not here: how large they are (`map_write`), and taking clusters.
//!
//! On disk, and in all counts, they are free. Whoever finds no others takes them (A3), and a file that
//! is not written to any more gives its own up.

use std::collections::HashMap;

use base::{GroupNumber, InodeNumber};
use parking_lot::Mutex;

use super::Allocator;
use super::free_extents::Extent;
use super::groups::Group;

/// Windows of a volume, at most.
const WINDOWS_MAX: usize = 1024;

/// What to keep for a file beside what is allocated for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    pub inode: InodeNumber,
    /// Blocks.
    pub blocks: u64,
}

/// The groups that have inodes' windows. Locked after a group, and never before.
#[derive(Default)]
pub(super) struct Windows(Mutex<HashMap<InodeNumber, GroupNumber>>);

/// The windows in one group.
#[derive(Default)]
pub(super) struct GroupWindows {
    by_inode: HashMap<InodeNumber, Extent>,
    total: u32,
}

impl Windows {
    pub(super) fn group_of(&self, inode: InodeNumber) -> Option<GroupNumber> {
        self.0.lock().get(&inode).copied()
    }

    /// Notes where an inode has its window; one that is to give up its own, if there are too many.
    pub(super) fn note(&self, inode: InodeNumber, group: GroupNumber) -> Option<InodeNumber> {
        let mut groups = self.0.lock();
        groups.insert(inode, group);
        let others = groups.keys().copied().filter(|other| *other != inode);
        if groups.len() > WINDOWS_MAX { others.min() } else { None }
    }
}

impl GroupWindows {
    /// Clusters in them.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn overlap(&self, extent: Extent) -> bool {
        let overlaps = |window: &Extent| window.start < extent.end() && extent.start < window.end();
        self.total > 0 && self.by_inode.values().any(overlaps)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Group {
    /// Keeps clusters, which were taken from what is free, for an inode that has no window here.
    pub(super) fn keep(&mut self, inode: InodeNumber, window: Extent) {
        self.windows.total += window.length;
        let before = self.windows.by_inode.insert(inode, window);
        debug_assert!(before.is_none(), "an inode has one window");
    }

    /// Discards the window that an inode may have here.
    pub(super) fn discard_window(&mut self, inode: InodeNumber) {
        if let (Some(window), Some(free)) = (self.windows.by_inode.remove(&inode), &mut self.free) {
            self.windows.total -= window.length;
            free.give_back(window);
        }
    }

    /// Discards all windows here. Returns whether there were any.
    pub(super) fn discard_windows(&mut self) -> bool {
        let windows = std::mem::take(&mut self.windows);
        if let Some(free) = &mut self.free {
            windows.by_inode.values().for_each(|window| free.give_back(*window));
        }
        windows.total > 0
    }
}

impl Allocator {
    /// Discards the window that an inode may have. The caller holds no group.
    pub(crate) fn discard_window(&self, inode: InodeNumber) {
        let Some(number) = self.windows.0.lock().remove(&inode) else { return };
        let group = &mut *self.groups[number.0 as usize].lock();
        group.discard_window(inode);
        if group.damage.is_none() && group.free.is_some() {
            self.tell(number, group, group.ready());
        }
    }
}
