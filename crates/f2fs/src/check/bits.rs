//! Sets of numbers below a limit, one bit each. Memory that is never touched is not used.

const WORD_BITS: u64 = u64::BITS as u64;

/// A set of numbers. The most significant bit of a word comes first, as in the segment information
/// table.
#[derive(Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    length: u64,
}

impl Bits {
    /// Returns an empty set of numbers below `length`.
    pub(super) fn new(length: u64) -> Self {
        // The allocator maps zeroed pages, so that only those with numbers take memory.
        Self { words: vec![0; length.div_ceil(WORD_BITS) as usize], length }
    }

    /// Adds a number, unless it is too large. Returns whether it is new.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let mask = mask(number);
        let Some(word) = self.words.get_mut((number / WORD_BITS) as usize) else { return false };
        let is_new = *word & mask == 0 && number < self.length;
        *word |= mask;
        is_new
    }

    /// Returns whether the set has a number.
    pub(super) fn has(&self, number: u64) -> bool {
        self.word(number / WORD_BITS) & mask(number) != 0
    }

    /// Returns the bits of 64 numbers from `64 * index` on.
    pub(super) fn word(&self, index: u64) -> u64 {
        self.words.get(index as usize).copied().unwrap_or_default()
    }

    /// Returns the numbers of `self` that `other` does not have, in order.
    pub(super) fn without<'b>(&'b self, other: &'b Self) -> impl Iterator<Item = u64> + 'b {
        (0_u64..).zip(&self.words).flat_map(move |(index, word)| {
            let mut rest = word & !other.word(index);
            std::iter::from_fn(move || {
                let bit = u64::from(rest.leading_zeros());
                rest &= !(1_u64 << 63).checked_shr(bit as u32)?;
                Some(index * WORD_BITS + bit)
            })
        })
    }

    /// Returns the numbers of the set, in order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        const NONE: &Bits = &Bits { words: Vec::new(), length: 0 };
        self.without(NONE)
    }
}

fn mask(number: u64) -> u64 {
    1 << (WORD_BITS - 1 - number % WORD_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_equal_a_set(
            first in proptest::collection::vec(0_u64..700, 0..60),
            second in proptest::collection::vec(0_u64..700, 0..60),
        ) {
            let (mut bits, mut others) = (Bits::new(700), Bits::new(700));
            let (mut set, mut other_set) = (BTreeSet::new(), BTreeSet::new());
            for number in first {
                prop_assert_eq!(bits.insert(number), set.insert(number));
            }
            for number in second {
                others.insert(number);
                other_set.insert(number);
            }
            prop_assert!((0..800).all(|number| bits.has(number) == set.contains(&number)));
            prop_assert_eq!(bits.numbers().collect::<BTreeSet<_>>(), set.clone());
            let difference: BTreeSet<u64> = set.difference(&other_set).copied().collect();
            prop_assert_eq!(bits.without(&others).collect::<BTreeSet<_>>(), difference);
        }
    }
}
