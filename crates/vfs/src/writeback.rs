//! Which files have data in the cache that is not on the device yet, and the thread that writes it
//! back: what is old, and what is too much. Not here: how a file's data is written back (`iomap`).

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::locks::{Rank, RankedMutex};
use base::{Error, InodeNumber, Result, Unsupported};
use device::Worker;
use iomap::{Caching, DirtyLimits, EndIo, ErrorCursor, WriteBehind};
use pagecache::PageCache;
use parking_lot::{Condvar, Mutex};

use crate::file_system::FileSystem;
use crate::node::Node;

/// Data stays in the cache for at most about so long, as in the kernel.
const AGE_MAX: Duration = Duration::from_secs(30);
/// How often the thread looks.
const TICK: Duration = Duration::from_secs(1);
/// Shares of the cache that may be dirty, in percent.
const BACKGROUND_SHARE: u8 = 20;
const HARD_SHARE: u8 = 40;
/// What of uncached writes may not have arrived, in bytes: enough for a fast device to have something
/// to do all the time. At most half of what may be dirty before others' data is flushed, too.
const BEHIND_BYTES_MAX: u64 = 32 << 20;

/// The writeback of one volume.
#[derive(Debug)]
pub(crate) struct Writeback {
    pub(crate) end_io: Arc<EndIo>,
    /// What uncached writes leave dirty.
    pub(crate) behind: WriteBehind,
    /// The volume was closed: nothing more may come.
    is_closed: AtomicBool,
    shared: Arc<Dirty>,
    thread: Option<Worker>,
}

#[derive(Debug)]
struct Dirty {
    file_system: Arc<dyn FileSystem>,
    cache: Arc<PageCache>,
    limits: DirtyLimits,
    /// Files with something to write. They stay in memory while they are here.
    nodes: RankedMutex<HashMap<InodeNumber, DirtyNode>>,
    /// The first error since somebody who syncs the whole volume was told.
    failed: Mutex<Option<Error>>,
    wish: Mutex<Wish>,
    wished: Condvar,
}

#[derive(Debug)]
struct DirtyNode {
    node: Arc<Node>,
    since: Instant,
    /// Which of the file's errors are of this time.
    errors: ErrorCursor,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    None,
    Flush,
    Stop,
}

impl Writeback {
    pub(crate) fn start(cache: &Arc<PageCache>, file_system: &Arc<dyn FileSystem>) -> Result<Self> {
        let limits = DirtyLimits::of_shares(cache.stats().bytes_max, BACKGROUND_SHARE, HARD_SHARE);
        let shared = Arc::new(Dirty {
            file_system: Arc::clone(file_system),
            cache: Arc::clone(cache),
            limits,
            nodes: RankedMutex::new(Rank::DirtyInodes, HashMap::new()),
            failed: Mutex::new(None),
            wish: Mutex::new(Wish::None),
            wished: Condvar::new(),
        });
        let worker = Arc::downgrade(&shared);
        let refused = |_| -> Error { Unsupported::Operation("the host refuses a thread").into() };
        let mut writeback = Self {
            end_io: EndIo::start()?,
            behind: WriteBehind::start(BEHIND_BYTES_MAX.min(limits.background / 2))?,
            is_closed: AtomicBool::new(false),
            shared,
            thread: None,
        };
        // Last: from now on somebody has to tell it to end.
        let thread = Worker::start("bifolio-flush", move || work(&worker));
        writeback.thread = Some(thread.map_err(refused)?);
        Ok(writeback)
    }

    /// Says that the volume is being closed.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Notes that a file that has a name has something to write, and has the thread begin if all that
    /// is dirty is much. The caller has the node's lock.
    pub(crate) fn note(&self, node: &Arc<Node>) {
        self.shared.nodes.lock().entry(node.number()).or_insert_with(|| DirtyNode {
            node: Arc::clone(node),
            since: Instant::now(),
            errors: node.error_cursor(),
        });
        if self.shared.limits.needs_flush(&self.shared.cache.dirty_stats()) {
            self.shared.wish(Wish::Flush);
        }
    }

