//! Tallies: counts of each group that can be read without its lock. They may be stale when the
//! group is locked. Not here: the choice of a group.

use std::sync::atomic::{AtomicU32, Ordering};

/// The value of `longest` before the group's bitmap was read.
const UNKNOWN: u32 = u32::MAX;

/// One group's counts.
#[derive(Debug)]
pub(super) struct Tally {
    ready: AtomicU32,
    longest: AtomicU32,
    free_inodes: AtomicU32,
    directories: AtomicU32,
}

impl Tally {
    pub(super) fn new(ready: u32, free_inodes: u32, directories: u32) -> Self {
        Self {
            ready: ready.into(),
            longest: UNKNOWN.into(),
            free_inodes: free_inodes.into(),
            directories: directories.into(),
        }
    }

    /// Returns the number of clusters that may be allocated now.
    pub(super) fn ready(&self) -> u32 {
        self.ready.load(Ordering::Relaxed)
    }

    /// Returns the length of the longest extent of these clusters, if it is known.
    pub(super) fn longest(&self) -> Option<u32> {
        Some(self.longest.load(Ordering::Relaxed)).filter(|&length| length != UNKNOWN)
    }

    /// Returns whether there may be an extent of this many clusters.
    pub(super) fn may_hold(&self, clusters: u32) -> bool {
        self.longest().unwrap_or_else(|| self.ready()) >= clusters
    }

    pub(super) fn free_inodes(&self) -> u32 {
        self.free_inodes.load(Ordering::Relaxed)
    }

    pub(super) fn directories(&self) -> u32 {
        self.directories.load(Ordering::Relaxed)
    }

    /// Sets the number of clusters that may be allocated, and the length of their longest extent.
    /// The caller holds the group's lock.
    pub(super) fn set_clusters(&self, ready: u32, longest: Option<u32>) {
        self.ready.store(ready, Ordering::Relaxed);
        self.longest.store(longest.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// Sets the counts of inodes. The caller holds the group's lock.
    pub(super) fn set_inodes(&self, free_inodes: u32, directories: u32) {
        self.free_inodes.store(free_inodes, Ordering::Relaxed);
        self.directories.store(directories, Ordering::Relaxed);
    }
}
