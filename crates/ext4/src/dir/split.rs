//! Splits of a hashed directory's leaf in two by the hashes of its names: bytes in, bytes out.
//! Not here: the blocks of the halves.

use base::{Location, Result};

use super::block::DirFormat;
use super::hash::NameHasher;
use super::leaf::NewEntry;

/// The two halves of a leaf.
#[derive(Debug)]
pub(crate) struct LeafSplit {
    /// The names of lower hashes, for the leaf's own block.
    pub low: Box<[u8]>,
    /// The names of higher hashes.
    pub high: Box<[u8]>,
    /// The least hash of `high`. Its lowest bit is set if `low` has names of that hash, too.
    pub hash: u32,
}

impl DirFormat {
    /// Splits a leaf so that the entries of each half need about the same space. Returns `None` if
    /// the leaf has fewer than two entries.
    pub(crate) fn split_leaf(
        &self,
        hasher: &NameHasher,
        leaf: &[u8],
        location: Location,
    ) -> Result<Option<LeafSplit>> {
        let mut entries = Vec::new();
        for entry in self.used(self.entries(leaf), location) {
            let entry = entry?;
            entries.push((hasher.hash(entry.name).major, entry));
        }
        entries.sort_by_key(|&(hash, _)| hash);
        let Some(middle) = middle(&entries) else { return Ok(None) };
        let (low, high) = entries.split_at(middle);
        let hash = high[0].0 | u32::from(low[middle - 1].0 == high[0].0);
        let leaf =
            |half: &[(u32, NewEntry<'_>)]| self.new_leaf(half.iter().map(|&(_, entry)| entry));
        Ok(Some(LeafSplit { low: leaf(low), high: leaf(high), hash }))
    }
}

/// Returns the index of the second half's first entry, by the bytes that entries need. Neither half
/// is empty.
fn middle(entries: &[(u32, NewEntry<'_>)]) -> Option<usize> {
    let last = entries.len().checked_sub(1).filter(|&last| last > 0)?;
    let total: usize = entries.iter().map(|(_, entry)| entry.bytes()).sum();
    let mut before = 0;
    let in_first_half = entries.iter().take_while(|(_, entry)| {
        before += entry.bytes();
        // An entry across the middle goes to the first half.
        2 * before - entry.bytes() <= total
    });
    Some(in_first_half.count().clamp(1, last))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use base::InodeNumber;
    use base::attributes::FileType;
    use proptest::prelude::*;

    use super::super::block::tests::format;
    use super::super::hash::HashAlgorithm;
    use super::*;

    const HASHER: NameHasher =
        NameHasher { algorithm: HashAlgorithm::HalfMd4, is_unsigned: false, seed: [0; 4] };

    fn names<'l>(format: &DirFormat, leaf: &'l [u8]) -> BTreeSet<&'l [u8]> {
        format.verify_leaf(leaf, Location::default()).unwrap();
        format.used(leaf, Location::default()).map(|entry| entry.unwrap().name).collect()
    }

    proptest! {
        #[test]
        fn halves_have_all_names_and_each_has_room_for_any_name(
            names_in in prop::collection::btree_set(
                prop_oneof!["[a-z]{1,9}", "[a-z]{200,255}"], 4..90,
            ),
            shift in 10_u32..=12,
        ) {
            let format = DirFormat { checksum_seed: Some(1), ..format(1 << shift) };
            let mut leaf = format.new_leaf([]);
            for name in &names_in {
                let entry =
                    format.new_entry(name.as_bytes(), InodeNumber(9), FileType::Regular);
                let entries = format.entries(&leaf);
                match format.find_room(entries, Location::default(), entry.bytes()).unwrap() {
                    Some(room) => format.insert(&mut leaf, room, &entry),
                    None => break,
                }
            }
            format.seal_leaf(&mut leaf);
            let before = names(&format, &leaf);
            let split = format.split_leaf(&HASHER, &leaf, Location::default()).unwrap().unwrap();
            let (low, high) = (names(&format, &split.low), names(&format, &split.high));
            prop_assert!(!low.is_empty() && !high.is_empty());
            prop_assert_eq!(low.union(&high).copied().collect::<BTreeSet<_>>(), before);
            prop_assert!(low.is_disjoint(&high));
            let hash = |name: &&[u8]| HASHER.hash(name).major;
            let (max, min) = (low.iter().map(hash).max(), high.iter().map(hash).min());
            prop_assert_eq!(min, Some(split.hash & !1));
            let goes_on = split.hash & 1 == 1;
            prop_assert!(max == min && goes_on || max < min && !goes_on);
            for half in [&split.low, &split.high] {
                let entries = format.entries(half);
                prop_assert!(format.find_room(entries, Location::default(), 264).unwrap().is_some());
            }
        }
    }

    #[test]
    fn names_of_equal_hash_are_split_with_the_mark() {
        let format = format(1024);
        // The legacy hash is equal for these names: adding to one byte compensates for subtracting
        // from another.
        let hasher = NameHasher { algorithm: HashAlgorithm::Legacy, ..HASHER };
        let mut by_hash = std::collections::BTreeMap::<u32, Vec<Vec<u8>>>::new();
        for number in 0..1 << 18 {
            let name = format!("{number:o}").into_bytes();
            by_hash.entry(hasher.hash(&name).major).or_default().push(name);
        }
        let (hash, alike) = by_hash.into_iter().max_by_key(|(_, names)| names.len()).unwrap();
        assert!(alike.len() > 1);
        let entry = |name| format.new_entry(name, InodeNumber(9), FileType::Regular);
        let leaf = format.new_leaf(alike.iter().map(|name| entry(name)));
        let split = format.split_leaf(&hasher, &leaf, Location::default()).unwrap().unwrap();
        assert_eq!(split.hash, hash | 1);
        assert!(format.split_leaf(&hasher, &split.low, Location::default()).is_ok());
        let single = format.new_leaf([entry(&alike[0])]);
        assert!(format.split_leaf(&hasher, &single, Location::default()).unwrap().is_none());
    }
}
