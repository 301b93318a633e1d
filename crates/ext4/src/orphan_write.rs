//! The orphans of a volume that is open for writing: inodes whose deletion or truncation has begun,
//! that have no name yet, or that have blocks past the size on the disk which say of themselves that
//! they are written, so that a recovery can end what a crash cut off. They are kept in the orphan
//! file where the volume has one, else in a list that begins in the superblock.
//! Not here: deleting and truncating (`namespace`), reading orphans at recovery (`recovery`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::locks::{Rank, RankedMutex};
use base::{Error, FsBlock, InodeNumber, Place, Problem, Result};

use crate::features::Feature;
use crate::inode::{Inode, RecordLock};
use crate::inode_record::InodeRecord;
use crate::journal::Handle;
use crate::map::FILE_BLOCKS_MAX;
use crate::orphan_file::{self, ORPHAN_FILE, OrphanBlock};
use crate::volume::Volume;

/// The blocks that [`Volume::add_orphan`], [`Volume::remove_orphan`] or [`Volume::settle_orphan`]
/// change, at most: two inodes and the superblock.
pub(crate) const ORPHAN_CREDITS: u32 = 3;

/// The orphans.
pub(crate) struct OrphanSet {
    inner: RankedMutex<Inner>,
}

struct Inner {
    /// Those in the list, the first one first: each holds the number of the next.
    list: Vec<Listed>,
    /// Those in the file.
    in_file: HashMap<InodeNumber, Slot>,
    file: Option<OrphanFile>,
    /// What the file held when the volume was opened, until that is taken in.
    found: Vec<(Slot, InodeNumber)>,
}

/// An orphan in the list. It does not keep the inode, which keeps the volume, in memory.
struct Listed {
    number: InodeNumber,
    record: Arc<RecordLock>,
}

impl Listed {
    fn new(inode: &Inode) -> Self {
        Self { number: inode.number(), record: Arc::clone(&inode.record) }
    }

    /// Makes `next` the number that follows this one.
    fn set_next(&self, volume: &Volume, handle: &mut Handle<'_>, next: u32) -> Result<()> {
        let mut now = self.record.write();
        let record = InodeRecord { deleted: next, ..InodeRecord::clone(&now) };
        volume.write_inode_record(handle, &record)?;
        *now = Arc::new(record);
        Ok(())
    }
}

/// A place in the orphan file.
#[derive(Clone, Copy)]
struct Slot {
    block: usize,
    index: usize,
}

struct OrphanFile {
    blocks: Vec<FsBlock>,
    seed: Option<u32>,
    /// Which places hold a number, block by block.
    taken: Vec<Vec<bool>>,
    /// The place to look at first.
    hint: Slot,
}

impl OrphanSet {
    /// The orphans of a volume; what the volume has of them already is to be added by
    /// [`adopt`](Self::adopt).
    pub(crate) fn open(volume: &Arc<Volume>) -> Result<Self> {
        let (file, found) = match volume.superblock().inodes.orphan_file {
            Some(number) if volume.superblock().has(Feature::OrphanFile) => {
                let (file, found) = OrphanFile::open(volume, number)?;
                (Some(file), found)
            }
            _ => (None, Vec::new()),
        };
        let inner = Inner { list: Vec::new(), in_file: HashMap::new(), file, found };
        Ok(Self { inner: RankedMutex::new(Rank::Orphans, inner) })
    }

    /// Takes in the orphans that the volume has, as it was opened: those of the list, in its order,
    /// and those of the file. Gives all of them. Where the list leads to what is no orphan, it ends,
    /// as it does for the kernel; then a check of the volume has to find the rest.
    pub(crate) fn adopt(&self, volume: &Arc<Volume>) -> Result<Vec<Arc<Inode>>> {
        let mut inner = self.inner.lock();
        let (mut next, mut all) = (volume.superblock().inodes.last_orphan, Vec::new());
        while let Some(number) = next {
            let inode = match load(volume, number, "orphan list") {
                Ok(inode) if inner.list.iter().all(|known| known.number != number) => inode,
                Err(error @ Error::Io(_)) => return Err(error),
                cut => {
                    tracing::warn!("the orphan list ends at inode {number}: {:?}", cut.err());
                    break;
                }
            };
            let following = inode.record().deleted;
            next = (following != 0).then_some(InodeNumber(following.into()));
            inner.list.push(Listed::new(&inode));
            all.push(inode);
        }
        for (slot, number) in std::mem::take(&mut inner.found) {
            if inner.position(number).is_some() {
                return Err(Error::corrupt(ORPHAN_FILE, Place::inode(number), Problem::Cycle));
            }
            inner.in_file.insert(number, slot);
            all.push(load(volume, number, ORPHAN_FILE)?);
        }
        Ok(all)
    }

