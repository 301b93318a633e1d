//! Block groups in memory, and changes of their bitmaps and descriptors on the disk.
//! Not here: the choice of a group or of bits.

use std::ops::Range;
use std::sync::atomic::Ordering;

use base::checksum::crc32c;
use base::{Error, FsBlock, GroupNumber, Location, Problem, Result};
use fs::{Extent, FreeExtents};

use super::preallocation::GroupPreallocations;
use super::{Allocator, bits};
use crate::journal::Handle;
use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;

pub(super) const BLOCK_BITMAP: &str = "block bitmap";
pub(super) const INODE_BITMAP: &str = "inode bitmap";
pub(super) const DESCRIPTOR: &str = "group descriptor";

/// The approximate maximum of free extents in memory, over all groups. With more, the indexes of
/// some groups are dropped.
const INDEXED_MAX: usize = 1 << 20;

/// The state of one group in memory. Its descriptor is read whenever it is needed.
#[derive(Default)]
pub(super) struct Group {
    /// The index of free clusters that may be allocated. It is built from the bitmap when it is
    /// first needed.
    pub free: Option<FreeExtents>,
    /// Free clusters that a transaction freed which is not durable yet.
    pub deferred: FreeExtents,
    /// Preallocated clusters. Without an index, there are none.
    pub preallocations: GroupPreallocations,
    /// The whole checksum of the block bitmap, after it was computed. Descriptors may have only a
    /// half of it.
    block_checksum: Option<u32>,
    /// The whole checksum of the inode bitmap, after it was computed.
    inode_checksum: Option<u32>,
    /// The damage of the block bitmap, if any. Then no block of the group is allocated or freed.
    pub damage: Option<Error>,
    /// Whether the inode bitmap was compared with the descriptor.
    pub inodes_checked: bool,
    /// The damage of the inode bitmap, if any. Then no inode of the group is allocated or freed.
    pub inode_damage: Option<Error>,
    /// The number of this group's extents that [`Allocator::indexed`] includes.
    indexed: usize,
}

/// Returns the number of clusters in a group.
pub(super) fn clusters(geometry: &Geometry, group: GroupNumber) -> u32 {
    // No overflow: a group has at most as many clusters as a block has bits.
    geometry.clusters_for(geometry.blocks_in_group(group)) as u32
}

impl Allocator {
    /// Makes freed clusters available: the transaction that freed them is durable.
    pub(super) fn release(&self, number: GroupNumber, extent: Extent) {
        let group = &mut *self.groups[number.0 as usize].lock();
        group.deferred.remove(extent);
        if group.damage.is_none() {
            if let Some(free) = &mut group.free {
                free.insert(extent);
            }
            let ready = self.tallies[number.0 as usize].ready() + extent.length;
            self.update_tally(number, group, ready);
        }
        // After the clusters are back in the index, so that claimed clusters exist there (A3).
        let mut space = self.space.lock();
        space.released(extent.length.into());
        if group.damage.is_some() {
            space.lost(extent.length.into());
        }
    }

    /// Updates the tally of a group, and the count of extents in its index.
    pub(super) fn update_tally(&self, number: GroupNumber, group: &mut Group, ready: u32) {
        let indexed = group.free.as_ref().map_or(0, FreeExtents::count);
        self.indexed.fetch_add(indexed, Ordering::Relaxed);
        let before = std::mem::replace(&mut group.indexed, indexed);
        self.indexed.fetch_sub(before, Ordering::Relaxed);
        let longest = group.free.as_ref();
        let longest = longest.map(|free| free.longest().map_or(0, |extent| extent.length));
        self.tallies[number.0 as usize].set_clusters(ready, longest);
    }

    /// Closes a damaged group to the allocation of clusters.
    pub(super) fn close_to_blocks(&self, number: GroupNumber, group: &mut Group, error: &Error) {
        tracing::warn!(%error, group = number.0, "the group is damaged: no block is allocated in it");
        let tally = &self.tallies[number.0 as usize];
        self.space.lock().lost(tally.ready().into());
        tally.set_clusters(0, Some(0));
        group.preallocations.clear();
        group.damage = Some(error.clone());
    }

    /// Drops indexes while there are too many extents in memory. The caller holds no group's lock.
    pub(super) fn drop_indexes(&self) {
        for _ in 0..self.groups.len() {
            if self.indexed.load(Ordering::Relaxed) <= INDEXED_MAX {
                return;
            }
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % self.groups.len();
            let mut group = self.groups[at].lock();
            group.free = None;
            group.preallocations.clear();
            self.indexed.fetch_sub(std::mem::take(&mut group.indexed), Ordering::Relaxed);
        }
    }
}

impl Group {
    /// Returns whether any of these clusters is free, deferred or preallocated.
    pub(super) fn has_free(&self, extent: Extent) -> bool {
        let free = self.free.as_ref().is_some_and(|free| free.overlaps(extent));
        free || self.deferred.overlaps(extent) || self.preallocations.overlap(extent)
    }

    /// Returns the number of clusters that may be allocated.
    pub(super) fn ready(&self) -> u32 {
        self.free.as_ref().map_or(0, FreeExtents::total) + self.preallocations.total()
    }
}

