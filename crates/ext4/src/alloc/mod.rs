//! Allocation and freeing of clusters and inodes, and reservation of clusters for delayed allocation.
//! Not here: the users of blocks and inodes, and making the changes durable.
//!
//! - `free_extents.rs`, `bits.rs`: one group's free clusters, and bitmap blocks
//! - `tally.rs`, `policy.rs`, `placement.rs`: the choice of a group, and of a position in it
//! - `reserve.rs`: reservations of clusters
//! - `preallocation.rs`: clusters that are kept in memory for files that grow
//! - `groups.rs`: groups in memory, and their bitmaps and descriptors on disk
//! - `free_inodes.rs`: checks of inodes that a bitmap marks free
//! - `blocks.rs`, `inodes.rs`: the operations
//! - `trim.rs`: discards of free space
//!
//! A freed cluster is free on disk and in the counts at once, but *deferred*: it is not allocated before the
//! transaction that freed it is durable (J3).

mod bits;
mod blocks;
mod free_inodes;
mod groups;
mod inodes;
mod placement;
mod policy;
mod preallocation;
mod reserve;
mod tally;
#[cfg(test)]
mod tests;
mod trim;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::locks::RankedMutex;
use base::space::Privilege;
use base::{Error, GroupNumber, Result, Unsupported};
use parking_lot::Mutex;

use self::groups::Group;
use self::policy::Layout;
pub(crate) use self::preallocation::Preallocation;
use self::preallocation::Preallocations;
use self::reserve::Space;
use self::tally::Tally;
use crate::features::Feature;
use crate::layout::geometry::Geometry;
use crate::ondisk::superblock::RawSuperblock;
use crate::ranks;
use crate::volume::Volume;
use crate::volume::statfs::kernel_reserve;

/// Blocks that [`Volume::allocate_blocks`] changes, at most.
pub(crate) const ALLOCATE_CREDITS: u32 = 2;
/// Blocks that [`Volume::free_blocks`] changes for each group that the blocks lie in, at most.
pub(crate) const FREE_CREDITS: u32 = 2;
/// Blocks that [`Volume::free_metadata_block`] changes or revokes, at most.
pub(crate) const FREE_METADATA_CREDITS: u32 = FREE_CREDITS + 1;
/// Blocks that [`Volume::allocate_inode`] changes, at most.
pub(crate) const ALLOCATE_INODE_CREDITS: u32 = 4;
/// Blocks that [`Volume::free_inode`] changes, at most.
pub(crate) const FREE_INODE_CREDITS: u32 = 2;

/// Volumes with more groups are not written: each has its state in memory.
const GROUPS_MAX: u32 = 1 << 22;
/// The number of commits after which an operation that finds no space fails, even if further commits would release
/// more: other threads may use what a commit releases.
const COMMITS_MAX: u32 = 20;

/// There was no large request yet.
const NO_STREAM: u64 = u64::MAX;

/// The purpose for which clusters are allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Data without a reservation.
    Data,
    /// Data with a reservation by [`Volume::reserve`], which it uses up.
    ReservedData,
    /// Metadata.
    Metadata,
    /// Metadata for writeback or the end of I/O, which must not fail for lack of space. It may use the clusters
    /// that are reserved for this purpose.
    EndOfIo,
}

/// The state of all groups.
pub(crate) struct Allocator {
    layout: Layout,
    groups: Box<[RankedMutex<Group>]>,
    tallies: Box<[Tally]>,
    space: Mutex<Space>,
    free_inodes: AtomicU64,
    directories: AtomicU64,
    /// Clusters and inodes that the superblock says are free.
    stored: Mutex<(u64, u64)>,
    /// The block after those of the last large request.
    stream: AtomicU64,
    preallocations: Preallocations,
    /// Extents in the indexes of all groups, about.
    indexed: AtomicUsize,
    /// The group whose index is dropped next when there are too many.
    hand: AtomicUsize,
    /// Whether the device is to be told of clusters that are free.
    discards: bool,
}

impl Allocator {
    /// Reads every group's descriptor. With `discard` the device is told of what is freed.
    pub(crate) fn load(volume: &Volume, discard: bool) -> Result<Arc<Self>> {
        let geometry = volume.geometry();
        if geometry.group_count > GROUPS_MAX {
            return Err(Unsupported::Operation("writing so many block groups").into());
        }
        volume.system_zones().check()?;
        let (mut free, mut free_inodes, mut directories) = (0, 0, 0);
        let mut tallies = Vec::new();
        for number in (0..geometry.group_count).map(GroupNumber) {
            let descriptor = volume.group(number)?;
            // Counts are compared with the bitmap when that is first used.
            let clusters = groups::clusters(geometry, number).min(descriptor.free_clusters);
            let [inodes, in_group] = [descriptor.free_inodes, descriptor.directories]
                .map(|count| count.min(geometry.inodes_per_group));
            free += u64::from(clusters);
            free_inodes += u64::from(inodes);
            directories += u64::from(in_group);
            tallies.push(Tally::new(clusters, inodes, in_group));
        }
        let for_root = volume.superblock().counts.blocks_reserved >> geometry.cluster_shift;
        let for_splitting = kernel_reserve(geometry) >> geometry.cluster_shift;
        let counts = &volume.superblock().counts;
        let stored = (counts.blocks_free >> geometry.cluster_shift, counts.inodes_free.into());
        let (claimed, deferred, reserved, releases) = (0, 0, 0, 0);
        let space = Space { free, claimed, deferred, reserved, for_root, for_splitting, releases };
        let new_group = |_| RankedMutex::new(ranks::GROUP, Group::default());
        Ok(Arc::new(Self {
            layout: layout(volume),
            groups: (0..geometry.group_count).map(new_group).collect(),
            tallies: tallies.into(),
            space: Mutex::new(space),
            free_inodes: free_inodes.into(),
            directories: directories.into(),
            stored: Mutex::new(stored),
            stream: NO_STREAM.into(),
            preallocations: Preallocations::default(),
            indexed: 0.into(),
            hand: 0.into(),
            discards: discard,
        }))
    }

