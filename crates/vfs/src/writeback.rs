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
use iomap::{Caching, DirtyLimits, EndIo, WriteBehind};
use pagecache::PageCache;
use parking_lot::{Condvar, Mutex};

use crate::file_system::FileSystem;
use crate::node::Node;

/// The default age at which dirty data is written back. The kernel uses 30 s, but it receives every sync(2).
const AGE_MAX: Duration = Duration::from_secs(5);
/// The age at which lazy access times are written, as in the kernel.
const LAZY_AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// The number of waiting inodes from which on lazy access times are written with data. Waiting inodes stay in
/// memory.
const LAZY_MAX: usize = 4096;
/// The number of waiting inodes from which on access times are written at once.
const WAITING_MAX: usize = 16_384;
/// How often the thread looks.
const TICK: Duration = Duration::from_millis(500);
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
    end_io: Arc<EndIo>,
    file_system: Arc<dyn FileSystem>,
    cache: Arc<PageCache>,
    limits: DirtyLimits,
    /// The age at which dirty data is written back.
    age_max: Duration,
    /// Files with something to write. They stay in memory while they are here.
    nodes: RankedMutex<HashMap<InodeNumber, DirtyNode>>,
    /// Since when data has been on the device that no commit is known to have made durable.
    uncommitted: Mutex<Option<Instant>>,
    wish: Mutex<Wish>,
    wished: Condvar,
}

#[derive(Debug)]
struct DirtyNode {
    node: Arc<Node>,
    since: Instant,
    lateness: Lateness,
}

/// When a change is written back without a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lateness {
    /// Together with data.
    Usual,
    /// After 12 hours, unless the inode is written for another reason.
    Lazy,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    None,
    Flush,
    Stop,
}