impl Allocator {
    /// Builds the index of free clusters of a group, if there is none. Closes a group whose bitmap
    /// is inconsistent with itself or its descriptor.
    pub(super) fn load_group(&self, number: GroupNumber, group: &mut Group) -> Result<()> {
        if let Some(error) = &group.damage {
            return Err(error.clone());
        }
        if group.free.is_some() {
            return Ok(());
        }
        match self.free_in_group(number, &group.deferred) {
            Ok(free) => {
                let ready = free.total();
                group.free = Some(free);
                self.update_tally(number, group, ready);
                Ok(())
            }
            Err(error) => {
                if matches!(error, Error::Corrupt(_)) {
                    self.close_to_blocks(number, group, &error);
                    self.journal.apply_error_policy(&error);
                }
                Err(error)
            }
        }
    }

    fn free_in_group(&self, number: GroupNumber, deferred: &FreeExtents) -> Result<FreeExtents> {
        let (geometry, zones) = (self.core.geometry(), self.core.system_zones());
        let descriptor = self.core.group(number)?;
        let bitmap = self.core.block_bitmap(&descriptor)?;
        let location = Location::group(number).at_block(descriptor.block_bitmap);
        for zone in zones.clusters_in(geometry, number) {
            if let Some(free) = bits::first_other(bitmap.bytes(), zone, true) {
                let problem = Problem::MarkedFree { count: free.length.into() };
                return Err(Error::corrupt(BLOCK_BITMAP, location, problem));
            }
        }
        let mut free = FreeExtents::default();
        bits::clear_runs(bitmap.bytes(), bitmap.length()).for_each(|run| free.insert(run));
        let (found, expected) = (descriptor.free_clusters, free.total());
        if found != expected {
            let (found, expected) = (found.into(), expected.into());
            let problem = Problem::Mismatch { field: "free block count", found, expected };
            return Err(Error::corrupt(DESCRIPTOR, location, problem));
        }
        for extent in deferred.iter() {
            if !free.contains(extent) {
                // The cluster was freed here, and allocated by another group with the same bitmap.
                let problem = Problem::Shared { blocks: extent.length.into() };
                return Err(Error::corrupt(BLOCK_BITMAP, location, problem));
            }
            free.remove(extent);
        }
        Ok(free)
    }

    /// Marks clusters as in use or free, in the bitmap and in `descriptor`, which the caller
    /// writes. Errors: `Corrupt`, before any change, if any of them is marked so already.
    pub(super) fn mark_clusters(
        &self,
        handle: &mut Handle<'_>,
        group: &mut Group,
        descriptor: &mut GroupDescriptor,
        extent: Extent,
        in_use: bool,
    ) -> Result<()> {
        let location = Location::group(descriptor.group);
        let (found, max) =
            (descriptor.free_clusters, clusters(self.core.geometry(), descriptor.group));
        let free_clusters = match in_use {
            true => found.checked_sub(extent.length),
            false => found.checked_add(extent.length).filter(|count| *count <= max),
        };
        let free_clusters = free_clusters.ok_or_else(|| {
            let (found, max) = (found.into(), max.into());
            let problem = Problem::Range { field: "free block count", found, min: 0, max };
            Error::corrupt(DESCRIPTOR, location, problem)
        })?;
        self.initialise_blocks(handle, descriptor)?;
        let bitmap = BitmapBlock {
            structure: BLOCK_BITMAP,
            location,
            block: descriptor.block_bitmap,
            covered: self.core.geometry().clusters_per_group() / 8,
            stored: descriptor.block_bitmap_checksum,
        };
        let bits = extent.start..extent.end();
        let checksum = self.mark(handle, &bitmap, group.block_checksum, bits, in_use)?;
        group.block_checksum = checksum;
        descriptor.block_bitmap_checksum = checksum.unwrap_or(descriptor.block_bitmap_checksum);
        descriptor.free_clusters = free_clusters;
        Ok(())
    }

    /// Marks an inode as in use or free, in the bitmap and in `descriptor`. The caller updates the
    /// counts of `descriptor`, and writes it.
    pub(super) fn mark_inode(
        &self,
        handle: &mut Handle<'_>,
        group: &mut Group,
        descriptor: &mut GroupDescriptor,
        index: u32,
        in_use: bool,
    ) -> Result<()> {
        self.initialise_inodes(handle, descriptor)?;
        let bitmap = BitmapBlock {
            structure: INODE_BITMAP,
            location: Location::group(descriptor.group),
            block: descriptor.inode_bitmap,
            covered: self.core.geometry().inodes_per_group / 8,
            stored: descriptor.inode_bitmap_checksum,
        };
        if in_use && self.core.geometry().has_group_checksums() {
            let after = self.core.geometry().inodes_per_group - 1 - index;
            descriptor.unused_inodes = descriptor.unused_inodes.min(after);
        }
        let bits = index..index + 1;
        let checksum = self.mark(handle, &bitmap, group.inode_checksum, bits, in_use)?;
        group.inode_checksum = checksum;
        descriptor.inode_bitmap_checksum = checksum.unwrap_or(descriptor.inode_bitmap_checksum);
        Ok(())
    }

