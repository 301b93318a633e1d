//! Writeback of a volume's dirty data: limits for writers, and syncs of the whole volume. Not here:
//! the dirty inodes (`dirty_inodes.rs`), the background thread (`flusher.rs`), and writeback of one
//! file (`iomap`).

mod dirty_inodes;
mod flusher;
mod losses;
mod written_bytes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::{Error, InodeNumber, Result};
use device::Worker;
use fs::FileSystem;
use iomap::{Caching, DirtyLimits, EndIo, WriteBehind};
use pagecache::PageCache;
use parking_lot::Mutex;

pub(crate) use self::dirty_inodes::Expiry;
use self::flusher::{Command, Flusher};
pub(crate) use self::losses::Losses;
use self::written_bytes::WrittenBefore;
use crate::node::Node;

/// The share of dirty data in the cache, in percent, above which the flusher writes it back.
const BACKGROUND_SHARE: u8 = 20;
/// The share of dirty data in the cache, in percent, above which writers wait.
const HARD_SHARE: u8 = 40;
/// The maximum number of bytes of uncached writes that are not on the device yet: enough to keep a
/// fast device busy. The limit is also at most half of the background limit for all dirty data.
const BEHIND_BYTES_MAX: u64 = 32 << 20;
/// The maximum number of times that a change makes room for folios: other threads may take it.
const ROOM_ATTEMPTS_MAX: u32 = 8;

/// A sync of all data of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSync {
    /// What was written back before it.
    earlier: Option<WrittenBefore>,
    /// What was written before it, and not written back in a round.
    later: Option<WrittenBefore>,
}

/// The writeback of one volume.
#[derive(Debug)]
pub(crate) struct Writeback {
    pub(crate) end_io: Arc<EndIo>,
    /// Writes back the data of uncached writes.
    pub(crate) behind: WriteBehind,
    /// Whether the volume was closed: no more data may become dirty.
    is_closed: AtomicBool,
    cache: Arc<PageCache>,
    limits: DirtyLimits,
    flusher: Arc<Flusher>,
    thread: Mutex<Option<Worker>>,
}

impl Writeback {
    /// Starts the flusher. It writes data back at the age `age_max`, or at the default age if that
    /// is zero.
    pub(crate) fn start(
        cache: &Arc<PageCache>,
        file_system: &Arc<dyn FileSystem>,
        age_max: Duration,
    ) -> Result<Self> {
        let limits = DirtyLimits::of_shares(cache.stats().bytes_max, BACKGROUND_SHARE, HARD_SHARE);
        let end_io = EndIo::start()?;
        let flusher = Flusher::new(Arc::clone(&end_io), Arc::clone(file_system), age_max);
        let flusher = Arc::new(flusher);
        let weak = Arc::downgrade(&flusher);
        let writeback = Self {
            end_io,
            behind: WriteBehind::start(BEHIND_BYTES_MAX.min(limits.background / 2))?,
            is_closed: AtomicBool::new(false),
            cache: Arc::clone(cache),
            limits,
            flusher,
            thread: Mutex::new(None),
        };
        // Last, since only a drop of `writeback` stops the thread.
        let thread = Worker::start("bifolio-flush", move || flusher::run(&weak));
        let thread = thread.map_err(|error| Error::thread_spawn(&error))?;
        *writeback.thread.lock() = Some(thread);
        Ok(writeback)
    }

    /// Marks the volume as closed. Later changes of data fail.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Ends background writeback, and waits until its threads have dropped all files, which refer
    /// to the device. Later, data is written back only by syncs, and by writers that wait. The
    /// caller holds no locks.
    pub(crate) fn stop(&self) {
        self.stop_flusher();
        self.behind.stop();
        self.end_io.wait_until_idle();
    }

