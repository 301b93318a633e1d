//! The orphans of a volume that is open for writing: inodes whose deletion or truncation has begun, that have
//! no name yet, or that have written blocks past the size on the disk. After a crash, recovery completes their deletion
//! or truncation. They are stored in the orphan file, or else in a list that begins in the superblock.
//! Not here: deletion and truncation (`namespace`), and orphans at recovery (`recovery`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::locks::RankedMutex;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};
use parking_lot::Mutex;

use crate::features::Feature;
use crate::inode::record::InodeRecord;
use crate::inode::{Inode, RecordLock};
use crate::journal::Handle;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::orphans::file::{self, ORPHAN_FILE, OrphanBlock};
use crate::orphans::found::{self, FoundList, ORPHAN_LIST, OrphanErrors};
use crate::orphans::list::OrphanList;
use crate::ranks;
use crate::superblock::SUPERBLOCK_OFFSET;
use crate::volume::Volume;

/// The maximum number of blocks that [`Volume::add_orphan`], [`Volume::remove_orphan`] or [`Volume::update_orphan`]
/// change: two inodes and the superblock.
pub(crate) const ORPHAN_CREDITS: u32 = 3;

/// The orphans of a volume.
pub(crate) struct OrphanSet {
    inner: RankedMutex<Inner>,
    /// The numbers of all orphans, for callers that hold locks ranked after that of `inner`. No lock is taken
    /// under it.
    numbers: Mutex<HashSet<InodeNumber>>,
}

#[derive(Default)]
struct Inner {
    /// The orphans in the list. The record of each has the number of the next one.
    list: OrphanList<Listed>,
    /// The orphans in the file.
    in_file: HashMap<InodeNumber, Slot>,
    file: Option<OrphanFile>,
    /// The used slots of the file when the volume was opened, until [`OrphanSet::adopt`] takes them.
    found: Vec<(Slot, InodeNumber)>,
    /// The error for which the file is not used, until the orphans are adopted.
    failure: Option<Error>,
}

/// An orphan in the list. It does not refer to the inode, which would keep the volume in memory.
#[derive(Default)]
struct Listed {
    /// The record that the orphan's inode in memory has, too. `None` if the orphan was adopted, and no inode of it has
    /// been in memory since.
    record: Option<Arc<RecordLock>>,
}

impl Listed {
    fn new(inode: &Inode) -> Self {
        Self { record: Some(Arc::clone(&inode.record)) }
    }

    /// Shares the record with the orphan's inode, which was just read.
    fn share_with(&mut self, inode: &mut Inode) {
        match &self.record {
            Some(record) => inode.record = Arc::clone(record),
            None => *self = Self::new(inode),
        }
    }

    /// Sets the number of the next orphan. `number` is that of this one.
    fn set_next(
        &self,
        volume: &Volume,
        handle: &mut Handle<'_>,
        number: InodeNumber,
        next: u32,
    ) -> Result<()> {
        let Some(record) = &self.record else {
            let record = InodeRecord { deleted: next, ..volume.inode_record(number)? };
            return volume.write_inode_record(handle, &record);
        };
        let mut now = record.write();
        let record = InodeRecord { deleted: next, ..InodeRecord::clone(&now) };
        volume.write_inode_record(handle, &record)?;
        *now = Arc::new(record);
        Ok(())
    }
}

/// The orphans of a volume that was just opened: their numbers, since there may be millions.
#[derive(Default)]
pub(crate) struct Adopted {
    /// The orphans of the list, in its order.
    pub list: Vec<InodeNumber>,
    /// The orphans of the file.
    pub in_file: Vec<InodeNumber>,
    /// The errors of entries that are not valid orphans.
    pub refused: OrphanErrors,
}

/// A slot in the orphan file, which has at most 32 MiB. The smaller this is, the less memory millions of orphans take.
#[derive(Clone, Copy)]
struct Slot {
    block: u32,
    index: u32,
}

struct OrphanFile {
    blocks: Vec<FsBlock>,
    seed: Option<u32>,
    /// The slots of each block.
    slots: Vec<BlockSlots>,
    /// The slot to examine first.
    hint: Slot,
}

