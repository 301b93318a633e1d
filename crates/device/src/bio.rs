//! One I/O request: an operation on a run of device bytes, the memory it moves, and what to call
//! at its end.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use base::{DeviceOffset, Error, IoError, IoOperation, Result};
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::BlockDevice;

/// Error numbers as Linux has them.
pub(crate) const EIO: i32 = 5;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EROFS: i32 = 30;

/// The range as indices into `size` bytes, or the located EINVAL of `operation`.
pub(crate) fn range_within(
    operation: IoOperation,
    offset: DeviceOffset,
    length: u64,
    size: u64,
) -> Result<Range<u64>, IoError> {
    match offset.0.checked_add(length).filter(|&end| end <= size) {
        Some(end) => Ok(offset.0..end),
        None => Err(IoError { operation, offset, length, errno: EINVAL }),
    }
}

/// What a [`Bio`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BioOperation {
    /// From the device into memory.
    Read,
    /// From memory to the device.
    Write,
}

/// A run of memory that a bio moves.
///
/// Whoever makes one promises that the memory stays valid until the bio has ended, that nobody
/// writes to it during a write, and that nobody reads or writes it during a read. So it never
/// leaves its bio:
///
/// ```compile_fail,E0507
/// fn take(bio: &device::Bio) -> device::Segment {
///     bio.segments()[0]
/// }
/// ```
#[derive(Debug)]
pub struct Segment {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a segment is an address and a length; the maker's promise (see `new`) holds on any thread.
unsafe impl Send for Segment {}

impl Segment {
    /// A segment of `length` bytes from `start`.
    ///
    /// # Safety
    /// The memory must stay valid, and free of conflicting access, until the bio that carries the
    /// segment has ended or, if none does, the segment has been dropped.
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length }
    }

    /// `length` of its bytes, from byte `start` on: what the maker promised of all holds of them.
    ///
    /// # Safety
    /// The part must have been dropped, or the bio that carries it have ended, before the bio of
    /// `self` ends. The bytes must not be touched by way of both at a time.
    pub unsafe fn part(&self, start: usize, length: usize) -> Self {
        assert!(start.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: within the memory that the maker described.
        Self { start: unsafe { self.start.add(start) }, length }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first byte's address.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The memory, to be written out.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the maker promised valid memory that nobody writes until the bio ends, and the
        // bio, which owns the segment, has not ended while it can be borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The memory, to be read into; only for segments of reads.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; for reads the maker promised that nobody else touches it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

type EndIo = Box<dyn FnOnce(Result<(), i32>) + Send>;

/// One request. It ends exactly once, by [`Bio::end`] or by being dropped (EIO).
pub struct Bio {
    operation: BioOperation,
    offset: DeviceOffset,
    segments: SmallVec<[Segment; 4]>,
    length: u64,
    waited_for: bool,
    end: Option<EndIo>,
}

impl Bio {
    /// A request on the device bytes from `offset`, as many as the segments have together.
    /// `end` is called once, on any thread; it must not block on other I/O of the same device.
    pub fn new(
        operation: BioOperation,
        offset: DeviceOffset,
        segments: impl IntoIterator<Item = Segment>,
        end: impl FnOnce(Result<(), IoError>) + Send + 'static,
    ) -> Self {
        let segments: SmallVec<[Segment; 4]> = segments.into_iter().collect();
        let length = segments.iter().map(|segment| segment.len() as u64).sum();
        let operation_named = match operation {
            BioOperation::Read => IoOperation::Read,
            BioOperation::Write => IoOperation::Write,
        };
        let end: EndIo = Box::new(move |result| {
            end(result.map_err(|errno| IoError {
                operation: operation_named,
                offset,
                length,
                errno,
            }));
        });
        Self { operation, offset, segments, length, waited_for: false, end: Some(end) }
    }

    /// Says that the submitter will wait for the end at once, so that a device does well to do the
    /// work on the submitter's own thread.
    pub fn waited_for(mut self) -> Self {
        self.waited_for = true;
        self
    }

    /// Whether the submitter waits for the end at once.
    pub fn is_waited_for(&self) -> bool {
        self.waited_for
    }

    /// What to do.
    pub fn operation(&self) -> BioOperation {
        self.operation
    }

    /// The first device byte.
    pub fn offset(&self) -> DeviceOffset {
        self.offset
    }

    /// The number of bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The memory, in device order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The memory of a read, in device order, to be read into. The segments themselves are not
    /// given out: exchanged with another bio's they would outlive their own.
    pub fn memory_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        assert!(self.operation == BioOperation::Read, "what is written is not ours to change");
        self.segments.iter_mut().map(Segment::bytes_mut)
    }

    /// Turns the request to other device bytes, as a device does that passes requests on to another.
    /// Errors still name the offset that the submitter gave.
    pub fn redirect(&mut self, offset: DeviceOffset) {
        self.offset = offset;
    }

    /// Calls `before` with the result when the request ends, before the submitter's own end, which
    /// gets what `before` returns.
    pub fn before_end(
        &mut self,
        before: impl FnOnce(Result<(), i32>) -> Result<(), i32> + Send + 'static,
    ) {
        if let Some(end) = self.end.take() {
            self.end = Some(Box::new(|result| end(before(result))));
        }
    }

    /// Ends the request. `Err` carries the host's error number.
    pub fn end(mut self, result: Result<(), i32>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<(), i32>) {
        if let Some(end) = self.end.take() {
            end(result);
        }
    }

    /// The range as indices into `size` bytes, or EINVAL.
    pub fn range_within(&self, size: u64) -> Result<Range<u64>, i32> {
        let end =
            self.offset.0.checked_add(self.length).filter(|&end| end <= size).ok_or(EINVAL)?;
        Ok(self.offset.0..end)
    }
}

impl Drop for Bio {
    fn drop(&mut self) {
        self.finish(Err(EIO));
    }
}

impl fmt::Debug for Bio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bio({:?} {}+{})", self.operation, self.offset, self.length)
    }
}

