//! Allocation and freeing of blocks during recovery, directly in the bitmaps. There is no index of
//! free clusters and no state of groups in memory, since a hostile volume may have millions of
//! groups. Also here: marking blocks and inodes that recovery finds in use. Not here: freeing
//! inodes (`inodes.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Error, FsBlock, GroupNumber, InodeNumber, Ranges, Result, Unsupported};
use fs::Extent;
use parking_lot::Mutex;

use super::free_inodes::unwritten_block;
use super::groups::{Group, clusters};
use super::policy::Position;
use super::{ALLOCATE_CREDITS, ALLOCATE_INODE_CREDITS, Allocator, bits};
use crate::alloc::bitmap::Bitmap;
use crate::core::Core;
use crate::journal::Handle;
use crate::layout::group::GroupDescriptor;

/// The maximum number of failed searches for a free cluster in a group.
const FAILED_SEARCHES_MAX: u32 = 1 << 17;
/// The maximum number of ranges of held clusters that all searches may visit together.
const HELD_RANGES_MAX: u32 = 1 << 24;
/// The maximum number of visits: of groups by the blocks of files, and of runs of clusters in a
/// group that are marked. The blocks of a file may span thousands of groups, and a group may have
/// thousands of runs.
const VISITS_MAX: u64 = 1 << 23;

/// The allocator's state during recovery. A cluster is allocated only if it is free now and was
/// free before the recovery: a cluster that was in use may belong to a file that the recovery has
/// not processed yet.
pub(super) struct Recovery {
    /// The volume without the recovery's changes.
    before: Arc<Core>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Clusters that were free before the recovery but are not allocated: those that the recovery
    /// has marked as in use and freed again.
    held: Ranges,
    /// The number of ranges of `held` that searches have visited.
    held_ranges: u32,
    /// The group at which searches for free clusters start. Groups before it have none.
    search_from: u32,
    /// The number of visits of groups, and of runs in groups.
    visits: u64,
    /// The number of failed searches in a group.
    failed_searches: u32,
    /// Groups in which a search has failed. Later searches would fail, too, since freed clusters
    /// are not allocated.
    full: BTreeSet<u32>,
}

impl State {
    /// Counts visits of groups, or of runs in a group. Errors: `Unsupported` if there are too many.
    fn count_visits(&mut self, visits: u64) -> Result<()> {
        self.visits = self.visits.saturating_add(visits);
        if self.visits > VISITS_MAX {
            let operation = "replaying fast commits of files with so many extents or block groups";
            return Err(Unsupported::Operation(operation).into());
        }
        Ok(())
    }

    /// Marks the held clusters of a group in `used`, a bitmap of the group. The group's clusters
    /// are `first..end`. Errors: `Unsupported` if all searches have visited too many ranges.
    fn mark_held(&mut self, used: &mut [u8], first: u64, end: u64) -> Result<()> {
        let mut at = first;
        while let Some(held) = self.held.next_from(at).and_then(|at| self.held.containing(at)) {
            if held.start >= end {
                break;
            }
            self.held_ranges += 1;
            if self.held_ranges > HELD_RANGES_MAX {
                let operation = "a recovery that frees and allocates too many blocks";
                return Err(Unsupported::Operation(operation).into());
            }
            at = held.end;
            // The difference is less than the number of clusters in the group.
            let [start, end] = [held.start.max(first), held.end.min(end)].map(|at| at - first);
            bits::fill(used, start as u32..end as u32, true);
        }
        Ok(())
    }
}

impl Recovery {
    /// Creates the state. `before` is the volume without the recovery's changes.
    pub(super) fn new(before: Arc<Core>) -> Self {
        Self { before, state: Mutex::default() }
    }

    fn bitmap_before(&self, number: GroupNumber) -> Result<Bitmap> {
        self.before.block_bitmap(&self.before.group(number)?)
    }
}

impl Allocator {
    fn recovery_state(&self) -> &Recovery {
        self.recovery.as_ref().expect("the volume is being recovered")
    }

    /// Returns the number of a group's first cluster.
    fn first_cluster(&self, number: GroupNumber) -> u64 {
        u64::from(number.0) * u64::from(self.core.geometry().clusters_per_group())
    }

