//! The choice of a group for a new inode. Directories are spread over the volume, so that there is
//! room for their files near them (after the published idea of Grigory Orlov's allocator). Not
//! here: allocating the inode.

use super::policy::Layout;
use super::tally::Tally;

/// The maximum number of flexible groups that are compared for a new directory.
const COMPARED_MAX: u32 = 1024;
/// The number of groups that are tried at doubling distances, before all groups are.
const PROBES: u32 = 16;

/// Returns the groups for a new file, the best one first. At the end, it returns all groups with a
/// free inode, so groups may occur twice.
pub(super) fn groups_for_file(
    tallies: &[Tally],
    layout: Layout,
    parent: u32,
) -> impl Iterator<Item = u32> {
    let flex = layout.outwards(parent).take(layout.groups_per_flex as usize);
    // Doubling distances spread the files of full groups over the volume.
    let probes = (0..PROBES).map(move |shift| {
        let distance = 1_u64.checked_shl(shift).unwrap_or(0);
        ((u64::from(parent) + distance) % u64::from(layout.groups)) as u32
    });
    let tally = |group: u32| &tallies[group as usize];
    let good = flex.chain(probes);
    let good = good.filter(move |&g| tally(g).free_inodes() > 0 && tally(g).ready() > 0);
    good.chain(layout.outwards(parent).filter(move |&g| tally(g).free_inodes() > 0))
}

/// Sums over the groups of a flexible group.
#[derive(Clone, Copy, Default, Debug)]
struct Flex {
    groups: u32,
    clusters: u64,
    inodes: u64,
    directories: u64,
}

impl Flex {
    fn of(tallies: &[Tally], layout: Layout, flex: u32) -> Self {
        let start = flex * layout.groups_per_flex;
        let end = start.saturating_add(layout.groups_per_flex).min(layout.groups);
        let mut sums = Self { groups: end - start, ..Self::default() };
        for tally in &tallies[start as usize..end as usize] {
            sums.clusters += u64::from(tally.ready());
            sums.inodes += u64::from(tally.free_inodes());
            sums.directories += u64::from(tally.directories());
        }
        sums
    }
}

/// The counts of the whole volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    pub free_clusters: u64,
    pub free_inodes: u64,
    pub directories: u64,
    pub clusters_per_group: u32,
    pub inodes_per_group: u32,
}

/// Returns the groups with a free inode for a new directory, the best one first.
pub(super) fn groups_for_directory<'t>(
    tallies: &'t [Tally],
    layout: Layout,
    totals: &Totals,
    parent: u32,
    is_in_root: bool,
) -> impl Iterator<Item = u32> + 't {
    let flexes = layout.groups.div_ceil(layout.groups_per_flex);
    let home = parent / layout.groups_per_flex;
    let chosen = if is_in_root {
        with_fewest_directories(tallies, layout, totals, flexes)
    } else {
        nearest_with_room(tallies, layout, totals, flexes, home)
    };
    let start = chosen.map_or(parent, |flex| flex * layout.groups_per_flex);
    let tally = |group: u32| &tallies[group as usize];
    layout.outwards(start).filter(move |&g| tally(g).free_inodes() > 0)
}

/// Returns the flexible group with the fewest directories, among those with at least average room.
fn with_fewest_directories(
    tallies: &[Tally],
    layout: Layout,
    totals: &Totals,
    flexes: u32,
) -> Option<u32> {
    let (groups, per_flex) = (u64::from(layout.groups), u64::from(layout.groups_per_flex));
    let compared = (0..flexes).step_by(flexes.div_ceil(COMPARED_MAX) as usize);
    let sums = compared.map(|flex| (flex, Flex::of(tallies, layout, flex)));
    // The last flexible group may be smaller than the others, so the sums are compared per group.
    let roomy = sums.filter(|(_, sums)| {
        let share = |total: u64| total * u64::from(sums.groups) / groups;
        sums.inodes > 0
            && sums.inodes >= share(totals.free_inodes)
            && sums.clusters >= share(totals.free_clusters)
    });
    roomy
        .min_by_key(|(_, sums)| sums.directories * per_flex / u64::from(sums.groups))
        .map(|(flex, _)| flex)
}