/// The slots of one block of the orphan file.
struct BlockSlots {
    /// Whether each slot is used.
    used: Vec<bool>,
    /// The number of free slots.
    free: usize,
}

impl OrphanSet {
    /// Creates the set of a volume, without the existing orphans, which [`adopt`](Self::adopt) adds.
    pub(crate) fn open(volume: &Arc<Volume>) -> Result<Self> {
        let mut inner = Inner::default();
        if volume.superblock().has(Feature::OrphanFile) {
            let Some(number) = volume.superblock().inodes.orphan_file else {
                let problem = Problem::Missing("number of the orphan file");
                let location = Location::byte(SUPERBLOCK_OFFSET.0);
                return Err(Error::corrupt("superblock", location, problem));
            };
            let (file, found) = OrphanFile::open(volume, number)?;
            (inner.file, inner.found) = (Some(file), found);
        }
        Ok(Self::new(inner))
    }

    /// [`open`](Self::open) for recovery: without an orphan file that is marked as empty, or that cannot be read.
    pub(crate) fn open_for_recovery(volume: &Arc<Volume>) -> Result<Self> {
        if !volume.superblock().has(Feature::OrphanPresent) {
            return Ok(Self::new(Inner::default()));
        }
        match Self::open(volume) {
            Err(error) => Ok(Self::new(Inner { failure: Some(error), ..Inner::default() })),
            opened => opened,
        }
    }

    fn new(inner: Inner) -> Self {
        Self { inner: RankedMutex::new(ranks::ORPHANS, inner), numbers: Mutex::default() }
    }

    /// Adds the orphans that the volume had when it was opened, from the list and from the file. An entry that is not a
    /// valid orphan is not added: in the list, it ends the list; in the file, it keeps its slot. On a volume
    /// `with_errors`, adds none.
    pub(crate) fn adopt(&self, volume: &Arc<Volume>, with_errors: bool) -> Result<Adopted> {
        let mut inner = self.inner.lock();
        let found = std::mem::take(&mut inner.found);
        if with_errors {
            return Ok(Adopted::default());
        }
        let FoundList { orphans, corruption } = FoundList::read(volume)?;
        for &number in &orphans {
            inner.list.push_back(number, Listed::default());
        }
        let mut adopted = Adopted { list: orphans, ..Adopted::default() };
        let errors = corruption.into_iter().chain(inner.failure.take());
        errors.for_each(|error| adopted.refused.add(error));
        for (slot, number) in found {
            let judged = match inner.position(number) {
                Some(_) => {
                    Err(Error::corrupt(ORPHAN_FILE, Location::inode(number), Problem::Cycle))
                }
                None => found::validate(volume, number, ORPHAN_FILE).map(drop),
            };
            match judged {
                Ok(()) => {
                    inner.in_file.insert(number, slot);
                    adopted.in_file.push(number);
                }
                Err(error @ Error::Io(_)) => return Err(error),
                Err(error) => adopted.refused.add(error),
            }
        }
        let all = adopted.list.iter().chain(&adopted.in_file);
        self.numbers.lock().extend(all.copied());
        Ok(adopted)
    }

    /// Reads the inode of an adopted orphan. Errors: as in [`found::validate`], since on a corrupt volume the deletion
    /// of another orphan may have freed it.
    pub(crate) fn read_adopted(
        &self,
        volume: &Arc<Volume>,
        number: InodeNumber,
    ) -> Result<Arc<Inode>> {
        let mut inner = self.inner.lock();
        let structure = if inner.list.get(number).is_some() { ORPHAN_LIST } else { ORPHAN_FILE };
        let mut inode = found::validate(volume, number, structure)?;
        if let Some(listed) = inner.list.get_mut(number) {
            listed.share_with(&mut inode);
        }
        Ok(Arc::new(inode))
    }

