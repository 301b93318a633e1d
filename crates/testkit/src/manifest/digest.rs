//! Checksums of file contents that take no time for holes.

use std::hash::Hasher;
use std::ops::Range;

use twox_hash::XxHash64;

/// The size of pieces in which contents are read, in bytes.
const PIECE: u64 = 256 << 10;

/// A piece of a hole.
static ZEROES: [u8; PIECE as usize] = [0; PIECE as usize];

/// Larger files are read only where they may have data.
const READ_WHOLE_MAX: u64 = 64 << 20;

/// Returns the XXH64, in hexadecimal, of the offset and contents of all pieces that are not all
/// zero. An emulated processor takes much longer for a cryptographic hash, or for one that needs
/// its vector instructions. Two files of one size have the same digest if their contents are equal,
/// even if their holes differ. `read` fills its buffer from an offset. `data` are the ranges that
/// may have data; the rest of a large file is assumed to be zeroes.
pub fn digest(size: u64, data: &[Range<u64>], mut read: impl FnMut(u64, &mut [u8])) -> String {
    let mut hasher = XxHash64::with_seed(0);
    let mut buffer = vec![0; PIECE.min(size) as usize];
    let whole = 0..size;
    let ranges = if size <= READ_WHOLE_MAX { std::slice::from_ref(&whole) } else { data };
    let mut done = 0;
    for range in ranges {
        let mut at = (range.start / PIECE * PIECE).max(done);
        let end = range.end.min(size);
        while at < end {
            let length = PIECE.min(size - at);
            let piece = &mut buffer[..length as usize];
            read(at, piece);
            // Compared as a whole, which is faster than byte by byte.
            if *piece != ZEROES[..piece.len()] {
                hasher.write(&at.to_le_bytes());
                hasher.write(piece);
            }
            at += length;
        }
        done = done.max(at);
    }
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest_of(bytes: &[u8], data: &[Range<u64>]) -> String {
        digest(bytes.len() as u64, data, |at, buffer| {
            buffer.copy_from_slice(&bytes[at as usize..][..buffer.len()]);
        })
    }

    #[test]
    fn the_digest_depends_on_contents_and_not_on_holes() {
        let mut bytes = vec![0; (READ_WHOLE_MAX + 10) as usize];
        bytes[300_000] = 1;
        bytes[70_000_000 - 3_000_000] = 2;
        let all = 0..bytes.len() as u64;
        let all = std::slice::from_ref(&all);
        let whole = digest_of(&bytes, all);
        assert_eq!(whole, digest_of(&bytes, &[300_000..300_001, 66_999_000..67_000_001]));
        bytes[300_000] = 3;
        assert_ne!(whole, digest_of(&bytes, all));
    }
}
