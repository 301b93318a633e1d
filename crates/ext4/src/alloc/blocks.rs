//! Allocation and freeing of blocks, in whole clusters. Not here: the choice of clusters
//! (`policy.rs`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::space;
use base::{DeviceOffset, Error, FsBlock, GroupNumber, InodeNumber, Location, Problem, Result};
use fs::Extent;

use super::groups::{BLOCK_BITMAP, Group};
use super::policy::{self, Attempt, Fit, Position, STREAM_CLUSTERS_MIN};
use super::tally::Tally;
use super::{Allocator, Goal, NO_STREAM, Preallocation, Purpose, bits};
use crate::journal::Handle;
use crate::layout::geometry::Geometry;

const STRUCTURE: &str = "block reference";
/// The maximum number of bitmaps that are read for one request to find an extent that is long
/// enough.
const LOADS_MAX: usize = 8;
/// The number of searches through all groups while the counts have free clusters. During a search,
/// other threads may free clusters in a group that was already searched, and allocate those in the
/// next one.
const ROUNDS_MAX: usize = 8;

impl Allocator {
    /// Allocates at least one and at most `wanted` contiguous blocks, from `goal` on if these are
    /// free, or else near it, in the groups that it permits. With `bigalloc`, allocates whole
    /// clusters, whose number is rounded up. Preallocates free blocks behind them, as
    /// `preallocation` requests. Returns the first block and the number of blocks. Changes up to
    /// [`super::allocatorATE_CREDITS`] blocks. Errors: `NoSpace`, before any change.
    pub(crate) fn allocate_blocks(
        &self,
        handle: &mut Handle<'_>,
        goal: Goal,
        wanted: u64,
        purpose: Purpose,
        preallocation: Option<Preallocation>,
    ) -> Result<(FsBlock, u64)> {
        let geometry = self.core.geometry();
        let wanted = geometry.clusters_for(wanted);
        let wanted = wanted.clamp(1, geometry.clusters_per_group().into());
        let groups = goal.groups.clamp(1, geometry.group_count);
        let goal = position(geometry, goal.block).within(groups);
        if self.recovery.is_some() {
            // No more than a group has.
            let found = self.allocate_for_recovery(handle, goal, groups, wanted as u32)?;
            return Ok(self.blocks_in(found));
        }
        let (claimed, preallocated_max) = {
            let mut space = self.space.lock();
            (space.claim(purpose, space::reserve_access(), wanted), space.preallocated_max())
        };
        if claimed == 0 {
            return Err(Error::NoSpace);
        }
        self.drop_indexes();
        let preallocation = preallocation.map(|request| {
            let clusters = geometry.clusters_for(request.blocks).min(preallocated_max);
            // The request and the preallocation together are at most a group.
            let left = u64::from(geometry.clusters_per_group()) - claimed;
            (request.inode, clusters.min(left) as u32)
        });
        let mut search = Search::new(self, claimed as u32, groups, preallocation);
        let found = search.run(handle, goal);
        if let Some(inode) = search.evicted {
            self.discard_preallocation(inode);
        }
        let used = found.as_ref().map_or(0, |(_, extent)| u64::from(extent.length));
        self.space.lock().end_claim(purpose, claimed, used);
        let (group, extent) = found?;
        let (start, count) = self.blocks_in((group, extent));
        if extent.length >= STREAM_CLUSTERS_MIN {
            self.stream.store(start.0 + (used << geometry.cluster_shift), Ordering::Relaxed);
        }
        Ok((start, count))
    }

    /// Returns the first block and the number of blocks of clusters of a group.
    fn blocks_in(&self, (group, extent): (u32, Extent)) -> (FsBlock, u64) {
        let geometry = self.core.geometry();
        let first = u64::from(group) * u64::from(geometry.clusters_per_group());
        let start = geometry.cluster_start(first + u64::from(extent.start));
        let count = u64::from(extent.length) << geometry.cluster_shift;
        // The volume's last cluster may have fewer blocks.
        (start, count.min(geometry.block_count - start.0))
    }

    /// Frees the clusters of blocks of data. They are not allocated again before this change is
    /// durable. Changes up to [`super::FREE_CREDITS`] blocks for each of their groups. Errors:
    /// `Corrupt` if blocks are free already, or belong to the format's own structures.
    pub(crate) fn free_blocks(
        self: &Arc<Self>,
        handle: &mut Handle<'_>,
        start: FsBlock,
        count: u64,
    ) -> Result<()> {
        let geometry = self.core.geometry();
        geometry.check_run(STRUCTURE, Location::block(start), start, count)?;
        let clusters = geometry.clusters_of(start, count);
        let [first, end] = [clusters.start, clusters.end].map(|at| geometry.cluster_start(at).0);
        if let Some(zone) = self.core.system_zones().first_within(first..end) {
            let problem = Problem::SystemZone { first: zone.start, last: zone.end - 1 };
            return Err(Error::corrupt(STRUCTURE, Location::block(FsBlock(zone.start)), problem));
        }
        let per_group = u64::from(geometry.clusters_per_group());
        let mut at = clusters.start;
        while at < clusters.end {
            let group = at / per_group;
            let end = clusters.end.min((group + 1) * per_group);
            let extent = Extent { start: (at % per_group) as u32, length: (end - at) as u32 };
            // The blocks are in the volume, so the group exists.
            self.free_in(handle, GroupNumber(group as u32), extent)?;
            at = end;
        }
        Ok(())
    }

