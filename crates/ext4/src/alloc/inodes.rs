//! Allocation and freeing of inodes. Not here: the choice of a group (`placement.rs`), checks of
//! free inodes (`free_inodes.rs`), and the contents of inodes.

use std::sync::atomic::Ordering;

use base::{Error, FsBlock, GroupNumber, InodeNumber, Location, Problem, Result};

use super::free_inodes::{number_of, reserved_in};
use super::groups::{DESCRIPTOR, Group, INODE_BITMAP};
use super::placement::{self, Totals};
use super::{Allocator, bits};
use crate::ROOT_INODE;
use crate::journal::Handle;
use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;

impl Allocator {
    /// Allocates a free inode for a new file in the directory `parent`. Its record has its old
    /// contents, or is zero. Changes up to [`super::ALLOCATE_INODE_CREDITS`] blocks. Errors:
    /// `NoSpace`, before any change.
    pub(crate) fn allocate_inode(
        &self,
        handle: &mut Handle<'_>,
        parent: InodeNumber,
        is_directory: bool,
    ) -> Result<InodeNumber> {
        let geometry = self.core.geometry();
        let (GroupNumber(home), _) = geometry.inode_position(parent)?;
        let (tallies, layout) = (&self.tallies, self.layout);
        let mut damage = None;
        let mut allocate = |group| {
            let group = GroupNumber(group);
            self.allocate_inode_in_group(handle, group, is_directory, &mut damage).transpose()
        };
        let allocated = if is_directory {
            let (totals, in_root) = (self.totals(geometry), parent == ROOT_INODE);
            placement::groups_for_directory(tallies, layout, &totals, home, in_root)
                .find_map(&mut allocate)
        } else {
            placement::groups_for_file(tallies, layout, home).find_map(&mut allocate)
        };
        allocated.unwrap_or_else(|| Err(damage.unwrap_or(Error::NoSpace)))
    }

    /// Allocates the first free inode of a group. If the group's inode bitmap is damaged, closes
    /// the group to allocation and stores the error in `damage`.
    fn allocate_inode_in_group(
        &self,
        handle: &mut Handle<'_>,
        number: GroupNumber,
        is_directory: bool,
        damage: &mut Option<Error>,
    ) -> Result<Option<InodeNumber>> {
        let geometry = self.core.geometry();
        let mut group = self.groups[number.0 as usize].lock();
        let mut descriptor = self.core.group(number)?;
        if descriptor.free_inodes == 0 || self.tallies[number.0 as usize].free_inodes() == 0 {
            return Ok(None);
        }
        let (index, unwritten) = match self.find_free_inode(&mut group, &descriptor) {
            Ok(found) => found,
            Err(error @ Error::Corrupt(_)) => {
                damage.get_or_insert(error);
                // The error policy may have made the volume read-only.
                return self.journal.check().map(|()| None);
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
        self.count_inodes(number, descriptor.free_inodes, descriptor.directories);
        Ok(Some(number_of(geometry, &descriptor, index)))
    }

    /// Returns the first inode of a group that is free and not reserved. Returns its block of the
    /// inode table, too, if that block was never written.
    fn find_free_inode(
        &self,
        group: &mut Group,
        descriptor: &GroupDescriptor,
    ) -> Result<(u32, Option<FsBlock>)> {
        let bitmap = self.load_inodes(group, descriptor)?;
        let possible = reserved_in(self.core.geometry(), descriptor.group)..bitmap.length();
        let index = bits::first_from(bitmap.bytes(), possible, false).ok_or_else(|| {
            let location = Location::group(descriptor.group).at_block(descriptor.inode_bitmap);
            let problem = Problem::Missing("free inode that the descriptor counts");
            Error::corrupt(INODE_BITMAP, location, problem)
        });
        index
            .and_then(|index| Ok((index, self.check_unused(descriptor, index)?)))
            .or_else(|error| self.close_to_inodes(group, descriptor, error))
    }

    /// Frees a deleted inode, as [`free_inode`](Self::free_inode) does. If corruption prevents
    /// that, records the error, and leaves the inode marked as used for e2fsck, as the kernel does.
    pub(crate) fn retire_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        is_directory: bool,
    ) -> Result<()> {
        let changes = handle.changes();
        match self.free_inode(handle, inode, is_directory) {
            Err(error @ Error::Corrupt(_)) if handle.changes() == changes => {
                self.journal.apply_error_policy(&error);
                Ok(())
            }
            done => done,
        }
    }

    /// Frees an inode. No directory entry refers to it, and its record is cleared. Changes up to
    /// [`super::FREE_INODE_CREDITS`] blocks. Errors: `Corrupt` if it is free already, or reserved
    /// for the format.
    pub(crate) fn free_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        is_directory: bool,
    ) -> Result<()> {
        let geometry = self.core.geometry();
        let (number, index) = geometry.inode_position(inode)?;
        if inode.0 < geometry.first_inode.into() {
            let (min, max) = (geometry.first_inode.into(), geometry.inode_count.into());
            let problem = Problem::Range { field: "inode number", found: inode.0, min, max };
            return Err(Error::corrupt("inode reference", Location::inode(inode), problem));
        }
        let is_recovering = self.recovery.is_some();
        // A recovery keeps no state of groups.
        let mut kept = (!is_recovering).then(|| self.groups[number.0 as usize].lock());
        let mut new = Group::default();
        let group = kept.as_deref_mut().unwrap_or(&mut new);
        let mut descriptor = self.core.group(number)?;
        let location = Location::group(number).in_inode(inode).at_block(descriptor.inode_bitmap);
        if !self.load_inodes(group, &descriptor)?.is_set(index) {
            let problem = Problem::MarkedFree { count: 1 };
            return Err(Error::corrupt(INODE_BITMAP, location, problem));
        }
        // The counts of the group must include this inode.
        let in_use = geometry.inodes_per_group - descriptor.free_inodes;
        if in_use == 0 || descriptor.directories < u32::from(is_directory) {
            let problem = Problem::Missing("count of the inode that is being freed");
            return Err(Error::corrupt(DESCRIPTOR, location, problem));
        }
        descriptor.directories -= u32::from(is_directory);
        self.mark_inode(handle, group, &mut descriptor, index, false)?;
        descriptor.free_inodes += 1;
        self.write_descriptor(handle, &descriptor)?;
        self.count_inodes(number, descriptor.free_inodes, descriptor.directories);
        Ok(())
    }
}

impl Allocator {
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