/// Submits one bio built by `make` from an end function and waits until it has ended.
fn submit_and_wait(
    device: &dyn BlockDevice,
    operation: BioOperation,
    offset: DeviceOffset,
    segment: Segment,
) -> Result<()> {
    let state = Arc::new((Mutex::new(None), Condvar::new()));
    let end_state = Arc::clone(&state);
    let bio = Bio::new(operation, offset, [segment], move |result| {
        *end_state.0.lock() = Some(result);
        end_state.1.notify_one();
    });
    base::waiting::about_to_wait();
    device.submit(vec![bio.waited_for()]);
    let mut ended = state.0.lock();
    loop {
        if let Some(result) = ended.take() {
            return result.map_err(Error::from);
        }
        state.1.wait(&mut ended);
    }
}

pub(crate) fn read_and_wait(
    device: &dyn BlockDevice,
    offset: DeviceOffset,
    buffer: &mut [u8],
) -> Result<()> {
    let Some(start) = NonNull::new(buffer.as_mut_ptr()) else { return Ok(()) };
    // SAFETY: `buffer` is borrowed exclusively until this function returns, which is after the end.
    let segment = unsafe { Segment::new(start, buffer.len()) };
    submit_and_wait(device, BioOperation::Read, offset, segment)
}

/// What is left of a batch of writes.
struct Batch {
    left: usize,
    failure: Option<IoError>,
}

/// Writes each item's blocks of bytes one after the other from its offset on; waits for all.
pub(crate) fn write_all_and_wait<T: AsRef<[u8]> + Send + Sync + 'static>(
    device: &dyn BlockDevice,
    writes: Vec<(DeviceOffset, Vec<T>)>,
) -> Result<()> {
    if writes.is_empty() {
        return Ok(());
    }
    let batch = Batch { left: writes.len(), failure: None };
    let state = Arc::new((Mutex::new(batch), Condvar::new()));
    let bios = writes.into_iter().map(|(offset, blocks)| {
        let segments: SmallVec<[Segment; 4]> = blocks
            .iter()
            .map(AsRef::as_ref)
            // SAFETY: the bio's end, which owns `blocks`, keeps the memory until the bio has ended.
            // It is not changed meanwhile; a write bio only reads it.
            .map(|block| unsafe { Segment::new(NonNull::from(&block[0]), block.len()) })
            .collect();
        let state = Arc::clone(&state);
        Bio::new(BioOperation::Write, offset, segments, move |result| {
            drop(blocks);
            let mut batch = state.0.lock();
            batch.left -= 1;
            if let Err(error) = result {
                batch.failure.get_or_insert(error);
            }
            state.1.notify_one();
        })
    });
    base::waiting::about_to_wait();
    // The submitter does what the device's own threads leave to it: the last one.
    let mut bios: Vec<Bio> = bios.collect();
    if let Some(last) = bios.pop() {
        bios.push(last.waited_for());
    }
    device.submit(bios);
    let mut batch = state.0.lock();
    while batch.left > 0 {
        state.1.wait(&mut batch);
    }
    batch.failure.map_or(Ok(()), |error| Err(error.into()))
}

pub(crate) fn write_and_wait(
    device: &dyn BlockDevice,
    offset: DeviceOffset,
    data: &[u8],
) -> Result<()> {
    let Some(start) = NonNull::new(data.as_ptr().cast_mut()) else { return Ok(()) };
    // SAFETY: `data` is borrowed until this function returns, which is after the end; a write bio
    // only reads it.
    let segment = unsafe { Segment::new(start, data.len()) };
    submit_and_wait(device, BioOperation::Write, offset, segment)
}
