//! The write side of the format: space is reserved when data comes into the cache, blocks are
//! allocated at writeback, and extents become written at the end of I/O. Not here: the cache, and
//! the maps on disk.

use std::ops::Range;
use std::sync::atomic::Ordering;

use base::space;
use base::{Error, FileBlock, FileOffset, Location, Problem, Result};
use fs::{Delayed, Piece, Run};
use iomap::{FinishedRange, Iomap, IomapKind, MapRead, MapWrite};

use crate::alloc::Purpose;
use crate::features::Feature;
use crate::indirect::pointer_blocks::PointerBlocks;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::journal::Handle;
use crate::map_write::{NewBlocks, block_beside, empty_root};
use crate::orphans::write::ORPHAN_CREDITS;
use crate::xattr::name::INLINE_DATA_NAME;
use crate::xattr::remove::remove_from_inode;
use fs::xattr::NameIndex;

impl MapWrite for Inode {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let wanted = self.blocks_of(at, length)?;
        if self.has(InodeFlags::INLINE_DATA) {
            self.convert_inline_data()?;
        }
        if at.0.saturating_add(length) > self.size() {
            self.finish_truncation()?;
        }
        self.reserve_holes(&wanted)?;
        self.map_read(at, length)
    }

    fn end_write(&self, unused: Range<FileOffset>) {
        let block_size = self.volume().geometry().block_size;
        let end = FileBlock(block_size.blocks_for(unused.end.0));
        self.release_delayed(&(block_size.file_block(unused.start)..end));
    }

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        // Also for blocks that the file has already: after a failure, they may belong to another
        // file on the disk (J4).
        self.volume().check_writable()?;
        // New blocks of a block map are zeroed after they are mapped. Writeback of another part of
        // the file must not write to them before that, since the zeroes would overwrite its data.
        let allocation = (!self.has(InodeFlags::EXTENTS)).then(|| self.allocation_lock.lock());
        let map = self.map_read(at, length)?;
        drop(allocation);
        match map.kind {
            IomapKind::Mapped | IomapKind::Unwritten => return Ok(map),
            IomapKind::Delalloc => {}
            IomapKind::Hole | IomapKind::Inline | IomapKind::Encoded => {
                let at = self.volume().geometry().block_size.file_block(at);
                let location = Location::inode(self.number()).at_file_block(at);
                let problem = Problem::Missing("reservation for data in the cache");
                return Err(Error::corrupt("file mapping", location, problem));
            }
        }
        let wanted = self.blocks_of(at, length)?;
        self.allocate_delayed(&wanted)?;
        self.map_read(at, length)
    }

    fn allocate(&self, range: Range<FileOffset>) -> Result<bool> {
        if !self.has(InodeFlags::EXTENTS) {
            return Ok(false);
        }
        self.volume().check_writable()?;
        self.preallocate(range).map(|()| true)
    }

    fn split_extents(&self, range: Range<FileOffset>) -> Result<()> {
        let blocks = self.blocks_of(range.start, range.end.0 - range.start.0)?;
        // The common case: both splits fit into one leaf, and need no new block.
        let is_done = self
            .volume()
            .change(self.credits_for_map(1), |handle| self.split_ends_in_place(handle, &blocks))?;
        if is_done {
            return Ok(());
        }
        // One split at a time, since an operation that fails with `NoSpace` must not have changed
        // anything. The splits may use the clusters reserved for them, so that a write to existing
        // blocks does not fail for lack of space.
        for at in [blocks.start, blocks.end] {
            self.volume().change_with_space(self.credits_for_map(1), |handle| {
                self.split_extent(handle, at, Purpose::EndOfIo)
            })?;
        }
        Ok(())
    }

    fn may_split_at_end(&self) -> bool {
        self.volume().writer().is_ok_and(|writer| writer.allocator.has_much_for_splitting())
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        let block_size = self.volume().geometry().block_size;
        let blocks = |range: &FinishedRange| {
            block_size.file_block(range.offset)..FileBlock(block_size.blocks_for(range.end()))
        };
        let unwritten = finished.iter().filter(|range| range.kind == IomapKind::Unwritten);
        let mut left: Vec<Range<FileBlock>> = unwritten.map(blocks).rev().collect();
        let grows = |inode: &Self| size.0 > inode.size();
        if grows(self) {
            self.volume().note_size(size.0)?;
        }
        while !left.is_empty() || grows(self) {
            let calls = (left.len() as u32).clamp(1, CONVERTED_AT_ONCE);
            // The tree may grow before the handle opens, and the transaction that converts extents
            // also changes the size. So there are credits for two changes of the size.
            let credits = self.credits_for_map(calls) + 2 * SIZE_CREDITS;
            let credits = credits.min(self.volume().writer()?.journal.credits_max());
            // Without space, the data would be lost. Free clusters may be usable only after a
            // commit.
            self.volume().change_with_space(credits, |handle| {
                if !left.is_empty() {
                    self.convert_written(handle, &mut left, SIZE_CREDITS)?;
                }
                // The size grows only up to the next unwritten block, since a commit may come
                // before the rest is converted.
                let size = left
                    .last()
                    .map_or(size.0, |next| size.0.min(next.start.0 << block_size.shift()));
                let is_short =
                    handle.has_changes() && handle.credits_left() < u64::from(SIZE_CREDITS);
                if size <= self.size() || is_short {
                    return Ok(());
                }
                self.update(handle, |record| record.size = record.size.max(size))?;
                if self.mapped_past_size.load(Ordering::Acquire) > 0 {
                    self.volume().update_orphan(handle, self)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn panicked(&self, operation: &'static str) {
        self.volume().panicked(operation);
    }
}

/// The number of ranges that are marked written in one transaction, if it has room for them.
const CONVERTED_AT_ONCE: u32 = 16;
/// The credits for a change of the size, which may also remove the inode from the orphans.
const SIZE_CREDITS: u32 = 1 + ORPHAN_CREDITS;

impl Inode {
    /// Records that a user has opened the file for writing.
    pub fn opened_for_writing(&self) {
        self.writers.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a user that has closed the file. After the last user, the file's preallocation is
    /// discarded as soon as no block is delayed.
    pub fn closed_for_writing(&self) {
        self.writers.fetch_sub(1, Ordering::AcqRel);
        self.discard_unused_preallocation();
    }

    pub(crate) fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Acquire) > 0
    }

    fn discard_unused_preallocation(&self) {
        if !self.has_writers() && !self.delayed.lock().has_from(FileBlock(0)) {
            if let Ok(writer) = self.volume().writer() {
                writer.allocator.discard_preallocation(self.number());
            }
        }
    }

    /// Returns the blocks with bytes of a range. Errors: `FileTooLarge`.
    pub(crate) fn blocks_of(&self, at: FileOffset, length: u64) -> Result<Range<FileBlock>> {
        let block_size = self.volume().geometry().block_size;
        let end = at.0.checked_add(length.max(1)).ok_or(Error::FileTooLarge)?;
        let end = FileBlock(block_size.blocks_for(end));
        if end > self.map_end() {
            return Err(Error::FileTooLarge);
        }
        Ok(block_size.file_block(at)..end)
    }

    /// Reserves space for all blocks of `wanted` that are neither allocated nor delayed, or for
    /// none of them. Returns these blocks. Writers call this, one at a time; writeback may allocate
    /// delayed blocks concurrently.
    pub(crate) fn reserve_holes(&self, wanted: &Range<FileBlock>) -> Result<Vec<Range<FileBlock>>> {
        let mut holes: Vec<Range<FileBlock>> = Vec::new();
        let mut at = wanted.start;
        while at < wanted.end {
            let delayed = self.delayed.lock().around(at);
            if delayed.is_delayed {
                at = delayed.range.end;
                continue;
            }
            // If writeback has allocated the block since the check above, the map has it.
            let piece = self.piece_at(at, wanted.end)?;
            let end = piece.end().min(wanted.end);
            if let Piece::Hole { .. } = piece {
                let end = end.min(delayed.range.end);
                holes.push(at..end);
                at = end;
            } else {
                at = end;
            }
        }
        for (index, hole) in holes.iter().enumerate() {
            // With clusters, writeback must not allocate concurrently. Otherwise it could allocate
            // a cluster that the hole shares after the search for such clusters. The same holds for
            // blocks of pointers.
            let mut pointers = self.shares_allocations().then(|| self.allocation_lock.lock());
            let reserve =
                |clusters| self.volume().allocator()?.reserve(clusters, space::reserve_access());
            let reserved = self
                .check_last_cluster(hole)
                .and_then(|()| self.reserve_hole(hole, pointers.as_deref_mut(), reserve));
            drop(pointers);
            if let Err(error) = reserved {
                for hole in &holes[..index] {
                    self.release_delayed(hole);
                }
                return Err(error);
            }
        }
        Ok(holes)
    }

    /// Returns whether the allocation of one block of the file may change what another one needs:
    /// they share a cluster, or a block of pointers.
    pub(crate) fn shares_allocations(&self) -> bool {
        self.volume().geometry().cluster_shift > 0 || !self.has(InodeFlags::EXTENTS)
    }

    /// Calls `reserve` with the number of clusters that a hole needs, and makes its blocks delayed.
    /// The hole is not filled concurrently. `pointers` are the blocks of pointers that are
    /// reserved, unless the file has extents.
    fn reserve_hole(
        &self,
        hole: &Range<FileBlock>,
        pointers: Option<&mut PointerBlocks>,
        reserve: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let shift = self.volume().geometry().cluster_shift;
        let has_cluster = self.clusters_at_ends(hole, shift)?;
        let has = |cluster| has_cluster.contains(&cluster);
        let clusters = self.delayed.lock().clusters_wanted(hole, shift, has);
        let Some(pointers) = pointers.filter(|_| !self.has(InodeFlags::EXTENTS)) else {
            reserve(clusters)?;
            self.change_delayed(0, |delayed| delayed.insert(hole, shift, has));
            return Ok(());
        };
        let wanted = self.pointer_blocks_wanted(pointers, hole)?;
        reserve(clusters + wanted.count())?;
        pointers.insert_all(&wanted);
        self.change_delayed(pointers.count(), |delayed| delayed.insert(hole, shift, has));
        Ok(())
    }

    /// Returns which of the first and the last cluster of a hole the file has already.
    fn clusters_at_ends(&self, hole: &Range<FileBlock>, shift: u32) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        if shift == 0 {
            return Ok(found);
        }
        for at in [hole.start.0, hole.end.0 - 1] {
            if self.run_in_cluster(at >> shift, shift)?.is_some() {
                found.push(at >> shift);
            }
        }
        Ok(found)
    }

    /// Returns a run with blocks of a cluster of the file.
    fn run_in_cluster(&self, cluster: u64, shift: u32) -> Result<Option<Run>> {
        let (mut at, end) = (FileBlock(cluster << shift), FileBlock((cluster + 1) << shift));
        while at < end.min(self.map_end()) {
            match self.piece_at(at, end)? {
                Piece::Run(run) => return Ok(Some(run)),
                Piece::Hole { end, .. } => at = end,
            }
        }
        Ok(None)
    }

    /// Returns `NoSpace` if the volume ends before the last block of a hole, whose cluster the file
    /// has already. mke2fs makes no volumes that end within a cluster, but e2fsck accepts them.
    fn check_last_cluster(&self, hole: &Range<FileBlock>) -> Result<()> {
        let geometry = self.volume().geometry();
        let cluster_blocks = u64::from(geometry.blocks_per_cluster());
        if geometry.block_count % cluster_blocks == 0 {
            return Ok(());
        }
        let last = FileBlock(hole.end.0 - 1);
        match self.run_in_cluster(last.0 / cluster_blocks, geometry.cluster_shift)? {
            Some(run) if block_beside(run, last, cluster_blocks).0 >= geometry.block_count => {
                Err(Error::NoSpace)
            }
            _ => Ok(()),
        }
    }

    /// Changes the delayed blocks, and updates the count of reserved clusters, of which `pointers`
    /// are for blocks of pointers.
    pub(super) fn change_delayed(&self, pointers: u64, change: impl FnOnce(&mut Delayed)) {
        let mut delayed = self.delayed.lock();
        change(&mut delayed);
        self.clusters_reserved.store(delayed.reserved() + pointers, Ordering::Release);
    }

    /// Removes delayed blocks, and releases their reservations.
    pub(crate) fn release_delayed(&self, blocks: &Range<FileBlock>) {
        let geometry = self.volume().geometry();
        let mut pointers = self.allocation_lock.lock();
        let mut delayed = self.delayed.lock();
        let mut released = delayed.remove(blocks, geometry.cluster_shift);
        released += pointers.release(geometry, blocks, &delayed);
        let reserved = delayed.reserved() + pointers.count();
        self.clusters_reserved.store(reserved, Ordering::Release);
        drop(delayed);
        // Only a volume that is open for writing has delayed blocks.
        match self.volume().allocator() {
            Ok(allocator) => allocator.unreserve(released),
            Err(_) => debug_assert_eq!(released, 0),
        }
    }

    /// Reserves clusters again for delayed blocks that share a cluster with `unmapped`. Such a
    /// block had no reservation if the file had its cluster. The cluster was just freed, so that
    /// it, or another one, can be reserved. All blocks of `unmapped` are unmapped. The caller has
    /// held `allocation_lock` since before they were unmapped.
    pub(crate) fn reserve_for_clusters(&self, unmapped: Range<FileBlock>) -> Result<()> {
        let shift = self.volume().geometry().cluster_shift;
        if shift == 0 || unmapped.is_empty() {
            return Ok(());
        }
        for cluster in [unmapped.start.0 >> shift, (unmapped.end.0 - 1) >> shift] {
            let (mut at, end) = (FileBlock(cluster << shift), FileBlock((cluster + 1) << shift));
            while at < end {
                let delayed = self.delayed.lock().around(at);
                let range = at..delayed.range.end.min(end);
                at = range.end;
                if delayed.is_delayed {
                    let reserve = |clusters| {
                        self.volume().allocator()?.restore_reservation(clusters);
                        Ok(())
                    };
                    self.reserve_hole(&range, None, reserve)?;
                }
            }
        }
        Ok(())
    }

    /// Allocates the delayed blocks at the start of `wanted`.
    pub(crate) fn allocate_delayed(&self, wanted: &Range<FileBlock>) -> Result<()> {
        self.allocate_delayed_locked(wanted, &mut self.allocation_lock.lock())
    }

    /// Allocates the first delayed blocks of `wanted`, for a caller that holds `allocation_lock`,
    /// which has `pointers`.
    fn allocate_delayed_locked(
        &self,
        wanted: &Range<FileBlock>,
        pointers: &mut PointerBlocks,
    ) -> Result<()> {
        let volume = self.volume();
        let (at, shift) = (wanted.start, volume.geometry().cluster_shift);
        let Some(run) = self.delayed.lock().run_at(at) else { return Ok(()) };
        let unwritten = self.has(InodeFlags::EXTENTS);
        let wanted = run.end.min(wanted.end).0 - at.0;
        let purpose = Purpose::ReservedData;
        let credits = self.credits_for_map(1) + ORPHAN_CREDITS;
        let run = volume.change_with_space(credits, |handle| {
            let request = NewBlocks { at, wanted, unwritten, purpose };
            // The previous contents of the blocks must never be visible. If zeroing fails, only
            // this data is lost.
            let zero = &mut |run: Run| {
                if run.unwritten {
                    return Ok(());
                }
                let size = volume.geometry().block_size;
                let offset = size.device_offset(run.block).expect("the run is in the volume");
                volume.device().write_zeroes(offset, run.length << size.shift())
            };
            let mapped = self.map_prepared_blocks(handle, request, zero)?;
            let mapped = mapped.inspect_err(|_| handle.mark_undone())?;
            let run = mapped.run;
            if mapped.is_new && !run.unwritten {
                // Until the end of I/O moves the size, a recovery must free blocks past it.
                self.mapped_past_size.fetch_max(run.end().0, Ordering::Release);
                volume.update_orphan(handle, self)?;
            }
            Ok(run)
        })?;
        let allocated = run.start..run.end();
        pointers.remove_allocated(volume.geometry(), &allocated);
        self.change_delayed(pointers.count(), |delayed| {
            delayed.remove_allocated(&allocated, shift);
        });
        self.discard_unused_preallocation();
        Ok(())
    }

    /// Converts inline data to a block, as the kernel does when a file is written to.
    pub(crate) fn convert_inline_data(&self) -> Result<()> {
        let volume = self.volume();
        let data = self.inline_data()?;
        let block_size = volume.geometry().block_size;
        let has_extents = volume.geometry().features.has(Feature::Extent);
        let record = self.record();
        volume.change_with_space(self.credits_for_map(2) + 1, |handle| {
            self.drop_inline_data(handle, has_extents)?;
            if data.iter().all(|&byte| byte == 0) {
                return Ok(());
            }
            let (at, unwritten, purpose) = (FileBlock(0), false, Purpose::Data);
            let wanted = NewBlocks { at, wanted: 1, unwritten, purpose };
            let mut block = data.clone();
            block.resize(block_size.len(), 0);
            let write = &mut |run: Run| {
                // The flush before the commit block makes the data durable before the file has the
                // block.
                let offset = block_size.device_offset(run.block).expect("the run is in the volume");
                volume.device().write_at(offset, &block)
            };
            let error = match self.map_prepared_blocks(handle, wanted, write) {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error,
                Err(Error::NoSpace) => Error::NoSpace,
                Err(error) => return Err(error),
            };
            // Other fields may have changed since, such as the inode's place in the list of
            // orphans.
            self.update(handle, |now| {
                now.flags = record.flags;
                now.block_area = record.block_area;
                now.attribute_area.clone_from(&record.attribute_area);
            })?;
            handle.mark_undone();
            Err(error)
        })
    }

    /// Converts a file with inline data to a file without data.
    fn drop_inline_data(&self, handle: &mut Handle<'_>, has_extents: bool) -> Result<()> {
        let has_value_inodes = self.volume().geometry().features.has(Feature::EaInode);
        let mut area = self.record().attribute_area.clone();
        let (name, location) =
            ((NameIndex::SYSTEM, INLINE_DATA_NAME), Location::inode(self.number()));
        remove_from_inode(&mut area, name, has_value_inodes, location)?;
        self.update(handle, |record| {
            record.attribute_area = area;
            record.flags.0 &= !InodeFlags::INLINE_DATA.0;
            record.block_area = [0; 60];
            if has_extents {
                record.flags.0 |= InodeFlags::EXTENTS.0;
                record.block_area = empty_root();
            }
        })
    }
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