    /// Frees a block of metadata, with its cluster. It is not checkpointed or replayed any more.
    /// Changes up to [`super::FREE_METADATA_CREDITS`] blocks.
    pub(crate) fn free_metadata_block(
        self: &Arc<Self>,
        handle: &mut Handle<'_>,
        block: FsBlock,
    ) -> Result<()> {
        self.free_blocks(handle, block, 1)?;
        handle.revoke(block);
        Ok(())
    }

    /// Returns the goal for the first block of an inode: the start of its group.
    pub(crate) fn goal_of_inode(&self, number: InodeNumber) -> Result<FsBlock> {
        let (group, _) = self.core.geometry().inode_position(number)?;
        Ok(self.core.geometry().group_start(group))
    }

    fn free_in(
        self: &Arc<Self>,
        handle: &mut Handle<'_>,
        number: GroupNumber,
        extent: Extent,
    ) -> Result<()> {
        if self.recovery.is_some() {
            return self.free_for_recovery(handle, number, extent);
        }
        let mut group = self.groups[number.0 as usize].lock();
        // If the group's counts are wrong, this fails instead of changing them.
        self.load_group(number, &mut group)?;
        let mut descriptor = self.core.group(number)?;
        let bitmap = self.core.block_bitmap(&descriptor)?;
        let all = extent.start..extent.end();
        if let Some(free) = bits::first_other(bitmap.bytes(), all, true) {
            let cluster =
                u64::from(number.0) * u64::from(self.core.geometry().clusters_per_group());
            let block = self.core.geometry().cluster_start(cluster + u64::from(free.start));
            let problem = Problem::MarkedFree { count: free.length.into() };
            let location = Location::group(number).at_block(block);
            return Err(Error::corrupt(BLOCK_BITMAP, location, problem));
        }
        drop(bitmap);
        if group.has_free(extent) {
            // Another group with the same bitmap has allocated them.
            let problem = Problem::Shared { blocks: extent.length.into() };
            let location = Location::group(number).at_block(descriptor.block_bitmap);
            return Err(Error::corrupt(BLOCK_BITMAP, location, problem));
        }
        self.mark_clusters(handle, &mut group, &mut descriptor, extent, false)?;
        self.write_descriptor(handle, &descriptor)?;
        group.deferred.insert(extent);
        self.space.lock().freed(extent.length.into());
        if self.discards {
            handle.discard_when_durable(self.bytes_of(number, extent));
        }
        let allocator = Arc::clone(self);
        handle.when_durable(move || allocator.release(number, extent));
        Ok(())
    }

    /// Returns the bytes of clusters of a group on the device.
    fn bytes_of(&self, number: GroupNumber, extent: Extent) -> Range<DeviceOffset> {
        let geometry = self.core.geometry();
        let first = u64::from(number.0) * u64::from(geometry.clusters_per_group());
        let [start, end] = [extent.start, extent.end()].map(|cluster| {
            // The volume's last cluster may have fewer blocks.
            let block = geometry.cluster_start(first + u64::from(cluster)).0;
            let block = FsBlock(block.min(geometry.block_count));
            geometry.block_size.device_offset(block).expect("the block is in the volume")
        });
        start..end
    }
}

/// The search for the clusters of one request.
struct Search<'a> {
    allocator: &'a Allocator,
    /// The number of clusters to allocate.
    wanted: u32,
    /// The number of groups, from the first one on, that they may be in. The goal is in one of
    /// them.
    groups: u32,
    /// The inode and the number of clusters to preallocate for it behind the wanted ones.
    preallocation: Option<(InodeNumber, u32)>,
    /// An inode whose preallocation the caller discards, since there are too many.
    evicted: Option<InodeNumber>,
    /// The number of bitmaps read so far.
    loads: usize,
    /// The error of the first damaged group.
    damage: Option<Error>,
}

impl<'a> Search<'a> {
    fn new(
        allocator: &'a Allocator,
        wanted: u32,
        groups: u32,
        preallocation: Option<(InodeNumber, u32)>,
    ) -> Self {
        let (evicted, loads, damage) = (None, 0, None);
        Self { allocator, wanted, groups, preallocation, evicted, loads, damage }
    }

    /// Returns the number of clusters to find, including the preallocation.
    fn wanted_with_preallocation(&self) -> u32 {
        self.wanted + self.preallocation.map_or(0, |(_, clusters)| clusters)
    }

