//! Copies of data that is not used again soon. Not here: which data that is.
//!
//! An ordinary store first reads the line of memory that it changes, and evicts another line from
//! the caches. If neither the old nor the new bytes are used soon, stores around the caches take
//! half the time on some processors, and half as long again on others, so that the copies
//! themselves are measured (`stores.rs`).

#[cfg(all(not(miri), target_arch = "x86_64"))]
use crate::stores::{Choice, Stores};

/// The smallest number of bytes that may be copied around the caches.
const STREAMED_MIN: usize = 32 << 10;

/// The stores that all copies of the process use.
#[cfg(all(not(miri), target_arch = "x86_64"))]
static CHOICE: Choice = Choice::new();

/// Copies all of `from` to `to`.
///
/// # Safety
/// `to` is the address of as many bytes. No reference to them exists, and no other thread of the
/// library uses them.
pub(crate) unsafe fn copy(to: *mut u8, from: &[u8]) {
    if from.len() < STREAMED_MIN {
        // SAFETY: the caller promises it.
        return unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
    // SAFETY: the caller promises it.
    unsafe { stream(to, from) }
}

/// Copies many bytes, like [`copy`]. Miri knows no stores around the caches.
#[cfg(any(miri, not(target_arch = "x86_64")))]
unsafe fn stream(to: *mut u8, from: &[u8]) {
    // SAFETY: the caller promises it.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) }
}

/// Copies many bytes, like [`copy`].
#[cfg(all(not(miri), target_arch = "x86_64"))]
unsafe fn stream(to: *mut u8, from: &[u8]) {
    CHOICE.measured(from.len(), |stores| {
        // SAFETY: the caller promises it.
        unsafe {
            match stores {
                Stores::Around => store::<true>(to, from),
                Stores::Through => store::<false>(to, from),
            }
        }
    });
}

/// Copies many bytes, like [`copy`], around the caches or through them.
#[cfg(all(not(miri), target_arch = "x86_64"))]
unsafe fn store<const AROUND: bool>(to: *mut u8, from: &[u8]) {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128, _mm_sfence, _mm_store_si128, _mm_stream_si128,
    };

    /// The number of bytes in a cache line.
    const LINE: usize = 64;
    /// The number of bytes in one store.
    const PART: usize = size_of::<__m128i>();

    let head = to.align_offset(LINE).min(from.len());
    let (head, rest) = from.split_at(head);
    let lines = rest.chunks_exact(LINE);
    let tail = lines.remainder();
    // SAFETY: all addresses are within the `from.len()` bytes at `to`, which the caller may write
    // to: first the head, then whole lines, which begin at an aligned address, and then the tail.
    // `line` has the bytes of a whole line. Every processor of this kind has these instructions.
    // Only the fence orders stores around the caches with others: the next thread that locks the
    // folio must see them.
    unsafe {
        to.copy_from_nonoverlapping(head.as_ptr(), head.len());
        let mut to = to.add(head.len());
        for line in lines {
            for part in (0..LINE).step_by(PART) {
                let bytes = _mm_loadu_si128(line.as_ptr().add(part).cast());
                if AROUND {
                    _mm_stream_si128(to.add(part).cast(), bytes);
                } else {
                    _mm_store_si128(to.add(part).cast(), bytes);
                }
            }
            to = to.add(LINE);
        }
        to.copy_from_nonoverlapping(tail.as_ptr(), tail.len());
        if AROUND {
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that `copy` writes all bytes, and no others.
    fn check(copy: unsafe fn(*mut u8, &[u8])) {
        let from: Vec<u8> = (0..STREAMED_MIN + 300).map(|at| (at * 31 % 251) as u8).collect();
        for start in [0, 1, 15, 16, 63, 64] {
            for length in [0, 1, STREAMED_MIN - 1, STREAMED_MIN, STREAMED_MIN + 77] {
                for source in [0, 3, 64] {
                    let mut to = vec![0xAA; STREAMED_MIN + 300];
                    let part = &from[source..source + length];
                    // SAFETY: the destination has as many bytes.
                    unsafe { copy(to[start..start + length].as_mut_ptr(), part) };
                    assert_eq!(&to[start..start + length], part);
                    let around = to[..start].iter().chain(&to[start + length..]);
                    assert!(around.copied().all(|byte| byte == 0xAA), "{start}, {length}");
                }
            }
        }
    }

    #[test]
    fn every_byte_is_copied_wherever_it_lies() {
        check(copy);
    }

    #[cfg(all(not(miri), target_arch = "x86_64"))]
    #[test]
    fn both_kinds_of_stores_copy_every_byte() {
        check(store::<true>);
        check(store::<false>);
    }
}
