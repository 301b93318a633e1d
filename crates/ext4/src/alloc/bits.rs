//! The bits of a bitmap block: searches, changes, and updates of the block's checksum.
//! Not here: the meaning of the bits.

use std::ops::Range;

use base::checksum::{crc32c, crc32c_zeros};
use fs::Extent;

/// Returns each byte with bits of the range, and a mask of these bits.
fn masks(bits: Range<u32>) -> impl Iterator<Item = (usize, u8)> {
    let bytes = bits.start / 8..bits.end.div_ceil(8).max(bits.start / 8);
    bytes.map(move |byte| {
        let first = bits.start.max(byte * 8) - byte * 8;
        let end = bits.end.min(byte * 8 + 8) - byte * 8;
        let below = |bit: u32| ((1_u32 << bit) - 1) as u8;
        (byte as usize, below(end) & !below(first))
    })
}

/// Sets or clears bits. Panics if they are not in the block.
pub(super) fn fill(block: &mut [u8], bits: Range<u32>, value: bool) {
    for (byte, mask) in masks(bits) {
        let old = block[byte];
        block[byte] = if value { old | mask } else { old & !mask };
    }
}

/// Returns the first sequence of bits in the range that are not `value`. Bits outside the block
/// count as set.
pub(super) fn first_other(block: &[u8], bits: Range<u32>, value: bool) -> Option<Extent> {
    let other = |byte: usize, mask: u8| {
        let found = block.get(byte).copied().unwrap_or(u8::MAX);
        mask & if value { !found } else { found }
    };
    let (byte, found) = masks(bits.clone())
        .map(|(byte, mask)| (byte, other(byte, mask)))
        .find(|found| found.1 != 0)?;
    let start = byte as u32 * 8 + found.trailing_zeros();
    let rest = (start..bits.end).take_while(|&bit| other(bit as usize / 8, 1 << (bit % 8)) != 0);
    Some(Extent { start, length: rest.count() as u32 })
}

/// Returns the sequences of clear bits among the first `length` bits.
pub(super) fn clear_runs(block: &[u8], length: u32) -> impl Iterator<Item = Extent> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = first_from(block, at..length, false)?;
        let end = first_from(block, start..length, true).unwrap_or(length);
        at = end;
        Some(Extent { start, length: end - start })
    })
}

/// Returns the first bit in the range that is `value`.
pub(super) fn first_from(block: &[u8], bits: Range<u32>, value: bool) -> Option<u32> {
    let flip = if value { 0 } else { u8::MAX };
    let mut found = masks(bits).map(|(byte, mask)| {
        let found = block.get(byte).copied().unwrap_or(u8::MAX);
        (byte, (found ^ flip) & mask)
    });
    let (byte, bits) = found.find(|found| found.1 != 0)?;
    Some(byte as u32 * 8 + bits.trailing_zeros())
}

/// Returns the change of the crc32c of a bitmap's first `covered` bytes when all bits of the range
/// are flipped. The caller applies it by exclusive or. A crc is linear, so the other bytes need not
/// be read again. For large blocks, that would cost half as much as the rest of an allocation.
pub(super) fn checksum_change(bits: Range<u32>, covered: u32) -> u32 {
    let bits = bits.start..bits.end.min(covered * 8);
    if bits.is_empty() {
        return 0;
    }
    // All bits of the bytes between the first and the last one are flipped.
    const ONES: [u8; 256] = [u8::MAX; 256];
    let (first, last) = (bits.start / 8, (bits.end - 1) / 8);
    let ends = [bits.start..bits.end.min(first * 8 + 8), bits.start.max(last * 8)..bits.end];
    let [first_mask, last_mask] = ends.map(|bits| masks(bits).fold(0, |_, (_, mask)| mask));
    let mut change = crc32c(0, &[first_mask]);
    if last > first {
        let mut between = (last - first - 1) as usize;
        while between > 0 {
            let length = between.min(ONES.len());
            change = crc32c(change, &ONES[..length]);
            between -= length;
        }
        change = crc32c(change, &[last_mask]);
    }
    crc32c_zeros(change, covered - last - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn changes_and_searches_equal_those_of_single_bits(
            block in prop::collection::vec(any::<u8>(), 8),
            start in 0..64_u32,
            length in 0..64_u32,
            value: bool,
        ) {
            let bits = start..(start + length).min(64);
            let bit = |block: &[u8], bit: u32| block[bit as usize / 8] >> (bit % 8) & 1 == 1;
            let mut others = bits.clone().filter(|&at| bit(&block, at) != value);
            let first = others.next();
            let run = first.map(|start| {
                let rest = (start..bits.end).take_while(|&at| bit(&block, at) != value);
                Extent { start, length: rest.count() as u32 }
            });
            assert_eq!(first_other(&block, bits.clone(), value), run);
            assert_eq!(first_from(&block, bits.clone(), !value), first);
            let mut changed = block.clone();
            fill(&mut changed, bits.clone(), value);
            for at in 0..64 {
                let expected = if bits.contains(&at) { value } else { bit(&block, at) };
                assert_eq!(bit(&changed, at), expected);
            }
        }

        #[test]
        fn clear_runs_contain_all_clear_bits(
            block in prop::collection::vec(any::<u8>(), 8),
            length in 0..=64_u32,
        ) {
            let clear: Vec<u32> =
                (0..length).filter(|&bit| block[bit as usize / 8] >> (bit % 8) & 1 == 0).collect();
            let runs: Vec<Extent> = clear_runs(&block, length).collect();
            let found: Vec<u32> = runs.iter().flat_map(|run| run.start..run.end()).collect();
            assert_eq!(found, clear);
            assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].start));
        }

        #[test]
        fn a_checksum_changes_with_the_bytes(
            mut block in prop::collection::vec(any::<u8>(), 600),
            covered in 1..=600_u32,
            start in 0..4800_u32,
            length in 0..4800_u32,
        ) {
            let bits = start..(start + length).min(4800);
            let before = crc32c(7, &block[..covered as usize]);
            for bit in bits.clone() {
                block[bit as usize / 8] ^= 1 << (bit % 8);
            }
            let after = crc32c(7, &block[..covered as usize]);
            assert_eq!(before ^ checksum_change(bits, covered), after);
        }
    }
}
