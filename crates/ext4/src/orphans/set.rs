//! The set of orphans of a volume that is open for writing: inodes whose deletion or truncation has
//! begun, that have no name yet, or that have written blocks past the size on the disk. After a
//! crash, recovery completes their deletion or truncation. They are stored in the orphan file, or
//! else in a list that begins in the superblock. Not here: changes of the set (`write.rs`), and the
//! orphans of a volume that is being opened (`adopt.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use base::locks::RankedMutex;
use base::{Error, FsBlock, InodeNumber, Location, Result};

use crate::core::Core;
use crate::inode::record::{InodeRecord, RecordLock};
use crate::journal::Handle;
use crate::orphans::block::{self, ORPHAN_FILE};
use crate::orphans::list::OrphanList;
use crate::orphans::numbers::OrphanNumbers;
use crate::ranks;

/// The orphans of a volume.
pub(crate) struct OrphanSet {
    pub(super) inner: RankedMutex<Inner>,
    /// The numbers of all orphans, for callers that hold locks ranked after that of `inner`.
    pub(super) numbers: Arc<OrphanNumbers>,
}

#[derive(Default)]
pub(super) struct Inner {
    /// The orphans in the list. The record of each has the number of the next one.
    pub(super) list: OrphanList<Listed>,
    /// The orphans in the file.
    pub(super) in_file: HashMap<InodeNumber, Slot>,
    pub(super) file: Option<OrphanFile>,
    /// The used slots of the file when the volume was opened, until [`OrphanSet::adopt`] takes
    /// them.
    pub(super) found: Vec<(Slot, InodeNumber)>,
    /// The error for which the file is not used, until the orphans are adopted.
    pub(super) failure: Option<Error>,
}

/// An orphan in the list. It does not refer to the inode, which would keep the volume in memory.
#[derive(Default)]
pub(super) struct Listed {
    /// The record that the orphan's inode in memory has, too. `None` if the orphan was adopted, and
    /// no inode of it has been in memory since.
    pub(super) record: Option<Arc<RecordLock>>,
}

impl Listed {
    /// Sets the number of the next orphan. `number` is that of this one.
    pub(super) fn set_next(
        &self,
        core: &Core,
        handle: &mut Handle<'_>,
        number: InodeNumber,
        next: u32,
    ) -> Result<()> {
        let Some(record) = &self.record else {
            let record = InodeRecord { deleted: next, ..core.inode_record(number)? };
            return core.write_inode_record(handle, &record);
        };
        let mut now = record.write();
        let record = InodeRecord { deleted: next, ..InodeRecord::clone(&now) };
        core.write_inode_record(handle, &record)?;
        *now = Arc::new(record);
        Ok(())
    }
}

/// A slot in the orphan file, which has at most 32 MiB. The smaller this is, the less memory
/// millions of orphans take.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) block: u32,
    pub(super) index: u32,
}

pub(super) struct OrphanFile {
    pub(super) blocks: Vec<FsBlock>,
    pub(super) seed: Option<u32>,
    /// The slots of each block.
    pub(super) slots: Vec<BlockSlots>,
    /// The slot to examine first.
    pub(super) hint: Slot,
}

/// The slots of one block of the orphan file.
pub(super) struct BlockSlots {
    /// Whether each slot is used.
    pub(super) used: Vec<bool>,
    /// The number of free slots.
    pub(super) free: usize,
}

impl OrphanSet {
    pub(super) fn new(inner: Inner) -> Self {
        Self { inner: RankedMutex::new(ranks::ORPHANS, inner), numbers: Arc::default() }
    }

    /// Removes the orphans in `adopted` that are still in the list. The caller clears the list in
    /// the superblock.
    pub(crate) fn clear_list(&self, adopted: &[InodeNumber]) {
        let mut inner = self.inner.lock();
        for &number in adopted {
            if inner.list.get(number).is_some() {
                inner.list.remove(number);
                self.numbers.remove(number);
            }
        }
    }

    /// Returns the numbers of all orphans.
    pub(crate) fn numbers(&self) -> &Arc<OrphanNumbers> {
        &self.numbers
    }

    /// Returns whether the list is empty; then the superblock must not name an orphan.
    #[cfg(test)]
    pub(crate) fn is_list_empty(&self) -> bool {
        self.inner.lock().list.is_empty()
    }

    /// Returns whether the superblock may mark the orphan file as empty.
    pub(crate) fn is_file_empty(&self) -> bool {
        let inner = self.inner.lock();
        inner.file.as_ref().is_none_or(OrphanFile::is_empty)
    }
}

pub(super) enum Position {
    List,
    File(Slot),
}

impl Inner {
    pub(super) fn position(&self, number: InodeNumber) -> Option<Position> {
        if let Some(slot) = self.in_file.get(&number) {
            return Some(Position::File(*slot));
        }
        self.list.get(number).map(|_| Position::List)
    }
}

impl OrphanFile {
    /// Returns whether all slots are free.
    fn is_empty(&self) -> bool {
        self.slots.iter().all(|block| block.free == block.used.len())
    }

    /// Returns a free slot.
    pub(super) fn find_free_slot(&mut self) -> Option<Slot> {
        let count = self.blocks.len() as u32;
        let block = (self.hint.block..count)
            .chain(0..self.hint.block)
            .find(|block| self.slots[*block as usize].free > 0)?;
        let used = &self.slots[block as usize].used;
        let first = if block == self.hint.block { self.hint.index } else { 0 };
        let length = used.len() as u32;
        let index = (first..length).chain(0..first).find(|index| !used[*index as usize])?;
        self.hint = Slot { block, index };
        Some(self.hint)
    }

    pub(super) fn set_used(&mut self, slot: Slot, is_used: bool) {
        let block = &mut self.slots[slot.block as usize];
        let was_used = std::mem::replace(&mut block.used[slot.index as usize], is_used);
        block.free = block.free + usize::from(was_used) - usize::from(is_used);
    }

    /// Writes a number, or zero, to a slot.
    pub(super) fn write_slot(
        &self,
        handle: &mut Handle<'_>,
        slot: Slot,
        number: InodeNumber,
    ) -> Result<()> {
        let block = self.blocks[slot.block as usize];
        handle.edit(block, ORPHAN_FILE, Location::block(block), |bytes| {
            block::edit(bytes, block, self.seed, |numbers| {
                let at = slot.index as usize * size_of::<u32>();
                numbers[at..at + 4].copy_from_slice(&(number.0 as u32).to_le_bytes());
            });
        })
    }
}
