//! Cuts a bio into smaller ones, for several threads to share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use base::DeviceOffset;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{Bio, Segment};

/// A bio whose parts are under way.
struct Whole {
    bio: Mutex<Option<Bio>>,
    parts_left: AtomicUsize,
    /// The error of a part that failed; 0 while none has.
    errno: AtomicI32,
}

impl Whole {
    fn end_part(&self, result: Result<(), i32>) {
        if let Err(errno) = result {
            self.errno.store(errno, Ordering::Relaxed);
        }
        // Each part's error and its memory are seen by whoever ends the whole.
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

/// Adds `bio` to `parts`, in parts of `length_max` bytes if it is longer. It ends with the last of
/// its parts, and fails if one does.
pub(crate) fn split(bio: Bio, length_max: u64, parts: &mut Vec<Bio>) {
    // A bio that cannot be done is left to say so itself.
    if bio.length() <= length_max || bio.offset().checked_add(bio.length()).is_none() {
        parts.push(bio);
        return;
    }
    let (operation, first, length) = (bio.operation(), bio.offset().0, bio.length());
    let starts = (0..length).step_by(length_max as usize);
    let segments: Vec<_> = starts.clone().map(|start| part(&bio, start, length_max)).collect();
    let whole = Arc::new(Whole {
        bio: Mutex::new(Some(bio)),
        parts_left: AtomicUsize::new(segments.len()),
        errno: AtomicI32::new(0),
    });
    parts.extend(starts.zip(segments).map(|(start, segments)| {
        let whole = Arc::clone(&whole);
        let offset = DeviceOffset(first + start);
        Bio::new(operation, offset, segments, move |result| {
            whole.end_part(result.map_err(|error| error.errno));
        })
    }));
}

/// The memory of the bio's bytes from `start` on, at most `length` of them.
fn part(bio: &Bio, start: u64, length: u64) -> SmallVec<[Segment; 4]> {
    let (mut skip, mut left) = (start, length);
    let parts = bio.segments().iter().filter_map(|segment| {
        let skipped = skip.min(segment.len() as u64);
        let taken = left.min(segment.len() as u64 - skipped);
        skip -= skipped;
        left -= taken;
        // SAFETY: parts do not overlap, and the whole, whose end is the last part's, is not used.
        (taken > 0).then(|| unsafe { segment.part(skipped as usize, taken as usize) })
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BioOperation, BlockDevice, MemoryDevice};
    use std::ptr::NonNull;
    use std::sync::mpsc;

    /// Reads 1000 bytes at byte 100 into segments of these lengths, in parts of 64 bytes, the last
    /// one first; parts for which `drops` says so are dropped.
    fn read(lengths: &[usize], drops: impl Fn(usize) -> bool) -> (Vec<u8>, Result<(), i32>) {
        let device = MemoryDevice::new((0..2000).map(|at| (at % 251) as u8).collect());
        let mut memory = vec![0u8; 1000];
        let mut rest = memory.as_mut_slice();
        let mut segments = Vec::new();
        for &length in lengths {
            let (part, after) = rest.split_at_mut(length);
            rest = after;
            // SAFETY: `memory` outlives the end of every part, and is not touched before.
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
    fn parts_make_the_whole() {
        let expected: Vec<u8> = (100..1100).map(|at| (at % 251) as u8).collect();
        for lengths in [&[1000][..], &[64, 936], &[1, 63, 65, 0, 871], &[500, 500]] {
            assert_eq!(read(lengths, |_| false), (expected.clone(), Ok(())));
        }
    }

    #[test]
    fn the_whole_fails_when_a_part_does() {
        for failed in [0, 7, 15] {
            assert_eq!(read(&[1000], |index| index == failed).1, Err(crate::bio::EIO));
        }
    }

    #[test]
    fn errors_name_the_whole() {
        let (sender, receiver) = mpsc::channel();
        let mut memory = [0u8; 200];
        // SAFETY: nothing is read into it: the range lies outside the device.
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