    /// Has an inode that was just read, and that nobody else has in memory, be what the orphans know it
    /// as: one that was forgotten when blocks past its size could not be written, or taken away.
    pub(crate) fn recognise(&self, mut inode: Inode) -> Inode {
        let inner = self.inner.lock();
        match inner.position(inode.number()) {
            None => return inode,
            Some(Position::List(index)) => inode.record = Arc::clone(&inner.list[index].record),
            Some(Position::File(_)) => {}
        }
        // How far they reach is not known any more.
        inode.mapped_past_size = FILE_BLOCKS_MAX.into();
        inode
    }

    /// Whether there is no list; then the superblock must not name one.
    pub(crate) fn is_list_empty(&self) -> bool {
        self.inner.lock().list.is_empty()
    }

    /// Whether the volume's superblock may say that the orphan file is empty.
    pub(crate) fn is_file_empty(&self) -> bool {
        self.inner.lock().in_file.is_empty()
    }
}

fn load(volume: &Arc<Volume>, number: InodeNumber, structure: &'static str) -> Result<Arc<Inode>> {
    let geometry = volume.geometry();
    let (min, max) = (geometry.first_inode.into(), geometry.inode_count.into());
    if !(min..=max).contains(&number.0) {
        let problem = Problem::Range { field: "inode", found: number.0, min, max };
        return Err(Error::corrupt(structure, Place::inode(number), problem));
    }
    let (group, index) = geometry.inode_position(number)?;
    if !volume.inode_bitmap(&volume.group(group)?)?.is_set(index) {
        let problem = Problem::Missing("mark in the inode bitmap");
        return Err(Error::corrupt(structure, Place::inode(number), problem));
    }
    volume.special_inode(number).map(Arc::new)
}

impl Volume {
    /// Makes an inode an orphan, unless it is one.
    pub(crate) fn add_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        self.add_to(&mut self.writer()?.orphans.inner.lock(), handle, inode)
    }

    /// Makes an inode an orphan no more, if it is one.
    pub(crate) fn remove_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        self.remove_from(&mut self.writer()?.orphans.inner.lock(), handle, inode)
    }

    /// Makes an inode an orphan, or none any more, as it has to be now: without names, or with blocks
    /// past its size that are to go if it stays like this. Called in the handle that changed its
    /// names, its size or its map, after that.
    pub(crate) fn settle_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        // What others change of the inode meanwhile, they settle after this.
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
        if let Some(slot) = inner.file.as_mut().and_then(OrphanFile::find_room) {
            let file = inner.file.as_mut().expect("it has room");
            file.set(handle, slot, inode.number())?;
            file.set_taken(slot, true);
            inner.in_file.insert(inode.number(), slot);
            return Ok(());
        }
        let next = inner.list.first().map_or(0, |first| first.number.0 as u32);
        inode.update(handle, |record| record.deleted = next)?;
        // Inode numbers have 32 bits.
        let number = inode.number().0 as u32;
        self.edit_superblock(handle, |raw| raw.last_orphan = number.into())?;
        inner.list.insert(0, Listed::new(inode));
        Ok(())
    }

    fn remove_from(&self, inner: &mut Inner, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        match inner.position(inode.number()) {
            None => Ok(()),
            Some(Position::File(slot)) => {
                let file = inner.file.as_mut().expect("it holds an orphan");
                file.set(handle, slot, InodeNumber(0))?;
                file.set_taken(slot, false);
                inner.in_file.remove(&inode.number());
                Ok(())
            }
            Some(Position::List(index)) => {
                let next = inner.list.get(index + 1).map_or(0, |next| next.number.0 as u32);
                match index.checked_sub(1).and_then(|before| inner.list.get(before)) {
                    Some(before) => before.set_next(self, handle, next)?,
                    None => self.edit_superblock(handle, |raw| raw.last_orphan = next.into())?,
                }
                inner.list.remove(index);
                inode.update(handle, |record| record.deleted = 0)
            }
        }
    }
}

