//! Bios: I/O requests with an operation, a range of device bytes, memory, and a completion
//! function.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use base::{DeviceOffset, Error, IoError, IoOperation, Result};
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::BlockDevice;

// Error numbers of Linux.
pub(crate) const EIO: i32 = 5;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EROFS: i32 = 30;

/// Returns the range of an operation, or an EINVAL with its location if it is not within a device
/// of `size` bytes.
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

/// The operation of a [`Bio`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BioOperation {
    /// Reads from the device into memory.
    Read,
    /// Writes from memory to the device.
    Write,
}

/// A contiguous part of the memory of a bio.
///
/// The creator promises that the memory stays valid until the bio has ended. Until then, no thread
/// writes to the memory of a write, and none accesses the memory of a read. So a segment never
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

// SAFETY: a segment is an address and a length; the creator's promise (see `new`) holds on any
// thread.
unsafe impl Send for Segment {}

impl Segment {
    /// Creates a segment of `length` bytes from `start` on.
    ///
    /// # Safety
    /// The memory must stay valid, without conflicting accesses, until the bio that contains the
    /// segment has ended, or the segment was dropped without a bio.
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length }
    }

    /// Returns a segment of `length` bytes of this one, from byte `start` on. The creator's promise
    /// covers them.
    ///
    /// # Safety
    /// The part must have been dropped, or the bio that contains it must have ended, before the bio
    /// of `self` ends. The bytes must not be accessed through both at the same time.
    pub unsafe fn part(&self, start: usize, length: usize) -> Self {
        assert!(start.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: within the memory of `self`.
        Self { start: unsafe { self.start.add(start) }, length }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the memory of a write.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the creator promised that the memory is valid and does not change until the bio
        // ends. The bio owns the segment, so it has not ended while the segment is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Returns the memory of a read.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`. For reads, the creator promised that no other thread accesses it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

type EndIo = Box<dyn FnOnce(Result<(), i32>) + Send>;

/// An I/O request. It ends exactly once: by [`Bio::end`], or with EIO when it is dropped.
pub struct Bio {
    operation: BioOperation,
    offset: DeviceOffset,
    segments: SmallVec<[Segment; 4]>,
    length: u64,
    waited_for: bool,
    end: Option<EndIo>,
}

impl Bio {
    /// Creates a request for the device bytes from `offset` on, as many as all segments have.
    /// `end` is called once, on any thread. It must not wait for other I/O of the same device.
    pub fn new(
        operation: BioOperation,
        offset: DeviceOffset,
        segments: impl IntoIterator<Item = Segment>,
        end: impl FnOnce(Result<(), IoError>) + Send + 'static,
    ) -> Self {
        let segments: SmallVec<[Segment; 4]> = segments.into_iter().collect();
        let length = segments.iter().map(|segment| segment.len() as u64).sum();
        let io_operation = match operation {
            BioOperation::Read => IoOperation::Read,
            BioOperation::Write => IoOperation::Write,
        };
        let end: EndIo = Box::new(move |result| {
            end(result.map_err(|errno| IoError { operation: io_operation, offset, length, errno }));
        });
        Self { operation, offset, segments, length, waited_for: false, end: Some(end) }
    }

    /// Marks the request: the submitter waits for its end at once, so the device should do the work
    /// on the submitter's own thread.
    pub fn waited_for(mut self) -> Self {
        self.waited_for = true;
        self
    }

    /// Returns whether the submitter waits for the end at once.
    pub fn is_waited_for(&self) -> bool {
        self.waited_for
    }

    /// Returns the operation.
    pub fn operation(&self) -> BioOperation {
        self.operation
    }

    /// Returns the offset of the first device byte.
    pub fn offset(&self) -> DeviceOffset {
        self.offset
    }

    /// Returns the number of bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the memory, in device order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns a copy of the memory.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.segments.iter().map(Segment::len).sum());
        for segment in &self.segments {
            copy.extend_from_slice(segment.bytes());
        }
        copy
    }

    /// Returns the memory of a read, in device order. Does not return the segments: a caller could
    /// swap them with those of another bio, and then they would outlive their own.
    pub fn memory_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        assert!(self.operation == BioOperation::Read, "the memory of a write must not change");
        self.segments.iter_mut().map(Segment::bytes_mut)
    }

    /// Changes the device offset, for devices that pass requests on to another device.
    /// Errors still contain the submitter's offset.
    pub fn redirect(&mut self, offset: DeviceOffset) {
        self.offset = offset;
    }

    /// Adds a function that is called with the result when the request ends. The submitter's
    /// completion function is called afterwards, with the result of `before`.
    pub fn before_end(
        &mut self,
        before: impl FnOnce(Result<(), i32>) -> Result<(), i32> + Send + 'static,
    ) {
        if let Some(end) = self.end.take() {
            self.end = Some(Box::new(|result| end(before(result))));
        }
    }

    /// Ends the request. `Err` contains the host's error number.
    pub fn end(mut self, result: Result<(), i32>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<(), i32>) {
        if let Some(end) = self.end.take() {
            end(result);
        }
    }

    /// Returns the range of device bytes, or EINVAL if it is not within a device of `size` bytes.
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

/// Submits one bio and waits until it has ended.
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

/// The progress of a batch of writes.
struct Batch {
    /// The number of writes that have not ended.
    left: usize,
    /// The first error.
    failure: Option<IoError>,
}

/// Submits all writes and waits until they have ended. Each item is a device offset and adjacent
/// blocks. Returns the first error.
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
            // SAFETY: the bio's completion function owns `blocks`, so the memory exists until the
            // bio has ended. It does not change; a write only reads it.
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
    // This thread waits, so it can do the last write itself while the device's threads do the
    // others.
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