impl Writeback {
    /// Starts the flusher thread. It writes data back at the age `age_max`, or at the default age if that is
    /// zero.
    pub(crate) fn start(
        cache: &Arc<PageCache>,
        file_system: &Arc<dyn FileSystem>,
        age_max: Duration,
    ) -> Result<Self> {
        let limits = DirtyLimits::of_shares(cache.stats().bytes_max, BACKGROUND_SHARE, HARD_SHARE);
        let end_io = EndIo::start()?;
        let shared = Arc::new(Dirty {
            end_io: Arc::clone(&end_io),
            file_system: Arc::clone(file_system),
            cache: Arc::clone(cache),
            limits,
            age_max: if age_max.is_zero() { AGE_MAX } else { age_max },
            nodes: RankedMutex::new(Rank::DirtyInodes, HashMap::new()),
            uncommitted: Mutex::new(None),
            wish: Mutex::new(Wish::None),
            wished: Condvar::new(),
        });
        let worker = Arc::downgrade(&shared);
        let refused = |_| -> Error { Unsupported::Operation("the host refuses a thread").into() };
        let mut writeback = Self {
            end_io,
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
        Self::add(&mut self.shared.nodes.lock(), node, Lateness::Usual);
        if self.shared.limits.needs_flush(&self.shared.cache.dirty_stats()) {
            self.shared.wish(Wish::Flush);
        }
    }

    /// Notes that an inode with a name has an access time to write. Returns false if too many inodes wait;
    /// then the caller writes it. The caller holds the node's lock.
    pub(crate) fn note_access(&self, node: &Arc<Node>, lateness: Lateness) -> bool {
        let mut nodes = self.shared.nodes.lock();
        if nodes.len() >= WAITING_MAX && !nodes.contains_key(&node.number()) {
            return false;
        }
        let is_many = nodes.len() >= LAZY_MAX;
        Self::add(&mut nodes, node, if is_many { Lateness::Usual } else { lateness });
        true
    }

    fn add(nodes: &mut HashMap<InodeNumber, DirtyNode>, node: &Arc<Node>, lateness: Lateness) {
        let dirty = nodes.entry(node.number()).or_insert_with(|| DirtyNode {
            node: Arc::clone(node),
            since: Instant::now(),
            lateness,
        });
        if dirty.lateness == Lateness::Lazy && lateness == Lateness::Usual {
            dirty.lateness = lateness;
            dirty.since = Instant::now();
        }
    }

    /// Waits until so little is dirty that more may be, by writing back what `node` has, or, if what
    /// comes is not to stay in the cache, what was written in that way longest ago. Fails with `Interrupted`
    /// if the request that this thread serves is cancelled.
    pub(crate) fn throttle(&self, node: &Node, caching: Caching) -> Result<()> {
        if caching == Caching::Dropbehind {
            self.behind.throttle()?;
        }
        if self.shared.limits.must_throttle(&self.shared.cache.dirty_stats()) {
            self.shared.wish(Wish::Flush);
            node.write_back_and_wait_cancellable(0..node.end_to_write_back())?;
        }
        // What others have dirty is theirs to write, unless it leaves no room at all.
        if self.shared.limits.must_throttle(&self.shared.cache.dirty_stats()) {
            let others = self.shared.all();
            write_back_all(&others)?;
        }
        Ok(())
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

    /// Notes that the files that [`flush_all`](Self::flush_all) has written back were not made durable. The flusher
    /// does that later.
    pub(crate) fn note_uncommitted(&self) {
        self.shared.uncommitted.lock().get_or_insert_with(Instant::now);
    }

    /// Writes back all files, and waits for it. Fails with an error of any file that no call had reported when this
    /// one began, even if users of that file are told as well. If the request that this thread serves is cancelled,
    /// the next call reports that error.
    pub(crate) fn flush_all(&self) -> Result<()> {
        // Several calls at a time may wait for the same data. All are told if it is lost.
        let cursor = self.end_io.errors().cursor();
        let (begun, all) = (Instant::now(), self.shared.all());
        write_back_all(&all)?;
        self.shared.settle(all, begun);
        self.end_io.errors().check(&cursor)
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
        self.dirty_nodes(|_| true)
    }

    /// Returns the chosen files, those that have been dirty longest first: files that were written together
    /// get adjacent blocks, in that order.
    fn dirty_nodes(&self, is_chosen: impl Fn(&DirtyNode) -> bool) -> Vec<Arc<Node>> {
        let nodes = self.nodes.lock();
        let due = nodes.values().filter(|dirty| is_chosen(dirty));
        let mut due: Vec<_> = due.map(|dirty| (dirty.since, Arc::clone(&dirty.node))).collect();
        drop(nodes);
        due.sort_by_key(|(since, node)| (*since, node.number()));
        due.into_iter().map(|(_, node)| node).collect()
    }

    /// Writes what is pending of the inodes of files that were written back in a round that began at `begun`, and
    /// forgets those that have nothing more. What the others have is younger than the round.
    fn settle(&self, nodes: Vec<Arc<Node>>, begun: Instant) {
        for node in nodes {
            let is_written_back = node.is_written_back();
            if !is_written_back {
                if let Some(dirty) = self.nodes.lock().get_mut(&node.number()) {
                    dirty.since = dirty.since.max(begun);
                }
                continue;
            }
            let mut is_lost = false;
            if let Err(error) = node.inode().write_pending() {
                tracing::warn!("inode {}: {error}", node.number());
                is_lost = matches!(error, Error::ShutDown(_) | Error::Lost(_));
                self.end_io.errors().record(error);
            }
            let mut dirty = self.nodes.lock();
            // A later change has made the file dirty, or pending, before it notes the file. Once nothing can be
            // changed any more, what is pending stays so.
            let has_pending = node.inode().has_pending() && !is_lost;
            let has_nothing = node.is_written_back() && !has_pending;
            let forgotten = match has_nothing {
                true => dirty.remove(&node.number()),
                false => None,
            };
            drop(dirty);
            drop(forgotten);
        }
    }

    /// The thread has ended with a panic, which was reported where it happened.
    fn panicked(&self) {
        let operation = "going on after a panic in writing back in the background";
        let error = Error::Lost(Arc::new(Unsupported::Operation(operation).into()));
        self.end_io.errors().record(error);
        self.file_system.panicked(operation);
    }

    /// Runs one round of the flusher. If any data is old, all data is written back and committed, so that the
    /// next round is not due soon. On a mount that does not receive sync(2), a crash after a sync loses only
    /// younger data.
    fn tend(&self, flush_all: bool) {
        let is_old = |dirty: &DirtyNode| match dirty.lateness {
            Lateness::Usual => dirty.since.elapsed() >= self.age_max,
            Lateness::Lazy => dirty.since.elapsed() >= LAZY_AGE_MAX,
        };
        let begun = Instant::now();
        if self.end_io.take_direct_writes() {
            // Since the last look.
            let ended = begun.checked_sub(TICK).unwrap_or(begun);
            self.uncommitted.lock().get_or_insert(ended);
        }
        let is_uncommitted = |since: Instant| since.elapsed() >= self.age_max;
        let has_old = self.nodes.lock().values().any(is_old)
            || self.uncommitted.lock().is_some_and(is_uncommitted);
        if !flush_all && !has_old {
            return;
        }
        let due = self.dirty_nodes(|dirty| dirty.lateness == Lateness::Usual || is_old(dirty));
        // The flusher serves no request that could be cancelled.
        let _ = write_back_all(&due);
        self.settle(due, begun);
        if !has_old {
            self.uncommitted.lock().get_or_insert(begun);
            return;
        }
        *self.uncommitted.lock() = None;
        if let Err(error) = self.file_system.sync() {
            self.end_io.errors().record(error);
        }
    }
}

/// Writes back what files have dirty when this is called, and waits for it. Fails with `Interrupted` if the
/// request that this thread serves is cancelled.
fn write_back_all(nodes: &[Arc<Node>]) -> Result<()> {
    let ends: Vec<u64> = nodes.iter().map(|node| node.end_to_write_back()).collect();
    for (node, &end) in nodes.iter().zip(&ends) {
        base::cancellation::check()?;
        node.start_writeback(0..end);
    }
    nodes.iter().zip(&ends).try_for_each(|(node, &end)| node.wait_for_writeback(0..end))
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
