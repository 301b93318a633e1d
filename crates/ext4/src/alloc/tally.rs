//! What is known of every group without its lock, to choose among them by. May be out of date by
//! the time that the group is locked. Not here: choosing.

use std::sync::atomic::{AtomicU32, Ordering};

/// Nobody has looked at the bitmap yet.
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

    /// Clusters that may be allocated now.
    pub(super) fn ready(&self) -> u32 {
        self.ready.load(Ordering::Relaxed)
    }

    /// The length of the longest extent of those, when it is known.
    pub(super) fn longest(&self) -> Option<u32> {
        Some(self.longest.load(Ordering::Relaxed)).filter(|&length| length != UNKNOWN)
    }

    /// Whether there may be so many clusters that follow each other.
    pub(super) fn may_hold(&self, clusters: u32) -> bool {
        self.longest().unwrap_or_else(|| self.ready()) >= clusters
    }

    pub(super) fn free_inodes(&self) -> u32 {
        self.free_inodes.load(Ordering::Relaxed)
    }

    pub(super) fn directories(&self) -> u32 {
        self.directories.load(Ordering::Relaxed)
    }

    /// Says how many clusters may be allocated, and how many of those follow each other at most.
    /// Changes are made under the group's lock.
    pub(super) fn set_clusters(&self, ready: u32, longest: Option<u32>) {
        self.ready.store(ready, Ordering::Relaxed);
        self.longest.store(longest.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    pub(super) fn set_inodes(&self, free_inodes: u32, directories: u32) {
        self.free_inodes.store(free_inodes, Ordering::Relaxed);
        self.directories.store(directories, Ordering::Relaxed);
    }
}
