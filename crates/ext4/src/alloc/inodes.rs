//! Allocates and frees inodes. Not here: which group is best (`placement.rs`), what is in them.

use std::sync::atomic::Ordering;

use base::{Error, FsBlock, GroupNumber, InodeNumber, Place, Problem, Result};

use super::groups::{DESCRIPTOR, INODE_BITMAP};
use super::placement::{self, Totals};
use super::{Allocator, bits};
use crate::ROOT_INODE;
use crate::bitmap::Bitmap;
use crate::geometry::Geometry;
use crate::group::GroupDescriptor;
use crate::journal::Handle;
use crate::volume::Volume;

impl Volume {
    /// Takes a free inode for something new in the directory `parent`. What its record holds is
    /// what was there before, or zeroes. Changes up to [`super::ALLOCATE_INODE_CREDITS`] blocks;
    /// `NoSpace` before any change.
    pub(crate) fn allocate_inode(
        &self,
        handle: &mut Handle<'_>,
        parent: InodeNumber,
        is_directory: bool,
    ) -> Result<InodeNumber> {
        let (allocator, geometry) = (&self.writer()?.allocator, self.geometry());
        let (GroupNumber(home), _) = geometry.inode_position(parent)?;
        let (tallies, layout) = (&allocator.tallies, allocator.layout);
        let mut damage = None;
        let mut take = |group| {
            let taken = self.take_inode(handle, GroupNumber(group), is_directory, &mut damage);
            taken.transpose()
        };
        let taken = if is_directory {
            let (totals, in_root) = (allocator.totals(geometry), parent == ROOT_INODE);
            placement::groups_for_directory(tallies, layout, &totals, home, in_root)
                .find_map(&mut take)
        } else {
            placement::groups_for_file(tallies, layout, home).find_map(&mut take)
        };
        taken.unwrap_or_else(|| Err(damage.unwrap_or(Error::NoSpace)))
    }

