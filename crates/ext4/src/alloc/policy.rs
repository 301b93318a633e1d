//! The choice of clusters: the groups to try, and the extents in them. These functions are pure:
//! they decide by the tallies and by a group's index of free clusters. Not here: inodes
//! (`placement.rs`), reading groups, allocating.

use fs::{Extent, FreeExtents};

use super::tally::Tally;

/// The minimum number of clusters of a large request. Large requests are allocated behind the
/// previous one, so that they do not fill gaps between small files.
pub(super) const STREAM_CLUSTERS_MIN: u32 = 16;

/// The number of groups, and the size of flexible groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub groups: u32,
    /// The number of groups whose bitmaps and tables are together; 1 without `flex_bg`.
    pub groups_per_flex: u32,
}

/// The position of a cluster: its group, and its bit in the group's bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    pub group: u32,
    pub bit: u32,
}

impl Position {
    /// Returns the position in one of the first `groups` groups, in another group if necessary.
    /// Positions in different groups stay in different ones as far as possible.
    pub(super) fn within(self, groups: u32) -> Self {
        Self { group: self.group % groups, ..self }
    }
}

/// The kind of free extent to choose in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// The free clusters from this one on, of any number.
    At(u32),
    /// The first extent from this cluster on that is long enough, or else any such extent.
    Near(u32),
    /// The shortest extent that is long enough.
    Best,
    /// The longest extent.
    Longest,
}

/// The number of extents that [`Fit::Near`] examines before it chooses any extent that is long
/// enough.
const NEAR_EXTENTS: usize = 64;

impl Fit {
    /// Chooses up to `wanted` clusters among the free ones of a group.
    pub(super) fn choose(self, free: &FreeExtents, wanted: u32) -> Option<Extent> {
        let extent = match self {
            Self::At(bit) => free.from(bit),
            Self::Near(bit) => {
                free.first_fit(bit, wanted, NEAR_EXTENTS).or_else(|| free.best_fit(wanted))
            }
            Self::Best => free.best_fit(wanted),
            Self::Longest => free.longest(),
        };
        extent.map(|extent| extent.at_most(wanted))
    }
}

/// An attempt to allocate in one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attempt {
    pub group: u32,
    pub fit: Fit,
}

impl Layout {
    /// Returns every group once: first those of the same flexible group, from `home` on, then the
    /// rest of the volume.
    pub(super) fn outwards(self, home: u32) -> impl Iterator<Item = u32> {
        let flex = home - home % self.groups_per_flex;
        let flex_end = flex.saturating_add(self.groups_per_flex).min(self.groups);
        (home..flex_end).chain(flex..home).chain(flex_end..self.groups).chain(0..flex)
    }
}

/// Returns the first attempts. They depend on positions more than on sizes.
pub(super) fn near_attempts(
    tallies: &[Tally],
    goal: Position,
    stream: Option<Position>,
    wanted: u32,
) -> impl Iterator<Item = Attempt> {
    // Clusters at the goal continue those that the caller has, so any number of them is useful.
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

/// Returns an attempt in the group with the longest known extent, for the case that no group has an
/// extent that is long enough.
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
    fn outwards_returns_every_group_once_and_the_flexible_group_first() {
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
    fn large_requests_are_allocated_at_their_goal_or_behind_the_previous_one() {
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
        // A group without an extent that is long enough is only tried at the goal itself.
        assert_eq!(attempts(Position { group: 2, bit: 1 }, 8), [(2, Fit::At(1))]);
    }

    #[test]
    fn the_longest_attempt_is_in_the_group_with_the_longest_known_extent() {
        let group = |tallies: &[Tally]| longest_attempt(tallies).map(|attempt| attempt.group);
        assert_eq!(group(&tallies(&[None, Some(3), Some(5), Some(5), Some(0)])), Some(2));
        assert_eq!(group(&tallies(&[None, Some(0)])), None);
    }
}
