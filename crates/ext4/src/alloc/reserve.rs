//! Reservations of the volume's free clusters: for delayed allocation, for root, and for splitting
//! extents at the end of I/O. Not here: the choice of clusters.

use base::space::ReserveAccess;

use super::Purpose;

/// The divisor of the number of free clusters that yields the maximum length of a preallocation.
const PREALLOCATED_PART: u64 = 32;
/// The approximate number of clusters that concurrent splits of extents need.
const SPLITS_MIN: u64 = 16;

/// The counts of the volume's free clusters.
///
/// - **A1.** Reserved clusters exist: `reserved <= free - claimed`, unless damage was found since.
///   So only a reservation can fail with ENOSPC, and reserved clusters can be allocated, if
///   necessary after a commit.
/// - **A2.** Other requests never allocate ready clusters that a reservation may need: they get at
///   most `free - claimed - deferred - reserved`.
/// - **A3.** Claimed clusters are free or preallocated in the groups' indexes until they are
///   allocated.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// Clusters that are not in use.
    pub free: u64,
    /// Free clusters that are about to be allocated.
    pub claimed: u64,
    /// Free clusters that must not be used before the transaction that freed them is durable.
    pub deferred: u64,
    /// Free clusters that are reserved for delayed allocation.
    pub reserved: u64,
    /// The number of clusters that only root may allocate.
    pub for_root: u64,
    /// The number of clusters that are reserved for splitting extents at the end of I/O.
    pub for_splitting: u64,
    /// A count of the times at which deferred clusters became usable.
    pub releases: u64,
}

impl Space {
    /// Returns how many of `clusters` are left after subtracting those reserved for data, for
    /// splitting and for root.
    fn beyond_reserves(&self, clusters: u64, access: ReserveAccess) -> u64 {
        let for_root = if access == ReserveAccess::Root { 0 } else { self.for_root };
        clusters.saturating_sub(self.reserved + self.for_splitting + for_root)
    }

    /// Claims up to `wanted` clusters for `purpose`. Returns their number, which is 0 if none may
    /// be allocated now.
    pub(super) fn claim(&mut self, purpose: Purpose, access: ReserveAccess, wanted: u64) -> u64 {
        let ready = self.free.saturating_sub(self.claimed + self.deferred);
        let allowed = match purpose {
            Purpose::Data | Purpose::Metadata => self.beyond_reserves(ready, access),
            Purpose::ReservedData => ready.min(self.reserved),
            Purpose::EndOfIo => ready.saturating_sub(self.reserved),
        };
        let claimed = allowed.min(wanted);
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

    /// Returns whether more than a minimum of clusters is available for splitting extents at the
    /// end of I/O.
    pub(super) fn has_much_for_splitting(&self) -> bool {
        let ready = self.free.saturating_sub(self.claimed + self.deferred + self.reserved);
        ready > (self.for_splitting / 2).max(SPLITS_MIN)
    }

    /// Returns the maximum of clusters in one preallocation.
    pub(super) fn preallocated_max(&self) -> u64 {
        self.free.saturating_sub(self.claimed + self.deferred + self.reserved) / PREALLOCATED_PART
    }

    /// Reserves clusters. Returns false if there are not enough. Deferred clusters count, since
    /// they are ready after a commit.
    pub(super) fn reserve(&mut self, access: ReserveAccess, clusters: u64) -> bool {
        let unclaimed = self.free.saturating_sub(self.claimed);
        let is_possible = self.beyond_reserves(unclaimed, access) >= clusters;
        if is_possible {
            self.reserved += clusters;
        }
        is_possible
    }

    /// Releases a reservation.
    pub(super) fn unreserve(&mut self, clusters: u64) {
        debug_assert!(clusters <= self.reserved, "more clusters are released than were reserved");
        self.reserved = self.reserved.saturating_sub(clusters);
    }

    /// Counts clusters that were freed by a transaction that is not durable yet.
    pub(super) fn freed(&mut self, clusters: u64) {
        self.free += clusters;
        self.deferred += clusters;
    }

    /// Counts freed clusters that may be used now.
    pub(super) fn released(&mut self, clusters: u64) {
        self.deferred -= clusters;
        self.releases += 1;
    }

    /// Subtracts clusters that cannot be used because their group is damaged.
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
        /// Claims clusters, and allocates them at once.
        fn allocate(&mut self, purpose: Purpose, access: ReserveAccess, wanted: u64) -> u64 {
            let claimed = self.claim(purpose, access, wanted);
            self.end_claim(purpose, claimed, claimed);
            claimed
        }
    }

