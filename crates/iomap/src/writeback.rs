//! Writes dirty folios back: in the order of the file, with one request for each run of device
//! bytes, over as many folios as it covers.
//! Not here: the end of the requests (`end_io.rs`), and when to write back.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use base::{DeviceOffset, Error, FileOffset, Place, Problem, Result};
use device::{Bio, BioOperation, Segment};
use pagecache::{LockedFolio, PAGE_SHIFT, WritebackFolio};
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
pub fn write_back(file: &Arc<WritableFile>, range: Range<u64>) {
    let range = with_tail(file, range);
    collect(Collector::new(file, range.end), range);
}

/// [`write_back`] and [`wait_for_writeback`] in one: the caller, who would only wait, does what it
/// can itself, the end of I/O included. It may hold the inode's lock.
pub fn write_back_and_wait(file: &Arc<WritableFile>, range: Range<u64>) {
    let range = with_tail(file, range);
    let mut collector = Collector::new(file, range.end);
    collector.waiter = Some(thread::current().id());
    collect(collector, range.clone());
    wait_for_writeback(file, range);
}

/// A range, with what comes before it past the size on the disk: that waits for the block it ends in, and
/// nothing is to be written past it meanwhile.
fn with_tail(file: &WritableFile, range: Range<u64>) -> Range<u64> {
    range.start.min(file.size_on_disk())..range.end
}

fn collect(mut collector: Collector<'_>, range: Range<u64>) {
    let (file, mut pages) = (collector.file, pages_of(&range));
    while let Some(folio) = file.mapping.next_dirty(pages.clone()) {
        let folio = match file.mapping.try_lock(&folio) {
            Some(folio) => folio,
            None => {
                // Who has it locked may wait for what is collected here.
                collector.submit_all();
                file.mapping.lock(&folio)
            }
        };
        let index = folio.folio().index();
        if file.mapping.holds(&folio) {
            pages.start = index + folio.folio().pages();
            collector.add(&folio);
        } else {
            // A copy may have taken its place.
            pages.start = pages.start.max(index);
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
    batch: Vec<Bio>,
    /// The thread that collects, if it is going to wait for the end.
    waiter: Option<ThreadId>,
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
        Self { file, horizon, map: LastMap::default(), run: None, batch: Vec::new(), waiter: None }
    }

    /// Adds what is dirty in a locked folio, up to the end of the file, past which nothing is, save
    /// the zeroes that its last block ends with.
    fn add(&mut self, locked: &LockedFolio) {
        let Some((folio, runs)) = self.file.mapping.start_writeback(locked) else { return };
        let position = locked.folio().position();
        let size = self.file.size();
        let block = u64::from(self.file.mapping.block_size().bytes());
        for run in runs {
            let end = (position + run.end as u64).min(size.next_multiple_of(block));
            let mut at = position + run.start as u64;
            while at < end {
                let (map, address) = match self.map_at(at, end) {
                    Ok(map) => map,
                    Err(error) => {
                        self.file.errors.record(error);
                        self.file.mapper.end_write(FileOffset(at)..FileOffset(end));
                        // Nothing else would end the waiting for it.
                        self.file.progress.lock().end(std::iter::once(at..end), 0);
                        break;
                    }
                };
                let length = (map.end().min(end) - at) as usize;
                let start = (at - position) as usize;
                let range =
                    FinishedRange { offset: FileOffset(at), length: length as u64, kind: map.kind };
                self.add_to_run(address, range, (Arc::clone(&folio), start..start + length), size);
                at += length as u64;
            }
        }
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
        let (file, waiter) = (Arc::clone(self.file), self.waiter);
        self.batch.push(Bio::new(BioOperation::Write, run.address, segments, move |result| {
            let end_io = Arc::clone(&file.end_io);
            // The waiter looks for itself when it has submitted.
            let is_waiter = waiter.is_some_and(|waiter| waiter == thread::current().id());
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
        let _ending = self.waiter.map(|_| self.file.end_io.ending());
        self.file.device.submit(std::mem::take(&mut self.batch));
    }

    /// Starts writing all that was added.
    fn submit_all(&mut self) {
        self.end_run();
        self.submit();
    }
}
