//! The end of inodes: what nobody names and nobody uses is deleted; and cutting files off.
//! Both may take several transactions; until the last one the inode is an orphan, so that a
//! recovery goes on where a crash ended it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::attributes::Timestamp;
use base::{Error, FileBlock, Result};

use super::{INODE_CREDITS, is_directory};
use crate::alloc::FREE_INODE_CREDITS;
use crate::clock::now;
use crate::inline;
use crate::inode::Inode;
use crate::inode_record::{InodeFlags, InodeRecord};
use crate::map::FILE_BLOCKS_MAX;
use crate::map_write::Progress;
use crate::orphan_write::{Adopted, ORPHAN_CREDITS};
use crate::volume::Volume;
use crate::writer::Writer;

impl Inode {
    /// Says that nobody uses the inode any more. One without a name is deleted.
    pub fn release(self: &Arc<Self>) -> Result<()> {
        if self.record().links > 0 {
            return Ok(());
        }
        self.cut(FileBlock(0)).or_else(|error| self.free_sound_branches(error))?;
        self.release_attributes().or_else(|error| self.drop_attributes(error))?;
        let volume = self.volume();
        let credits = ORPHAN_CREDITS + INODE_CREDITS + FREE_INODE_CREDITS;
        volume.change(credits, |handle| {
            volume.remove_orphan(handle, self)?;
            self.update(handle, say_deleted)?;
            volume.retire_inode(handle, self.number(), is_directory(self))
        })
    }

    /// Sets the size of a regular file. What lies past it is given back, unless `keeps_space`: then
    /// what there is was preallocated. The rest of the block that holds the new end is the caller's to
    /// zero.
    pub fn set_size(self: &Arc<Self>, size: u64, keeps_space: bool, time: Timestamp) -> Result<()> {
        let volume = self.volume();
        let end = FileBlock(volume.geometry().block_size.blocks_for(size));
        if size > self.size().max(self.size_max()) {
            return Err(Error::FileTooLarge);
        }
        if size > self.size() {
            self.finish_cut()?;
        }
        // What is cut off must not be there when the file grows again.
        let cuts_inline = self.has(InodeFlags::INLINE_DATA) && size < self.size();
        let inline_cut = cuts_inline.then(|| inline::Cut::new(self, size)).transpose()?;
        // Past the new end there can be blocks that the old size on disk had not reached: delayed
        // ones, which get their places before they are forgotten, or mapped ones.
        let has_any = self.delayed.lock().has_from(end) || self.record().blocks > 0;
        // What a block map has there lost its data.
        let cuts = has_any && !(keeps_space && self.has(InodeFlags::EXTENTS));
        let set = |record: &mut InodeRecord| {
            record.size = size;
            record.modified = time;
            record.changed = time;
            if let Some(cut) = inline_cut {
                cut.apply(record);
            }
        };
        if cuts {
            // An end of I/O that has the size grow must not make it an orphan no more.
            self.mapped_past_size.store(FILE_BLOCKS_MAX, Ordering::Release);
        }
        volume.change(ORPHAN_CREDITS + INODE_CREDITS, |handle| {
            self.update(handle, set)?;
            if cuts { volume.update_orphan(handle, self) } else { Ok(()) }
        })?;
        if cuts { self.finish_cut() } else { Ok(()) }
    }

    /// Takes away what lies past the size, if a truncation has not come so far: before the size grows over
    /// it, when that truncation failed. Nothing there may be delayed.
    pub(crate) fn finish_cut(&self) -> Result<()> {
        if self.mapped_past_size.load(Ordering::Acquire) < FILE_BLOCKS_MAX {
            return Ok(());
        }
        let volume = self.volume();
        self.cut(FileBlock(volume.geometry().block_size.blocks_for(self.size())))?;
        // What gets its place meanwhile lies before the end.
        self.mapped_past_size.store(0, Ordering::Release);
        volume.change(ORPHAN_CREDITS, |handle| volume.update_orphan(handle, self))
    }

    /// Unmaps everything from `start` on.
    fn cut(&self, start: FileBlock) -> Result<()> {
        if !self.has_map() || self.has(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        self.volume().writer()?.allocator.discard_window(self.number());
        self.unmap_all(start..FileBlock(FILE_BLOCKS_MAX))
    }

    /// Unmaps a range, in as many transactions as it takes. What was delayed there is forgotten.
    pub(crate) fn unmap_all(&self, range: Range<FileBlock>) -> Result<()> {
        let volume = self.volume();
        self.forget_delayed(&range);
        let Range { start, mut end } = range;
        // What shares a cluster with what goes is given its place when it has one reserved again.
        let _placing = self.shares_clusters().then(|| self.placing.lock());
        loop {
            let credits = self.credits_for_unmap().min(volume.writer()?.journal.credits_max());
            let unmap = |handle: &mut _| self.unmap(handle, start..end);
            match volume.change_with_space(credits, unmap) {
                Ok(Progress::More(left)) => end = left,
                done => return self.reserve_again(start..range.end).and(done.map(|_| ())),
            }
        }
    }
}

impl Volume {
    /// Deletes and truncates what a crash has left half done. As in Linux, a corrupt orphan is kept in
    /// the superblock as an error, and ends the list; on a volume `with_errors` nothing is done. In any
    /// case the list is empty afterwards.
    pub(crate) fn end_orphans(self: &Arc<Self>, with_errors: bool) -> Result<()> {
        let Writer { orphans, journal, .. } = self.writer()?;
        let Adopted { list, in_file, refused: mut corrupt } = orphans.adopt(self, with_errors)?;
        for inode in &list {
            if let Err(error) = self.end_orphan(inode)? {
                corrupt.add(error);
                break;
            }
        }
        orphans.forget_list(&list);
        for inode in &in_file {
            if let Err(error) = self.end_orphan(inode)? {
                corrupt.add(error);
            }
        }
        if self.superblock().inodes.last_orphan.is_some() {
            if with_errors {
                tracing::warn!("the volume has errors: its orphans are left to a check of it");
            }
            self.change(1, |handle| {
                self.edit_superblock(handle, |raw| raw.last_orphan = 0.into())
            })?;
        }
        for error in &corrupt.first {
            tracing::warn!("an orphan is left to a check of the volume: {error}");
            journal.errors.add(error);
        }
        if corrupt.others > 0 {
            tracing::warn!("{} more orphans are left to a check of the volume", corrupt.others);
        }
        journal.store_errors()
    }

    /// Ends one orphan. The inner error is one of its metadata, which leaves the volume as it was.
    fn end_orphan(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<Result<()>> {
        let ended = if inode.record().links == 0 {
            inode.release()
        } else {
            let end = FileBlock(self.geometry().block_size.blocks_for(inode.size()));
            inode.cut(end).and_then(|()| {
                self.change(ORPHAN_CREDITS, |handle| self.remove_orphan(handle, inode))
            })
        };
        match ended {
            Err(error @ Error::Corrupt(_)) => {
                // Not if it was found half way.
                self.writer()?.journal.check()?;
                Ok(Err(error))
            }
            ended => ended.map(Ok),
        }
    }
}

/// Makes the record that of a deleted inode, which has no names and a time of deletion.
pub(super) fn say_deleted(record: &mut InodeRecord) {
    record.links = 0;
    record.size = 0;
    // The field has 32 bits, and zero stands for an inode that was not deleted.
    record.deleted = (now().seconds as u32).max(1);
}
