//! Maps: files in memory, accessed by pointers. Not here: showing pages (`iomap`), and the memory
//! itself (`pagecache`).

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::{Error, FileOffset, Result};
use iomap::{Caching, Readahead};
use pagecache::{FaultHandler, MapWindow, PAGE_SHIFT, PAGE_SIZE};

use crate::file::data::PART_BYTES;
use crate::file::rw_flags::RwFlags;
use crate::file::{File, copied_if_mapped};
use crate::node::rights;
use crate::node::{Life, NodeState};
use crate::volume::clock::last_tick;

/// The number of pages that one fault makes writable if a program stores to pages in order.
const STORED_MAX: u64 = 16;
/// The number of attempts to get memory for a page before the fault fails.
const ATTEMPTS_MAX: u32 = 8;

/// The access to a file map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapAccess {
    /// Only reads. A store kills the program, as with mmap(2).
    Read,
    /// Reads and stores.
    ReadWrite,
}

/// Advice on a range of a file map, as for madvise(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapAdvice {
    /// Pages are accessed in order. This is the default.
    Normal,
    /// Pages are accessed at random: there is no readahead. Applies to the whole map.
    Random,
    /// Pages are needed soon, and are read now.
    WillNeed,
    /// Pages are not needed soon, and may be evicted. Stored data is not lost.
    DontNeed,
}

/// The condition for the return of [`FileMap::sync`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapSync {
    /// Writeback has begun.
    Async,
    /// Stored data is durable.
    Sync,
}

/// A range of a file as memory. It is the memory of the cache: reads of the file see stores to it
/// at once, and the map shows writes at once. The file stays open while the map exists. Other
/// processes do not share the map, not even a forked one.
///
/// The memory is accessed by pointers, since other threads change it at any time;
/// [`read`](Self::read) and [`write`](Self::write) need no pointers. An access by a pointer kills
/// the program with SIGBUS if the page is past the one with the file's end. It also does so if the
/// page cannot be read or there is no space for it; then [`prepare`](Self::prepare) returns the
/// error, and allows another attempt. Bytes past the end of the file in its last page are zeroes,
/// and stores to them are lost. Only the first store to a page after its writeback changes the
/// file's times.
///
/// Buffers for reads and writes may be in the memory of a map. No other argument of a call of the
/// library may be there, and callbacks must not access a map.
#[derive(Debug)]
pub struct FileMap(Arc<Map>);

impl Drop for FileMap {
    fn drop(&mut self) {
        self.0.is_dropped.store(true, Ordering::Release);
    }
}

#[derive(Debug)]
struct Map {
    /// Dropped first: faults may occur until then, and need the other fields.
    window: MapWindow,
    file: File,
    readahead: Readahead,
    is_random: AtomicBool,
    /// The page after the last one that can be stored to because of the last fault.
    stored_end: AtomicU64,
    /// Whether its owner has dropped it. A fault may still be handled then: of a thread that
    /// another fault has woken.
    is_dropped: AtomicBool,
}

impl File {
    /// Maps `range`, in bytes. It must begin at a multiple of 4 KiB, and may end past the end of
    /// the file. Errors: `InvalidArgument` for other ranges; `NotOpenFor` if the file is not open
    /// for reading, or is mapped for stores and not open for writing; `Unsupported` on hosts older
    /// than Linux 6.6, or with pages other than 4 KiB.
    pub fn map(&self, range: Range<FileOffset>, access: MapAccess) -> Result<FileMap> {
        let page = PAGE_SIZE as u64;
        if range.start >= range.end || range.start.0 % page != 0 {
            return Err(Error::InvalidArgument("a map must begin at a page and not be empty"));
        }
        self.require_reading()?;
        let node = self.node();
        let is_written = access == MapAccess::ReadWrite;
        if is_written {
            self.require_writing()?;
            node.writeback()?;
            rights::may_overwrite(&node.attributes())?;
        }
        let end = range.end.0.min(node.inode().size_max().max(range.start.0 + 1));
        let pages = range.start.0 >> PAGE_SHIFT..end.div_ceil(page);
        let lock = node.lock();
        let size = node.data()?.size;
        let window = node.mapping().open_window(pages, is_written, size)?;
        drop(lock);
        let errors = self.errors().map(|_| node.error_cursor());
        let file = File::new(Arc::clone(node), self.mode(), errors);
        let map = Arc::new(Map {
            window,
            file,
            readahead: Readahead::default(),
            is_random: AtomicBool::new(false),
            stored_end: AtomicU64::new(u64::MAX),
            is_dropped: AtomicBool::new(false),
        });
        let served = Arc::downgrade(&map);
        map.window.set_fault_handler(served);
        Ok(FileMap(map))
    }
}

