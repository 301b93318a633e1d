//! An inode of a file system in memory, with the traits of a format.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};

use base::attributes::{
    AttributeChange, Attributes, DirCursor, DirEntry, FileType, Timestamp, XattrMode,
};
use base::{DeviceOffset, Error, FileOffset, InodeNumber, Result};
use fs::{Allocation, Data, Directory, FileData, Inode, NewInode, RenameMode, RenameTarget};
use iomap::{
    EndIo, FinishedRange, Iomap, IomapKind, MapFlags, MapRead, MapWrite, Mapping, ReadOptions,
    WritableFile,
};

use super::{BLOCK_BYTES, DATA_BYTES_MAX, Disk, INODES_MAX, ROOT, Record};

/// The largest size of a file in bytes, most of which is a hole.
const SIZE_MAX: u64 = 1 << 30;

/// An inode in memory.
#[derive(Debug)]
pub struct MemoryInode {
    disk: Arc<Disk>,
    number: u64,
    /// The version of the record that this inode has loaded.
    version: AtomicU64,
    /// The number of calls in progress that read, or -1 for a call that changes the inode.
    users: AtomicIsize,
    is_released: AtomicBool,
}

/// A call in progress.
struct Call<'a> {
    users: &'a AtomicIsize,
    alone: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let change = if self.alone { 1 } else { -1 };
        self.users.fetch_add(change, Ordering::SeqCst);
    }
}

impl MemoryInode {
    pub(crate) fn new(disk: &Arc<Disk>, number: u64, version: u64) -> Self {
        Self {
            disk: Arc::clone(disk),
            number,
            version: AtomicU64::new(version),
            users: AtomicIsize::new(0),
            is_released: AtomicBool::new(false),
        }
    }

    fn reading(&self) -> Call<'_> {
        self.check_current();
        let users = self.users.fetch_add(1, Ordering::SeqCst);
        assert!(users >= 0, "inode {} is read while it changes", self.number);
        // Lets concurrent calls run.
        std::thread::yield_now();
        Call { users: &self.users, alone: false }
    }

    fn changing(&self) -> Call<'_> {
        self.check_current();
        let begun = self.users.compare_exchange(0, -1, Ordering::SeqCst, Ordering::SeqCst);
        assert!(begun.is_ok(), "inode {} changes while it is in use", self.number);
        std::thread::yield_now();
        Call { users: &self.users, alone: true }
    }

    fn check_current(&self) {
        assert!(!self.is_released.load(Ordering::SeqCst), "inode {} is gone", self.number);
        let known = self.version.load(Ordering::SeqCst);
        let current = self.disk.inodes().get(&self.number).map(|record| record.version);
        assert_eq!(current, Some(known), "inode {} is out of date", self.number);
    }

    /// Returns a copy of the record.
    fn record(&self) -> Record {
        self.disk.inodes().get(&self.number).expect("it is in use").clone()
    }

    fn update<R>(
        &self,
        inodes: &mut BTreeMap<u64, Record>,
        change: impl FnOnce(&mut Record) -> R,
    ) -> R {
        let record = inodes.get_mut(&self.number).expect("it is in use");
        record.version += 1;
        self.version.store(record.version, Ordering::SeqCst);
        change(record)
    }

    fn touch(&self, inodes: &mut BTreeMap<u64, Record>, time: Timestamp) {
        self.update(inodes, |record| {
            record.attributes.modified = time;
            record.attributes.changed = time;
        });
    }

    /// Creates an inode with the lowest free number, so that numbers are soon used again.
    fn make(&self, inodes: &mut BTreeMap<u64, Record>, new: &NewInode<'_>, links: u32) -> Self {
        let number = (ROOT..).find(|number| !inodes.contains_key(number));
        let number = number.expect("numbers do not run out");
        // Versions are unique, so that stale inodes with the same number are detected.
        let mut record = Record::new(number, new, links, self.number);
        record.version = (self.disk.released.load(Ordering::Relaxed) as u64 + 1) << 32;
        let inode = Self::new(&self.disk, number, record.version);
        inodes.insert(number, record);
        inode
    }

    fn check_names(&self, inodes: &BTreeMap<u64, Record>) -> Result<()> {
        self.disk.check_writable()?;
        let record = &inodes[&self.number];
        assert_eq!(record.attributes.kind, FileType::Directory, "only directories have names");
        assert!(record.attributes.links > 0, "the caller knows that the directory was removed");
        Ok(())
    }

    fn remove_entry(&self, inodes: &mut BTreeMap<u64, Record>, name: &[u8], number: u64) {
        let removed = self.update(inodes, |record| record.entries.remove(name));
        assert_eq!(removed, Some(number), "the caller knows the name's inode");
    }

    fn remove_link(&self, inodes: &mut BTreeMap<u64, Record>, time: Timestamp) {
        self.update(inodes, |record| {
            let links = &mut record.attributes.links;
            *links = if record.attributes.kind == FileType::Directory { 0 } else { *links - 1 };
            record.attributes.changed = time;
        });
    }

    fn count_subdirectory(&self, inodes: &mut BTreeMap<u64, Record>, change: i32) {
        self.update(inodes, |record| {
            record.attributes.links = record.attributes.links.checked_add_signed(change).unwrap();
        });
    }

    fn remove(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        let inode = memory(inode);
        let _calls = (self.changing(), inode.changing());
        let mut inodes = self.disk.inodes();
        self.check_names(&inodes)?;
        if !inodes[&inode.number].entries.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.remove_entry(&mut inodes, name, inode.number);
        if inodes[&inode.number].attributes.kind == FileType::Directory {
            self.count_subdirectory(&mut inodes, -1);
        }
        inode.remove_link(&mut inodes, time);
        self.touch(&mut inodes, time);
        Ok(())
    }

    /// Updates the parent of a directory that was moved, and the link counts of both parents.
    fn set_parent(&self, inodes: &mut BTreeMap<u64, Record>, from: &Self, to: &Self) {
        if inodes[&self.number].attributes.kind == FileType::Directory {
            from.count_subdirectory(inodes, -1);
            to.count_subdirectory(inodes, 1);
            self.update(inodes, |record| record.parent = to.number);
        }
    }
}

