//! Allocates and frees blocks, in whole clusters. Not here: which are best (`policy.rs`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::space;
use base::{DeviceOffset, Error, FsBlock, GroupNumber, InodeNumber, Place, Problem, Result};

use super::free_extents::Extent;
use super::groups::{BLOCK_BITMAP, Group};
use super::policy::{self, Attempt, Fit, Position, STREAM_CLUSTERS_MIN};
use super::{Ahead, Allocator, NO_STREAM, Purpose, bits};
use crate::geometry::Geometry;
use crate::journal::Handle;
use crate::volume::Volume;

const STRUCTURE: &str = "block reference";
/// Bitmaps that are read for one request in the hope of an extent that is long enough.
const LOADS_MAX: usize = 8;
/// How often all groups are gone through for clusters that are there by the counts: they may be
/// freed in one group and taken in another while somebody looks.
const ROUNDS_MAX: usize = 8;

impl Volume {
    /// Takes at least one and at most `wanted` blocks that follow each other, from `goal` on if
    /// they are free, else near; with `bigalloc` whole clusters, whose number is rounded up. Those behind
    /// them are kept for a file that is to have its next ones there: up to as many as are `ahead`.
    /// Changes up to [`super::ALLOCATE_CREDITS`] blocks; `NoSpace` before any change.
    pub(crate) fn allocate_blocks(
        &self,
        handle: &mut Handle<'_>,
        goal: FsBlock,
        wanted: u64,
        purpose: Purpose,
        ahead: Option<Ahead>,
    ) -> Result<(FsBlock, u64)> {
        let (allocator, geometry) = (&self.writer()?.allocator, self.geometry());
        let wanted = geometry.clusters_for(wanted);
        let wanted = wanted.clamp(1, geometry.clusters_per_group().into());
        let (claimed, kept_max) = {
            let mut space = allocator.space.lock();
            (space.claim(purpose, space::privilege(), wanted), space.kept_max())
        };
        if claimed == 0 {
            return Err(Error::NoSpace);
        }
        allocator.trim();
        let keeps = ahead.map(|ahead| {
            let clusters = geometry.clusters_for(ahead.blocks).min(kept_max);
            // No more than a group has.
            let left = u64::from(geometry.clusters_per_group()) - claimed;
            (ahead.inode, clusters.min(left) as u32)
        });
        let mut search = Search::new(self, allocator, claimed as u32, keeps);
        let found = search.run(handle, goal);
        if let Some(inode) = search.too_many {
            allocator.discard_window(inode);
        }
        let used = found.as_ref().map_or(0, |(_, extent)| u64::from(extent.length));
        allocator.space.lock().end_claim(purpose, claimed, used);
        let (group, extent) = found?;
        let cluster = u64::from(group) * u64::from(geometry.clusters_per_group());
        let cluster = cluster + u64::from(extent.start);
        let start = geometry.cluster_start(cluster);
        if extent.length >= STREAM_CLUSTERS_MIN {
            allocator.stream.store(geometry.cluster_start(cluster + used).0, Ordering::Relaxed);
        }
        // The volume's last cluster may have fewer blocks.
        Ok((start, (used << geometry.cluster_shift).min(geometry.block_count - start.0)))
    }

    /// Frees the clusters that blocks of data lie in. Nobody gets them before that is durable.
    /// Blocks that are free already, or the format's own, are a corrupt reference. Changes up to
    /// [`super::FREE_CREDITS`] blocks for each group that they lie in.
    pub(crate) fn free_blocks(
        &self,
        handle: &mut Handle<'_>,
        start: FsBlock,
        count: u64,
    ) -> Result<()> {
        let (allocator, geometry) = (&self.writer()?.allocator, self.geometry());
        geometry.check_run(STRUCTURE, Place::block(start), start, count)?;
        let clusters = geometry.clusters_of(start, count);
        let [first, end] = [clusters.start, clusters.end].map(|at| geometry.cluster_start(at).0);
        if let Some(zone) = self.system_zones().first_within(first..end) {
            let problem = Problem::SystemZone { first: zone.start, last: zone.end - 1 };
            return Err(Error::corrupt(STRUCTURE, Place::block(FsBlock(zone.start)), problem));
        }
        let per_group = u64::from(geometry.clusters_per_group());
        let mut at = clusters.start;
        while at < clusters.end {
            let group = at / per_group;
            let end = clusters.end.min((group + 1) * per_group);
            let extent = Extent { start: (at % per_group) as u32, length: (end - at) as u32 };
            // The blocks lie in the volume, so there is such a group.
            self.free_in(handle, allocator, GroupNumber(group as u32), extent)?;
            at = end;
        }
        Ok(())
    }