    /// Removes the orphans in `adopted` that are still in the list. The caller clears the list in the superblock.
    pub(crate) fn clear_list(&self, adopted: &[InodeNumber]) {
        let mut inner = self.inner.lock();
        let mut numbers = self.numbers.lock();
        for &number in adopted {
            if inner.list.get(number).is_some() {
                inner.list.remove(number);
                numbers.remove(&number);
            }
        }
    }

    /// Restores the state of an orphan in an inode that was just read again. Such an inode was evicted after blocks
    /// past its size could not be written or freed.
    pub(crate) fn restore_orphan(&self, mut inode: Inode) -> Inode {
        let mut inner = self.inner.lock();
        if inner.position(inode.number()).is_none() {
            return inode;
        }
        if let Some(listed) = inner.list.get_mut(inode.number()) {
            listed.share_with(&mut inode);
        }
        // The end of its mapped blocks is not known any more.
        inode.mapped_past_size = FILE_BLOCKS_MAX.into();
        inode
    }

    /// Returns whether an inode is an orphan.
    pub(crate) fn contains(&self, number: InodeNumber) -> bool {
        self.numbers.lock().contains(&number)
    }

    /// Returns whether the list is empty; then the superblock must not name an orphan.
    #[cfg(test)]
    pub(crate) fn is_list_empty(&self) -> bool {
        self.inner.lock().list.is_empty()
    }

    /// Returns whether there are no orphans.
    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.lock().is_empty()
    }

    /// Returns whether the superblock may mark the orphan file as empty.
    pub(crate) fn is_file_empty(&self) -> bool {
        let inner = self.inner.lock();
        inner.file.as_ref().is_none_or(OrphanFile::is_empty)
    }
}

impl Volume {
    /// Adds an inode to the orphans, unless it is one.
    pub(crate) fn add_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        self.add_to(&mut self.writer()?.orphans.inner.lock(), handle, inode)
    }

    /// Removes an inode from the orphans, if it is one.
    pub(crate) fn remove_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        self.remove_from(&mut self.writer()?.orphans.inner.lock(), handle, inode)
    }

    /// Adds an inode to the orphans if it has no names, or mapped blocks past its size. Removes it otherwise. The
    /// caller calls this after a change of the inode's names, size or map, with the handle of that change.
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
        self.writer()?.orphans.numbers.lock().insert(inode.number());
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
                self.writer()?.orphans.numbers.lock().remove(&inode.number());
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
                self.writer()?.orphans.numbers.lock().remove(&number);
                inode.update(handle, |record| record.deleted = 0)
            }
        }
    }
}

enum Position {
    List,
    File(Slot),
}

impl Inner {
    fn position(&self, number: InodeNumber) -> Option<Position> {
        if let Some(slot) = self.in_file.get(&number) {
            return Some(Position::File(*slot));
        }
        self.list.get(number).map(|_| Position::List)
    }
}

