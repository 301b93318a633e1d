//! Checks of inodes that a bitmap marks free. The bitmap is compared with its group's descriptor
//! once, and an inode's record is checked before the inode is allocated. As in the kernel, no inode
//! is allocated in a group that fails. Not here: the choice of an inode.

use base::view::view_at;
use base::{Error, FsBlock, GroupNumber, InodeNumber, Location, Problem, Result};

use super::groups::{DESCRIPTOR, Group, INODE_BITMAP};
use super::tally::Tally;
use super::{Allocator, bits};
use crate::alloc::bitmap::Bitmap;
use crate::core::Core;
use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;
use crate::ondisk::inode::RawInode;

impl Allocator {
    /// Compares a group's inode bitmap with its descriptor when the group is first used. A group
    /// whose bitmap contradicts the descriptor is closed to allocation.
    pub(super) fn load_inodes(
        &self,
        group: &mut Group,
        descriptor: &GroupDescriptor,
    ) -> Result<Bitmap> {
        if let Some(error) = &group.inode_damage {
            return Err(error.clone());
        }
        let checked = self.core.inode_bitmap(descriptor).and_then(|bitmap| {
            check_counts(descriptor, self.core.geometry())?;
            if !group.inodes_checked {
                check_bitmap(&bitmap, descriptor, self.core.geometry())?;
            }
            Ok(bitmap)
        });
        group.inodes_checked = checked.is_ok();
        checked.or_else(|error| self.close_to_inodes(group, descriptor, error))
    }

    /// Closes a group to inode allocation if `error` is corruption, and records the error. Returns
    /// `error`.
    pub(super) fn close_to_inodes<R>(
        &self,
        group: &mut Group,
        descriptor: &GroupDescriptor,
        error: Error,
    ) -> Result<R> {
        if matches!(error, Error::Corrupt(_)) && group.inode_damage.is_none() {
            let number = descriptor.group;
            tracing::warn!(%error, group = number.0, "the group is damaged: no inode is allocated in it");
            let tally = self.tallies.get(number.0 as usize);
            let directories = tally.map_or(0, Tally::directories);
            self.count_inodes(number, 0, directories);
            group.inode_damage = Some(error.clone());
            self.journal.apply_error_policy(&error);
        }
        Err(error)
    }

    /// Checks an inode that the bitmap marks free. Returns its block of the inode table, if that
    /// block was never written. Errors: `Corrupt` if its record is in use, or if it was unlinked
    /// and is still open.
    pub(super) fn check_unused(
        &self,
        descriptor: &GroupDescriptor,
        index: u32,
    ) -> Result<Option<FsBlock>> {
        let (geometry, number) =
            (self.core.geometry(), number_of(self.core.geometry(), descriptor, index));
        if let Some(block) = unwritten_block(geometry, descriptor, index) {
            return Ok(Some(block));
        }
        let (buffer, at, location) = self.core.raw_inode(number)?;
        let raw: &RawInode = view_at(&buffer, at, "inode", location)?;
        if raw.links_count.get() == 0 && !self.orphans.contains(number) {
            return Ok(None);
        }
        let location = Location::group(descriptor.group).in_inode(number);
        let problem = Problem::MarkedFree { count: 1 };
        Err(Error::corrupt(INODE_BITMAP, location.at_block(descriptor.inode_bitmap), problem))
    }
}

impl Core {
    /// Returns whether the inode is free, and its block of the inode table may never have been
    /// written. The block may then have any contents, even those of an inode of another volume. The
    /// descriptor alone is not enough: if its count of unused inodes were wrong, a file would be
    /// lost. Errors: `Corrupt` if the inode bitmap is damaged.
    pub(crate) fn is_inode_unwritten(&self, number: InodeNumber) -> Result<bool> {
        let (group, index) = self.geometry().inode_position(number)?;
        let descriptor = self.group(group)?;
        Ok(unwritten_block(self.geometry(), &descriptor, index).is_some()
            && !self.inode_bitmap(&descriptor)?.is_set(index))
    }
}