    /// Frees a block of metadata, with its cluster: it is not written or replayed any more. Changes
    /// up to [`super::FREE_METADATA_CREDITS`] blocks.
    pub(crate) fn free_metadata_block(
        &self,
        handle: &mut Handle<'_>,
        block: FsBlock,
    ) -> Result<()> {
        self.free_blocks(handle, block, 1)?;
        handle.revoke(block);
        Ok(())
    }

    /// Where to begin looking for blocks of an inode that has none.
    pub(crate) fn goal_of_inode(&self, number: InodeNumber) -> Result<FsBlock> {
        let (group, _) = self.geometry().inode_position(number)?;
        Ok(self.geometry().group_start(group))
    }

    fn free_in(
        &self,
        handle: &mut Handle<'_>,
        allocator: &Arc<Allocator>,
        number: GroupNumber,
        extent: Extent,
    ) -> Result<()> {
        let mut group = allocator.groups[number.0 as usize].lock();
        // Counts that lie would be worse by this.
        self.load_group(number, &mut group)?;
        let mut descriptor = self.group(number)?;
        let bitmap = self.block_bitmap(&descriptor)?;
        let all = extent.start..extent.end();
        if let Some(free) = bits::first_other(bitmap.bytes(), all, true) {
            let cluster = u64::from(number.0) * u64::from(self.geometry().clusters_per_group());
            let block = self.geometry().cluster_start(cluster + u64::from(free.start));
            let problem = Problem::MarkedFree { count: free.length.into() };
            let place = Place::group(number).at_block(block);
            return Err(Error::corrupt(BLOCK_BITMAP, place, problem));
        }
        drop(bitmap);
        if group.has_free(extent) {
            // Somebody else who has the same bitmap has taken them.
            let problem = Problem::Shared { blocks: extent.length.into() };
            let place = Place::group(number).at_block(descriptor.block_bitmap);
            return Err(Error::corrupt(BLOCK_BITMAP, place, problem));
        }
        self.mark_clusters(handle, &mut group, &mut descriptor, extent, false)?;
        self.write_descriptor(handle, &descriptor)?;
        group.deferred.give_back(extent);
        allocator.space.lock().freed(extent.length.into());
        if allocator.discards {
            handle.discard_when_durable(self.bytes_of(number, extent));
        }
        let allocator = Arc::clone(allocator);
        handle.when_durable(move || allocator.release(number, extent));
        Ok(())
    }

    /// Where clusters of a group lie on the device.
    fn bytes_of(&self, number: GroupNumber, extent: Extent) -> Range<DeviceOffset> {
        let geometry = self.geometry();
        let first = u64::from(number.0) * u64::from(geometry.clusters_per_group());
        let [start, end] = [extent.start, extent.end()].map(|cluster| {
            // The volume's last cluster may have fewer blocks.
            let block = geometry.cluster_start(first + u64::from(cluster)).0;
            let block = FsBlock(block.min(geometry.block_count));
            geometry.block_size.device_offset(block).expect("it lies in the volume")
        });
        start..end
    }
}

/// One request's way through the groups.
struct Search<'a> {
    volume: &'a Volume,
    allocator: &'a Allocator,
    /// Clusters to take.
    wanted: u32,
    /// An inode, and the clusters to keep for it behind those.
    keeps: Option<(InodeNumber, u32)>,
    /// An inode that is to give up its window.
    too_many: Option<InodeNumber>,
    /// Bitmaps that were read.
    loads: usize,
    /// A group that had to be given up.
    damage: Option<Error>,
}

impl<'a> Search<'a> {
    fn new(
        volume: &'a Volume,
        allocator: &'a Allocator,
        wanted: u32,
        keeps: Option<(InodeNumber, u32)>,
    ) -> Self {
        Self { volume, allocator, wanted, keeps, too_many: None, loads: 0, damage: None }
    }

    /// Clusters that are looked for together.
    fn together(&self) -> u32 {
        self.wanted + self.keeps.map_or(0, |(_, clusters)| clusters)
    }