enum Position {
    List(usize),
    File(Slot),
}

impl Inner {
    fn position(&self, number: InodeNumber) -> Option<Position> {
        if let Some(slot) = self.in_file.get(&number) {
            return Some(Position::File(*slot));
        }
        let index = self.list.iter().position(|listed| listed.number == number)?;
        Some(Position::List(index))
    }
}

impl OrphanFile {
    /// The file, and what it holds.
    fn open(volume: &Arc<Volume>, number: InodeNumber) -> Result<(Self, Vec<(Slot, InodeNumber)>)> {
        let inode = volume.special_inode(number)?;
        let (mut blocks, mut taken, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (block, verified) in OrphanBlock::all(&inode)?.enumerate() {
            let verified = verified?;
            let numbers = verified.numbers();
            blocks.push(verified.block());
            taken.push(numbers.iter().map(|number| number.get() != 0).collect());
            let held = numbers.iter().enumerate().filter(|(_, number)| number.get() != 0);
            let held = held
                .map(|(index, number)| (Slot { block, index }, InodeNumber(number.get().into())));
            found.extend(held);
        }
        let seed = inode.record().checksum_seed;
        Ok((Self { blocks, seed, taken, hint: Slot { block: 0, index: 0 } }, found))
    }

    /// A place that holds nothing.
    fn find_room(&mut self) -> Option<Slot> {
        let count = self.blocks.len();
        for block in (self.hint.block..count).chain(0..self.hint.block) {
            if let Some(index) = self.taken[block].iter().position(|taken| !taken) {
                self.hint = Slot { block, index };
                return Some(self.hint);
            }
        }
        None
    }

    fn set_taken(&mut self, slot: Slot, taken: bool) {
        self.taken[slot.block][slot.index] = taken;
    }

    /// Writes a number, or zero, into a place.
    fn set(&self, handle: &mut Handle<'_>, slot: Slot, number: InodeNumber) -> Result<()> {
        let block = self.blocks[slot.block];
        handle.edit(block, ORPHAN_FILE, Place::block(block), |bytes| {
            orphan_file::edit(bytes, block, self.seed, |numbers| {
                let at = slot.index * size_of::<u32>();
                numbers[at..at + 4].copy_from_slice(&(number.0 as u32).to_le_bytes());
            });
        })
    }
}

#[cfg(test)]
mod tests {
    use base::FileOffset;
    use base::attributes::AttributeChange;
    use device::{MemoryDevice, SharedDevice};
    use iomap::MapWrite;

    use super::*;
    use crate::ROOT_INODE;
    use crate::common::{self, Image, TIME, new_file};

    /// A file with a block that it has not grown to yet.
    fn mapped(volume: &Arc<Volume>, name: &str) -> Arc<Inode> {
        let inode = new_file(volume, name);
        inode.map_write(FileOffset(0), 1024).unwrap();
        inode.map_writeback(FileOffset(0), 1024).unwrap();
        inode
    }

    #[test]
    fn an_orphan_that_was_forgotten_is_recognised() {
        let image = Image::make(8, &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
        let device = Arc::new(MemoryDevice::new(image.bytes()));
        let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
        let root = volume.inode(ROOT_INODE).unwrap();
        let [first, second] = ["first", "second"].map(|name| mapped(&volume, name));
        let number = second.number();
        assert_eq!(u64::from(second.record().deleted), first.number().0, "the next in the list");
        drop(second);
        let second = Arc::new(volume.inode(number).unwrap());
        root.unlink(b"first", &first, TIME).unwrap();
        first.release().unwrap();
        second.set_attributes(&AttributeChange::default()).unwrap();
        assert_eq!(second.record().deleted, 0, "nothing follows any more");
        // It stays an orphan, whatever its size.
        second.end_io(&[], FileOffset(1024)).unwrap();
        assert!(!volume.writer().unwrap().orphans.is_list_empty());
        volume.sync().unwrap();
        let recovered = common::open(device.snapshot()).unwrap();
        assert_eq!(recovered.recovery().unwrap().orphans.truncated, 1);
        second.set_size(1024, false, TIME).unwrap();
        assert!(volume.writer().unwrap().orphans.is_list_empty());
        volume.close().unwrap();
        std::fs::write(&image.path, device.snapshot()).unwrap();
        image.check_by_e2fsck();
    }
}
