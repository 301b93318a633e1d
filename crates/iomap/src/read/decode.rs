//! Decoding of data that is stored in clusters, such as compressed data, and the threads that do
//! it. Not here: the reads of clusters (`cluster.rs`), and encodings that keep the length of data
//! (`mapping/transform.rs`).

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::thread;

use base::{FileOffset, OnDrop, Result};
use device::{Worker, WorkingThreads};
use parking_lot::{Condvar, Mutex};

use crate::read::cluster::ClusterRead;

/// The maximum number of threads of a pool.
const THREADS_MAX: usize = 8;

/// The decoder of a file's clusters.
pub trait Decode: Send + Sync + Debug {
    /// Decodes the cluster from byte `at` of the file on. `stored` has its whole stored form, which
    /// may be changed, for example to decrypt it; `data` has room for all bytes of the cluster.
    /// Errors: `Corrupt` if the stored form is not valid; `data` has any bytes then. Waits for no
    /// I/O. The memory that it needs is bounded by the length of `data`, whatever `stored` says.
    fn decode(&self, at: FileOffset, stored: &mut [u8], data: &mut [u8]) -> Result<()>;
}

/// The way in which the clusters of a file are decoded.
#[derive(Clone, Debug)]
pub struct Encoding {
    /// The decoder.
    pub decode: Arc<dyn Decode>,
    /// The threads that decode what was read ahead.
    pub pool: Arc<DecodePool>,
}

/// Threads that decode the clusters of some files, usually those of one volume, that were read
/// ahead. Clusters that a reader waits for are decoded by the reader.
#[derive(Debug, Default)]
pub struct DecodePool {
    queue: Arc<Queue>,
    /// Started when there is work for them. Joined when this is dropped, which one of them may do,
    /// with the last read.
    threads: OnceLock<Vec<Worker>>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Notified when a read was decoded.
    done: Condvar,
}

#[derive(Default)]
struct Waiting {
    reads: VecDeque<Arc<ClusterRead>>,
    working: WorkingThreads,
    closed: bool,
}

impl DecodePool {
    /// Starts the threads, unless they run. Returns false if the host refuses all of them.
    pub(crate) fn start(&self) -> bool {
        let threads = self.threads.get_or_init(|| {
            let count = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
            let start = |_| {
                let queue = Arc::clone(&self.queue);
                Worker::start("decoding", move || queue.work()).ok()
            };
            // Fewer threads do the same work.
            (0..count).map_while(start).collect()
        });
        !threads.is_empty()
    }

    /// Waits until all threads but this one have decoded what was queued, and hold no read.
    pub fn wait_until_idle(&self) {
        let mut waiting = self.queue.waiting.lock();
        while !waiting.reads.is_empty() || waiting.working.has_others() {
            self.queue.done.wait(&mut waiting);
        }
    }

    /// Queues a read whose stored form is in memory. The pool has threads.
    pub(crate) fn push(&self, read: Arc<ClusterRead>) {
        self.queue.waiting.lock().reads.push_back(read);
        self.queue.changed.notify_one();
    }
}

impl Drop for DecodePool {
    fn drop(&mut self) {
        self.queue.waiting.lock().closed = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn work(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(read) = waiting.reads.pop_front() {
                waiting.working.begin();
                drop(waiting);
                let working = OnDrop(|| {
                    self.waiting.lock().working.end();
                    self.done.notify_all();
                });
                read.decode();
                // Before the lock: this may drop the pool.
                drop(read);
                drop(working);
                waiting = self.waiting.lock();
            } else if waiting.closed {
                return;
            } else {
                self.changed.wait(&mut waiting);
            }
        }
    }
}

impl Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({} reads)", self.waiting.lock().reads.len())
    }
}
