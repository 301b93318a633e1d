//! Preallocation: clusters behind the last one of a growing file, which are set aside for it in
//! memory. So the blocks of files that grow in turns do not alternate. Not here: the size of a
//! preallocation (`map_write`), and allocation of clusters.
//!
//! Preallocated clusters are free on disk and in all counts. They are allocated to other files if
//! there are no other clusters (A3), and discarded when no user has the file open for writing any
//! more.

use std::collections::HashMap;

use base::{GroupNumber, InodeNumber};
use fs::Extent;
use parking_lot::Mutex;

use super::Allocator;
use super::groups::Group;

/// The maximum number of preallocations of a volume.
const PREALLOCATIONS_MAX: usize = 1024;

/// A request for a preallocation behind the blocks that are allocated for a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preallocation {
    pub inode: InodeNumber,
    /// The maximum number of blocks.
    pub blocks: u64,
}

/// The group of each inode's preallocation. If a thread locks a group, too, it locks the group
/// first.
#[derive(Default)]
pub(super) struct Preallocations(Mutex<HashMap<InodeNumber, GroupNumber>>);

/// The preallocations in one group.
#[derive(Default)]
pub(super) struct GroupPreallocations {
    by_inode: HashMap<InodeNumber, Extent>,
    total: u32,
}

impl Preallocations {
    pub(super) fn group_of(&self, inode: InodeNumber) -> Option<GroupNumber> {
        self.0.lock().get(&inode).copied()
    }

    /// Records the group of an inode's preallocation. If there are too many, returns an inode whose
    /// preallocation the caller discards.
    pub(super) fn record(&self, inode: InodeNumber, group: GroupNumber) -> Option<InodeNumber> {
        let mut groups = self.0.lock();
        groups.insert(inode, group);
        let others = groups.keys().copied().filter(|other| *other != inode);
        if groups.len() > PREALLOCATIONS_MAX { others.min() } else { None }
    }
}

impl GroupPreallocations {
    /// Returns the number of preallocated clusters.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn overlap(&self, extent: Extent) -> bool {
        let overlaps = |other: &Extent| other.start < extent.end() && extent.start < other.end();
        self.total > 0 && self.by_inode.values().any(overlaps)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Group {
    /// Preallocates clusters for an inode that has no preallocation in this group. The caller has
    /// removed them from the free ones.
    pub(super) fn preallocate(&mut self, inode: InodeNumber, extent: Extent) {
        self.preallocations.total += extent.length;
        let before = self.preallocations.by_inode.insert(inode, extent);
        debug_assert!(before.is_none(), "an inode has one preallocation");
    }

    /// Discards the preallocation of an inode in this group, if any.
    pub(super) fn discard_preallocation(&mut self, inode: InodeNumber) {
        let extent = self.preallocations.by_inode.remove(&inode);
        if let (Some(extent), Some(free)) = (extent, &mut self.free) {
            self.preallocations.total -= extent.length;
            free.insert(extent);
        }
    }

    /// Discards all preallocations in this group. Returns whether there were any.
    pub(super) fn discard_preallocations(&mut self) -> bool {
        let discarded = std::mem::take(&mut self.preallocations);
        if let Some(free) = &mut self.free {
            discarded.by_inode.values().for_each(|extent| free.insert(*extent));
        }
        discarded.total > 0
    }
}

impl Allocator {
    /// Discards the preallocation of an inode, if any. The caller holds no group's lock.
    pub(crate) fn discard_preallocation(&self, inode: InodeNumber) {
        let Some(number) = self.preallocations.0.lock().remove(&inode) else { return };
        let group = &mut *self.groups[number.0 as usize].lock();
        group.discard_preallocation(inode);
        if group.damage.is_none() && group.free.is_some() {
            self.update_tally(number, group, group.ready());
        }
    }
}