fn memory(inode: &dyn Inode) -> &MemoryInode {
    inode.as_any().downcast_ref().expect("an inode of the same file system")
}

fn apply(attributes: &mut Attributes, change: &AttributeChange) {
    attributes.permissions = change.permissions.unwrap_or(attributes.permissions);
    attributes.uid = change.uid.unwrap_or(attributes.uid);
    attributes.gid = change.gid.unwrap_or(attributes.gid);
    attributes.accessed = change.accessed.unwrap_or(attributes.accessed);
    attributes.modified = change.modified.unwrap_or(attributes.modified);
    attributes.changed = change.changed.unwrap_or(attributes.changed);
}

impl Inode for MemoryInode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        self.record().attributes
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        let _call = self.reading();
        Ok(self.record().target)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let _call = self.reading();
        Ok(self.record().xattrs.into_keys().collect())
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let _call = self.reading();
        self.record().xattrs.remove(name).ok_or(Error::NoAttribute)
    }

    fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        let _call = self.changing();
        self.disk.check_writable()?;
        let mut inodes = self.disk.inodes();
        self.update(&mut inodes, |record| apply(&mut record.attributes, change));
        Ok(())
    }

    fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        change: &AttributeChange,
    ) -> Result<()> {
        let _call = self.changing();
        self.disk.check_writable()?;
        let mut inodes = self.disk.inodes();
        match (mode, inodes[&self.number].xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        self.update(&mut inodes, |record| {
            record.xattrs.insert(name.to_vec(), value.to_vec());
            apply(&mut record.attributes, change);
        });
        Ok(())
    }

    fn remove_xattr(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        let _call = self.changing();
        self.disk.check_writable()?;
        let mut inodes = self.disk.inodes();
        if !inodes[&self.number].xattrs.contains_key(name) {
            return Err(Error::NoAttribute);
        }
        self.update(&mut inodes, |record| {
            record.xattrs.remove(name);
            apply(&mut record.attributes, change);
        });
        Ok(())
    }

    fn note_modified(&self, time: Timestamp) {
        let mut inodes = self.disk.inodes();
        let record = inodes.get_mut(&self.number).expect("it is in use");
        record.attributes.modified = time;
        record.attributes.changed = time;
    }

    fn release(&self) -> Result<()> {
        let _call = self.changing();
        assert!(!self.is_released.swap(true, Ordering::SeqCst), "released twice");
        let mut inodes = self.disk.inodes();
        let record = inodes.remove(&self.number).expect("it is in use");
        assert_eq!(record.attributes.links, 0, "inode {} has names", self.number);
        self.disk.note_release();
        Ok(())
    }

    fn sync(&self, _range: Range<u64>, _data_only: bool) -> Result<()> {
        self.disk.note_sync();
        Ok(())
    }
}