    /// Takes clusters: the group, and where in it.
    fn run(&mut self, handle: &mut Handle<'_>, goal: FsBlock) -> Result<(u32, Extent)> {
        let allocator = self.allocator;
        let goal = position(self.volume.geometry(), goal);
        if let Some((inode, clusters)) = self.keeps {
            let window = allocator.windows.group_of(inode);
            if window.is_some_and(|group| clusters == 0 || group.0 != goal.group) {
                allocator.discard_window(inode);
            }
        }
        self.keeps = self.keeps.filter(|(_, clusters)| *clusters > 0);
        if self.keeps.is_some() {
            if let Some(found) = self.run_for_fitting(handle, goal)? {
                return Ok(found);
            }
            self.keeps = None;
        }
        if let Some(found) = self.run_for_fitting(handle, goal)? {
            return Ok(found);
        }
        if let Some(attempt) = policy::longest_attempt(&allocator.tallies) {
            if let Some(found) = self.attempt(handle, attempt)? {
                return Ok(found);
            }
        }
        for _ in 0..ROUNDS_MAX {
            for group in allocator.layout.outwards(goal.group) {
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

    /// Takes clusters that continue what is there, or are as many as are wanted.
    fn run_for_fitting(
        &mut self,
        handle: &mut Handle<'_>,
        goal: Position,
    ) -> Result<Option<(u32, Extent)>> {
        let (allocator, geometry) = (self.allocator, self.volume.geometry());
        let together = self.together();
        let stream = allocator.stream.load(Ordering::Relaxed);
        let stream = (stream != NO_STREAM).then(|| position(geometry, FsBlock(stream)));
        for attempt in policy::near_attempts(&allocator.tallies, goal, stream, together) {
            if let Some(found) = self.attempt(handle, attempt)? {
                return Ok(Some(found));
            }
        }
        for group in allocator.layout.outwards(goal.group) {
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

    /// Looks into a group, and takes what will do.
    fn attempt(
        &mut self,
        handle: &mut Handle<'_>,
        attempt: Attempt,
    ) -> Result<Option<(u32, Extent)>> {
        let (volume, number) = (self.volume, GroupNumber(attempt.group));
        let mut group = self.allocator.groups[attempt.group as usize].lock();
        self.loads += usize::from(group.free.is_none());
        match volume.load_group(number, &mut group) {
            Ok(()) => {}
            Err(error @ Error::Corrupt(_)) => {
                self.damage.get_or_insert(error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        if let Some((inode, _)) = self.keeps {
            group.discard_window(inode);
        }
        let choose = |group: &Group| attempt.fit.choose(group.free.as_ref()?, self.together());
        let mut chosen = choose(&group);
        if chosen.is_none() && attempt.fit == Fit::Longest && group.discard_windows() {
            chosen = choose(&group);
        }
        let Some(whole) = chosen else {
            let ready = group.ready();
            self.allocator.tell(number, &mut group, ready);
            return Ok(None);
        };
        let extent = whole.at_most(self.wanted);
        let mut descriptor = volume.group(number)?;
        let changes = handle.changes();
        match volume.mark_clusters(handle, &mut group, &mut descriptor, extent, true) {
            Ok(()) => {}
            Err(error @ Error::Corrupt(_)) if handle.changes() == changes => {
                self.allocator.close_group(number, &mut group, &error);
                self.damage.get_or_insert(error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        volume.write_descriptor(handle, &descriptor)?;
        if let Some(free) = &mut group.free {
            free.take(whole);
        }
        if let Some((inode, _)) = self.keeps.filter(|_| whole.length > extent.length) {
            group.keep(inode, whole.after(extent.length));
            self.too_many = self.allocator.windows.note(inode, number);
        }
        let ready = group.ready();
        self.allocator.tell(number, &mut group, ready);
        Ok(Some((attempt.group, extent)))
    }
}

/// Where a block lies; for one outside the volume, its first.
fn position(geometry: &Geometry, block: FsBlock) -> Position {
    let is_inside = (geometry.first_data_block.0..geometry.block_count).contains(&block.0);
    let block = if is_inside { block } else { geometry.first_data_block };
    let cluster = geometry.clusters_of(block, 1).start;
    let per_group = u64::from(geometry.clusters_per_group());
    Position { group: (cluster / per_group) as u32, bit: (cluster % per_group) as u32 }
}
