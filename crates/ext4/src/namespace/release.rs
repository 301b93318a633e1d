//! Deletion of inodes that have no name and no user, and truncation. Both may take several
//! transactions. Until the last transaction, the inode is an orphan, so that recovery can complete
//! the operation after a crash.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::attributes::Timestamp;
use base::{DeviceOffset, Error, FileBlock, FsBlock, InodeNumber, Result};
use fs::Piece;

use super::{INODE_CREDITS, is_directory};
use crate::alloc::FREE_INODE_CREDITS;
use crate::clock::now;
use crate::indirect::pointer_blocks::PointerBlocks;
use crate::inode::Inode;
use crate::inode::inline;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::map_write::Progress;
use crate::orphans::adopt::Adopted;
use crate::orphans::write::ORPHAN_CREDITS;
use crate::volume::Volume;
use crate::volume::report::OrphanReport;
use crate::volume::writer::Writer;

impl Inode {
    /// Releases an inode after its last use. Deletes it if it has no name.
    pub fn release(self: &Arc<Self>) -> Result<()> {
        if self.record().links > 0 {
            return Ok(());
        }
        self.unmap_from(FileBlock(0)).or_else(|error| self.free_sound_branches(error))?;
        self.release_attributes().or_else(|error| self.drop_attributes(error))?;
        let volume = self.volume();
        let credits = ORPHAN_CREDITS + INODE_CREDITS + FREE_INODE_CREDITS;
        volume.change(credits, |handle| {
            volume.remove_orphan(handle, self)?;
            self.update(handle, mark_deleted)?;
            volume.allocator()?.retire_inode(handle, self.number(), is_directory(self))
        })
    }

    /// Sets the size of a regular file. Blocks past it are freed, or with `keeps_space` kept as
    /// preallocated blocks. The caller zeroes the rest of the block with the new end.
    pub fn set_size(self: &Arc<Self>, size: u64, keeps_space: bool, time: Timestamp) -> Result<()> {
        let volume = self.volume();
        let end = FileBlock(volume.geometry().block_size.blocks_for(size));
        if size > self.size().max(self.size_max()) {
            return Err(Error::FileTooLarge);
        }
        if size > self.size() {
            self.finish_truncation()?;
            volume.note_size(size)?;
        }
        // Truncated inline data must not reappear when the file grows.
        let truncates_inline = self.has(InodeFlags::INLINE_DATA) && size < self.size();
        let inline_truncation =
            truncates_inline.then(|| inline::Truncation::new(self, size)).transpose()?;
        // Past the new end, there may be blocks that the old size on the disk did not include:
        // delayed blocks, which may be allocated before they are removed, or mapped ones.
        let has_any = self.delayed.lock().has_from(end) || self.record().blocks > 0;
        // In a block map, blocks past the size are never preallocated ones, and have lost their
        // data.
        let truncates = has_any && !(keeps_space && self.has(InodeFlags::EXTENTS));
        let set = |record: &mut InodeRecord| {
            record.size = size;
            record.modified = time;
            record.changed = time;
            if let Some(truncation) = inline_truncation {
                truncation.apply(record);
            }
        };
        if size < self.size() {
            self.zero_rest_of_block(size);
        }
        if truncates {
            // Set first, so that an end of I/O that extends the file does not remove the orphan.
            self.mapped_past_size.store(FILE_BLOCKS_MAX, Ordering::Release);
        }
        volume.change(ORPHAN_CREDITS + INODE_CREDITS, |handle| {
            self.update(handle, set)?;
            if truncates { volume.update_orphan(handle, self) } else { Ok(()) }
        })?;
        if truncates { self.finish_truncation() } else { Ok(()) }
    }

    /// Zeroes the rest of the block with the new end of the file on the device. The cache has the
    /// zeroes, too, but may write them only after the size is durable. Other systems would then
    /// show the old data in a file that has grown again after a power cut.
    ///
    /// An error is not one of the truncation: if the cache cannot write the zeroes either, the next
    /// sync reports that.
    fn zero_rest_of_block(&self, size: u64) {
        let volume = self.volume();
        let block_size = volume.geometry().block_size;
        let within = size % u64::from(block_size.bytes());
        if within == 0 || !self.has_map() || self.has(InodeFlags::INLINE_DATA) {
            return;
        }
        let is_shut = volume.writer().and_then(|writer| writer.journal.check()).is_err();
        let at = FileBlock(size >> block_size.shift());
        match self.piece_at(at, FileBlock(at.0 + 1)) {
            Ok(Piece::Run(run)) if !run.unwritten && !is_shut => {
                let block = FsBlock(run.block.0 + (at.0 - run.start.0));
                let start = block_size.device_offset(block).expect("the block is in the volume");
                let zeroes = vec![0; block_size.len() - within as usize];
                let zeroed = volume.device().write_at(DeviceOffset(start.0 + within), &zeroes);
                if let Err(error) = zeroed {
                    tracing::debug!(%error, "the rest of a truncated block is not zeroed yet");
                }
            }
            _ => {}
        }
    }

