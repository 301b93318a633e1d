//! Index of the free units of one group: extents by position and by length.
//! Not here: bitmaps on disk, and the choice of an extent.

use std::collections::{BTreeMap, BTreeSet};

/// Adjacent units of one group. A unit is a block or a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first unit.
    pub start: u32,
    /// The number of units, at least 1.
    pub length: u32,
}

impl Extent {
    /// Returns the unit after the last.
    pub fn end(self) -> u32 {
        self.start + self.length
    }

    /// Returns the first units, at most `length`.
    pub fn at_most(self, length: u32) -> Self {
        Self { length: self.length.min(length), ..self }
    }

    /// Returns the extent without its first `length` units. At least one unit must remain.
    pub fn without_first(self, length: u32) -> Self {
        Self { start: self.start + length, length: self.length - length }
    }
}

/// The free extents of a group. No two of them are adjacent.
#[derive(Clone, Debug, Default)]
pub struct FreeExtents {
    /// Lengths by start.
    by_start: BTreeMap<u32, u32>,
    /// The same extents as (length, start).
    by_length: BTreeSet<(u32, u32)>,
    total: u32,
}

impl FreeExtents {
    /// Returns the number of free units.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the number of extents.
    pub fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Returns the extents in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> {
        self.by_start.iter().map(|(&start, &length)| Extent { start, length })
    }

    /// Returns the longest extent. Of several such extents, returns the last.
    pub fn longest(&self) -> Option<Extent> {
        self.by_length.last().map(|&(length, start)| Extent { start, length })
    }

    /// Returns the extent of free units from `at` on, if `at` is free.
    pub fn from(&self, at: u32) -> Option<Extent> {
        let (&start, &length) = self.by_start.range(..=at).next_back()?;
        let end = start + length;
        (at < end).then(|| Extent { start: at, length: end - at })
    }

    /// Returns the first extent of at least `length` units that starts at or after `at`. Examines
    /// at most `examined_max` extents.
    pub fn first_fit(&self, at: u32, length: u32, examined_max: usize) -> Option<Extent> {
        let following = self.by_start.range(at..).take(examined_max);
        let mut extents = following.map(|(&start, &length)| Extent { start, length });
        extents.find(|extent| extent.length >= length)
    }

    /// Returns the shortest extent of at least `length` units. Of several such extents, returns the
    /// first.
    pub fn best_fit(&self, length: u32) -> Option<Extent> {
        let &(length, start) = self.by_length.range((length, 0)..).next()?;
        Some(Extent { start, length })
    }

    /// Removes `part` of an extent from the index. Panics if a unit of it is not in the index.
    pub fn remove(&mut self, part: Extent) {
        let whole = self.containing(part).expect("the index contains the part");
        self.remove_whole(whole);
        if part.start > whole.start {
            self.insert_whole(Extent { start: whole.start, length: part.start - whole.start });
        }
        if part.end() < whole.end() {
            self.insert_whole(Extent { start: part.end(), length: whole.end() - part.end() });
        }
    }

    /// Inserts an extent, and joins it with its neighbours. Panics if a unit of it is in the index.
    pub fn insert(&mut self, extent: Extent) {
        assert!(!self.overlaps(extent), "{extent:?} is in the index already");
        let mut joined = extent;
        let before = self.by_start.range(..extent.start).next_back();
        if let Some((&start, &length)) =
            before.filter(|(start, length)| *start + *length == extent.start)
        {
            self.remove_whole(Extent { start, length });
            joined = Extent { start, length: length + joined.length };
        }
        if let Some(&length) = self.by_start.get(&extent.end()) {
            self.remove_whole(Extent { start: extent.end(), length });
            joined.length += length;
        }
        self.insert_whole(joined);
    }

    /// Returns whether any unit of an extent is free.
    pub fn overlaps(&self, extent: Extent) -> bool {
        let last = self.by_start.range(..extent.end()).next_back();
        last.is_some_and(|(&start, &length)| start + length > extent.start)
    }

