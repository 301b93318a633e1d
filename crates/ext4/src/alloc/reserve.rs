//! Reservations of the volume's free clusters: for delayed allocation, for root, and for splitting extents at
//! the end of I/O.
//! Not here: the choice of clusters.

use base::space::Privilege;

use super::Purpose;

/// A preallocation is at most the number of free clusters divided by this.
const PREALLOCATED_PART: u64 = 32;
/// As many clusters are needed for splitting extents at the same time, about.
const SPLITS_MIN: u64 = 16;

/// The counts of the volume's free clusters.
///
/// - **A1.** Reserved clusters exist: `reserved <= free - claimed`, unless damage was found since. So only a
///   reservation can fail with ENOSPC, and reserved clusters can be allocated, if necessary after a commit.
/// - **A2.** Other requests never take ready clusters that a reservation may need: they get at most
///   `free - claimed - deferred - reserved`.
/// - **A3.** Claimed clusters are in some group until they are allocated.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// Not in use.
    pub free: u64,
    /// Of those: about to be allocated.
    pub claimed: u64,
    /// Of those: not to be used before the transaction that freed them is durable.
    pub deferred: u64,
    /// Of those: promised to delayed allocation.
    pub reserved: u64,
    /// Kept back for root.
    pub for_root: u64,
    /// Kept back so that extents can be split at the end of I/O.
    pub for_splitting: u64,
    /// How many times deferred clusters became usable.
    pub releases: u64,
}

impl Space {
    /// Returns how many of `clusters` are left without those that are reserved, for data, splitting and root.
    fn beyond_reserves(&self, clusters: u64, privilege: Privilege) -> u64 {
        let for_root = if privilege == Privilege::Root { 0 } else { self.for_root };
        clusters.saturating_sub(self.reserved + self.for_splitting + for_root)
    }

    /// Claims up to `wanted` clusters; 0 when there are none that may be had now.
    pub(super) fn claim(&mut self, purpose: Purpose, privilege: Privilege, wanted: u64) -> u64 {
        let ready = self.free.saturating_sub(self.claimed + self.deferred);
        let may_have = match purpose {
            Purpose::Data | Purpose::Metadata => self.beyond_reserves(ready, privilege),
            Purpose::ReservedData => ready.min(self.reserved),
            Purpose::EndOfIo => ready.saturating_sub(self.reserved),
        };
        let claimed = may_have.min(wanted);
        self.claimed += claimed;
        if purpose == Purpose::ReservedData {
            self.reserved -= claimed;
        }
        claimed
    }

    /// Ends a claim of which `used` clusters were allocated.
    pub(super) fn end_claim(&mut self, purpose: Purpose, claimed: u64, used: u64) {
        self.claimed -= claimed;
        self.free = self.free.saturating_sub(used);
        if purpose == Purpose::ReservedData {
            self.reserved += claimed - used;
        }
    }

    /// Returns whether more than a minimum of clusters is available for splitting extents at the end of I/O.
    pub(super) fn has_much_for_splitting(&self) -> bool {
        let ready = self.free.saturating_sub(self.claimed + self.deferred + self.reserved);
        ready > (self.for_splitting / 2).max(SPLITS_MIN)
    }

    /// Returns the maximum of clusters in one preallocation.
    pub(super) fn preallocated_max(&self) -> u64 {
        self.free.saturating_sub(self.claimed + self.deferred + self.reserved) / PREALLOCATED_PART
    }

    /// Reserves clusters. Returns false if there are not enough. Deferred clusters count, since they are ready after
    /// a commit.
    pub(super) fn reserve(&mut self, privilege: Privilege, clusters: u64) -> bool {
        let unclaimed = self.free.saturating_sub(self.claimed);
        let is_there = self.beyond_reserves(unclaimed, privilege) >= clusters;
        if is_there {
            self.reserved += clusters;
        }
        is_there
    }

    /// Takes a promise back.
    pub(super) fn unreserve(&mut self, clusters: u64) {
        debug_assert!(clusters <= self.reserved, "more given back than was promised");
        self.reserved = self.reserved.saturating_sub(clusters);
    }

    /// Clusters were freed, by a transaction that is not durable.
    pub(super) fn freed(&mut self, clusters: u64) {
        self.free += clusters;
        self.deferred += clusters;
    }

    /// Clusters that were freed may be used.
    pub(super) fn released(&mut self, clusters: u64) {
        self.deferred -= clusters;
        self.releases += 1;
    }