/// Returns the parent's flexible group, or the next one that is not much fuller than the average.
fn nearest_with_room(
    tallies: &[Tally],
    layout: Layout,
    totals: &Totals,
    flexes: u32,
    home: u32,
) -> Option<u32> {
    let groups = u64::from(layout.groups);
    let order = (home..flexes).chain(0..home).take(COMPARED_MAX as usize);
    let mut sums = order.map(|flex| (flex, Flex::of(tallies, layout, flex)));
    let is_roomy = |sums: &Flex| {
        let own = u64::from(sums.groups);
        let share = |total: u64| total * own / groups;
        let inodes = u64::from(totals.inodes_per_group) * own;
        let clusters = u64::from(totals.clusters_per_group) * own;
        let directories_max = share(totals.directories) + inodes / 16;
        sums.inodes > 0
            && sums.directories < directories_max
            && sums.inodes >= share(totals.free_inodes).saturating_sub(inodes / 4)
            && sums.clusters >= share(totals.free_clusters).saturating_sub(clusters / 4)
    };
    sums.find(|(_, sums)| is_roomy(sums)).map(|(flex, _)| flex)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { groups: 8, groups_per_flex: 2 };

    fn totals(tallies: &[Tally]) -> Totals {
        let sum = |of: fn(&Tally) -> u32| tallies.iter().map(|tally| u64::from(of(tally))).sum();
        Totals {
            free_clusters: sum(Tally::ready),
            free_inodes: sum(Tally::free_inodes),
            directories: sum(Tally::directories),
            clusters_per_group: 1000,
            inodes_per_group: 100,
        }
    }

    fn directory(tallies: &[Tally], parent: u32, is_in_root: bool) -> Option<u32> {
        groups_for_directory(tallies, LAYOUT, &totals(tallies), parent, is_in_root).next()
    }

    #[test]
    fn files_are_allocated_near_their_parent() {
        let tallies: Vec<Tally> = (0..8).map(|_| Tally::new(1000, 100, 0)).collect();
        let first = |parent| groups_for_file(&tallies, LAYOUT, parent).next();
        assert_eq!(first(5), Some(5));
        tallies[5].set_inodes(0, 0);
        assert_eq!(first(5), Some(4));
        tallies[4].set_clusters(0, Some(0));
        assert_eq!(first(5), Some(6));
        // A group without free clusters is the last resort.
        for tally in tallies.iter().enumerate().filter(|(group, _)| *group != 4) {
            tally.1.set_inodes(0, 0);
        }
        assert_eq!(first(5), Some(4));
        tallies[4].set_inodes(0, 0);
        assert_eq!(first(5), None);
    }

    #[test]
    fn directories_in_the_root_are_spread_and_others_are_near_their_parent() {
        let tallies: Vec<Tally> = (0..8).map(|_| Tally::new(1000, 100, 0)).collect();
        let mut chosen = Vec::new();
        for _ in 0..4 {
            let group = directory(&tallies, 0, true).unwrap();
            chosen.push(group);
            let tally = &tallies[group as usize];
            tally.set_inodes(tally.free_inodes(), tally.directories() + 1);
        }
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 2, 4, 6]);
        assert_eq!(directory(&tallies, 5, false), Some(4));
        // These groups are nearly full, and the others are not.
        tallies[4].set_inodes(10, 90);
        tallies[5].set_inodes(10, 90);
        assert_eq!(directory(&tallies, 5, false), Some(6));
    }

    #[test]
    fn the_last_free_inode_is_found() {
        let tallies: Vec<Tally> = (0..8).map(|_| Tally::new(0, 0, 50)).collect();
        assert_eq!(directory(&tallies, 3, true), None);
        tallies[1].set_inodes(1, 99);
        for is_in_root in [false, true] {
            assert_eq!(directory(&tallies, 3, is_in_root), Some(1));
        }
    }
}
