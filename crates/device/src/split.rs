//! Splits a bio into smaller bios, so that several threads can share the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use base::DeviceOffset;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{Bio, Segment};

/// A bio that was split.
struct Whole {
    /// The bio, until it ends.
    bio: Mutex<Option<Bio>>,
    /// The number of parts that have not ended.
    parts_left: AtomicUsize,
    /// The error number of a part that failed, or 0.
    errno: AtomicI32,
}

impl Whole {
    fn end_part(&self, result: Result<(), i32>) {
        if let Err(errno) = result {
            self.errno.store(errno, Ordering::Relaxed);
        }
        // AcqRel: the thread that ends the whole sees the errors and the memory of all parts.
        if self.parts_left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let bio = self.bio.lock().take();
        if let Some(bio) = bio {
            let errno = self.errno.load(Ordering::Relaxed);
            bio.end(if errno == 0 { Ok(()) } else { Err(errno) });
        }
    }
}

/// Adds `bio` to `parts`. If it is longer than `length_max` bytes, splits it into parts of this
/// length. Then it ends with its last part, and fails if any part fails.
pub(crate) fn split(bio: Bio, length_max: u64, parts: &mut Vec<Bio>) {
    // A bio whose range overflows is not split. The device ends it with an error.
    if bio.length() <= length_max || bio.offset().checked_add(bio.length()).is_none() {
        parts.push(bio);
        return;
    }
    let (first, length) = (bio.offset().0, bio.length());
    let starts = (0..length).step_by(length_max as usize);
    let piece = |start: u64| Piece {
        start,
        length: length_max.min(length - start),
        offset: DeviceOffset(first + start),
    };
    let pieces: Vec<_> = starts.map(piece).collect();
    split_into(bio, &pieces, parts);
}

/// A part of a bio's bytes, and its place on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The first byte within the bio.
    pub(crate) start: u64,
    /// The number of bytes.
    pub(crate) length: u64,
    /// The place on the device.
    pub(crate) offset: DeviceOffset,
}

/// Adds one bio for each of `pieces` to `parts`. The pieces are not empty and ascend without
/// overlap. Bytes of `bio` that belong to no piece stay as they are. `bio` ends with its last part,
/// at once if there is none, and fails if any part fails.
pub(crate) fn split_into(bio: Bio, pieces: &[Piece], parts: &mut Vec<Bio>) {
    if pieces.is_empty() {
        return bio.end(Ok(()));
    }
    let operation = bio.operation();
    let is_waited_for = bio.is_waited_for();
    let memory = memory_of(&bio, pieces);
    let whole = Arc::new(Whole {
        bio: Mutex::new(Some(bio)),
        parts_left: AtomicUsize::new(pieces.len()),
        errno: AtomicI32::new(0),
    });
    parts.extend(pieces.iter().zip(memory).map(|(piece, segments)| {
        let whole = Arc::clone(&whole);
        let part = Bio::new(operation, piece.offset, segments, move |result| {
            whole.end_part(result.map_err(|error| error.errno));
        });
        if is_waited_for { part.waited_for() } else { part }
    }));
}

/// Returns the memory of each piece of the bio.
fn memory_of(bio: &Bio, pieces: &[Piece]) -> Vec<SmallVec<[Segment; 4]>> {
    let mut segments = bio.segments().iter();
    // The segment that contains the current byte, and the position of its first byte within the
    // bio.
    let mut current = segments.next();
    let mut current_start = 0;
    let piece_memory = |piece: &Piece| {
        let mut memory = SmallVec::new();
        let end = piece.start + piece.length;
        let mut at = piece.start;
        while let Some(segment) = current.filter(|_| at < end) {
            let segment_end = current_start + segment.len() as u64;
            if at >= segment_end {
                current_start = segment_end;
                current = segments.next();
                continue;
            }
            let length = segment_end.min(end) - at;
            // SAFETY: pieces do not overlap. The memory is not accessed through the whole, which
            // ends after all of its parts.
            memory.push(unsafe { segment.part((at - current_start) as usize, length as usize) });
            at += length;
        }
        memory
    };
    pieces.iter().map(piece_memory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BioOperation, BlockDevice, MemoryDevice};
    use std::ptr::NonNull;
    use std::sync::mpsc;

    /// Reads 1000 bytes at byte 100 into segments of these lengths, in parts of 64 bytes, in
    /// reverse order. Drops parts for which `drops` returns true.
    fn read(lengths: &[usize], drops: impl Fn(usize) -> bool) -> (Vec<u8>, Result<(), i32>) {
        let device = MemoryDevice::new((0..2000).map(|at| (at % 251) as u8).collect());
        let mut memory = vec![0u8; 1000];
        let mut rest = memory.as_mut_slice();
        let mut segments = Vec::new();
        for &length in lengths {
            let (part, after) = rest.split_at_mut(length);
            rest = after;
            // SAFETY: `memory` outlives the end of every part, and is not accessed before.
            segments.push(unsafe { Segment::new(NonNull::from(part).cast(), length) });
        }
        let (sender, receiver) = mpsc::channel();
        let bio = Bio::new(BioOperation::Read, DeviceOffset(100), segments, move |result| {
            sender.send(result).unwrap();
        });
        let mut parts = Vec::new();
        split(bio, 64, &mut parts);
        assert_eq!(parts.len(), 16);
        for (index, part) in parts.into_iter().enumerate().rev() {
            assert!(receiver.try_recv().is_err(), "ended before its last part");
            if !drops(index) {
                device.submit(vec![part]);
            }
        }
        let result = receiver.recv().unwrap();
        (memory, result.map_err(|error| error.errno))
    }

    #[test]
    fn parts_read_the_same_data_as_the_whole() {
        let expected: Vec<u8> = (100..1100).map(|at| (at % 251) as u8).collect();
        for lengths in [&[1000][..], &[64, 936], &[1, 63, 65, 0, 871], &[500, 500]] {
            assert_eq!(read(lengths, |_| false), (expected.clone(), Ok(())));
        }
    }

    #[test]
    fn the_whole_fails_if_a_part_fails() {
        for failed in [0, 7, 15] {
            assert_eq!(read(&[1000], |index| index == failed).1, Err(crate::bio::EIO));
        }
    }

    #[test]
    fn errors_have_the_range_of_the_whole() {
        let (sender, receiver) = mpsc::channel();
        let mut memory = [0u8; 200];
        // SAFETY: the memory is not accessed, since the range is outside the device.
        let segment = unsafe { Segment::new(NonNull::from(&mut memory).cast(), 200) };
        let bio = Bio::new(BioOperation::Read, DeviceOffset(50), [segment], move |result| {
            sender.send(result).unwrap();
        });
        let mut parts = Vec::new();
        split(bio, 64, &mut parts);
        MemoryDevice::new(vec![0; 50]).submit(parts);
        let error = receiver.recv().unwrap().unwrap_err();
        assert_eq!((error.offset, error.length), (DeviceOffset(50), 200));
    }
}