    /// Unmaps the blocks past the size, if a truncation has not done so: at the end of the
    /// truncation, or, if it failed, before the file grows over them. There must be no delayed
    /// blocks past the size.
    pub(crate) fn finish_truncation(&self) -> Result<()> {
        if self.mapped_past_size.load(Ordering::Acquire) < FILE_BLOCKS_MAX {
            return Ok(());
        }
        let volume = self.volume();
        self.unmap_from(FileBlock(volume.geometry().block_size.blocks_for(self.size())))?;
        // Blocks that are allocated concurrently are before the end.
        self.mapped_past_size.store(0, Ordering::Release);
        volume.change(ORPHAN_CREDITS, |handle| volume.update_orphan(handle, self))
    }

    /// Unmaps all blocks from `start` on.
    fn unmap_from(&self, start: FileBlock) -> Result<()> {
        if !self.has_map() || self.has(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        self.volume().writer()?.allocator.discard_preallocation(self.number());
        self.unmap_all(start..FileBlock(FILE_BLOCKS_MAX))
    }

    /// Unmaps a range, in as many transactions as needed, and removes its delayed blocks.
    pub(crate) fn unmap_all(&self, range: Range<FileBlock>) -> Result<()> {
        let volume = self.volume();
        self.release_delayed(&range);
        let Range { start, mut end } = range;
        // Held until the clusters are reserved again for delayed blocks that share one with the
        // range. These must not be allocated before. The same holds for blocks of pointers.
        let mut pointers = self.shares_allocations().then(|| self.allocation_lock.lock());
        let kept = match &pointers {
            Some(pointers) => self.reserve_freed_pointers(pointers, &range)?,
            None => PointerBlocks::default(),
        };
        let done = loop {
            let credits = self.credits_for_unmap().min(volume.writer()?.journal.credits_max());
            let unmap = |handle: &mut _| self.unmap(handle, start..end);
            match volume.change_with_space(credits, unmap) {
                Ok(Progress::More(left)) => end = left,
                done => break done.map(drop),
            }
        };
        let kept = match &mut pointers {
            Some(pointers) => self.keep_freed_pointers(pointers, kept),
            None => Ok(()),
        };
        self.reserve_for_clusters(start..range.end).and(kept).and(done)
    }
}

impl Volume {
    /// Completes deletions and truncations that a crash interrupted. As in Linux, a corrupt orphan
    /// ends the list, and is an error of the volume, which the caller stores. On a volume
    /// `with_errors`, no orphan is completed. The list is always empty afterwards.
    pub(crate) fn complete_orphans(self: &Arc<Self>, with_errors: bool) -> Result<OrphanReport> {
        let Writer { orphans, journal, .. } = self.writer()?;
        let Adopted { list, in_file, refused: mut corrupt } = orphans.adopt(self, with_errors)?;
        let mut report = OrphanReport::default();
        for &number in &list {
            if let Err(error) = self.complete_orphan(number, &mut report)? {
                corrupt.add(error);
                break;
            }
        }
        orphans.clear_list(&list);
        for number in in_file {
            if let Err(error) = self.complete_orphan(number, &mut report)? {
                corrupt.add(error);
            }
        }
        if self.superblock().inodes.last_orphan.is_some() {
            if with_errors {
                tracing::warn!("the volume has errors: its orphans are left to e2fsck");
            }
            self.change(1, |handle| {
                self.edit_superblock(handle, |raw| raw.last_orphan = 0.into())
            })?;
        }
        for error in &corrupt.first {
            tracing::warn!("an orphan is left to e2fsck: {error}");
            journal.errors.add(error);
        }
        if corrupt.others > 0 {
            tracing::warn!("{} more orphans are left to e2fsck", corrupt.others);
        }
        report.failure = corrupt.first.into_iter().next();
        Ok(report)
    }

    /// Deletes or truncates one orphan, and counts it. Its inode is in memory only during this
    /// call. The inner error is corruption of the orphan, which left the volume unchanged.
    fn complete_orphan(
        self: &Arc<Self>,
        number: InodeNumber,
        report: &mut OrphanReport,
    ) -> Result<Result<()>> {
        let inode = match self.writer()?.orphans.read_adopted(self, number) {
            Ok(inode) => inode,
            Err(error @ Error::Io(_)) => return Err(error),
            Err(error) => return Ok(Err(error)),
        };
        let is_deleted = inode.record().links == 0;
        let result = if is_deleted {
            inode.release()
        } else {
            let end = FileBlock(self.geometry().block_size.blocks_for(inode.size()));
            inode.unmap_from(end).and_then(|()| {
                self.change(ORPHAN_CREDITS, |handle| self.remove_orphan(handle, &inode))
            })
        };
        match result {
            // A recovery in memory also skips orphans whose features are not written.
            Err(error)
                if matches!(error, Error::Corrupt(_))
                    || self.is_recovering() && matches!(error, Error::Unsupported(_)) =>
            {
                // Corruption that was found after a change shuts the volume down.
                self.writer()?.journal.check()?;
                Ok(Err(error))
            }
            Ok(()) => {
                report.deleted += u32::from(is_deleted);
                report.truncated += u32::from(!is_deleted);
                Ok(Ok(()))
            }
            result => result.map(Ok),
        }
    }
}

/// Changes the record to that of a deleted inode, with no names and a time of deletion.
pub(super) fn mark_deleted(record: &mut InodeRecord) {
    record.links = 0;
    record.size = 0;
    // The field has 32 bits, and zero stands for an inode that was not deleted.
    record.deleted = (now().seconds as u32).max(1);
}
