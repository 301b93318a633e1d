//! Where to allocate: which groups to try for clusters, and where in them. Pure: decides on what
//! the tallies say. Not here: inodes (`placement.rs`), looking into groups, taking anything.

use fs::{Extent, FreeExtents};

use super::tally::Tally;

/// Requests of at least so many clusters follow the last one of their kind rather than fill
/// what is left between small files.
pub(super) const STREAM_CLUSTERS_MIN: u32 = 16;

/// The groups of a volume, as far as it matters where they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub groups: u32,
    /// Groups whose bitmaps and tables lie together; 1 without `flex_bg`.
    pub groups_per_flex: u32,
}

/// A cluster as its group and the bit in the group's bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    pub group: u32,
    pub bit: u32,
}

/// Which clusters of a group will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// Those from this one on, however many are free.
    At(u32),
    /// The first that are enough from this one on; else any that are enough.
    Near(u32),
    /// The fewest that are enough.
    Best,
    /// As many as can be had.
    Longest,
}

/// Extents after a place that are looked at before any other that is long enough will do.
const NEAR_EXTENTS: usize = 64;

impl Fit {
    /// Up to `wanted` clusters of a group, if there are some that will do.
    pub(super) fn choose(self, free: &FreeExtents, wanted: u32) -> Option<Extent> {
        let extent = match self {
            Self::At(bit) => free.from(bit),
            Self::Near(bit) => {
                free.after(bit, wanted, NEAR_EXTENTS).or_else(|| free.best_fit(wanted))
            }
            Self::Best => free.best_fit(wanted),
            Self::Longest => free.longest(),
        };
        extent.map(|extent| extent.at_most(wanted))
    }
}

/// One attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attempt {
    pub group: u32,
    pub fit: Fit,
}

impl Layout {
    /// Every group: first the others of the same flexible group, in order from this one on, then
    /// the rest of the volume.
    pub(super) fn outwards(self, home: u32) -> impl Iterator<Item = u32> {
        let flex = home - home % self.groups_per_flex;
        let flex_end = flex.saturating_add(self.groups_per_flex).min(self.groups);
        (home..flex_end).chain(flex..home).chain(flex_end..self.groups).chain(0..flex)
    }
}

/// The attempts that come first: they are about places rather than sizes.
pub(super) fn near_attempts(
    tallies: &[Tally],
    goal: Position,
    stream: Option<Position>,
    wanted: u32,
) -> impl Iterator<Item = Attempt> {
    // At the goal, what is taken continues what the caller has, so that any length is a gain.
    let at_goal = Some(Attempt { group: goal.group, fit: Fit::At(goal.bit) });
    let stream = stream.filter(|_| wanted >= STREAM_CLUSTERS_MIN);
    let stream = stream.map(|at| Attempt { group: at.group, fit: Fit::Near(at.bit) });
    let near = Some(Attempt { group: goal.group, fit: Fit::Near(goal.bit) });
    let attempts = [at_goal, stream, near].into_iter().flatten();
    attempts.filter(move |attempt| match attempt.fit {
        Fit::At(_) => tallies[attempt.group as usize].ready() > 0,
        _ => tallies[attempt.group as usize].may_hold(wanted),
    })
}

/// The group that seems to have the most that follow each other: for when nobody has enough.
pub(super) fn longest_attempt(tallies: &[Tally]) -> Option<Attempt> {
    let known =
        tallies.iter().zip(0..).filter_map(|(tally, group)| Some((tally.longest()?, group)));
    let (length, group) =
        known.max_by_key(|&(length, group)| (length, std::cmp::Reverse(group)))?;
    (length > 0).then_some(Attempt { group, fit: Fit::Longest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(longest: &[Option<u32>]) -> Vec<Tally> {
        let tally = |longest: &Option<u32>| {
            let tally = Tally::new(100, 10, 0);
            tally.set_clusters(100, *longest);
            tally
        };
        longest.iter().map(tally).collect()
    }

    #[test]
    fn every_group_comes_up_once_with_its_flexible_group_first() {
        for groups_per_flex in [1, 4, 16] {
            let layout = Layout { groups: 11, groups_per_flex };
            for home in 0..11 {
                let order: Vec<u32> = layout.outwards(home).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..11).collect::<Vec<_>>());
                assert_eq!(order[0], home);
            }
        }
        let order: Vec<u32> = Layout { groups: 11, groups_per_flex: 4 }.outwards(5).collect();
        assert_eq!(order, [5, 6, 7, 4, 8, 9, 10, 0, 1, 2, 3]);
    }

    #[test]
    fn large_requests_follow_the_last_one_unless_their_goal_is_free() {
        let tallies = tallies(&[None, None, Some(7)]);
        let (goal, stream) = (Position { group: 0, bit: 9 }, Position { group: 1, bit: 8 });
        let attempts = |goal, wanted| {
            near_attempts(&tallies, goal, Some(stream), wanted)
                .map(|attempt| (attempt.group, attempt.fit))
                .collect::<Vec<_>>()
        };
        let (at, near) = ((0, Fit::At(9)), (0, Fit::Near(9)));
        assert_eq!(attempts(goal, STREAM_CLUSTERS_MIN), [at, (1, Fit::Near(8)), near]);
        assert_eq!(attempts(goal, 1), [at, near]);
        // A group that is known to have no such extent is only worth a look at the goal itself.
        assert_eq!(attempts(Position { group: 2, bit: 1 }, 8), [(2, Fit::At(1))]);
    }

    #[test]
    fn the_longest_extent_that_is_known_serves_when_none_is_enough() {
        let group = |tallies: &[Tally]| longest_attempt(tallies).map(|attempt| attempt.group);
        assert_eq!(group(&tallies(&[None, Some(3), Some(5), Some(5), Some(0)])), Some(2));
        assert_eq!(group(&tallies(&[None, Some(0)])), None);
    }
}
