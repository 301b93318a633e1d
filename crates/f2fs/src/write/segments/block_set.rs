//! Sets of blocks that a checkpoint frees: few as a rule, and hundreds of millions after the
//! removal of a large file.
//!
//! A list would take 8 bytes for each block. `check::bits` has a bit for each block of the volume,
//! of which a volume of 16 TiB has 4 billion; so many are too many for each checkpoint.

use std::collections::BTreeMap;

use base::FsBlock;

/// A set of blocks, one bit each, in entries of adjacent blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockSet(BTreeMap<u64, [u64; WORDS]>);

/// The number of words of bits of an entry.
const WORDS: usize = 8;
/// The number of blocks of an entry.
const BITS: u64 = WORDS as u64 * u64::BITS as u64;

impl BlockSet {
    /// Adds a block.
    pub(crate) fn insert(&mut self, block: FsBlock) {
        let (word, mask) = place(block);
        self.0.entry(block.0 / BITS).or_default()[word] |= mask;
    }

    /// Removes a block. Returns whether the set had it.
    pub(crate) fn remove(&mut self, block: FsBlock) -> bool {
        let (word, mask) = place(block);
        let Some(words) = self.0.get_mut(&(block.0 / BITS)) else { return false };
        let had = words[word] & mask != 0;
        words[word] &= !mask;
        had
    }

    /// Returns the blocks, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FsBlock> + '_ {
        self.0.iter().flat_map(|(entry, words)| {
            let numbers = (0..BITS).filter(|bit| {
                let (word, mask) = place(FsBlock(*bit));
                words[word] & mask != 0
            });
            numbers.map(move |bit| FsBlock(entry * BITS + bit))
        })
    }
}

/// Returns the word of a block in its entry, and its bit there.
fn place(block: FsBlock) -> (usize, u64) {
    let bit = block.0 % BITS;
    ((bit / u64::from(u64::BITS)) as usize, 1 << (bit % u64::from(u64::BITS)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn block_sets_equal_sets(steps in proptest::collection::vec((any::<bool>(), 0_u64..3000), 0..200)) {
            let (mut blocks, mut expected) = (BlockSet::default(), BTreeSet::new());
            for (is_new, number) in steps {
                if is_new {
                    blocks.insert(FsBlock(number));
                    expected.insert(FsBlock(number));
                } else {
                    prop_assert_eq!(blocks.remove(FsBlock(number)), expected.remove(&FsBlock(number)));
                }
            }
            prop_assert!(blocks.iter().eq(expected));
        }
    }
}