impl FileMap {
    /// Returns the address of the first byte. The memory exists as long as this map.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.0.window.start()
    }

    /// Returns the number of bytes, a multiple of 4 KiB.
    #[expect(clippy::len_without_is_empty, reason = "no map is empty")]
    pub fn len(&self) -> usize {
        self.0.window.len()
    }

    /// Copies bytes from byte `at` of the map on. Errors: `NoSuchOffset` if the file ends before
    /// the last byte.
    pub fn read(&self, at: usize, buffer: &mut [u8]) -> Result<()> {
        let range = self.0.bytes(at..at.saturating_add(buffer.len()))?;
        let read = self.0.file.read_at(buffer, range.start)?;
        if read < buffer.len() { Err(Error::NoSuchOffset) } else { Ok(()) }
    }

    /// Stores `data` from byte `at` of the map on. Errors: `NoSuchOffset` if the file ends before
    /// the last byte; then nothing is stored. After other errors, the data before the failed page
    /// is stored.
    pub fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        if !self.0.window.is_writable() {
            return Err(Error::InvalidArgument("the map is not for writing"));
        }
        let range = self.0.bytes(at..at.saturating_add(data.len()))?;
        self.0.write(range.start, data)
    }

    /// Brings all pages of `range` of the map into memory. Until they are reclaimed, accesses to
    /// them cause no fault, nor stores with [`MapAccess::ReadWrite`]. Tries pages again that have
    /// failed before.
    pub fn prepare(&self, range: Range<usize>, access: MapAccess) -> Result<()> {
        let is_store = access == MapAccess::ReadWrite;
        if is_store && !self.0.window.is_writable() {
            return Err(Error::InvalidArgument("the map is not for writing"));
        }
        let pages = self.0.pages(range)?;
        self.0.window.hide_failed();
        let mut page = pages.start;
        while page < pages.end {
            let wanted = if is_store { pages.end - page } else { 1 };
            page = self.0.show(page, is_store.then_some(wanted))?;
        }
        Ok(())
    }

    /// Writes back stores to `range` of the map: msync(2). Errors: those of [`File::sync_all`],
    /// reported once to each map and each open file.
    pub fn sync(&self, range: Range<usize>, sync: MapSync) -> Result<()> {
        let pages = self.0.pages(range)?;
        let bytes = pages.start << PAGE_SHIFT..pages.end << PAGE_SHIFT;
        let node = self.0.file.node();
        match sync {
            MapSync::Async => {
                node.start_writeback(bytes);
                Ok(())
            }
            MapSync::Sync => node.sync_with(bytes, false, self.0.file.errors()),
        }
    }

    /// Applies advice to `range` of the map. Errors: those of the range, and of reading.
    pub fn advise(&self, range: Range<usize>, advice: MapAdvice) -> Result<()> {
        let pages = self.0.pages(range.clone())?;
        match advice {
            MapAdvice::Normal => self.0.is_random.store(false, Ordering::Relaxed),
            MapAdvice::Random => self.0.is_random.store(true, Ordering::Relaxed),
            MapAdvice::WillNeed => match self.prepare(range, MapAccess::Read) {
                Err(Error::NoSuchOffset) => {}
                prepared => return prepared,
            },
            MapAdvice::DontNeed => self.0.window.hide(&pages),
        }
        Ok(())
    }
}

impl Map {
    /// Returns the bytes of the file in `range` of the map.
    fn bytes(&self, range: Range<usize>) -> Result<Range<u64>> {
        if range.start > range.end || range.end > self.window.len() {
            return Err(Error::InvalidArgument("the range is not in the map"));
        }
        let start = self.window.pages().start << PAGE_SHIFT;
        Ok(start + range.start as u64..start + range.end as u64)
    }

