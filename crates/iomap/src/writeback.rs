//! Writes dirty folios back: in the order of the file, with one request for each run of device
//! bytes, over as many folios as it covers.
//! Not here: the end of the requests (`end_io.rs`), and when to write back.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::thread::{self, ThreadId};

use base::{DeviceOffset, Error, FileOffset, Place, Problem, Ranges, Result, Unsupported};
use device::{Bio, BioOperation, Segment};
use pagecache::{LockedFolio, PAGE_SHIFT, Runs, WritebackFolio};
use smallvec::SmallVec;

use crate::end_io::Ended;
use crate::file::WritableFile;
use crate::fill::device_address;
use crate::mapping::{FinishedRange, Iomap, IomapKind, LastMap};

/// The most bytes of one request: enough for any device, and done soon enough for those who wait.
const BIO_BYTES_MAX: u64 = 8 << 20;
/// The most pieces of memory of one request.
const BIO_PIECES_MAX: usize = 1024;
/// The most requests that are collected before they are submitted.
const BATCH_MAX: usize = 16;

/// Parts of folios under writeback.
pub(crate) type Pieces = SmallVec<[(Arc<WritebackFolio>, Range<usize>); 4]>;

/// Starts to write back what is dirty in the folios that have bytes of `range`. Errors reach the
/// file's [`errors`](WritableFile::errors). The caller holds no lock of the format, and no
/// transaction.
///
/// What is dirty before the range and past the size on the disk goes first: nothing counts as written
/// before that is (invariant 4).
pub fn write_back(file: &Arc<WritableFile>, range: Range<u64>) {
    collect(&mut Collector::new(file, range.end), range, || ControlFlow::Continue(()));
}

/// [`write_back`] and [`wait_for_writeback`] in one: the caller, who would only wait, does what it
/// can itself, the end of I/O included. It may hold the inode's lock.
pub fn write_back_and_wait(file: &Arc<WritableFile>, range: Range<u64>) {
    let mut collector = Collector::new(file, range.end);
    collector.waiter = Some(thread::current().id());
    collect(&mut collector, range.clone(), || ControlFlow::Continue(()));
    wait_for_writeback(file, range);
}

/// [`write_back_and_wait`], unless the request that this thread serves is cancelled
/// ([`base::cancellation`]). What is not on its way to the device by then stays dirty.
///
/// # Errors
///
/// `Interrupted`. Errors of the device reach the file's [`errors`](WritableFile::errors).
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

/// Begins the writeback of dirty folios until `go_on`, which is called before each of them, ends that.
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
                // Who has it locked may wait for what is collected here.
                collector.submit_all();
                file.mapping.lock(&folio)
            }
        };
        let index = folio.folio().index();
        // If a copy has taken its place, that comes next.
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

/// Waits until what was on its way to the device in the folios that have bytes of `range` is there,
/// and the format knows; or could not be written, and the file's errors say so.
pub fn wait_for_writeback(file: &WritableFile, range: Range<u64>) {
    let mut pages = pages_of(&range);
    while let Some(folio) = file.mapping.next_under_writeback(pages.clone()) {
        folio.wait_writeback();
        pages.start = folio.index() + folio.pages();
    }
}

/// [`wait_for_writeback`], unless the request that this thread serves is cancelled ([`base::cancellation`]).
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

fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start >> PAGE_SHIFT..range.end.div_ceil(1 << PAGE_SHIFT)
}

/// Makes requests of dirty folios that come in the order of the file.
struct Collector<'f> {
    file: &'f Arc<WritableFile>,
    /// The byte up to which mappings are worth knowing.
    horizon: u64,
    map: LastMap,
    run: Option<Run>,
    /// The folio that is being added, and what has begun past the size on the disk and is not in a request.
    current: Option<Arc<WritebackFolio>>,
    begun: Ranges,
    batch: Vec<Bio>,
    /// The thread that collects, if it is going to wait for the end.
    waiter: Option<ThreadId>,
}

/// A folio under writeback.
struct Started {
    folio: Arc<WritebackFolio>,
    /// Its first byte in the file.
    position: u64,
    /// What is to be written.
    runs: Runs,
    /// The file's size.
    size: u64,
    /// Whether it reaches past the size on the disk.
    is_new: bool,
}