impl OrphanFile {
    /// Reads the file. Returns it with its used slots.
    fn open(volume: &Arc<Volume>, number: InodeNumber) -> Result<(Self, Vec<(Slot, InodeNumber)>)> {
        let inode = volume.special_inode(number)?;
        let (mut blocks, mut slots, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (block, verified) in (0..).zip(OrphanBlock::all(&inode)?) {
            let verified = verified?;
            let numbers = verified.numbers();
            blocks.push(verified.block());
            let used: Vec<bool> = numbers.iter().map(|number| number.get() != 0).collect();
            let free = used.iter().filter(|is_used| !**is_used).count();
            slots.push(BlockSlots { used, free });
            let used = (0..).zip(numbers).filter(|(_, number)| number.get() != 0);
            let used = used
                .map(|(index, number)| (Slot { block, index }, InodeNumber(number.get().into())));
            found.extend(used);
        }
        let seed = inode.record().checksum_seed;
        Ok((Self { blocks, seed, slots, hint: Slot { block: 0, index: 0 } }, found))
    }

    /// Returns whether all slots are free.
    fn is_empty(&self) -> bool {
        self.slots.iter().all(|block| block.free == block.used.len())
    }

    /// Returns a free slot.
    fn find_free_slot(&mut self) -> Option<Slot> {
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

    fn set_used(&mut self, slot: Slot, is_used: bool) {
        let block = &mut self.slots[slot.block as usize];
        let was_used = std::mem::replace(&mut block.used[slot.index as usize], is_used);
        block.free = block.free + usize::from(was_used) - usize::from(is_used);
    }

    /// Writes a number, or zero, to a slot.
    fn write_slot(&self, handle: &mut Handle<'_>, slot: Slot, number: InodeNumber) -> Result<()> {
        let block = self.blocks[slot.block as usize];
        handle.edit(block, ORPHAN_FILE, Location::block(block), |bytes| {
            file::edit(bytes, block, self.seed, |numbers| {
                let at = slot.index as usize * size_of::<u32>();
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
    use crate::common::fast_commits::{FastCommits, REGULAR, image_of};
    use crate::common::{self, Image, TIME, new_file};

    /// Returns a file with a block past its size.
    fn mapped(volume: &Arc<Volume>, name: &str) -> Arc<Inode> {
        let inode = new_file(volume, name);
        inode.map_write(FileOffset(0), 1024).unwrap();
        inode.map_writeback(FileOffset(0), 1024).unwrap();
        inode
    }

    /// Checks that an inode that the superblock names is refused as a file and as an orphan.
    #[track_caller]
    fn check_refused(volume: &Arc<Volume>, number: InodeNumber) {
        let root = volume.inode(ROOT_INODE).unwrap();
        assert_eq!(root.lookup(b"special"), Ok(number));
        for refused in [
            volume.inode(number),
            volume.marked_inode(number),
            found::validate(volume, number, ORPHAN_LIST),
        ] {
            assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
        }
        volume.special_inode(number).unwrap();
    }

    /// Returns an image whose root names the orphan file, and that file's number.
    fn with_name_of_orphan_file() -> (Image, InodeNumber) {
        let features = "orphan_file,fast_commit";
        let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-J", "size=4", "-O", features]);
        let number = image.open().superblock().inodes.orphan_file.unwrap();
        image.debugfs_write(&format!("link <{}> special\n", number.0));
        (image, number)
    }

    #[test]
    fn the_orphan_file_is_no_file_of_users_and_no_orphan() {
        let (image, number) = with_name_of_orphan_file();
        check_refused(&image.open(), number);
        check_refused(&common::open_for_writing(&image), number);
    }

    #[test]
    fn fast_commits_do_not_change_the_orphan_file() {
        let (image, number) = with_name_of_orphan_file();
        let mut commits = FastCommits::new(1024);
        commits.inode(number.0, &image_of(REGULAR, 0, 1, 0));
        commits.commit();
        commits.leave_in(&image);
        let refused = common::open_device_for_writing(image.device(false)).map(drop);
        assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    }

    #[test]
    fn a_journal_with_an_ordinary_number_is_no_file_of_users_and_no_orphan() {
        let image = Image::make(8, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
        image.debugfs_write("seti <20>\ncopy_inode <8> <20>\nssv journal_inum 20\n");
        image.debugfs_write("link <20> special\n");
        check_refused(&image.open(), InodeNumber(20));
        check_refused(&common::open_for_writing(&image), InodeNumber(20));
    }

    #[test]
    fn quota_files_with_ordinary_numbers_are_no_files_of_users() {
        let image = Image::filled(8, "-t ext4 -b 1024 -J size=1 -O quota", |folder| {
            std::fs::write(folder.join("special"), "").unwrap();
        });
        let number = common::inode_of(&image, "special");
        for field in ["usr_quota_inum", "grp_quota_inum", "prj_quota_inum"] {
            image.debugfs_write(&format!("ssv {field} {}\n", number.0));
            check_refused(&image.open(), number);
            image.debugfs_write(&format!("ssv {field} 0\n"));
        }
    }

    #[test]
    fn an_orphan_that_was_evicted_is_restored() {
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
        assert_eq!(second.record().deleted, 0, "no orphan follows any more");
        // It stays an orphan, since the end of its mapped blocks is unknown.
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
