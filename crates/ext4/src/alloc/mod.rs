//! Allocation and freeing of clusters and inodes, and reservation of clusters for delayed
//! allocation. Not here: the users of blocks and inodes, and making the changes durable.
//!
//! - `bits.rs`: bitmap blocks (a group's free extents are `fs::FreeExtents`)
//! - `tally.rs`, `policy.rs`, `placement.rs`: the choice of a group, and of a position in it
//! - `reserve.rs`: reservations of clusters
//! - `preallocation.rs`: clusters that are set aside in memory for growing files
//! - `groups.rs`: groups in memory, and their bitmaps and descriptors on the disk
//! - `free_inodes.rs`: checks of inodes that a bitmap marks free
//! - `blocks.rs`, `inodes.rs`: the operations
//! - `recovery.rs`: the operations on blocks in a recovery
//! - `trim.rs`: discards of free space
//!
//! A freed cluster is free in its bitmap and in the counts at once, but *deferred*: it is not
//! allocated before the transaction that freed it is durable (J3).

pub(crate) mod bitmap;
mod bits;
mod blocks;
mod free_inodes;
mod groups;
mod inodes;
mod placement;
mod policy;
mod preallocation;
mod recovery;
mod reserve;
mod tally;
#[cfg(test)]
mod tests;
mod trim;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::locks::RankedMutex;
use base::space::ReserveAccess;
use base::{Error, FsBlock, GroupNumber, Result, Unsupported};
use parking_lot::Mutex;

use self::groups::Group;
use self::policy::Layout;
pub(crate) use self::preallocation::Preallocation;
use self::preallocation::Preallocations;
use self::recovery::Recovery;
use self::reserve::Space;
use self::tally::Tally;
use crate::core::Core;
use crate::features::Feature;
use crate::journal::Journal;
use crate::layout::geometry::Geometry;
use crate::ondisk::superblock::RawSuperblock;
use crate::orphans::numbers::OrphanNumbers;
use crate::ranks;

/// The maximum number of blocks that [`Allocator::allocate_blocks`] changes.
pub(crate) const ALLOCATE_CREDITS: u32 = 2;
/// The maximum number of blocks that [`Allocator::free_blocks`] changes for each group of the freed
/// blocks.
pub(crate) const FREE_CREDITS: u32 = 2;
/// The maximum number of blocks that [`Allocator::free_metadata_block`] changes or revokes.
pub(crate) const FREE_METADATA_CREDITS: u32 = FREE_CREDITS + 1;
/// The maximum number of blocks that [`Allocator::allocate_inode`] changes.
pub(crate) const ALLOCATE_INODE_CREDITS: u32 = 4;
/// The maximum number of blocks that [`Allocator::free_inode`] changes.
pub(crate) const FREE_INODE_CREDITS: u32 = 2;

/// The maximum number of groups of a volume that is open for writing. Each has its state in memory.
const GROUPS_MAX: u32 = 1 << 22;
/// The number of commits after which an operation that finds no space fails, even if further
/// commits would release more: other threads may use what a commit releases.
const COMMITS_MAX: u32 = 20;

/// The number of clusters of which the kernel reserves one for its own use.
const KERNEL_RESERVE_DIVISOR: u64 = 50;
/// The maximum number of clusters that the kernel reserves.
const KERNEL_RESERVE_MAX: u64 = 4096;

/// The value of [`Allocator::stream`] before the first large request.
const NO_STREAM: u64 = u64::MAX;

/// The purpose for which clusters are allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Data without a reservation.
    Data,
    /// Data with a reservation by [`Allocator::reserve`], which it uses up.
    ReservedData,
    /// Metadata.
    Metadata,
    /// Metadata for writeback or the end of I/O, which must not fail for lack of space. It may use
    /// the clusters that are reserved for this purpose.
    EndOfIo,
}

/// The position of the blocks for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Goal {
    /// The block at which they should begin.
    pub block: FsBlock,
    /// The number of groups, from the first one on, that they may be in.
    pub groups: u32,
}

impl Goal {
    /// Returns a goal for blocks that may be in any group.
    pub(crate) fn in_any_group(block: FsBlock) -> Self {
        Self { block, groups: u32::MAX }
    }
}