    /// Returns the pages of the file in `range` of the map.
    fn pages(&self, range: Range<usize>) -> Result<Range<u64>> {
        let bytes = self.bytes(range)?;
        Ok(bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64))
    }

    /// Shows a page in the window, or, with `stored`, up to that many pages for stores. Returns the
    /// page after the last one shown.
    fn show(&self, page: u64, stored: Option<u64>) -> Result<u64> {
        for _ in 0..ATTEMPTS_MAX {
            let shown = match stored {
                Some(pages) => self.fault_for_store(page, pages),
                None => self.show_to_read(page),
            };
            match shown {
                // Dirty folios cannot be evicted.
                Err(Error::OutOfMemory) => {
                    let node = self.file.node();
                    if let Some(writeback) = &node.volume().writeback {
                        writeback.make_room(node)?;
                    }
                }
                shown => return shown,
            }
        }
        Err(Error::OutOfMemory)
    }

    fn readahead(&self) -> Option<&Readahead> {
        (!self.is_random.load(Ordering::Relaxed)).then_some(&self.readahead)
    }

    fn show_to_read(&self, page: u64) -> Result<u64> {
        let node = self.file.node();
        let _lock = node.lock_shared();
        let context = self.file.context(node.data()?, RwFlags::default());
        iomap::fault_for_load(&context, self.readahead(), &self.window, page)
    }

    fn fault_for_store(&self, page: u64, pages: u64) -> Result<u64> {
        let node = self.file.node();
        let writeback = node.writeback()?;
        node.volume().begin_change()?;
        let Some(file) = node.writable()? else { return Err(Error::ReadOnly) };
        writeback.throttle(node, Caching::Kept)?;
        let state = node.lock();
        // The volume may have been closed before the lock was taken.
        node.writeback()?;
        // Nothing is stored any more, and the owner may have freed the block, and synced the file.
        if self.is_dropped.load(Ordering::Acquire) {
            self.window.wake(page);
            return Ok(page + 1);
        }
        let dirtied = || self.note_stored(&state);
        iomap::fault_for_store(file, self.readahead(), &self.window, page, pages, dirtied)
    }
}

impl FaultHandler for Map {
    fn handle_fault(&self, page: u64, is_store: bool) {
        let stored = is_store.then(|| {
            let in_order = self.stored_end.load(Ordering::Relaxed) == page;
            if in_order && self.readahead().is_some() { STORED_MAX } else { 1 }
        });
        match self.show(page, stored) {
            Ok(end) if is_store => self.stored_end.store(end, Ordering::Relaxed),
            Ok(_) => {}
            // The kernel sends SIGBUS for an access past the end of the file.
            Err(Error::NoSuchOffset) => self.window.wake(page),
            Err(error) => {
                let number = self.file.node().number();
                tracing::warn!("inode {number}: page {page} of a map: {error}");
                self.window.fail(page);
            }
        }
    }
}

impl Map {
    /// Writes all of `data` to bytes within the file.
    fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        let node = self.file.node();
        let writeback = node.writeback()?;
        node.volume().begin_change()?;
        let Some(file) = node.writable()? else { return Err(Error::ReadOnly) };
        let data = copied_if_mapped(data);
        let mut done = 0;
        while done < data.len() {
            writeback.throttle(node, Caching::Kept)?;
            let state = node.lock();
            node.writeback()?;
            if file.size() < at + data.len() as u64 {
                return Err(Error::NoSuchOffset);
            }
            let part = &data[done..data.len().min(done + PART_BYTES)];
            let part_at = FileOffset(at + done as u64);
            done += writeback.with_room(node, || iomap::write(file, part_at, part))?;
            self.note_stored(&state);
        }
        Ok(())
    }

    /// Records a store, before or after it. The caller holds the node's lock.
    fn note_stored(&self, state: &NodeState) {
        let node = self.file.node();
        node.inode().note_modified(last_tick());
        if state.life == Life::Named {
            node.note_change();
        }
    }
}