impl Directory for MemoryInode {
    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        let _call = self.reading();
        let record = self.record();
        let number = match name {
            b"." => self.number,
            b".." => record.parent,
            name => *record.entries.get(name).ok_or(Error::NotFound)?,
        };
        Ok(InodeNumber(number))
    }

    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _call = self.reading();
        let record = self.record();
        let dots = [(b".".to_vec(), self.number), (b"..".to_vec(), record.parent)];
        let entries = dots.into_iter().chain(record.entries);
        for (index, (name, number)) in (0..).zip(entries).skip(from.0 as usize) {
            let next = DirCursor(index + 1);
            let entry = DirEntry { name: &name, inode: InodeNumber(number), kind: None, next };
            if emit(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _call = self.changing();
        let mut inodes = self.disk.inodes();
        self.check_names(&inodes)?;
        if inodes[&self.number].entries.contains_key(name) {
            return Err(Error::Exists);
        }
        let is_directory = new.kind == FileType::Directory;
        let inode = self.make(&mut inodes, new, if is_directory { 2 } else { 1 });
        let number = inode.number;
        self.update(&mut inodes, |record| record.entries.insert(name.to_vec(), number));
        self.count_subdirectory(&mut inodes, i32::from(is_directory));
        self.touch(&mut inodes, new.time);
        Ok(Arc::new(inode))
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _call = self.changing();
        let mut inodes = self.disk.inodes();
        self.check_names(&inodes)?;
        Ok(Arc::new(self.make(&mut inodes, new, 0)))
    }

    fn link(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        let inode = memory(inode);
        let _calls = (self.changing(), inode.changing());
        let mut inodes = self.disk.inodes();
        self.check_names(&inodes)?;
        if inodes[&self.number].entries.contains_key(name) {
            return Err(Error::Exists);
        }
        self.update(&mut inodes, |record| record.entries.insert(name.to_vec(), inode.number));
        inode.update(&mut inodes, |record| {
            record.attributes.links += 1;
            record.attributes.changed = time;
        });
        self.touch(&mut inodes, time);
        Ok(())
    }

    fn unlink(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        assert_ne!(inode.attributes().kind, FileType::Directory, "the caller knows");
        self.remove(name, inode, time)
    }

    fn rmdir(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        assert_eq!(inode.attributes().kind, FileType::Directory, "the caller knows");
        self.remove(name, inode, time)
    }

    fn rename(
        &self,
        name: &[u8],
        moved: &dyn Inode,
        to: RenameTarget<'_>,
        mode: RenameMode<'_>,
        time: Timestamp,
    ) -> Result<()> {
        let (moved, directory, replaced) =
            (memory(moved), memory(to.directory), to.replaced.map(memory));
        let mut locked = BTreeMap::new();
        for inode in [Some(self), Some(moved), Some(directory), replaced].into_iter().flatten() {
            locked.entry(inode.number).or_insert_with(|| inode.changing());
        }
        let mut inodes = self.disk.inodes();
        self.check_names(&inodes)?;
        directory.check_names(&inodes)?;
        let exchange = matches!(mode, RenameMode::Exchange);
        if let (Some(replaced), false) = (replaced, exchange) {
            assert_ne!(replaced.number, moved.number, "the caller knows");
            if !inodes[&replaced.number].entries.is_empty() {
                return Err(Error::NotEmpty);
            }
            directory.remove_entry(&mut inodes, to.name, replaced.number);
            if inodes[&replaced.number].attributes.kind == FileType::Directory {
                directory.count_subdirectory(&mut inodes, -1);
            }
            replaced.remove_link(&mut inodes, time);
        }
        self.remove_entry(&mut inodes, name, moved.number);
        if let (Some(other), true) = (replaced, exchange) {
            directory.remove_entry(&mut inodes, to.name, other.number);
            self.update(&mut inodes, |record| record.entries.insert(name.to_vec(), other.number));
            other.set_parent(&mut inodes, directory, self);
        }
        if let RenameMode::Whiteout(whiteout) = mode {
            let whiteout = memory(whiteout);
            self.update(&mut inodes, |record| record.entries.insert(name.into(), whiteout.number));
            whiteout.update(&mut inodes, |record| record.attributes.links = 1);
        }
        directory.update(&mut inodes, |record| {
            let before = record.entries.insert(to.name.to_vec(), moved.number);
            assert_eq!(before, None, "the caller knows the new name's inode");
        });
        moved.set_parent(&mut inodes, self, directory);
        self.touch(&mut inodes, time);
        directory.touch(&mut inodes, time);
        Ok(())
    }
}