    /// Returns the tallies of the groups that the clusters may be in.
    fn tallies(&self) -> &'a [Tally] {
        &self.allocator.tallies[..self.groups as usize]
    }

    /// Returns these groups, in the order in which they are searched.
    fn outwards(&self, goal: Position) -> impl Iterator<Item = u32> + use<> {
        let groups = self.groups;
        self.allocator.layout.outwards(goal.group).filter(move |&group| group < groups)
    }

    /// Allocates clusters. Returns their group and their extent in it.
    fn run(&mut self, handle: &mut Handle<'_>, goal: Position) -> Result<(u32, Extent)> {
        let allocator = self.allocator;
        if let Some((inode, clusters)) = self.preallocation {
            let current = allocator.preallocations.group_of(inode);
            if current.is_some_and(|group| clusters == 0 || group.0 != goal.group) {
                allocator.discard_preallocation(inode);
            }
        }
        self.preallocation = self.preallocation.filter(|(_, clusters)| *clusters > 0);
        if self.preallocation.is_some() {
            if let Some(found) = self.run_for_fitting(handle, goal)? {
                return Ok(found);
            }
            self.preallocation = None;
        }
        if let Some(found) = self.run_for_fitting(handle, goal)? {
            return Ok(found);
        }
        if let Some(attempt) = policy::longest_attempt(self.tallies()) {
            if let Some(found) = self.attempt(handle, attempt)? {
                return Ok(found);
            }
        }
        for _ in 0..ROUNDS_MAX {
            for group in self.outwards(goal) {
                if allocator.tallies[group as usize].ready() == 0 {
                    continue;
                }
                if let Some(found) = self.attempt(handle, Attempt { group, fit: Fit::Longest })? {
                    return Ok(found);
                }
            }
        }
        Err(self.damage.take().unwrap_or(Error::NoSpace))
    }

    /// Allocates any number of clusters at the goal, or else all wanted clusters in one extent.
    fn run_for_fitting(
        &mut self,
        handle: &mut Handle<'_>,
        goal: Position,
    ) -> Result<Option<(u32, Extent)>> {
        let (allocator, geometry) = (self.allocator, self.allocator.core.geometry());
        let together = self.wanted_with_preallocation();
        let stream = allocator.stream.load(Ordering::Relaxed);
        let stream = (stream != NO_STREAM).then(|| position(geometry, FsBlock(stream)));
        let stream = stream.filter(|stream| stream.group < self.groups);
        for attempt in policy::near_attempts(self.tallies(), goal, stream, together) {
            if let Some(found) = self.attempt(handle, attempt)? {
                return Ok(Some(found));
            }
        }
        for group in self.outwards(goal) {
            let tally = &allocator.tallies[group as usize];
            if !tally.may_hold(together) || tally.longest().is_none() && self.loads >= LOADS_MAX {
                continue;
            }
            if let Some(found) = self.attempt(handle, Attempt { group, fit: Fit::Best })? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Allocates clusters in one group. Returns `None` if the group has no clusters that fit.
    fn attempt(
        &mut self,
        handle: &mut Handle<'_>,
        attempt: Attempt,
    ) -> Result<Option<(u32, Extent)>> {
        let (allocator, number) = (self.allocator, GroupNumber(attempt.group));
        let mut group = self.allocator.groups[attempt.group as usize].lock();
        self.loads += usize::from(group.free.is_none());
        match allocator.load_group(number, &mut group) {
            Ok(()) => {}
            Err(error @ Error::Corrupt(_)) => {
                self.damage.get_or_insert(error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        if let Some((inode, _)) = self.preallocation {
            group.discard_preallocation(inode);
        }
        let choose = |group: &Group| {
            attempt.fit.choose(group.free.as_ref()?, self.wanted_with_preallocation())
        };
        let mut chosen = choose(&group);
        if chosen.is_none() && attempt.fit == Fit::Longest && group.discard_preallocations() {
            chosen = choose(&group);
        }
        let Some(whole) = chosen else {
            let ready = group.ready();
            self.allocator.update_tally(number, &mut group, ready);
            return Ok(None);
        };
        let extent = whole.at_most(self.wanted);
        let mut descriptor = allocator.core.group(number)?;
        let changes = handle.changes();
        match allocator.mark_clusters(handle, &mut group, &mut descriptor, extent, true) {
            Ok(()) => {}
            Err(error @ Error::Corrupt(_)) if handle.changes() == changes => {
                self.allocator.close_to_blocks(number, &mut group, &error);
                self.damage.get_or_insert(error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        allocator.write_descriptor(handle, &descriptor)?;
        if let Some(free) = &mut group.free {
            free.remove(whole);
        }
        if let Some((inode, _)) = self.preallocation.filter(|_| whole.length > extent.length) {
            group.preallocate(inode, whole.without_first(extent.length));
            self.evicted = self.allocator.preallocations.record(inode, number);
        }
        let ready = group.ready();
        self.allocator.update_tally(number, &mut group, ready);
        Ok(Some((attempt.group, extent)))
    }
}

/// Returns the position of a block, or of the first block if it is outside the allocator.
fn position(geometry: &Geometry, block: FsBlock) -> Position {
    let is_inside = (geometry.first_data_block.0..geometry.block_count).contains(&block.0);
    let block = if is_inside { block } else { geometry.first_data_block };
    let cluster = geometry.clusters_of(block, 1).start;
    let per_group = u64::from(geometry.clusters_per_group());
    Position { group: (cluster / per_group) as u32, bit: (cluster % per_group) as u32 }
}
