//! Additions to the orphans of a volume that is open for writing, and removals.
//! Not here: deletion and truncation (`namespace`), and orphans at recovery (`adopt.rs`).

use std::sync::atomic::Ordering;

use base::{InodeNumber, Result};

use crate::inode::Inode;
use crate::journal::Handle;
use crate::orphans::set::{Inner, Listed, OrphanFile, Position};
use crate::volume::Volume;

/// The maximum number of blocks that [`Volume::add_orphan`], [`Volume::remove_orphan`] or
/// [`Volume::update_orphan`] change: two inodes and the superblock.
pub(crate) const ORPHAN_CREDITS: u32 = 3;

impl Volume {
    /// Adds an inode to the orphans, unless it is one.
    pub(crate) fn add_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        self.add_to(&mut self.writer()?.orphans.inner.lock(), handle, inode)
    }

    /// Removes an inode from the orphans, if it is one.
    pub(crate) fn remove_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        self.remove_from(&mut self.writer()?.orphans.inner.lock(), handle, inode)
    }

    /// Adds an inode to the orphans if it has no names, or mapped blocks past its size. Removes it
    /// otherwise. The caller calls this after a change of the inode's names, size or map, with the
    /// handle of that change.
    pub(crate) fn update_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        // A thread that changes the inode concurrently calls this function after its change.
        let inner = &mut *self.writer()?.orphans.inner.lock();
        let mapped_end = inode.mapped_past_size.load(Ordering::Acquire);
        let reaches_past = mapped_end > self.geometry().block_size.blocks_for(inode.size());
        if reaches_past || inode.record().links == 0 {
            self.add_to(inner, handle, inode)
        } else {
            self.remove_from(inner, handle, inode)
        }
    }

    fn add_to(&self, inner: &mut Inner, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        if inner.position(inode.number()).is_some() {
            return Ok(());
        }
        self.add_to_file_or_list(inner, handle, inode)?;
        self.writer()?.orphans.numbers.insert(inode.number());
        Ok(())
    }

    fn add_to_file_or_list(
        &self,
        inner: &mut Inner,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<()> {
        if let Some(slot) = inner.file.as_mut().and_then(OrphanFile::find_free_slot) {
            let file = inner.file.as_mut().expect("the file has a free slot");
            file.write_slot(handle, slot, inode.number())?;
            file.set_used(slot, true);
            inner.in_file.insert(inode.number(), slot);
            return Ok(());
        }
        let next = inner.list.first().map_or(0, |first| first.0 as u32);
        inode.update(handle, |record| record.deleted = next)?;
        // Inode numbers have 32 bits.
        let number = inode.number().0 as u32;
        self.edit_superblock(handle, |raw| raw.last_orphan = number.into())?;
        inner.list.push_front(inode.number(), Listed::new(inode));
        Ok(())
    }

    fn remove_from(&self, inner: &mut Inner, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        match inner.position(inode.number()) {
            None => Ok(()),
            Some(Position::File(slot)) => {
                let file = inner.file.as_mut().expect("the file has an orphan");
                file.write_slot(handle, slot, InodeNumber(0))?;
                file.set_used(slot, false);
                inner.in_file.remove(&inode.number());
                self.writer()?.orphans.numbers.remove(inode.number());
                Ok(())
            }
            Some(Position::List) => {
                let (number, list) = (inode.number(), &mut inner.list);
                let next = list.after(number).map_or(0, |next| next.0 as u32);
                match list.before(number) {
                    Some(before) => {
                        let listed = list.get(before).expect("an orphan's neighbour is listed");
                        listed.set_next(self, handle, before, next)?;
                    }
                    None => self.edit_superblock(handle, |raw| raw.last_orphan = next.into())?,
                }
                list.remove(number);
                self.writer()?.orphans.numbers.remove(number);
                inode.update(handle, |record| record.deleted = 0)
            }
        }
    }
}