    /// Clusters turned out to be of no use.
    pub(super) fn lost(&mut self, clusters: u64) {
        self.free = self.free.saturating_sub(clusters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn space(free: u64) -> Space {
        Space {
            free,
            claimed: 0,
            deferred: 0,
            reserved: 0,
            for_root: 10,
            for_splitting: 5,
            releases: 0,
        }
    }

    impl Space {
        /// Makes a claim, and uses it at once.
        fn take(&mut self, purpose: Purpose, privilege: Privilege, wanted: u64) -> u64 {
            let claimed = self.claim(purpose, privilege, wanted);
            self.end_claim(purpose, claimed, claimed);
            claimed
        }
    }

    #[test]
    fn reserves_are_for_those_they_are_kept_for() {
        let mut space = space(30);
        assert!(!space.reserve(Privilege::None, 16));
        assert!(space.reserve(Privilege::None, 15));
        assert_eq!(space.take(Purpose::Data, Privilege::None, 1), 0);
        assert_eq!(space.take(Purpose::Metadata, Privilege::Root, 100), 10);
        assert_eq!(space.take(Purpose::Data, Privilege::Root, 1), 0);
        assert_eq!(space.take(Purpose::EndOfIo, Privilege::None, 100), 5);
        assert_eq!(space.take(Purpose::ReservedData, Privilege::None, 100), 15);
        assert_eq!((space.free, space.reserved), (0, 0));
    }

    #[test]
    fn what_is_freed_can_be_promised_at_once_and_used_later() {
        let mut space = space(15);
        space.freed(4);
        assert!(space.reserve(Privilege::None, 4));
        // What is ready is all there is for the promise and the reserves.
        assert_eq!(space.take(Purpose::Data, Privilege::Root, 20), 6);
        assert_eq!(space.take(Purpose::EndOfIo, Privilege::None, 20), 5);
        space.released(4);
        assert_eq!(space.take(Purpose::ReservedData, Privilege::None, 4), 4);
    }

    #[test]
    fn what_is_lost_while_it_is_claimed_does_not_come_back() {
        let mut space = space(100);
        let claimed = space.claim(Purpose::Data, Privilege::None, 10);
        assert!(!space.reserve(Privilege::Root, 90));
        space.lost(100);
        space.end_claim(Purpose::Data, claimed, 0);
        assert_eq!((space.free, space.claimed), (0, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Claim(u8, bool, u64),
        Reserve(bool, u64),
        Unreserve(u64),
        Free(u64),
        Commit,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4_u8, any::<bool>(), 1..40_u64).prop_map(|(p, r, n)| Step::Claim(p, r, n)),
            (any::<bool>(), 1..40_u64).prop_map(|(r, n)| Step::Reserve(r, n)),
            (1..40_u64).prop_map(Step::Unreserve),
            (1..40_u64).prop_map(Step::Free),
            Just(Step::Commit),
        ]
    }

    proptest! {
        #[test]
        fn what_was_promised_can_always_be_had_after_a_commit(
            steps in prop::collection::vec(step(), 1..100),
        ) {
            let (mut space, mut used) = (space(200), 0_u64);
            let privilege = |root| if root { Privilege::Root } else { Privilege::None };
            for step in steps {
                match step {
                    Step::Claim(purpose, root, wanted) => {
                        let purposes =
                            [Purpose::Data, Purpose::Metadata, Purpose::ReservedData, Purpose::EndOfIo];
                        let purpose = purposes[usize::from(purpose)];
                        let taken = space.claim(purpose, privilege(root), wanted);
                        let kept = taken / 2;
                        space.end_claim(purpose, taken, kept);
                        used += kept;
                    }
                    Step::Reserve(root, count) => {
                        space.reserve(privilege(root), count);
                    }
                    Step::Unreserve(count) => space.unreserve(count.min(space.reserved)),
                    Step::Free(count) => {
                        let count = count.min(used);
                        used -= count;
                        space.freed(count);
                    }
                    Step::Commit => space.released(space.deferred),
                }
                assert_eq!(space.free + used, 200);
                assert!(space.deferred <= space.free && space.reserved <= space.free, "{space:?}");
                let mut after = space.clone();
                after.released(after.deferred);
                let promised = after.reserved;
                let had = after.take(Purpose::ReservedData, Privilege::None, promised);
                assert_eq!(had, promised);
            }
        }
    }
}