/// What became of beginning a folio's writeback.
enum Start {
    /// It has begun; `None` if nothing was dirty.
    Now(Option<Started>),
    /// It has not: that of the folio with this page has to begin before.
    After(u64),
}

/// Pieces that lie one after the other on the device.
struct Run {
    address: DeviceOffset,
    length: u64,
    pieces: Pieces,
    ranges: SmallVec<[FinishedRange; 2]>,
    reached: u64,
}

impl<'f> Collector<'f> {
    fn new(file: &'f Arc<WritableFile>, horizon: u64) -> Self {
        let (map, run, current, begun, batch) = Default::default();
        Self { file, horizon, map, run, current, begun, batch, waiter: None }
    }

    /// Begins the writeback of a locked folio: of what is dirty in it up to the end of the file, past which
    /// nothing is, save the zeroes that its last block ends with.
    fn start(&mut self, locked: &LockedFolio) -> Start {
        let (mapping, folio) = (&self.file.mapping, locked.folio());
        let (position, length) = (folio.position(), folio.len());
        // In one step for those who write back what lies behind: what lies past the size on the disk is dirty no
        // more, and is on its way.
        let mut progress = self.file.progress.lock();
        let on_disk = progress.on_disk();
        let is_new = position + length as u64 > on_disk;
        if is_new {
            let pages = on_disk >> PAGE_SHIFT..folio.index();
            if let Some(earlier) = mapping.next_dirty(pages) {
                return Start::After(earlier.index());
            }
        }
        let Some((folio, mut runs)) = mapping.start_writeback(locked) else {
            return Start::Now(None);
        };
        let size = self.file.size();
        let end = size.next_multiple_of(mapping.block_size().bytes().into());
        let end = end.saturating_sub(position).min(length as u64) as usize;
        runs.iter_mut().for_each(|run| run.end = run.end.min(end));
        runs.retain(|run| run.start < run.end);
        for run in runs.iter().filter(|_| is_new) {
            let range = position + run.start as u64..position + run.end as u64;
            progress.begin(range.clone());
            self.begun.insert(range);
        }
        Start::Now(Some(Started { folio, position, runs, size, is_new }))
    }

    /// Maps the dirty blocks of a locked folio, and adds them to the requests.
    fn add(&mut self, started: Option<Started>) {
        let Some(Started { folio, position, runs, size, is_new }) = started else { return };
        self.current = Some(Arc::clone(&folio));
        for run in runs {
            let end = position + run.end as u64;
            let mut at = position + run.start as u64;
            while at < end {
                let start = (at - position) as usize;
                let (map, address) = match self.map_at(at, end) {
                    Ok(map) => map,
                    Err(error) => {
                        self.file.cancel_unplaced(at..end);
                        let pieces = Pieces::from_iter([(Arc::clone(&folio), start..run.end)]);
                        self.begun.remove(at..end);
                        self.fail(std::iter::once(at..end), pieces, error);
                        break;
                    }
                };
                let length = (map.end().min(end) - at) as usize;
                let range =
                    FinishedRange { offset: FileOffset(at), length: length as u64, kind: map.kind };
                if is_new && !self.goes_on_at(at) {
                    self.end_run();
                }
                self.add_to_run(address, range, (Arc::clone(&folio), start..start + length), size);
                at += length as u64;
            }
        }
        self.current = None;
    }

    /// Ends with `error` what will not be submitted.
    fn fail(&self, ranges: impl IntoIterator<Item = Range<u64>>, pieces: Pieces, error: Error) {
        // The format does not hear of failures: the kind says nothing.
        let finished = |range: Range<u64>| FinishedRange {
            offset: FileOffset(range.start),
            length: range.end - range.start,
            kind: IomapKind::Mapped,
        };
        let (file, ranges) = (Arc::clone(self.file), ranges.into_iter().map(finished).collect());
        let end_io = Arc::clone(&file.end_io);
        end_io.push(Ended { file, pieces, ranges, reached: 0, result: Err(error) }, true);
    }