/// The state of all groups.
pub(crate) struct Allocator {
    core: Arc<Core>,
    journal: Arc<Journal>,
    /// The inodes that are not free although no name leads to them.
    orphans: Arc<OrphanNumbers>,
    layout: Layout,
    groups: Box<[RankedMutex<Group>]>,
    tallies: Box<[Tally]>,
    space: Mutex<Space>,
    free_inodes: AtomicU64,
    directories: AtomicU64,
    /// The numbers of free clusters and inodes in the superblock.
    stored: Mutex<(u64, u64)>,
    /// The block after those of the last large request, or [`NO_STREAM`].
    stream: AtomicU64,
    preallocations: Preallocations,
    /// The approximate number of extents in the indexes of all groups.
    indexed: AtomicUsize,
    /// The group whose index is dropped next if there are too many extents.
    hand: AtomicUsize,
    /// Whether freed clusters are discarded on the device.
    discards: bool,
    /// In a recovery, which has no groups and no counts here.
    recovery: Option<Recovery>,
}

impl Allocator {
    /// Reads the descriptors of all groups. With `discard`, freed clusters are discarded on the
    /// device.
    pub(crate) fn load(
        core: &Arc<Core>,
        journal: &Arc<Journal>,
        orphans: &Arc<OrphanNumbers>,
        discard: bool,
    ) -> Result<Arc<Self>> {
        let geometry = core.geometry();
        if geometry.group_count > GROUPS_MAX {
            return Err(Unsupported::Operation("writing so many block groups").into());
        }
        core.system_zones().check()?;
        let (mut free, mut free_inodes, mut directories) = (0, 0, 0);
        let mut tallies = Vec::new();
        for number in (0..geometry.group_count).map(GroupNumber) {
            let descriptor = core.group(number)?;
            // The counts are compared with the bitmaps when these are first used.
            let clusters = groups::clusters(geometry, number).min(descriptor.free_clusters);
            let [inodes, in_group] = [descriptor.free_inodes, descriptor.directories]
                .map(|count| count.min(geometry.inodes_per_group));
            free += u64::from(clusters);
            free_inodes += u64::from(inodes);
            directories += u64::from(in_group);
            tallies.push(Tally::new(clusters, inodes, in_group));
        }
        let for_root = core.superblock().counts.blocks_reserved >> geometry.cluster_shift;
        let for_splitting = kernel_reserve(geometry) >> geometry.cluster_shift;
        let counts = &core.superblock().counts;
        let stored = (counts.blocks_free >> geometry.cluster_shift, counts.inodes_free.into());
        let new_group = |_| RankedMutex::new(ranks::GROUP, Group::default());
        Ok(Arc::new(Self {
            groups: (0..geometry.group_count).map(new_group).collect(),
            tallies: tallies.into(),
            space: Mutex::new(Space { free, for_root, for_splitting, ..Space::default() }),
            free_inodes: free_inodes.into(),
            directories: directories.into(),
            stored: Mutex::new(stored),
            discards: discard,
            ..Self::empty(core, journal, orphans)
        }))
    }

    /// Returns the state for a recovery of a volume, which was `before` without the recovery's
    /// changes. It takes no memory for groups.
    pub(crate) fn for_recovery(
        core: &Arc<Core>,
        journal: &Arc<Journal>,
        orphans: &Arc<OrphanNumbers>,
        before: Arc<Core>,
    ) -> Arc<Self> {
        let recovery = Some(Recovery::new(before));
        Arc::new(Self { recovery, ..Self::empty(core, journal, orphans) })
    }

    /// Returns the state of a volume without groups.
    fn empty(core: &Arc<Core>, journal: &Arc<Journal>, orphans: &Arc<OrphanNumbers>) -> Self {
        Self {
            core: Arc::clone(core),
            journal: Arc::clone(journal),
            orphans: Arc::clone(orphans),
            layout: layout(core),
            groups: Box::default(),
            tallies: Box::default(),
            space: Mutex::default(),
            free_inodes: 0.into(),
            directories: 0.into(),
            stored: Mutex::default(),
            stream: NO_STREAM.into(),
            preallocations: Preallocations::default(),
            indexed: 0.into(),
            hand: 0.into(),
            discards: false,
            recovery: None,
        }
    }

    /// Returns whether the superblock's counts of free clusters and inodes are stale.
    pub(crate) fn totals_changed(&self) -> bool {
        let free = self.space.lock().free;
        *self.stored.lock() != (free, self.free_inodes())
    }

    /// Stores the numbers of free clusters and inodes in the superblock.
    pub(crate) fn store_totals(&self, raw: &mut RawSuperblock, geometry: &Geometry) {
        let totals = (self.space.lock().free, self.free_inodes());
        *self.stored.lock() = totals;
        store_totals(raw, geometry, totals);
    }

    /// Returns the number of clusters that are neither in use nor reserved.
    pub(crate) fn free_clusters(&self) -> u64 {
        let space = self.space.lock();
        space.free.saturating_sub(space.reserved)
    }

