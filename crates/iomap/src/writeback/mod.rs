//! Writeback of dirty folios in the order of the file. One bio covers a contiguous run on the
//! device, over all of its folios. Not here: whole clusters (`cluster_write.rs`), the end of I/O
//! (`end_io.rs`), and when to write back.

pub(crate) mod behind;
pub(crate) mod cluster_write;
pub(crate) mod end_io;
pub(crate) mod errors;
pub(crate) mod limits;
pub(crate) mod progress;

use std::ops::{ControlFlow, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use base::{DeviceOffset, Error, FileOffset, Location, Problem, Ranges, Result};
use device::{Bio, BioOperation, Segment};
use pagecache::{DirtyRanges, LockedFolio, PAGE_SHIFT, WritebackFolio};
use smallvec::SmallVec;

use crate::file::WritableFile;
use crate::folios::pages_of;
use crate::mapping::{
    FinishedRange, Iomap, IomapKind, LastMap, Placement, WritePolicy, device_address, place,
    place_after_waiting,
};
use crate::writeback::end_io::{EndedWrite, Pieces};

/// The maximum of bytes in one bio: enough for any device, and soon done for threads that wait.
const BIO_BYTES_MAX: u64 = 8 << 20;
/// The maximum of pieces of memory in one bio.
const BIO_PIECES_MAX: usize = 1024;
/// The maximum of bios that are collected before they are submitted.
pub(crate) const BATCH_MAX: usize = 16;

/// Starts writeback of dirty data in the folios of `range`. Errors go to the file's
/// [`errors`](WritableFile::errors). The caller holds no lock of the format, and no transaction.
///
/// Dirty data before the range and past the size on the disk is written first, since later data
/// does not count as written before it (invariant 4).
pub fn write_back(file: &Arc<WritableFile>, range: Range<u64>) {
    collect(&mut Collector::new(file, range.end), range, || ControlFlow::Continue(()));
}

/// [`write_back`] and [`wait_for_writeback`] in one, for callers that would only wait: this thread
/// submits and completes I/O itself. The caller may hold the inode's lock.
pub fn write_back_and_wait(file: &Arc<WritableFile>, range: Range<u64>) {
    let mut collector = Collector::new(file, range.end);
    collector.waiter = Some(thread::current().id());
    collect(&mut collector, range.clone(), || ControlFlow::Continue(()));
    wait_for_writeback(file, range);
}

/// [`write_back_and_wait`], unless the request that this thread serves is cancelled
/// ([`base::cancellation`]). Data that is not submitted by then stays dirty.
///
/// # Errors
///
/// `Interrupted`. Errors of the device go to the file's [`errors`](WritableFile::errors).
pub fn write_back_and_wait_cancellable(file: &Arc<WritableFile>, range: Range<u64>) -> Result<()> {
    let mut collector = Collector::new(file, range.end);
    collector.waiter = Some(thread::current().id());
    let mut checked = Ok(());
    collect(&mut collector, range.clone(), || {
        checked = base::cancellation::check();
        if checked.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    checked?;
    wait_for_writeback_cancellable(file, range)
}

/// Starts writeback of dirty folios until `go_on`, which is called before each of them, breaks.
fn collect(
    collector: &mut Collector<'_>,
    range: Range<u64>,
    mut go_on: impl FnMut() -> ControlFlow<()>,
) {
    let (file, mut pages) = (collector.file, pages_of(&range));
    while let Some(folio) = file.mapping.next_dirty(pages.clone()) {
        if go_on().is_break() {
            break;
        }
        let folio = match file.mapping.try_lock(&folio) {
            Some(folio) => folio,
            None => {
                // The holder of its lock may wait for folios that are collected here.
                collector.submit_all();
                file.mapping.lock(&folio)
            }
        };
        let index = folio.folio().index();
        // If a copy has replaced the folio, the copy comes next.
        pages.start = pages.start.max(index);
        if file.mapping.holds(&folio) {
            pages.start = match collector.start(&folio) {
                Start::After(page) => page,
                Start::Now(started) => {
                    collector.add(started);
                    index + folio.folio().pages()
                }
            };
        }
    }
    collector.submit_all();
}

/// Writes back dirty data from the block with byte `start` on, and waits for it.
pub(crate) fn write_back_from(file: &Arc<WritableFile>, start: u64) {
    let block = u64::from(file.mapping.block_size().bytes());
    let range = start / block * block..file.size();
    write_back(file, range.clone());
    wait_for_writeback(file, range);
}

/// Waits for the end of writeback in the folios of `range`: the data is on the device and the
/// format was called, or the file's errors have the error.
pub fn wait_for_writeback(file: &WritableFile, range: Range<u64>) {
    let mut pages = pages_of(&range);
    while let Some(folio) = file.mapping.next_under_writeback(pages.clone()) {
        folio.wait_writeback();
        pages.start = folio.index() + folio.pages();
    }
}

/// [`wait_for_writeback`], unless the request that this thread serves is cancelled
/// ([`base::cancellation`]).
///
/// # Errors
///
/// `Interrupted`.
pub fn wait_for_writeback_cancellable(file: &WritableFile, range: Range<u64>) -> Result<()> {
    let mut pages = pages_of(&range);
    while let Some(folio) = file.mapping.next_under_writeback(pages.clone()) {
        folio.wait_writeback_cancellable()?;
        pages.start = folio.index() + folio.pages();
    }
    Ok(())
}

/// Returns the range of data that was not written, without blocks.
pub(crate) fn unmapped(range: Range<u64>) -> FinishedRange {
    let (offset, length) = (FileOffset(range.start), range.end - range.start);
    FinishedRange { offset, length, kind: IomapKind::Mapped, token: None }
}

/// Collects dirty folios, in the order of the file, into bios.
pub(crate) struct Collector<'f> {
    pub(crate) file: &'f Arc<WritableFile>,
    /// The byte up to which mappings are useful.
    horizon: u64,
    map: LastMap,
    /// The bio that is being collected.
    pending: Option<PendingWrite>,
    /// The range that is being added to `pending`. It may have a token.
    pub(crate) adding: Option<FinishedRange>,
    /// The folio that is being added, and the ranges past the size on the disk that have begun and
    /// are in no bio yet.
    current: Option<Arc<WritebackFolio>>,
    pub(crate) begun: Ranges,
    pub(crate) batch: Vec<Bio>,
    /// The collecting thread, if it is going to wait for the end.
    pub(crate) waiter: Option<ThreadId>,
}

/// A folio under writeback.
pub(crate) struct Started {
    pub(crate) folio: Arc<WritebackFolio>,
    /// Its first byte in the file.
    pub(crate) position: u64,
    /// The dirty ranges, in bytes of the folio.
    pub(crate) dirty: DirtyRanges,
    /// The file's size.
    pub(crate) size: u64,
    /// Whether it reaches past the size on the disk.
    is_new: bool,
}

/// The result of starting a folio's writeback.
enum Start {
    /// It has started; `None` if nothing was dirty.
    Now(Option<Started>),
    /// It has not: the writeback of the folio with this page must start first.
    After(u64),
}

/// A bio that is being collected: pieces of folios that are contiguous on the device.
struct PendingWrite {
    address: DeviceOffset,
    length: u64,
    pieces: Pieces,
    ranges: SmallVec<[FinishedRange; 2]>,
    reached: u64,
}

impl<'f> Collector<'f> {
    fn new(file: &'f Arc<WritableFile>, horizon: u64) -> Self {
        Self {
            file,
            horizon,
            map: LastMap::default(),
            pending: None,
            adding: None,
            current: None,
            begun: Ranges::default(),
            batch: Vec::new(),
            waiter: None,
        }
    }

    /// Starts the writeback of a locked folio: of its dirty data up to the end of the file. Past it
    /// nothing is dirty, except the zeroes at the end of its last block.
    fn start(&mut self, locked: &LockedFolio) -> Start {
        let (mapping, folio) = (&self.file.mapping, locked.folio());
        let (position, length) = (folio.position(), folio.len());
        // Under one lock, so that writeback of later data sees this data, past the size on the
        // disk, either as dirty or as under writeback.
        let mut progress = self.file.progress.lock();
        let on_disk = progress.on_disk();
        let is_new = position + length as u64 > on_disk && self.file.mapper.orders_size();
        if is_new {
            let pages = on_disk >> PAGE_SHIFT..folio.index();
            if let Some(earlier) = mapping.next_dirty(pages) {
                return Start::After(earlier.index());
            }
        }
        let Some((folio, mut dirty)) = mapping.start_writeback(locked) else {
            return Start::Now(None);
        };
        let size = self.file.size();
        let end = size.next_multiple_of(mapping.block_size().bytes().into());
        let end = end.saturating_sub(position).min(length as u64) as usize;
        dirty.iter_mut().for_each(|range| range.end = range.end.min(end));
        dirty.retain(|range| range.start < range.end);
        for range in dirty.iter().filter(|_| is_new) {
            let range = position + range.start as u64..position + range.end as u64;
            progress.begin(range.clone());
            self.begun.insert(range);
        }
        Start::Now(Some(Started { folio, position, dirty, size, is_new }))
    }

    /// Maps the dirty blocks of a locked folio, and adds them to the bios.
    fn add(&mut self, started: Option<Started>) {
        let Some(started) = started else { return };
        debug_assert!(started.folio.folio().is_under_writeback());
        self.current = Some(Arc::clone(&started.folio));
        let dirty = self.add_clusters(&started);
        let Started { folio, position, size, is_new, .. } = started;
        for part in dirty {
            let end = position + part.end as u64;
            let mut at = position + part.start as u64;
            while at < end {
                let start = (at - position) as usize;
                let (range, address) = match self.target(at, end) {
                    Ok(target) => target,
                    Err(error) => {
                        self.file.cancel_delalloc(at..end);
                        let pieces = Pieces::from_iter([(Arc::clone(&folio), start..part.end)]);
                        self.begun.remove(at..end);
                        self.fail(std::iter::once(unmapped(at..end)), pieces, error);
                        break;
                    }
                };
                self.adding = Some(range);
                debug_assert!(range.is_valid(self.file.mapping.block_size().bytes().into()));
                debug_assert!(
                    range.offset.0 == at && range.end() <= end,
                    "{range:?} of {at}..{end}"
                );
                if is_new && !self.pending_ends_at(at) {
                    self.finish_pending();
                }
                let piece = (Arc::clone(&folio), start..start + range.length as usize);
                self.add_to_pending(address, range, piece, size);
                at = range.end();
            }
        }
        self.current = None;
    }

    /// Ends writes that will not be submitted with `error`.
    pub(crate) fn fail(
        &self,
        ranges: impl IntoIterator<Item = FinishedRange>,
        pieces: Pieces,
        error: Error,
    ) {
        let (file, ranges) = (Arc::clone(self.file), ranges.into_iter().collect());
        let end_io = Arc::clone(&file.end_io);
        end_io.push(EndedWrite { file, pieces, ranges, reached: 0, result: Err(error) }, true);
    }

    /// Returns the first bytes of the dirty range from `at` to `end` that are written to one run of
    /// the device, and the run's address. The folio with both is locked.
    fn target(&mut self, at: u64, end: u64) -> Result<(FinishedRange, DeviceOffset)> {
        let mapper = &*self.file.mapper;
        let offset = FileOffset(at);
        match mapper.policy(offset..FileOffset(end)) {
            WritePolicy::InPlace => {
                let (map, address) = self.map_at(at, end)?;
                let length = map.end().min(end) - at;
                Ok((FinishedRange { offset, length, kind: map.kind, token: None }, address))
            }
            WritePolicy::OutOfPlace => {
                let block = self.file.mapping.block_size().bytes().into();
                let placed = match place(mapper, at..end, block) {
                    Err(Error::NoSpace) => {
                        // The old blocks of writes that are not submitted yet become free with
                        // these.
                        self.submit_all();
                        place_after_waiting(&*self.file.mapper, at..end, block)
                    }
                    placed => placed,
                };
                let Placement { length, address, token } = placed?;
                let (kind, token) = (IomapKind::Mapped, Some(token));
                Ok((FinishedRange { offset, length, kind, token }, address))
            }
        }
    }

    /// Returns the device offset of byte `at`, and its mapping, up to byte `end` at least. The
    /// folio with both is locked.
    fn map_at(&mut self, at: u64, end: u64) -> Result<(Iomap, DeviceOffset)> {
        let length = self.horizon.min(self.file.size()).max(end) - at;
        let mapper = &*self.file.mapper;
        let reader = self.file.read_context().mapper;
        let map = self.map.at(reader, at, || mapper.map_writeback(FileOffset(at), length))?;
        if !matches!(map.kind, IomapKind::Mapped | IomapKind::Unwritten) {
            let problem = Problem::Invalid { field: "no block to write to at", found: at };
            return Err(Error::corrupt("file mapping", Location::default(), problem));
        }
        if map.end().min(end) % u64::from(self.file.mapping.block_size().bytes()) > 0 {
            let problem = Problem::Invalid { field: "end of range", found: map.end() };
            return Err(Error::corrupt("file mapping", Location::default(), problem));
        }
        Ok((map, device_address(&map, at)?))
    }

    /// Returns whether the pending bio ends with the byte of the file before `at`. Past the size on
    /// the disk a bio covers one range: all of it ends together, since no part counts as written
    /// before the parts before it.
    fn pending_ends_at(&self, at: u64) -> bool {
        let last = self.pending.as_ref().and_then(|pending| pending.ranges.last());
        last.is_some_and(|last| last.end() == at)
    }

    fn add_to_pending(
        &mut self,
        address: DeviceOffset,
        range: FinishedRange,
        piece: (Arc<WritebackFolio>, Range<usize>),
        size: u64,
    ) {
        let can_continue = |pending: &PendingWrite| {
            pending.address.checked_add(pending.length) == Some(address)
                && pending.length + range.length <= BIO_BYTES_MAX
                && pending.pieces.len() < BIO_PIECES_MAX
        };
        if !self.pending.as_ref().is_some_and(can_continue) {
            self.finish_pending();
        }
        let pending = self.pending.get_or_insert_with(|| PendingWrite {
            address,
            length: 0,
            pieces: SmallVec::new(),
            ranges: SmallVec::new(),
            reached: 0,
        });
        pending.length += range.length;
        pending.pieces.push(piece);
        pending.reached = pending.reached.max(range.end().min(size));
        match pending.ranges.last_mut() {
            Some(last) if last.is_continued_by(&range) => last.length += range.length,
            _ => pending.ranges.push(range),
        }
        self.adding = None;
    }

    /// Returns the data of a bio as it is stored, if the file has a transform.
    fn stored_form(&self, pending: &PendingWrite) -> Result<Option<Box<[u8]>>> {
        let Some(transform) = self.file.mapper.transform() else { return Ok(None) };
        let mut stored = vec![0; pending.length as usize].into_boxed_slice();
        let mut done = 0;
        for (folio, range) in &pending.pieces {
            // SAFETY: `pending` keeps the folio under writeback. Until that ends, the folio stays
            // in memory and is not written to.
            let data =
                unsafe { std::slice::from_raw_parts(folio.memory(range).as_ptr(), range.len()) };
            let at = FileOffset(folio.folio().position() + range.start as u64);
            transform.store(at, data, &mut stored[done..done + range.len()])?;
            done += range.len();
        }
        Ok(Some(stored))
    }

    /// Adds the pending bio to the batch.
    fn finish_pending(&mut self) {
        // It stays in `self` while the transform runs: if that panics, `drop` ends its data, and
        // returns its tokens.
        let stored = match &self.pending {
            Some(pending) => self.stored_form(pending),
            None => return,
        };
        let Some(pending) = self.pending.take() else { return };
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                for range in &pending.ranges {
                    self.begun.remove(range.bytes());
                }
                return self.fail(pending.ranges, pending.pieces, error);
            }
        };
        let segments: SmallVec<[Segment; 4]> = match &stored {
            // SAFETY: the completion of the bio owns the memory, and nothing writes to it.
            Some(stored) => SmallVec::from_iter([unsafe {
                Segment::new(NonNull::from(&**stored).cast(), stored.len())
            }]),
            None => pending
                .pieces
                .iter()
                // SAFETY: the folio stays in memory and is not written to while it is under
                // writeback, that is, until the bio has ended and `pieces` is dropped.
                .map(|(folio, range)| unsafe { Segment::new(folio.memory(range), range.len()) })
                .collect(),
        };
        let PendingWrite { address, length, pieces, ranges, reached } = pending;
        let in_pieces: u64 = pieces.iter().map(|(_, range)| range.len() as u64).sum();
        let in_ranges: u64 = ranges.iter().map(|range| range.length).sum();
        debug_assert_eq!(
            (in_pieces, in_ranges),
            (length, length),
            "one bio, its data and its ranges"
        );
        for range in &ranges {
            self.begun.remove(range.bytes());
        }
        let (file, waiter) = (Arc::clone(self.file), self.waiter);
        self.batch.push(Bio::new(BioOperation::Write, address, segments, move |result| {
            drop(stored);
            let end_io = Arc::clone(&file.end_io);
            // The waiter completes ended writes itself after the submission.
            let is_waiter = waiter.is_some_and(|waiter| waiter == thread::current().id());
            let result = result.map_err(Error::from);
            end_io.push(EndedWrite { file, pieces, ranges, reached, result }, !is_waiter);
        }));
        if self.batch.len() >= BATCH_MAX {
            self.submit();
        }
    }

    /// Submits the collected bios. A waiter does the I/O of the last bio itself, and completes the
    /// writes that have ended by then.
    pub(crate) fn submit(&mut self) {
        let Some(last) = self.batch.pop() else { return };
        self.batch.push(if self.waiter.is_some() { last.waited_for() } else { last });
        base::waiting::about_to_wait();
        let guard = self.waiter.map(|_| self.file.end_io.complete_on_drop());
        self.file.device.submit(std::mem::take(&mut self.batch));
        drop(guard);
        self.file.end_io.catch_up();
    }

    /// Submits all added data.
    pub(crate) fn submit_all(&mut self) {
        self.finish_pending();
        self.submit();
    }
}

impl Drop for Collector<'_> {
    /// After a panic, ends data as lost before the writeback of its folios ends. Later data may
    /// wait for it.
    fn drop(&mut self) {
        if thread::panicking() {
            // First, as the end-of-I/O thread is woken below for these bios, too: the waiter does
            // not complete them.
            self.batch.clear();
            let cause = Error::Panicked("writeback");
            let (mut pieces, mut mapped) = match self.pending.take() {
                Some(pending) => (pending.pieces, pending.ranges),
                None => Default::default(),
            };
            mapped.extend(self.adding.take());
            for range in &mapped {
                self.begun.remove(range.bytes());
            }
            pieces.extend(self.current.take().map(|folio| (folio, 0..0)));
            let begun = std::mem::take(&mut self.begun);
            let ranges = mapped.into_iter().chain(begun.iter().map(unmapped));
            self.fail(ranges, pieces, Error::Lost(Arc::new(cause)));
        }
    }
}