    /// Allocates clusters like [`allocate_blocks`](Self::allocate_blocks), in the first `groups`
    /// groups, during recovery. Returns the group and the clusters in it.
    pub(super) fn allocate_for_recovery(
        &self,
        handle: &mut Handle<'_>,
        goal: Position,
        groups: u32,
        wanted: u32,
    ) -> Result<(u32, Extent)> {
        let state = &mut *self.recovery_state().state.lock();
        if let Some(extent) = self.allocate_from(handle, state, goal, wanted)? {
            return Ok((goal.group, extent));
        }
        while state.search_from < groups {
            let group = state.search_from;
            let first = Position { group, bit: 0 };
            if let Some(extent) = self.allocate_from(handle, state, first, wanted)? {
                return Ok((group, extent));
            }
            state.search_from += 1;
        }
        Err(Error::NoSpace)
    }

    /// Allocates clusters of one group: the first free ones at or after `goal`, or else the first
    /// free ones. A damaged group has no free clusters.
    fn allocate_from(
        &self,
        handle: &mut Handle<'_>,
        state: &mut State,
        goal: Position,
        wanted: u32,
    ) -> Result<Option<Extent>> {
        if state.full.contains(&goal.group) {
            return Ok(None);
        }
        let number = GroupNumber(goal.group);
        let length = clusters(self.core.geometry(), number);
        let first_free = |used: &[u8]| {
            let from = |at: u32| bits::first_from(used, at..length, false);
            from(goal.bit.min(length)).or_else(|| from(0))
        };
        let found = match self.used_in(state, number) {
            Ok(None) => return Ok(None),
            Ok(Some((descriptor, used))) => {
                first_free(&used).map(|start| (descriptor, used, start))
            }
            Err(Error::Corrupt(_)) => None,
            Err(error) => return Err(error),
        };
        let Some((mut descriptor, used, start)) = found else {
            state.full.insert(goal.group);
            state.failed_searches += 1;
            if state.failed_searches > FAILED_SEARCHES_MAX {
                let operation = "recovery of a volume with almost no free space";
                return Err(Unsupported::Operation(operation).into());
            }
            return Ok(None);
        };
        let limit = length.min(start.saturating_add(wanted));
        let end = bits::first_from(&used, start..limit, true).unwrap_or(limit);
        let extent = Extent { start, length: end - start };
        self.mark_clusters(handle, &mut Group::default(), &mut descriptor, extent, true)?;
        self.write_descriptor(handle, &descriptor)?;
        Ok(Some(extent))
    }

    /// Returns the descriptor of a group, and a bitmap of the clusters that cannot be allocated.
    /// Returns `None` if the group has no free clusters.
    fn used_in(
        &self,
        state: &mut State,
        number: GroupNumber,
    ) -> Result<Option<(GroupDescriptor, Vec<u8>)>> {
        let mut descriptor = self.core.group(number)?;
        if descriptor.free_clusters == 0 {
            return Ok(None);
        }
        let bitmap = self.core.block_bitmap(&descriptor)?;
        let before = self.recovery_state().bitmap_before(number)?;
        let mut used = bitmap.bytes().to_vec();
        used.iter_mut().zip(before.bytes()).for_each(|(used, before)| *used |= before);
        for zone in self.core.system_zones().clusters_in(self.core.geometry(), number) {
            bits::fill(&mut used, zone, true);
        }
        let first = self.first_cluster(number);
        let end = first + u64::from(bitmap.length());
        state.mark_held(&mut used, first, end)?;
        // The count on the device may be wrong.
        descriptor.free_clusters = bitmap.free();
        Ok(Some((descriptor, used)))
    }

    /// Frees clusters of a group during recovery. Clusters that are already free are no error: an
    /// interrupted recovery by another program may have freed them.
    pub(super) fn free_for_recovery(
        &self,
        handle: &mut Handle<'_>,
        number: GroupNumber,
        extent: Extent,
    ) -> Result<()> {
        let recovery = self.recovery_state();
        let before = recovery.bitmap_before(number)?;
        let first = self.first_cluster(number);
        let freed = self.mark_for_recovery(handle, number, extent, false, |run| {
            let held = &mut recovery.state.lock().held;
            for new in runs(before.bytes(), run, false) {
                held.insert(first + u64::from(new.start)..first + u64::from(new.end()));
            }
        })?;
        if freed < extent.length {
            // Counting this as a change bounds the time for many files with the same blocks.
            self.journal.count_change()?;
        }
        Ok(())
    }