    /// Takes the first free inode of a group. A group whose inode bitmap has none, though the
    /// descriptor counts some, is given up, and is the `damage`.
    fn take_inode(
        &self,
        handle: &mut Handle<'_>,
        number: GroupNumber,
        is_directory: bool,
        damage: &mut Option<Error>,
    ) -> Result<Option<InodeNumber>> {
        let (allocator, geometry) = (&self.writer()?.allocator, self.geometry());
        let mut group = allocator.groups[number.0 as usize].lock();
        let mut descriptor = self.group(number)?;
        if descriptor.free_inodes == 0 || allocator.tallies[number.0 as usize].free_inodes() == 0 {
            return Ok(None);
        }
        let counts = check_counts(&descriptor, geometry);
        let found = counts.and_then(|()| self.inode_bitmap(&descriptor)).and_then(|bitmap| {
            let index = first_free(&bitmap, geometry, number);
            let place = Place::group(number).at_block(descriptor.inode_bitmap);
            let problem = Problem::Missing("free inode that the descriptor counts");
            let index = index.ok_or_else(|| Error::corrupt(INODE_BITMAP, place, problem))?;
            Ok((index, unwritten_block(&bitmap, geometry, &descriptor, index)))
        });
        let (index, unwritten) = match found {
            Ok(found) => found,
            Err(error @ Error::Corrupt(_)) => {
                tracing::warn!(%error, group = number.0, "no inode is allocated in a damaged group");
                let directories = allocator.tallies[number.0 as usize].directories();
                allocator.count_inodes(number, 0, directories);
                damage.get_or_insert(error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if let Some(block) = unwritten {
            handle.replace(block, vec![0; geometry.block_size.len()]);
        }
        // A group with inodes in use has both bitmaps.
        self.initialise_blocks(handle, &mut descriptor)?;
        self.mark_inode(handle, &mut group, &mut descriptor, index, true)?;
        descriptor.free_inodes -= 1;
        descriptor.directories += u32::from(is_directory);
        self.write_descriptor(handle, &descriptor)?;
        allocator.count_inodes(number, descriptor.free_inodes, descriptor.directories);
        let first = u64::from(number.0) * u64::from(geometry.inodes_per_group) + 1;
        Ok(Some(InodeNumber(first + u64::from(index))))
    }

    /// Takes an inode out of use: nothing refers to it, and its record says so. One that is free
    /// already, or that the format keeps, is a corrupt reference. Changes up to
    /// [`super::FREE_INODE_CREDITS`] blocks.
    pub(crate) fn free_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        is_directory: bool,
    ) -> Result<()> {
        let (allocator, geometry) = (&self.writer()?.allocator, self.geometry());
        let (number, index) = geometry.inode_position(inode)?;
        if inode.0 < geometry.first_inode.into() {
            let (min, max) = (geometry.first_inode.into(), geometry.inode_count.into());
            let problem = Problem::Range { field: "inode number", found: inode.0, min, max };
            return Err(Error::corrupt("inode reference", Place::inode(inode), problem));
        }
        let mut group = allocator.groups[number.0 as usize].lock();
        let mut descriptor = self.group(number)?;
        let place = Place::group(number).in_inode(inode).at_block(descriptor.inode_bitmap);
        if !self.inode_bitmap(&descriptor)?.is_set(index) {
            let problem = Problem::MarkedFree { count: 1 };
            return Err(Error::corrupt(INODE_BITMAP, place, problem));
        }
        check_counts(&descriptor, geometry)?;
        // With this inode in use, not all are free, and if it is a directory, there is one.
        let in_use = geometry.inodes_per_group - descriptor.free_inodes;
        if in_use == 0 || descriptor.directories < u32::from(is_directory) {
            let problem = Problem::Missing("inode in use that is being freed, in the counts");
            return Err(Error::corrupt(DESCRIPTOR, place, problem));
        }
        descriptor.directories -= u32::from(is_directory);
        self.mark_inode(handle, &mut group, &mut descriptor, index, false)?;
        descriptor.free_inodes += 1;
        self.write_descriptor(handle, &descriptor)?;
        allocator.count_inodes(number, descriptor.free_inodes, descriptor.directories);
        Ok(())
    }
}

impl Allocator {
    /// Notes a group's counts, and what they do to the volume's.
    fn count_inodes(&self, number: GroupNumber, free: u32, directories: u32) {
        let tally = &self.tallies[number.0 as usize];
        let change = |sum: &std::sync::atomic::AtomicU64, before: u32, now: u32| {
            // Modulo 2^64, so that this subtracts too.
            let difference = u64::from(now).wrapping_sub(u64::from(before));
            sum.fetch_add(difference, Ordering::Relaxed);
        };
        change(&self.free_inodes, tally.free_inodes(), free);
        change(&self.directories, tally.directories(), directories);
        tally.set_inodes(free, directories);
    }

    fn totals(&self, geometry: &Geometry) -> Totals {
        Totals {
            free_clusters: self.space.lock().free,
            free_inodes: self.free_inodes(),
            directories: self.directories.load(Ordering::Relaxed),
            clusters_per_group: geometry.clusters_per_group(),
            inodes_per_group: geometry.inodes_per_group,
        }
    }
}

/// Refuses counts that are greater than a group's inodes.
fn check_counts(descriptor: &GroupDescriptor, geometry: &Geometry) -> Result<()> {
    let max = geometry.inodes_per_group.into();
    for (field, count) in
        [("free inode count", descriptor.free_inodes), ("directory count", descriptor.directories)]
    {
        if u64::from(count) > max {
            let problem = Problem::Range { field, found: count.into(), min: 0, max };
            return Err(Error::corrupt(DESCRIPTOR, Place::group(descriptor.group), problem));
        }
    }
    Ok(())
}

/// The first inode of a group that is free and not kept for the format.
fn first_free(bitmap: &Bitmap, geometry: &Geometry, group: GroupNumber) -> Option<u32> {
    let before = u64::from(group.0) * u64::from(geometry.inodes_per_group);
    let reserved = u64::from(geometry.first_inode).saturating_sub(before + 1);
    let reserved = reserved.min(bitmap.length().into()) as u32;
    bits::first_from(bitmap.bytes(), reserved..bitmap.length(), false)
}

/// The block of the inode table with this inode, when it may never have been written: no inode in
/// it is in use.
fn unwritten_block(
    bitmap: &Bitmap,
    geometry: &Geometry,
    descriptor: &GroupDescriptor,
    index: u32,
) -> Option<FsBlock> {
    if !geometry.has_group_checksums() || descriptor.inode_table_zeroed {
        return None;
    }
    let per_block = geometry.block_size.bytes() / geometry.inode_size;
    let block = index / per_block;
    let inodes = block * per_block..((block + 1) * per_block).min(bitmap.length());
    let is_unused = bits::first_from(bitmap.bytes(), inodes, true).is_none();
    is_unused.then(|| FsBlock(descriptor.inode_table.0 + u64::from(block)))
}