    /// Returns whether all units of an extent are free.
    pub fn contains(&self, part: Extent) -> bool {
        self.containing(part).is_some()
    }

    fn containing(&self, part: Extent) -> Option<Extent> {
        let (&start, &length) = self.by_start.range(..=part.start).next_back()?;
        let whole = Extent { start, length };
        (part.length > 0 && part.end() <= whole.end()).then_some(whole)
    }

    /// Inserts an extent that touches no other.
    fn insert_whole(&mut self, extent: Extent) {
        self.by_start.insert(extent.start, extent.length);
        self.by_length.insert((extent.length, extent.start));
        self.total += extent.length;
    }

    fn remove_whole(&mut self, extent: Extent) {
        self.by_start.remove(&extent.start);
        self.by_length.remove(&(extent.length, extent.start));
        self.total -= extent.length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLUSTERS: u32 = 200;

    /// The extents of a group in which each cluster is free or not.
    fn extents(free: &[bool]) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for start in (0..free.len()).filter(|&at| free[at]).map(|at| at as u32) {
            match extents.last_mut() {
                Some(last) if last.end() == start => last.length += 1,
                _ => extents.push(Extent { start, length: 1 }),
            }
        }
        extents
    }

    fn check(index: &FreeExtents, free: &[bool], at: u32, length: u32) {
        let all = extents(free);
        assert_eq!(index.iter().collect::<Vec<_>>(), all);
        assert_eq!(index.count(), all.len());
        assert_eq!(index.total() as usize, free.iter().filter(|&&free| free).count());
        assert_eq!(index.by_length.len(), all.len());
        let longest = all.iter().map(|extent| extent.length).max();
        assert_eq!(index.longest().map(|extent| extent.length), longest);
        let rest = all.iter().find(|extent| extent.start <= at && at < extent.end());
        let rest = rest.map(|extent| Extent { start: at, length: extent.end() - at });
        assert_eq!(index.from(at), rest);
        let after = all.iter().find(|extent| extent.start >= at && extent.length >= length);
        assert_eq!(index.first_fit(at, length, usize::MAX), after.copied());
        let fitting = all.iter().filter(|extent| extent.length >= length);
        let best = fitting.min_by_key(|extent| (extent.length, extent.start));
        assert_eq!(index.best_fit(length), best.copied());
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_list_of_clusters(
            changes in prop::collection::vec((0..CLUSTERS, 1..40_u32, 0..CLUSTERS), 1..80),
        ) {
            let (mut index, mut free) = (FreeExtents::default(), vec![false; CLUSTERS as usize]);
            for (start, length, at) in changes {
                // Clusters from `start` on that are either all free or all in use change their
                // state.
                let was_free = free[start as usize];
                let length = length.min(CLUSTERS - start) as usize;
                let alike = free[start as usize..].iter().take(length);
                let length = alike.take_while(|&&free| free == was_free).count() as u32;
                let extent = Extent { start, length };
                if was_free { index.remove(extent) } else { index.insert(extent) }
                free[start as usize..extent.end() as usize].fill(!was_free);
                check(&index, &free, at, length);
            }
        }
    }

    #[test]
    fn a_search_examines_only_the_nearest_extents() {
        let mut index = FreeExtents::default();
        for start in [0, 10, 20] {
            index.insert(Extent { start, length: 1 + start / 10 });
        }
        assert_eq!(index.first_fit(0, 3, 2), None);
        assert_eq!(index.first_fit(0, 3, 3), Some(Extent { start: 20, length: 3 }));
    }

    #[test]
    #[should_panic(expected = "in the index already")]
    fn freeing_free_units_panics() {
        let mut index = FreeExtents::default();
        index.insert(Extent { start: 5, length: 5 });
        index.insert(Extent { start: 3, length: 3 });
    }
}
