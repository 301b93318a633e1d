//! The orphans that a volume has when it is opened. Not here: their completion (`recovery`).

use std::sync::Arc;

use base::{Error, InodeNumber, Location, Problem, Result};

use crate::features::Feature;
use crate::inode::Inode;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::ondisk::superblock::SUPERBLOCK_OFFSET;
use crate::orphans::block::ORPHAN_FILE;
use crate::orphans::file;
use crate::orphans::found::{self, FoundList, ORPHAN_LIST, OrphanErrors};
use crate::orphans::set::{BlockSlots, Inner, Listed, OrphanFile, OrphanSet, Slot};
use crate::volume::Volume;

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

impl Listed {
    pub(super) fn new(inode: &Inode) -> Self {
        Self { record: Some(Arc::clone(&inode.record)) }
    }

    /// Shares the record with the orphan's inode, which was just read.
    fn share_with(&mut self, inode: &mut Inode) {
        match &self.record {
            Some(record) => inode.record = Arc::clone(record),
            None => *self = Self::new(inode),
        }
    }
}

impl OrphanSet {
    /// Creates the set of a volume, without the existing orphans, which [`adopt`](Self::adopt)
    /// adds.
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

    /// [`open`](Self::open) for recovery: without an orphan file that is marked as empty, or that
    /// cannot be read.
    pub(crate) fn open_for_recovery(volume: &Arc<Volume>) -> Result<Self> {
        if !volume.superblock().has(Feature::OrphanPresent) {
            return Ok(Self::new(Inner::default()));
        }
        match Self::open(volume) {
            Err(error) => Ok(Self::new(Inner { failure: Some(error), ..Inner::default() })),
            opened => opened,
        }
    }

    /// Adds the orphans that the volume had when it was opened, from the list and from the file. An
    /// entry that is not a valid orphan is not added: in the list, it ends the list; in the file,
    /// it keeps its slot. On a volume `with_errors`, adds none.
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
        all.for_each(|number| self.numbers.insert(*number));
        Ok(adopted)
    }

    /// Reads the inode of an adopted orphan. Errors: as in [`found::validate`], since on a corrupt
    /// volume the deletion of another orphan may have freed it.
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

    /// Restores the state of an orphan in an inode that was just read again. Such an inode was
    /// evicted after blocks past its size could not be written or freed.
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
}

impl OrphanFile {
    /// Reads the file. Returns it with its used slots.
    fn open(volume: &Arc<Volume>, number: InodeNumber) -> Result<(Self, Vec<(Slot, InodeNumber)>)> {
        let inode = volume.special_inode(number)?;
        let (mut blocks, mut slots, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (block, verified) in (0..).zip(file::blocks(&inode)?) {
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
