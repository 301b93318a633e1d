//! Blocks and inodes that a recovery finds in use: marks them so. Not here: allocation of free ones.

use base::{Error, FsBlock, GroupNumber, InodeNumber, Result};

use super::free_inodes::unwritten_block;
use super::groups::Group;
use super::{ALLOCATE_CREDITS, ALLOCATE_INODE_CREDITS, bits};
use crate::journal::Handle;
use crate::volume::Volume;
use fs::{Extent, FreeExtents};

impl Volume {
    /// Marks the clusters of blocks, which lie in the volume, as in use, if they are not. Groups whose bitmap is
    /// damaged are left as they are.
    pub(crate) fn claim_blocks(&self, start: FsBlock, count: u64) -> Result<()> {
        let per_group = u64::from(self.geometry().clusters_per_group());
        let clusters = self.geometry().clusters_of(start, count);
        let mut at = clusters.start;
        while at < clusters.end {
            let group = at / per_group;
            let end = clusters.end.min((group + 1) * per_group);
            let extent = Extent { start: (at % per_group) as u32, length: (end - at) as u32 };
            let number = GroupNumber(group as u32);
            let claim = |handle: &mut Handle<'_>| self.claim_in(handle, number, extent);
            self.unless_damaged(self.change(ALLOCATE_CREDITS, claim))?;
            at = end;
        }
        Ok(())
    }

    /// Marks an inode as in use, if it is not. A group whose bitmap is damaged is left as it is.
    pub(crate) fn claim_inode(&self, inode: InodeNumber, is_directory: bool) -> Result<()> {
        let claim = |handle: &mut Handle<'_>| self.claim_inode_in(handle, inode, is_directory);
        self.unless_damaged(self.change(ALLOCATE_INODE_CREDITS, claim))
    }

    /// Ignores corruption that was found before a change.
    fn unless_damaged(&self, claimed: Result<()>) -> Result<()> {
        match claimed {
            Err(error @ Error::Corrupt(_)) => {
                tracing::warn!(%error, "what a fast commit has in use is not marked in a damaged group");
                self.writer()?.journal.check()
            }
            claimed => claimed,
        }
    }

    fn claim_in(&self, handle: &mut Handle<'_>, number: GroupNumber, extent: Extent) -> Result<()> {
        let allocator = &self.writer()?.allocator;
        let mut group = allocator.groups[number.0 as usize].lock();
        self.load_group(number, &mut group)?;
        let mut descriptor = self.group(number)?;
        let mut at = extent.start;
        loop {
            let bitmap = self.block_bitmap(&descriptor)?;
            let find = |from, value| bits::first_from(bitmap.bytes(), from..extent.end(), value);
            let Some(start) = find(at, false) else { return Ok(()) };
            let end = find(start, true).unwrap_or(extent.end());
            drop(bitmap);
            let clear = Extent { start, length: end - start };
            self.mark_clusters(handle, &mut group, &mut descriptor, clear, true)?;
            self.write_descriptor(handle, &descriptor)?;
            let deferred = group.take(clear);
            let ready = group.ready();
            allocator.tell(number, &mut group, ready);
            let mut space = allocator.space.lock();
            space.lost(clear.length.into());
            space.deferred -= u64::from(deferred);
            at = end;
        }
    }

    fn claim_inode_in(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        is_directory: bool,
    ) -> Result<()> {
        let (allocator, geometry) = (&self.writer()?.allocator, self.geometry());
        let (number, index) = geometry.inode_position(inode)?;
        let mut group = allocator.groups[number.0 as usize].lock();
        let mut descriptor = self.group(number)?;
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
        self.write_descriptor(handle, &descriptor)?;
        allocator.count_inodes(number, descriptor.free_inodes, descriptor.directories);
        Ok(())
    }
}

impl Group {
    /// Removes clusters that are free or deferred from those. Returns the number of deferred ones.
    fn take(&mut self, clusters: Extent) -> u32 {
        let (mut at, mut deferred) = (clusters.start, 0);
        while at < clusters.end() {
            let part = |free: &FreeExtents| {
                free.from(at).map(|extent| extent.at_most(clusters.end() - at))
            };
            if let Some(part) = self.free.as_ref().and_then(part) {
                self.free.as_mut().into_iter().for_each(|free| free.take(part));
                at = part.end();
            } else if let Some(part) = part(&self.deferred) {
                self.deferred.take(part);
                deferred += part.length;
                at = part.end();
            } else {
                at += 1;
            }
        }
        deferred
    }
}