    /// Returns whether the superblock counts what is not free any more, or the other way.
    pub(crate) fn totals_changed(&self) -> bool {
        let free = self.space.lock().free;
        *self.stored.lock() != (free, self.free_inodes())
    }

    /// Puts the sums over all groups into the superblock.
    pub(crate) fn store_totals(&self, raw: &mut RawSuperblock, geometry: &Geometry) {
        let clusters = self.space.lock().free;
        *self.stored.lock() = (clusters, self.free_inodes());
        let free = clusters << geometry.cluster_shift;
        raw.free_blocks_count_lo = (free as u32).into();
        if geometry.features.has(Feature::SixtyFourBit) {
            raw.free_blocks_count_hi = ((free >> 32) as u32).into();
        }
        raw.free_inodes_count = (self.free_inodes() as u32).into();
    }

    /// Clusters that are not in use and not promised.
    pub(crate) fn free_clusters(&self) -> u64 {
        let space = self.space.lock();
        space.free.saturating_sub(space.reserved)
    }

    /// Clusters that are promised.
    #[cfg(test)]
    pub(crate) fn reserved_clusters(&self) -> u64 {
        self.space.lock().reserved
    }

    /// Returns whether splitting extents can be left to the end of I/O.
    pub(crate) fn has_much_for_splitting(&self) -> bool {
        self.space.lock().has_much_for_splitting()
    }

    /// Inodes that are not in use.
    pub(crate) fn free_inodes(&self) -> u64 {
        self.free_inodes.load(Ordering::Relaxed)
    }
}

fn layout(volume: &Volume) -> Layout {
    let groups = volume.geometry().group_count;
    let shift = u32::from(volume.superblock().raw().log_groups_per_flex);
    // As in the kernel, what makes no sense means that there are none.
    let has_flex = volume.superblock().has(Feature::FlexBg) && shift < u32::BITS;
    Layout { groups, groups_per_flex: if has_flex { groups.min(1 << shift) } else { 1 } }
}

impl Volume {
    /// Returns the right of a user to reserved blocks. Root may allocate them, and so may the user and the group that
    /// the superblock names; as in the kernel, membership in root's group is no such right. `is_in_group` returns
    /// whether the user is in a group.
    pub fn privilege_of(&self, uid: u32, is_in_group: impl Fn(u32) -> bool) -> Privilege {
        let raw = self.superblock().raw();
        let join = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let named_uid = join(raw.def_resuid_hi.get(), raw.def_resuid.get());
        let named_gid = join(raw.def_resgid_hi.get(), raw.def_resgid.get());
        let is_named = uid == named_uid || named_gid != 0 && is_in_group(named_gid);
        if uid == 0 || is_named { Privilege::Root } else { Privilege::None }
    }

    /// Promises clusters to data that will be allocated later ([`Purpose::ReservedData`]), or fails
    /// with `NoSpace`. What was promised can be allocated, if need be after a commit.
    pub(crate) fn reserve(&self, clusters: u64, privilege: Privilege) -> Result<()> {
        let is_there = self.writer()?.allocator.space.lock().reserve(privilege, clusters);
        if is_there { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Cancels a reservation that is not needed any more.
    pub(crate) fn unreserve(&self, clusters: u64) -> Result<()> {
        let writer = self.writer()?;
        // An operation that shut the volume down has not reported what it used; nothing is allocated after that.
        if writer.journal.check().is_ok() {
            writer.allocator.space.lock().unreserve(clusters);
        }
        Ok(())
    }

    /// Gives back a promise that clusters were taken off for which the volume has no use after all, and
    /// which it is about to free.
    pub(crate) fn promise_again(&self, clusters: u64) -> Result<()> {
        self.writer()?.allocator.space.lock().reserved += clusters;
        Ok(())
    }

    /// Returns whether a commit would make more clusters usable: an operation that found `NoSpace` may be
    /// worth another attempt after one.
    pub(crate) fn has_deferred_space(&self) -> bool {
        self.writer().is_ok_and(|writer| writer.allocator.space.lock().deferred > 0)
    }

    /// Runs `attempt`, which opens and closes handles of its own, and again after a commit while it
    /// finds no space but a commit frees some.
    pub(crate) fn with_space<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let allocator = &self.writer()?.allocator;
        let releases = || allocator.space.lock().releases;
        for _ in 0..COMMITS_MAX {
            let before = releases();
            match attempt() {
                // A commit that ended meanwhile is as good.
                Err(Error::NoSpace) if self.has_deferred_space() || releases() != before => {
                    self.writer()?.journal.commit_for_room()?;
                }
                result => return result,
            }
        }
        attempt()
    }
}