    /// Ends the flusher's thread, unless the caller is this thread, which may drop the last
    /// reference to the volume.
    fn stop_flusher(&self) {
        self.flusher.send(Command::Stop);
        drop(self.thread.lock().take());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Adds a file with dirty data to the dirty inodes, and wakes the flusher if more than the
    /// background limit is dirty. The file has a name. The caller holds the node's lock.
    pub(crate) fn note(&self, node: &Arc<Node>) {
        self.flusher.inodes.add(node, Expiry::Normal);
        self.flush_if_needed();
    }

    /// [`note`](Self::note) for a file with `bytes` of new data.
    pub(crate) fn note_written(&self, node: &Arc<Node>, bytes: u64) {
        self.flusher.inodes.add_written(node, bytes);
        self.flush_if_needed();
    }

    fn flush_if_needed(&self) {
        if self.limits.needs_flush(&self.cache.dirty_stats()) {
            self.flusher.send(Command::Flush);
        }
    }

    /// Begins a sync of all data of a file. Returns what [`note_synced`](Self::note_synced)
    /// forgets.
    pub(crate) fn begin_sync(&self, node: &Node) -> FileSync {
        // A round may pass it on between the two.
        let later = self.flusher.inodes.written(node);
        FileSync { earlier: self.losses().begin_file_sync(node.number()), later }
    }

    /// Notes that all data is durable that a file had when `sync` began.
    pub(crate) fn note_synced(&self, node: &Node, sync: FileSync) {
        if let Some(before) = sync.later {
            self.flusher.inodes.forget_written(node, before);
        }
        if let Some(before) = sync.earlier {
            self.losses().synced(node.number(), before);
        }
    }

    /// Returns what may be lost after an error.
    pub(crate) fn losses(&self) -> &Losses {
        &self.flusher.losses
    }

    /// Adds an inode with a new access time to the dirty inodes. The inode has a name. Returns
    /// false if there are too many dirty inodes; then the caller writes the time. The caller holds
    /// the node's lock.
    pub(crate) fn note_access(&self, node: &Arc<Node>, expiry: Expiry) -> bool {
        self.flusher.inodes.add_access(node, expiry)
    }

    /// Waits until less data than the limit is dirty. With `Dropbehind`, also waits for the limit
    /// of uncached writes. Writes back the data of `node`, then of all files with a name, and then
    /// of those without one, until that is enough. Errors: `Interrupted` if this thread's request
    /// is cancelled.
    pub(crate) fn throttle(&self, node: &Node, caching: Caching) -> Result<()> {
        if caching == Caching::Dropbehind {
            self.behind.throttle()?;
        }
        if self.must_throttle() {
            self.flusher.send(Command::Flush);
            node.write_back_and_wait_cancellable(0..node.end_to_write_back())?;
        }
        if self.must_throttle() {
            write_back_all(&self.flusher.inodes.all())?;
        }
        if self.must_throttle() {
            write_back_all(&node.volume().nodes.nameless())?;
        }
        Ok(())
    }

    /// Calls `change`, which adds folios to `node`. If there is no memory for them, [makes
    /// room](Self::make_room), and calls it again. Errors: those of `change`; `Interrupted` if this
    /// thread's request is cancelled.
    pub(crate) fn with_room<T>(
        &self,
        node: &Node,
        mut change: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..ROOM_ATTEMPTS_MAX {
            match change() {
                Err(Error::OutOfMemory) => self.make_room(node)?,
                changed => return changed,
            }
        }
        change()
    }

    /// Writes back the data of `node`, of all dirty inodes, and of all files without a name, so
    /// that their folios can be evicted. A folio as large as a cluster or a block needs adjacent
    /// memory, which a few small dirty folios of other files may break up well below the limits.
    /// Errors: `Interrupted` if this thread's request is cancelled.
    pub(crate) fn make_room(&self, node: &Node) -> Result<()> {
        node.write_back_and_wait_cancellable(0..node.end_to_write_back())?;
        write_back_all(&self.flusher.inodes.all())?;
        write_back_all(&node.volume().nodes.nameless())
    }

    /// Returns whether one of the dirty inodes has data that is not on the device.
    pub(crate) fn has_dirty_data(&self) -> bool {
        self.flusher.inodes.all().iter().any(|node| !node.is_written_back())
    }

    fn must_throttle(&self) -> bool {
        self.limits.must_throttle(&self.cache.dirty_stats())
    }

    /// Removes a file that has lost its last name from the dirty inodes, since its data need not be
    /// written, and from those with lost data.
    pub(crate) fn remove(&self, number: InodeNumber) {
        self.flusher.inodes.remove(number);
        self.losses().removed(number);
    }

    /// Removes all dirty inodes.
    pub(crate) fn clear(&self) {
        self.flusher.inodes.clear();
    }

    /// Records that data which [`flush_all`](Self::flush_all) has written back was not committed.
    /// The flusher commits it later.
    pub(crate) fn note_uncommitted(&self) {
        self.flusher.note_uncommitted();
    }

    /// Writes back all files, and waits for their data. Errors: a writeback error of any file that
    /// no earlier call has reported, even if an fsync of the file reports it, too; `Interrupted` if
    /// this thread's request is cancelled, when the next call reports the writeback error.
    pub(crate) fn flush_all(&self) -> Result<()> {
        let inodes = &self.flusher.inodes;
        // Several calls may wait for the same data concurrently. All of them report an error.
        let cursor = self.end_io.errors().cursor();
        let begun = Instant::now();
        let all = inodes.all();
        settle_all(&all)?;
        inodes.finish_round(all, begun, self.end_io.errors(), self.losses());
        self.end_io.errors().check(&cursor)
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.stop_flusher();
        self.clear();
    }
}

/// [`write_back_all`] for a sync, which also waits for changes that are dropping data.
fn settle_all(nodes: &[Arc<Node>]) -> Result<()> {
    write_back_all(nodes)?;
    nodes.iter().for_each(|node| node.wait_for_dropped_data());
    Ok(())
}

/// Writes back the data of files that is dirty now, and waits for it. Errors: `Interrupted` if this
/// thread's request is cancelled.
fn write_back_all(nodes: &[Arc<Node>]) -> Result<()> {
    let ends: Vec<u64> = nodes.iter().map(|node| node.end_to_write_back()).collect();
    for (node, &end) in nodes.iter().zip(&ends) {
        base::cancellation::check()?;
        node.start_writeback(0..end);
    }
    nodes.iter().zip(&ends).try_for_each(|(node, &end)| node.wait_for_writeback(0..end))
}