    /// Marks clusters as in use or free, according to `in_use`, unless they are already so marked.
    /// Calls `mark` with each run of clusters before marking it. Returns the number of newly marked
    /// clusters. If there are any, corrects the group's count of free clusters.
    fn mark_for_recovery(
        &self,
        handle: &mut Handle<'_>,
        number: GroupNumber,
        extent: Extent,
        in_use: bool,
        mut mark: impl FnMut(Extent),
    ) -> Result<u32> {
        let mut descriptor = self.core.group(number)?;
        let bitmap = self.core.block_bitmap(&descriptor)?;
        descriptor.free_clusters = bitmap.free();
        let to_mark: Vec<Extent> = runs(bitmap.bytes(), extent, !in_use).collect();
        drop(bitmap);
        self.recovery_state().state.lock().count_visits(to_mark.len() as u64)?;
        let mut group = Group::default();
        let mut marked = 0;
        for run in to_mark {
            mark(run);
            self.mark_clusters(handle, &mut group, &mut descriptor, run, in_use)?;
            marked += run.length;
        }
        if marked > 0 {
            self.write_descriptor(handle, &descriptor)?;
        }
        Ok(marked)
    }

    /// Returns whether all clusters of `extent` are marked as in use.
    fn are_in_use(&self, number: GroupNumber, extent: Extent) -> Result<bool> {
        let bitmap = self.core.block_bitmap(&self.core.group(number)?)?;
        Ok(runs(bitmap.bytes(), extent, false).next().is_none())
    }

    /// Marks the clusters of blocks as in use, unless they already are. The blocks must be in the
    /// volume. Groups with a damaged bitmap stay unchanged.
    pub(crate) fn claim_blocks(&self, start: FsBlock, count: u64) -> Result<()> {
        let per_group = u64::from(self.core.geometry().clusters_per_group());
        let clusters = self.core.geometry().clusters_of(start, count);
        let groups = clusters.end.div_ceil(per_group) - clusters.start / per_group;
        self.recovery_state().state.lock().count_visits(groups)?;
        let mut at = clusters.start;
        while at < clusters.end {
            let group = at / per_group;
            let end = clusters.end.min((group + 1) * per_group);
            let extent = Extent { start: (at % per_group) as u32, length: (end - at) as u32 };
            let number = GroupNumber(group as u32);
            // The changes are not counted, since files may have very many extents: visits bound
            // their time, and the groups their memory. An error of the check is found again.
            if self.are_in_use(number, extent) != Ok(true) {
                let claim = |handle: &mut Handle<'_>| {
                    self.mark_for_recovery(handle, number, extent, true, |_| ()).map(drop)
                };
                self.unless_damaged(self.journal.change_uncounted(ALLOCATE_CREDITS, claim))?;
            }
            at = end;
        }
        Ok(())
    }

    /// Marks an inode as in use, unless it already is. A group with a damaged bitmap stays
    /// unchanged.
    pub(crate) fn claim_inode(&self, inode: InodeNumber, is_directory: bool) -> Result<()> {
        let claim = |handle: &mut Handle<'_>| self.claim_inode_in(handle, inode, is_directory);
        self.unless_damaged(self.journal.change(ALLOCATE_INODE_CREDITS, claim))
    }

    /// Ignores corruption that was found before anything was changed.
    fn unless_damaged(&self, claimed: Result<()>) -> Result<()> {
        match claimed {
            Err(error @ Error::Corrupt(_)) => {
                tracing::warn!(%error, "blocks or inodes of fast commits are not marked in a damaged group");
                self.journal.check()
            }
            claimed => claimed,
        }
    }

    fn claim_inode_in(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        is_directory: bool,
    ) -> Result<()> {
        let geometry = self.core.geometry();
        let (number, index) = geometry.inode_position(inode)?;
        let mut group = Group::default();
        let mut descriptor = self.core.group(number)?;
        if self.load_inodes(&mut group, &descriptor)?.is_set(index) {
            return Ok(());
        }
        if let Some(block) = unwritten_block(geometry, &descriptor, index) {
            handle.replace(block, vec![0; geometry.block_size.len()]);
        }
        // A group with inodes in use has both bitmaps.
        self.initialise_blocks(handle, &mut descriptor)?;
        self.mark_inode(handle, &mut group, &mut descriptor, index, true)?;
        descriptor.free_inodes = descriptor.free_inodes.saturating_sub(1);
        descriptor.directories += u32::from(is_directory);
        self.write_descriptor(handle, &descriptor)
    }
}

/// Returns the runs of clusters in `extent` whose bits have this `value`.
fn runs(bitmap: &[u8], extent: Extent, value: bool) -> impl Iterator<Item = Extent> {
    let mut at = extent.start;
    let end = extent.end();
    std::iter::from_fn(move || {
        let start = bits::first_from(bitmap, at..end, value)?;
        at = bits::first_from(bitmap, start..end, !value).unwrap_or(end);
        Some(Extent { start, length: at - start })
    })
}