    #[test]
    fn each_reserve_is_for_its_own_purpose() {
        let mut space = space(30);
        assert!(!space.reserve(ReserveAccess::None, 16));
        assert!(space.reserve(ReserveAccess::None, 15));
        assert_eq!(space.allocate(Purpose::Data, ReserveAccess::None, 1), 0);
        assert_eq!(space.allocate(Purpose::Metadata, ReserveAccess::Root, 100), 10);
        assert_eq!(space.allocate(Purpose::Data, ReserveAccess::Root, 1), 0);
        assert_eq!(space.allocate(Purpose::EndOfIo, ReserveAccess::None, 100), 5);
        assert_eq!(space.allocate(Purpose::ReservedData, ReserveAccess::None, 100), 15);
        assert_eq!((space.free, space.reserved), (0, 0));
    }

    #[test]
    fn freed_clusters_can_be_reserved_at_once_and_allocated_later() {
        let mut space = space(15);
        space.freed(4);
        assert!(space.reserve(ReserveAccess::None, 4));
        // Other requests leave as many ready clusters as are reserved.
        assert_eq!(space.allocate(Purpose::Data, ReserveAccess::Root, 20), 6);
        assert_eq!(space.allocate(Purpose::EndOfIo, ReserveAccess::None, 20), 5);
        space.released(4);
        assert_eq!(space.allocate(Purpose::ReservedData, ReserveAccess::None, 4), 4);
    }

    #[test]
    fn clusters_lost_while_they_are_claimed_stay_lost() {
        let mut space = space(100);
        let claimed = space.claim(Purpose::Data, ReserveAccess::None, 10);
        assert!(!space.reserve(ReserveAccess::Root, 90));
        space.lost(100);
        space.end_claim(Purpose::Data, claimed, 0);
        assert_eq!((space.free, space.claimed), (0, 0));
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Claim(u8, bool, u64),
        Reserve(bool, u64),
        Unreserve(u64),
        Free(u64),
        Commit,
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            (0..4_u8, any::<bool>(), 1..40_u64).prop_map(|(p, r, n)| Operation::Claim(p, r, n)),
            (any::<bool>(), 1..40_u64).prop_map(|(r, n)| Operation::Reserve(r, n)),
            (1..40_u64).prop_map(Operation::Unreserve),
            (1..40_u64).prop_map(Operation::Free),
            Just(Operation::Commit),
        ]
    }

    proptest! {
        #[test]
        fn reserved_clusters_can_always_be_allocated_after_a_commit(
            operations in prop::collection::vec(operation(), 1..100),
        ) {
            let (mut space, mut used) = (space(200), 0_u64);
            let access = |root| if root { ReserveAccess::Root } else { ReserveAccess::None };
            for operation in operations {
                match operation {
                    Operation::Claim(purpose, root, wanted) => {
                        let purposes =
                            [Purpose::Data, Purpose::Metadata, Purpose::ReservedData, Purpose::EndOfIo];
                        let purpose = purposes[usize::from(purpose)];
                        let claimed = space.claim(purpose, access(root), wanted);
                        let allocated = claimed / 2;
                        space.end_claim(purpose, claimed, allocated);
                        used += allocated;
                    }
                    Operation::Reserve(root, count) => {
                        space.reserve(access(root), count);
                    }
                    Operation::Unreserve(count) => space.unreserve(count.min(space.reserved)),
                    Operation::Free(count) => {
                        let count = count.min(used);
                        used -= count;
                        space.freed(count);
                    }
                    Operation::Commit => space.released(space.deferred),
                }
                assert_eq!(space.free + used, 200);
                assert!(space.deferred <= space.free && space.reserved <= space.free, "{space:?}");
                let mut after = space.clone();
                after.released(after.deferred);
                let reserved = after.reserved;
                let allocated = after.allocate(Purpose::ReservedData, ReserveAccess::None, reserved);
                assert_eq!(allocated, reserved);
            }
        }
    }
}
