//! Copies long runs of bytes past the processor's caches. Not here: when that is wanted.
//!
//! A plain store reads the line of memory that it is about to replace, and keeps it in the caches
//! in place of something else. Where neither the old nor the new bytes are there soon again, stores
//! around the caches take about half the time.

/// Runs of at least so many bytes are copied around the caches.
const STREAMED_MIN: usize = 32 << 10;

/// Copies all of `from` to `to`, which is as long.
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy onto as many bytes");
    if to.len() < STREAMED_MIN {
        return to.copy_from_slice(from);
    }
    stream(to, from);
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
fn stream(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// What a line of the caches has.
    #[repr(align(64))]
    struct Line([__m128i; 4]);

    // SAFETY: any bytes are a line.
    let (head, lines, tail) = unsafe { to.align_to_mut::<Line>() };
    let (from_head, rest) = from.split_at(head.len());
    let (from_lines, from_tail) = rest.split_at(size_of_val(lines));
    head.copy_from_slice(from_head);
    for (line, from) in lines.iter_mut().zip(from_lines.chunks_exact(size_of::<Line>())) {
        let from: *const __m128i = from.as_ptr().cast();
        for (index, part) in line.0.iter_mut().enumerate() {
            // SAFETY: `from` has the bytes of a whole line, and `part` is aligned.
            unsafe { _mm_stream_si128(part, _mm_loadu_si128(from.add(index))) };
        }
    }
    tail.copy_from_slice(from_tail);
    // SAFETY: every processor of this kind has it. Stores around the caches are ordered with others
    // by nothing else: what is unlocked next must not be seen before them.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_wherever_it_lies() {
        let from: Vec<u8> = (0..STREAMED_MIN + 300).map(|at| (at * 31 % 251) as u8).collect();
        for start in [0, 1, 15, 16, 63, 64] {
            for length in [0, 1, STREAMED_MIN - 1, STREAMED_MIN, STREAMED_MIN + 77] {
                for source in [0, 3, 64] {
                    let mut to = vec![0xAA; STREAMED_MIN + 300];
                    let part = &from[source..source + length];
                    copy(&mut to[start..start + length], part);
                    assert_eq!(&to[start..start + length], part);
                    let around = to[..start].iter().chain(&to[start + length..]);
                    assert!(around.copied().all(|byte| byte == 0xAA), "{start}, {length}");
                }
            }
        }
    }
}