    /// Flips bits. On a volume with checksums, returns the new checksum. If the previous checksum,
    /// `before`, is known, the new one is computed from it and the changed bits. So if other code
    /// has changed the block since, the checksum does not match, and the damage is detected.
    fn mark(
        &self,
        handle: &mut Handle<'_>,
        bitmap: &BitmapBlock,
        before: Option<u32>,
        bits: Range<u32>,
        in_use: bool,
    ) -> Result<Option<u32>> {
        let seed = self.core.geometry().metadata_seed();
        let location = bitmap.location.at_block(bitmap.block);
        handle.try_edit(bitmap.block, bitmap.structure, location, |bytes| {
            if let Some(other) = bits::first_other(bytes, bits.clone(), !in_use) {
                // The caller has checked the bits, so other code must have changed the same block.
                let count = other.length.into();
                let problem = match in_use {
                    true => Problem::Shared { blocks: count },
                    false => Problem::MarkedFree { count },
                };
                return Err(Error::corrupt(bitmap.structure, location, problem));
            }
            let before = match (seed, before) {
                (Some(seed), None) => {
                    Some(bitmap.checksum(seed, bytes, self.core.geometry(), location)?)
                }
                (_, before) => before,
            };
            bits::fill(bytes, bits.clone(), in_use);
            Ok(before.map(|before| before ^ bits::checksum_change(bits, bitmap.covered)))
        })
    }

    /// Writes the block bitmap of a group that never had one.
    pub(super) fn initialise_blocks(
        &self,
        handle: &mut Handle<'_>,
        descriptor: &mut GroupDescriptor,
    ) -> Result<()> {
        if !descriptor.blocks_uninitialised {
            return Ok(());
        }
        let bitmap = self.core.block_bitmap(descriptor)?;
        let mut bytes = bitmap.bytes().to_vec();
        bits::fill(&mut bytes, bitmap.length()..self.core.geometry().block_size.bytes() * 8, true);
        descriptor.blocks_uninitialised = false;
        descriptor.block_bitmap_checksum =
            self.checksum(&bytes, self.core.geometry().clusters_per_group() / 8);
        handle.replace(descriptor.block_bitmap, bytes);
        Ok(())
    }

    /// Writes the inode bitmap of a group that never had one.
    fn initialise_inodes(
        &self,
        handle: &mut Handle<'_>,
        descriptor: &mut GroupDescriptor,
    ) -> Result<()> {
        if !descriptor.inodes_uninitialised {
            return Ok(());
        }
        let bitmap = self.core.inode_bitmap(descriptor)?;
        let mut bytes = bitmap.bytes().to_vec();
        bits::fill(&mut bytes, bitmap.length()..self.core.geometry().block_size.bytes() * 8, true);
        descriptor.inodes_uninitialised = false;
        // Without a bitmap, the stored number has no meaning.
        descriptor.unused_inodes = self.core.geometry().inodes_per_group;
        descriptor.inode_bitmap_checksum =
            self.checksum(&bytes, self.core.geometry().inodes_per_group / 8);
        handle.replace(descriptor.inode_bitmap, bytes);
        Ok(())
    }

    fn checksum(&self, bitmap: &[u8], covered: u32) -> u32 {
        let covered = bitmap.get(..covered as usize).unwrap_or_default();
        self.core.geometry().metadata_seed().map_or(0, |seed| crc32c(seed, covered))
    }

    /// Writes a descriptor to the descriptor table.
    pub(super) fn write_descriptor(
        &self,
        handle: &mut Handle<'_>,
        descriptor: &GroupDescriptor,
    ) -> Result<()> {
        let geometry = self.core.geometry();
        let (block, at) = geometry.descriptor_position(descriptor.group);
        let location = Location::group(descriptor.group).at_block(block).at_byte(at as u64);
        handle.edit(block, DESCRIPTOR, location, |bytes| {
            descriptor.store(&mut bytes[at..at + geometry.descriptor_size as usize], geometry);
        })
    }
}

/// A bitmap on the disk.
struct BitmapBlock {
    structure: &'static str,
    location: Location,
    block: FsBlock,
    /// The number of bytes that the checksum covers.
    covered: u32,
    /// The checksum of the bitmap in the descriptor, or its lower half.
    stored: u32,
}

impl BitmapBlock {
    /// Returns the whole checksum of the bitmap. Errors: `Corrupt` if it differs from the
    /// descriptor's.
    fn checksum(
        &self,
        seed: u32,
        bytes: &[u8],
        geometry: &Geometry,
        location: Location,
    ) -> Result<u32> {
        let covered = bytes.get(..self.covered as usize).unwrap_or_default();
        let (mask, checksum) = (geometry.bitmap_checksum_mask(), crc32c(seed, covered));
        let (stored, computed) = (self.stored & mask, checksum & mask);
        if stored == computed {
            return Ok(checksum);
        }
        Err(Error::corrupt(self.structure, location, Problem::Checksum { stored, computed }))
    }
}