    /// Waits until so little is dirty that more may be, by writing back what `node` has, or, if what
    /// comes is not to stay in the cache, what was written in that way longest ago.
    pub(crate) fn throttle(&self, node: &Node, caching: Caching) {
        if caching == Caching::Dropbehind {
            self.behind.throttle();
        }
        if self.shared.limits.must_throttle(&self.shared.cache.dirty_stats()) {
            self.shared.wish(Wish::Flush);
            node.write_back_and_wait();
        }
        // What others have dirty is theirs to write, unless it leaves no room at all.
        if self.shared.limits.must_throttle(&self.shared.cache.dirty_stats()) {
            let others = self.shared.all();
            others.iter().for_each(|other| other.start_writeback(0..u64::MAX));
            others.iter().for_each(|other| other.wait_for_writeback(0..u64::MAX));
        }
    }

    /// Forgets a file that has lost its last name: nobody wants its data on the device.
    pub(crate) fn forget(&self, number: InodeNumber) {
        let forgotten = self.shared.nodes.lock().remove(&number);
        drop(forgotten);
    }

    /// Forgets all files.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.shared.nodes.lock());
        drop(all);
    }

    /// Writes back all files, and waits for it. Gives the first error since the last time, of
    /// whatever file, also where that file's users hear of it themselves.
    pub(crate) fn flush_all(&self) -> Result<()> {
        let all = self.shared.all();
        all.iter().for_each(|node| node.start_writeback(0..u64::MAX));
        all.iter().for_each(|node| node.wait_for_writeback(0..u64::MAX));
        self.shared.settle(all);
        self.shared.failed.lock().take().map_or(Ok(()), Err)
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.shared.wish(Wish::Stop);
        // The last user of a volume may be the thread itself.
        self.thread = None;
        self.clear();
    }
}

impl Dirty {
    fn wish(&self, wish: Wish) {
        let mut now = self.wish.lock();
        if *now != Wish::Stop {
            *now = wish;
        }
        self.wished.notify_all();
    }

    fn all(&self) -> Vec<Arc<Node>> {
        self.nodes.lock().values().map(|dirty| Arc::clone(&dirty.node)).collect()
    }

    /// Writes what is pending of the inodes of files that have been written back, and forgets those
    /// that have nothing more.
    fn settle(&self, nodes: Vec<Arc<Node>>) {
        for node in nodes {
            let is_written_back = node.is_written_back();
            if let Some(dirty) = self.nodes.lock().get(&node.number()) {
                self.keep_error(dirty);
            }
            if !is_written_back {
                continue;
            }
            if let Err(error) = node.inode().write_pending() {
                tracing::warn!("inode {}: {error}", node.number());
                self.failed.lock().get_or_insert(error);
            }
            let mut dirty = self.nodes.lock();
            // A write that came since has made it dirty before it noted it.
            let forgotten = match node.is_written_back() {
                true => dirty.remove(&node.number()),
                false => None,
            };
            drop(dirty);
            if let Some(forgotten) = forgotten {
                self.keep_error(&forgotten);
            }
        }
    }

    fn keep_error(&self, dirty: &DirtyNode) {
        if let Some(error) = dirty.node.error_since(&dirty.errors) {
            self.failed.lock().get_or_insert(error);
        }
    }

    /// The thread has ended with a panic, which was reported where it happened.
    fn panicked(&self) {
        let operation = "going on after a panic in writing back in the background";
        let error = Error::Lost(Arc::new(Unsupported::Operation(operation).into()));
        self.failed.lock().get_or_insert(error);
        self.file_system.panicked(operation);
    }

    /// One round of the thread.
    fn tend(&self, flush_all: bool) {
        let old = |dirty: &DirtyNode| flush_all || dirty.since.elapsed() >= AGE_MAX;
        let due: Vec<Arc<Node>> = {
            let nodes = self.nodes.lock();
            nodes.values().filter(|dirty| old(dirty)).map(|dirty| Arc::clone(&dirty.node)).collect()
        };
        due.iter().for_each(|node| node.start_writeback(0..u64::MAX));
        due.iter().for_each(|node| node.wait_for_writeback(0..u64::MAX));
        self.settle(due);
    }
}

fn work(dirty: &Weak<Dirty>) {
    loop {
        let Some(dirty) = dirty.upgrade() else { return };
        let wish = {
            let mut wish = dirty.wish.lock();
            if *wish == Wish::None {
                dirty.wished.wait_for(&mut wish, TICK);
            }
            match *wish {
                Wish::Stop => return,
                _ => std::mem::replace(&mut *wish, Wish::None),
            }
        };
        if catch_unwind(AssertUnwindSafe(|| dirty.tend(wish == Wish::Flush))).is_err() {
            return dirty.panicked();
        }
    }
}