impl Allocator {
    /// Sets the inode counts of a group, and updates those of the volume.
    pub(super) fn count_inodes(&self, number: GroupNumber, free: u32, directories: u32) {
        use std::sync::atomic::{AtomicU64, Ordering};
        // A recovery does not count.
        let Some(tally) = self.tallies.get(number.0 as usize) else { return };
        let change = |sum: &AtomicU64, before: u32, now: u32| {
            // The sum is modulo 2^64, so the difference may be negative.
            let difference = u64::from(now).wrapping_sub(u64::from(before));
            sum.fetch_add(difference, Ordering::Relaxed);
        };
        change(&self.free_inodes, tally.free_inodes(), free);
        change(&self.directories, tally.directories(), directories);
        tally.set_inodes(free, directories);
    }
}

/// Returns the number of an inode of a group.
pub(super) fn number_of(
    geometry: &Geometry,
    descriptor: &GroupDescriptor,
    index: u32,
) -> InodeNumber {
    let first = u64::from(descriptor.group.0) * u64::from(geometry.inodes_per_group) + 1;
    InodeNumber(first + u64::from(index))
}

/// Returns the number of reserved inodes at the beginning of the group.
pub(super) fn reserved_in(geometry: &Geometry, group: GroupNumber) -> u32 {
    let before = u64::from(group.0) * u64::from(geometry.inodes_per_group);
    let reserved = u64::from(geometry.first_inode).saturating_sub(before + 1);
    // No overflow: at most the inodes of a group.
    reserved.min(geometry.inodes_per_group.into()) as u32
}

/// Returns the number of inodes at the beginning of a group that may have been used. Later inodes
/// were never used.
fn ever_used(geometry: &Geometry, descriptor: &GroupDescriptor) -> u32 {
    if !geometry.has_group_checksums() {
        return geometry.inodes_per_group;
    }
    if descriptor.inodes_uninitialised {
        return 0;
    }
    geometry.inodes_per_group.saturating_sub(descriptor.unused_inodes)
}

/// Returns the block of the inode table with this inode if it may never have been written: all of
/// its inodes are behind the last one that was ever used.
pub(super) fn unwritten_block(
    geometry: &Geometry,
    descriptor: &GroupDescriptor,
    index: u32,
) -> Option<FsBlock> {
    let per_block = geometry.block_size.bytes() / geometry.inode_size;
    let block = index / per_block;
    let is_unwritten = !descriptor.inode_table_zeroed
        && geometry.has_group_checksums()
        && block * per_block >= ever_used(geometry, descriptor);
    is_unwritten.then(|| FsBlock(descriptor.inode_table.0 + u64::from(block)))
}

/// Checks that the inode counts of a group are possible.
fn check_counts(descriptor: &GroupDescriptor, geometry: &Geometry) -> Result<()> {
    let in_group = geometry.inodes_per_group;
    let location = Location::group(descriptor.group);
    for (field, count, max) in [
        ("free inode count", descriptor.free_inodes, in_group),
        // Each directory is an inode in use.
        (
            "directory count",
            descriptor.directories,
            in_group.saturating_sub(descriptor.free_inodes),
        ),
    ] {
        if count > max {
            let problem = Problem::Range { field, found: count.into(), min: 0, max: max.into() };
            return Err(Error::corrupt(DESCRIPTOR, location, problem));
        }
    }
    Ok(())
}

/// Checks that a bitmap agrees with the descriptor, and does not mark reserved inodes free.
fn check_bitmap(bitmap: &Bitmap, descriptor: &GroupDescriptor, geometry: &Geometry) -> Result<()> {
    let number = descriptor.group;
    let location = Location::group(number).at_block(descriptor.inode_bitmap);
    let reserved = 0..reserved_in(geometry, number);
    if let Some(free) = bits::first_other(bitmap.bytes(), reserved, true) {
        let problem = Problem::MarkedFree { count: free.length.into() };
        return Err(Error::corrupt(INODE_BITMAP, location, problem));
    }
    let (found, expected) = (descriptor.free_inodes.into(), bitmap.free().into());
    if found != expected {
        let problem = Problem::Mismatch { field: "free inode count", found, expected };
        return Err(Error::corrupt(DESCRIPTOR, location, problem));
    }
    let behind = ever_used(geometry, descriptor)..bitmap.length();
    if let Some(index) = bits::first_from(bitmap.bytes(), behind, true) {
        let (found, min) = (descriptor.unused_inodes.into(), 0);
        let max = u64::from(bitmap.length() - 1 - index);
        let problem = Problem::Range { field: "unused inode count", found, min, max };
        return Err(Error::corrupt(DESCRIPTOR, location, problem));
    }
    Ok(())
}
