//! Syncs of a whole volume while several threads change it.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::promises::Promises;

/// The promises of a volume's syncs to the threads that change it.
#[derive(Debug)]
pub struct VolumeSyncs {
    /// The last version of each thread's tree.
    versions: Vec<AtomicUsize>,
    /// The point of each sync, and the version of each thread's tree that is durable from there on.
    ended: Mutex<Vec<(usize, Vec<usize>)>>,
}

impl VolumeSyncs {
    /// Returns a history without syncs, of threads that have done nothing.
    pub fn new(threads: usize) -> Self {
        let versions = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        Self { versions, ended: Mutex::default() }
    }

    /// Records the end of a thread's operation, which has created a version of its tree.
    pub fn operation_ended(&self, thread: usize, version: usize) {
        self.versions[thread].store(version, Ordering::Release);
    }

    /// Begins a sync. Returns the versions that it makes durable.
    pub fn begin(&self) -> Vec<usize> {
        self.versions.iter().map(|version| version.load(Ordering::Acquire)).collect()
    }

    /// Records the end of a sync at `point`.
    pub fn end(&self, versions: Vec<usize>, point: usize) {
        self.ended.lock().push((point, versions));
    }

    /// Adds the promises of all syncs to those of each thread.
    pub fn add_to(&self, threads: &mut [Promises]) {
        for (point, versions) in self.ended.lock().iter() {
            for (thread, version) in threads.iter_mut().zip(versions) {
                thread.are_durable(*point, *version);
            }
        }
    }
}