    /// Where byte `at` is to be written, up to byte `end` at least. The folio with both is locked.
    fn map_at(&mut self, at: u64, end: u64) -> Result<(Iomap, DeviceOffset)> {
        let length = self.horizon.min(self.file.size()).max(end) - at;
        let mapper = &*self.file.mapper;
        let reader = self.file.read_context().mapper;
        let map = self.map.at(reader, at, || mapper.map_writeback(FileOffset(at), length))?;
        if !matches!(map.kind, IomapKind::Mapped | IomapKind::Unwritten) {
            let problem = Problem::Invalid { field: "no block to write to at", found: at };
            return Err(Error::corrupt("file mapping", Place::default(), problem));
        }
        Ok((map, device_address(&map, at)?))
    }

    /// Whether the run ends with the byte of the file before `at`. Past the size on the disk a request covers
    /// one range: it ends with the last, and nothing before that may count as written without it.
    fn goes_on_at(&self, at: u64) -> bool {
        let last = self.run.as_ref().and_then(|run| run.ranges.last());
        last.is_some_and(|last| last.end() == at)
    }

    fn add_to_run(
        &mut self,
        address: DeviceOffset,
        range: FinishedRange,
        piece: (Arc<WritebackFolio>, Range<usize>),
        size: u64,
    ) {
        let follows = |run: &Run| {
            run.address.checked_add(run.length) == Some(address)
                && run.length + range.length <= BIO_BYTES_MAX
                && run.pieces.len() < BIO_PIECES_MAX
        };
        if !self.run.as_ref().is_some_and(follows) {
            self.end_run();
        }
        let run = self.run.get_or_insert_with(|| Run {
            address,
            length: 0,
            pieces: SmallVec::new(),
            ranges: SmallVec::new(),
            reached: 0,
        });
        run.length += range.length;
        run.pieces.push(piece);
        run.reached = run.reached.max(range.end().min(size));
        match run.ranges.last_mut() {
            Some(last) if last.is_continued_by(&range) => last.length += range.length,
            _ => run.ranges.push(range),
        }
    }

    /// Makes a request of the run.
    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        let segments: SmallVec<[Segment; 4]> = run
            .pieces
            .iter()
            // SAFETY: the folio stays where it is, and nobody writes to it, while it is under
            // writeback, which is until the request has ended and `pieces` is dropped.
            .map(|(folio, range)| unsafe { Segment::new(folio.memory(range), range.len()) })
            .collect();
        let Run { pieces, ranges, reached, .. } = run;
        for range in &ranges {
            self.begun.remove(range.bytes());
        }
        let (file, waiter) = (Arc::clone(self.file), self.waiter);
        self.batch.push(Bio::new(BioOperation::Write, run.address, segments, move |result| {
            let end_io = Arc::clone(&file.end_io);
            // The waiter looks for itself when it has submitted.
            let is_waiter = waiter.is_some_and(|waiter| waiter == thread::current().id());
            let result = result.map_err(Error::from);
            end_io.push(Ended { file, pieces, ranges, reached, result }, !is_waiter);
        }));
        if self.batch.len() >= BATCH_MAX {
            self.submit();
        }
    }

    /// Submits what was collected. A waiter does the last request itself, and ends what has ended
    /// by then.
    fn submit(&mut self) {
        let Some(last) = self.batch.pop() else { return };
        self.batch.push(if self.waiter.is_some() { last.waited_for() } else { last });
        base::waiting::about_to_wait();
        let ending = self.waiter.map(|_| self.file.end_io.ending());
        self.file.device.submit(std::mem::take(&mut self.batch));
        drop(ending);
        self.file.end_io.catch_up();
    }

    /// Starts writing all that was added.
    fn submit_all(&mut self) {
        self.end_run();
        self.submit();
    }
}

impl Drop for Collector<'_> {
    /// What a panic leaves is lost, which is to be known before its folios are let go; and what lies behind
    /// waits for it.
    fn drop(&mut self) {
        if thread::panicking() {
            // Before the thread is woken that ends all this: the waiter will not.
            self.batch.clear();
            let cause = Unsupported::Operation("going on after a panic in writing back");
            let mut pieces = self.run.take().map_or_else(Pieces::new, |run| run.pieces);
            pieces.extend(self.current.take().map(|folio| (folio, 0..0)));
            let ranges = std::mem::take(&mut self.begun);
            self.fail(ranges.iter(), pieces, Error::Lost(Arc::new(cause.into())));
        }
    }
}