#[cfg(test)]
mod tests {
    use device::{LatchDevice, MemoryDevice, SharedDevice};
    use iomap::{CacheOptions, PageCache};

    use super::*;
    use crate::common::Image;
    use crate::recovery::scratch::writer;
    use crate::volume::Volume;
    use crate::volume::probe::Probed;

    /// Returns a volume of two groups, open for at most `changes_max` changes of a recovery.
    fn open(changes_max: u64) -> Arc<Volume> {
        let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
        let device: SharedDevice = Arc::new(MemoryDevice::new(image.bytes()));
        let latch = Arc::new(LatchDevice::new(device.clone()));
        let cache = PageCache::new(CacheOptions::default()).unwrap();
        let probe = |device| match Volume::probe(device, &cache).unwrap() {
            Probed::Ready(volume) => volume,
            Probed::NeedsRecovery(_) => unreachable!("mke2fs leaves nothing to recover"),
        };
        let volume = probe(latch.clone());
        let writer = writer(&volume, &probe(device), latch, changes_max).unwrap();
        let mut volume = Arc::into_inner(volume).unwrap();
        volume.writer = Some(writer);
        Arc::new(volume)
    }

    #[test]
    fn marking_blocks_does_not_count_as_a_change() {
        let volume = open(0);
        let free = || volume.block_bitmap(&volume.group(GroupNumber(1)).unwrap()).unwrap().free();
        let before = free();
        for block in (12000..16000).step_by(2) {
            volume.allocator().unwrap().claim_blocks(FsBlock(block), 1).unwrap();
            volume.allocator().unwrap().claim_blocks(FsBlock(block), 1).unwrap();
        }
        assert_eq!(free(), before - 2000);
    }

    #[test]
    fn each_marked_run_is_a_visit() {
        let volume = open(0);
        let visits = || volume.allocator().unwrap().recovery_state().state.lock().visits;
        (12000..12100)
            .step_by(2)
            .for_each(|at| volume.allocator().unwrap().claim_blocks(FsBlock(at), 1).unwrap());
        let before = visits();
        // One group, with 50 runs of free blocks.
        volume.allocator().unwrap().claim_blocks(FsBlock(12000), 100).unwrap();
        assert_eq!(visits(), before + 1 + 50);
        volume.allocator().unwrap().recovery_state().state.lock().visits = VISITS_MAX - 1;
        let claimed = volume.allocator().unwrap().claim_blocks(FsBlock(13000), 1);
        assert!(matches!(claimed, Err(Error::Unsupported(_))), "{claimed:?}");
    }

    #[test]
    fn a_group_without_free_clusters_is_searched_once() {
        let volume = open(10);
        let state = || volume.allocator().unwrap().recovery_state().state.lock();
        state().held.insert(0..8192);
        for _ in 0..5 {
            let goal = Position { group: 0, bit: 100 };
            let groups = volume.geometry().group_count;
            let allocate = |handle: &mut Handle<'_>| {
                volume.allocator().unwrap().allocate_for_recovery(handle, goal, groups, 1)
            };
            let (group, _) = volume.change(ALLOCATE_CREDITS, allocate).unwrap();
            assert_eq!(group, 1);
        }
        assert_eq!(state().failed_searches, 1);
    }

    #[test]
    fn the_number_of_visited_held_ranges_is_bounded() {
        const GROUP: u64 = 1 << 15;
        let mut state = State::default();
        (0..GROUP).step_by(2).for_each(|at| state.held.insert(at..at + 1));
        state.held.insert(GROUP..GROUP + 5);
        let mut used = vec![0; GROUP as usize / 8];
        state.mark_held(&mut used, 0, GROUP).unwrap();
        assert!(used.iter().all(|&byte| byte == 0x55));
        assert_eq!(u64::from(state.held_ranges), GROUP / 2);
        state.held_ranges = HELD_RANGES_MAX - 1;
        let error = state.mark_held(&mut used, 0, GROUP).unwrap_err();
        assert!(matches!(error, Error::Unsupported(Unsupported::Operation(_))), "{error}");
    }

    #[test]
    fn visits_are_limited() {
        let mut state = State { visits: VISITS_MAX - 2, ..State::default() };
        assert_eq!(state.count_visits(2), Ok(()));
        assert!(matches!(state.count_visits(1), Err(Error::Unsupported(_))));
    }
}
