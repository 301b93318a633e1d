//! The entries of the segment information table in memory. Those of segments that were never used
//! take none, since untouched zeroed memory has no pages: a table of a large volume has hundreds of
//! MiB.

use std::ops::{Index, IndexMut};

use zerocopy::{FromBytes, IntoBytes};

use crate::ondisk::sit::RawSitEntry;

/// The entries of all segments.
pub(crate) struct SitEntries(Vec<u8>);

const ENTRY_BYTES: usize = size_of::<RawSitEntry>();

impl SitEntries {
    /// Returns the entries of `count` segments without blocks in use.
    pub(crate) fn unused(count: u32) -> Self {
        Self(vec![0; count as usize * ENTRY_BYTES])
    }

    /// Returns the number of segments.
    pub(crate) fn len(&self) -> usize {
        self.0.len() / ENTRY_BYTES
    }

    /// Replaces an entry. One that stays zero is not touched.
    pub(crate) fn set(&mut self, segment: u32, entry: &RawSitEntry) {
        if self[segment as usize].as_bytes() != entry.as_bytes() {
            self[segment as usize] = entry.clone();
        }
    }

    pub(crate) fn get(&self, segment: usize) -> Option<&RawSitEntry> {
        let start = segment.checked_mul(ENTRY_BYTES)?;
        RawSitEntry::ref_from_bytes(self.0.get(start..start.checked_add(ENTRY_BYTES)?)?).ok()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RawSitEntry> {
        (0..self.len()).map(|segment| &self[segment])
    }
}

impl Index<usize> for SitEntries {
    type Output = RawSitEntry;

    fn index(&self, segment: usize) -> &RawSitEntry {
        self.get(segment).expect("the main area has the segment")
    }
}

impl IndexMut<usize> for SitEntries {
    fn index_mut(&mut self, segment: usize) -> &mut RawSitEntry {
        let bytes = &mut self.0[segment * ENTRY_BYTES..][..ENTRY_BYTES];
        RawSitEntry::mut_from_bytes(bytes).expect("of this size")
    }
}

impl std::fmt::Debug for SitEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} entries", self.len())
    }
}