impl Data for MemoryInode {
    fn data(&self) -> Result<FileData<'_>> {
        Ok(FileData { mapper: self, size: self.record().attributes.size })
    }

    fn writable_file(
        &self,
        mapping: Arc<Mapping>,
        end_io: &Arc<EndIo>,
        options: ReadOptions,
    ) -> Result<Option<Arc<WritableFile>>> {
        let inodes = self.disk.inodes();
        let size = inodes[&self.number].attributes.size;
        drop(inodes);
        let (device, end_io) = (Arc::clone(&self.disk.device), Arc::clone(end_io));
        // A separate value for the data, which does not take part in the checks of concurrent
        // calls.
        let data = Arc::new(Self::new(&self.disk, self.number, 0));
        Ok(Some(WritableFile::new(mapping, data, device, end_io, size, options)))
    }
}

impl Allocation for MemoryInode {
    fn set_size(&self, size: u64, _keeps_space: bool, time: Timestamp) -> Result<()> {
        let _call = self.changing();
        self.disk.check_writable()?;
        if size > SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        let mut inodes = self.disk.inodes();
        self.update(&mut inodes, |record| {
            record.attributes.size = size;
            record.written.retain(|block| block * BLOCK_BYTES < size);
        });
        self.touch(&mut inodes, time);
        Ok(())
    }
}

impl MapRead for MemoryInode {
    fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap> {
        let block = at.0 / BLOCK_BYTES;
        let is_written = self.record().written.contains(&block);
        Ok(self.map(block, if is_written { IomapKind::Mapped } else { IomapKind::Unwritten }))
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

impl MapWrite for MemoryInode {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let room = self.number < INODES_MAX && at.0 + length <= DATA_BYTES_MAX;
        if room { self.map_read(at, length) } else { Err(Error::NoSpace) }
    }

    fn end_write(&self, _unused: Range<FileOffset>) {}

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.map_read(at, length)
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        let mut inodes = self.disk.inodes();
        // Does not change the version, since this does not affect other values for the inode.
        let record = inodes.get_mut(&self.number).expect("an inode with I/O in flight exists");
        for range in finished {
            record.written.extend(range.offset.0 / BLOCK_BYTES..range.end() / BLOCK_BYTES);
        }
        record.attributes.size = record.attributes.size.max(size.0);
        Ok(())
    }
}

impl MemoryInode {
    fn map(&self, block: u64, kind: IomapKind) -> Iomap {
        let within = block * BLOCK_BYTES;
        let has_room = within < DATA_BYTES_MAX && self.number < INODES_MAX;
        Iomap {
            offset: FileOffset(within),
            length: BLOCK_BYTES,
            kind: if has_room { kind } else { IomapKind::Hole },
            address: has_room.then_some(DeviceOffset(self.number * DATA_BYTES_MAX + within)),
            flags: MapFlags::default(),
        }
    }
}