    /// Returns the number of clusters that are reserved for data.
    #[cfg(test)]
    pub(crate) fn reserved_clusters(&self) -> u64 {
        self.space.lock().reserved
    }

    /// Returns whether splitting extents can be left to the end of I/O.
    pub(crate) fn has_much_for_splitting(&self) -> bool {
        self.space.lock().has_much_for_splitting()
    }

    /// Returns the number of inodes that are not in use.
    pub(crate) fn free_inodes(&self) -> u64 {
        self.free_inodes.load(Ordering::Relaxed)
    }
}

/// Writes the numbers of free clusters and inodes to the superblock.
pub(crate) fn store_totals(
    raw: &mut RawSuperblock,
    geometry: &Geometry,
    (clusters, inodes): (u64, u64),
) {
    let free = clusters << geometry.cluster_shift;
    raw.free_blocks_count_lo = (free as u32).into();
    if geometry.features.has(Feature::SixtyFourBit) {
        raw.free_blocks_count_hi = ((free >> 32) as u32).into();
    }
    raw.free_inodes_count = (inodes as u32).into();
}

/// Returns the number of blocks that the kernel reserves at mount, so that extents can always be
/// split.
pub(crate) fn kernel_reserve(geometry: &Geometry) -> u64 {
    if !geometry.features.has(Feature::Extent) {
        return 0;
    }
    let clusters = geometry.block_count >> geometry.cluster_shift;
    (clusters / KERNEL_RESERVE_DIVISOR).min(KERNEL_RESERVE_MAX) << geometry.cluster_shift
}

impl Core {
    /// Returns the right of a user to the blocks reserved for root. Root may allocate them, and so
    /// may the user and the group that the superblock names. As in the kernel, membership in root's
    /// group does not suffice. `is_in_group` returns whether the user is in a group.
    pub(crate) fn reserve_access_of(
        &self,
        uid: u32,
        is_in_group: impl Fn(u32) -> bool,
    ) -> ReserveAccess {
        let raw = self.superblock().raw();
        let join = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let named_uid = join(raw.def_resuid_hi.get(), raw.def_resuid.get());
        let named_gid = join(raw.def_resgid_hi.get(), raw.def_resgid.get());
        let is_named = uid == named_uid || named_gid != 0 && is_in_group(named_gid);
        if uid == 0 || is_named { ReserveAccess::Root } else { ReserveAccess::None }
    }
}

fn layout(core: &Core) -> Layout {
    let groups = core.geometry().group_count;
    let shift = u32::from(core.superblock().raw().log_groups_per_flex);
    // As in the kernel, an invalid size means that there are no flexible groups.
    let has_flex = core.superblock().has(Feature::FlexBg) && shift < u32::BITS;
    Layout { groups, groups_per_flex: if has_flex { groups.min(1 << shift) } else { 1 } }
}

impl Allocator {
    /// Reserves clusters for data that is allocated later ([`Purpose::ReservedData`]). They can
    /// then be allocated, if necessary after a commit. Errors: `NoSpace`.
    pub(crate) fn reserve(&self, clusters: u64, access: ReserveAccess) -> Result<()> {
        let is_there = self.space.lock().reserve(access, clusters);
        if is_there { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Releases a reservation that is not needed any more.
    pub(crate) fn unreserve(&self, clusters: u64) {
        // An operation that shut the volume down may not have reported the clusters that it used.
        // After a shutdown, nothing is allocated.
        if self.journal.check().is_ok() {
            self.space.lock().unreserve(clusters);
        }
    }

    /// Restores a reservation that was used up for clusters which the caller is about to free
    /// again.
    pub(crate) fn restore_reservation(&self, clusters: u64) {
        self.space.lock().reserved += clusters;
    }

    /// Returns whether a commit would make more clusters usable, so that an operation that failed
    /// with `NoSpace` may succeed after it.
    fn has_deferred_space(&self) -> bool {
        self.space.lock().deferred > 0
    }

    /// Calls `attempt`, which opens and closes handles of its own. While it fails with `NoSpace`
    /// and a commit frees space, commits and calls it again.
    pub(crate) fn with_space<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let releases = || self.space.lock().releases;
        for _ in 0..COMMITS_MAX {
            let before = releases();
            match attempt() {
                // A commit by another thread during the attempt may have freed space, too.
                Err(Error::NoSpace) if self.has_deferred_space() || releases() != before => {
                    self.journal.commit_for_room()?;
                }
                result => return result,
            }
        }
        attempt()
    }
}
