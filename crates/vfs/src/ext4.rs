//! The adapter of ext2, ext3 and ext4 volumes to [`FileSystem`]. Not here: the format.

use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use base::attributes::{
    AttributeChange, Attributes, CheckSummary, DirCursor, DirEntry, StatFs, Timestamp, VolumeInfo,
    XattrMode,
};
use base::space::Privilege;
use base::{BlockSize, DeviceOffset, Error, FileOffset, InodeNumber, Result};
use device::SharedDevice;
use iomap::{EndIo, MapRead, ReadOptions, WritableFile};
use pagecache::{Mapping, PageCache};

use crate::file_system::{FileData, FileSystem, Inode, NewInode, RenameMode, RenameTarget, Shift};
use crate::rights::Credentials;
use crate::volume::{SuperblockPlace, VolumeOptions};

/// Opens the volume on `device`, if it has the format's magic number.
pub(crate) fn open(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    options: &VolumeOptions,
) -> Result<Option<Arc<dyn FileSystem>>> {
    let has_superblock = options.superblock.is_some() || ext4::Superblock::has_magic(device)?;
    if !has_superblock && !ext4::Volume::has_copy(device, cache) {
        return Ok(None);
    }
    let writable = options.writable;
    if writable && options.no_recovery {
        return Err(Error::InvalidArgument(
            "a volume cannot be opened for writing without recovery",
        ));
    }
    let options = ext4::OpenOptions {
        no_recovery: options.no_recovery,
        discard: options.discard,
        commit_interval: options.commit_interval,
        errors: options.errors,
        journal_device: options.journal_device.clone(),
        superblock: options.superblock.map(|place| {
            let SuperblockPlace { block, block_size } = place;
            ext4::SuperblockPlace { block, block_size }
        }),
        patience: options.patience.clone(),
    };
    let volume = if writable {
        ext4::Volume::open_for_writing(Arc::clone(device), cache, &options)?
    } else {
        ext4::Volume::open(Arc::clone(device), cache, &options)?
    };
    Ok(Some(Arc::new(Ext4 { volume })))
}

#[derive(Debug)]
struct Ext4 {
    volume: Arc<ext4::Volume>,
}

impl FileSystem for Ext4 {
    fn root(&self) -> InodeNumber {
        ext4::ROOT_INODE
    }

    fn block_size(&self) -> BlockSize {
        self.volume.geometry().block_size
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        let inode = self.volume.inode(number).inspect_err(|error| self.volume.found(error))?;
        Ok(wrap(Arc::new(inode)))
    }

    fn load_kept_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        match self.volume.marked_inode(number) {
            Ok(inode) => Ok(wrap(Arc::new(inode))),
            // The caller may pass any number: this error is no damage of the volume.
            Err(Error::Corrupt(_)) => Err(Error::NotFound),
            Err(error) => Err(error),
        }
    }

    fn statfs(&self) -> StatFs {
        self.volume.statfs()
    }

    fn time_granularity(&self) -> u32 {
        self.volume.time_granularity()
    }

    fn privilege_of(&self, by: &Credentials) -> Privilege {
        self.volume.privilege_of(by.uid, |gid| by.is_in_group(gid))
    }

    fn trim(&self, bytes: Range<u64>, bytes_min: u64) -> Result<u64> {
        self.volume.trim(bytes, bytes_min)
    }

    fn label(&self) -> Result<Vec<u8>> {
        self.volume.label()
    }

    fn set_label(&self, label: &[u8]) -> Result<()> {
        self.volume.set_label(label)
    }

    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn warning(&self) -> Option<String> {
        self.volume.warning()
    }

    fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        self.volume.check(found)
    }

    fn device(&self) -> &SharedDevice {
        self.volume.device()
    }

    fn is_writable(&self) -> bool {
        self.volume.is_writable()
    }

    fn check_writable(&self) -> Result<()> {
        self.volume.check_writable()
    }

    fn panicked(&self, operation: &'static str) {
        self.volume.panicked(operation);
    }

    fn delay_commits(&self, work: &mut dyn FnMut()) {
        self.volume.delay_commits(work);
    }

    fn sync(&self) -> Result<()> {
        if self.is_writable() { self.volume.sync() } else { Ok(()) }
    }

    fn close(&self) -> Result<()> {
        if self.is_writable() { self.volume.close() } else { Ok(()) }
    }
}

#[derive(Debug)]
struct Ext4Inode {
    inode: Arc<ext4::Inode>,
}

impl Ext4Inode {
    /// Has the volume deal with what reading has found.
    fn found(&self, error: &Error) {
        self.inode.volume().found(error);
    }
}

/// Returns the format's own inode behind one that a caller names.
fn own(inode: &dyn Inode) -> Result<&Arc<ext4::Inode>> {
    let own = inode.as_any().downcast_ref::<Ext4Inode>();
    own.map(|own| &own.inode).ok_or(Error::InvalidArgument("the inode is on another volume"))
}

fn wrap(inode: Arc<ext4::Inode>) -> Arc<dyn Inode> {
    Arc::new(Ext4Inode { inode })
}

fn new_inode<'a>(new: &NewInode<'a>) -> ext4::NewInode<'a> {
    let NewInode { kind, permissions, uid, gid, device, target, xattrs, time, created } = *new;
    ext4::NewInode { kind, permissions, uid, gid, device, target, xattrs, time, created }
}

impl Inode for Ext4Inode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        self.inode.attributes()
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        self.inode.lookup(name)
    }

    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inode.read_dir(from, emit).inspect_err(|error| self.found(error))
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.inode.read_link().inspect_err(|error| self.found(error))
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.inode.list_xattrs().inspect_err(|error| self.found(error))
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.inode.get_xattr(name).inspect_err(|error| self.found(error))
    }

    fn data(&self) -> Result<FileData<'_>> {
        if !self.inode.has_map() {
            return Err(Error::WrongType("files of this type have no data blocks"));
        }
        self.inode.check_readable()?;
        let mapper: &dyn MapRead = &*self.inode;
        Ok(FileData { mapper, size: self.inode.size() })
    }

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        self.inode.create(name, &new_inode(new)).map(wrap)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        self.inode.create_unnamed(&new_inode(new)).map(wrap)
    }

    fn link(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        self.inode.link(name, own(inode)?, time)
    }

    fn unlink(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        self.inode.unlink(name, own(inode)?, time)
    }

    fn rmdir(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        self.inode.rmdir(name, own(inode)?, time)
    }

    fn rename(
        &self,
        name: &[u8],
        moved: &dyn Inode,
        to: RenameTarget<'_>,
        mode: RenameMode<'_>,
        time: Timestamp,
    ) -> Result<()> {
        let from = ext4::Named { directory: &self.inode, name };
        let target = ext4::Named { directory: own(to.directory)?, name: to.name };
        let replaced = to.replaced.map(own).transpose()?;
        let mode = match mode {
            RenameMode::Move => ext4::RenameMode::Move,
            RenameMode::Exchange => ext4::RenameMode::Exchange,
            RenameMode::Whiteout(inode) => ext4::RenameMode::Whiteout(Arc::clone(own(inode)?)),
        };
        own(moved)?.rename(from, target, replaced, &mode, time)
    }

    fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        self.inode.set_attributes(change)
    }

    fn set_flags(&self, flags: u32, time: Timestamp) -> Result<()> {
        self.inode.set_flags(flags, time)
    }

    fn size_max(&self) -> u64 {
        self.inode.size_max()
    }

    fn set_size(&self, size: u64, keeps_space: bool, time: Timestamp) -> Result<()> {
        self.inode.set_size(size, keeps_space, time)
    }

    fn preallocate(&self, range: Range<FileOffset>) -> Result<()> {
        self.inode.preallocate(range)
    }

    fn leave_inline(&self) -> Result<()> {
        self.inode.leave_inline()
    }

    fn clear(&self, range: Range<FileOffset>, keeps_space: bool) -> Result<()> {
        if keeps_space { self.inode.zero(range) } else { self.inode.punch(range) }
    }

    fn shift(&self, range: Range<FileOffset>, to: Shift, size: u64, time: Timestamp) -> Result<()> {
        match to {
            Shift::Collapse => self.inode.collapse(range, size, time),
            Shift::Insert => self.inode.insert(range, size, time),
        }
    }

    fn check_movable(&self) -> Result<()> {
        self.inode.check_movable()
    }

    fn move_extents(
        &self,
        range: Range<FileOffset>,
        donor: &dyn Inode,
        to: FileOffset,
        copy: &mut dyn FnMut(Range<FileOffset>, DeviceOffset) -> Result<()>,
    ) -> Result<u64> {
        self.inode.move_extents(range, own(donor)?, to, copy)
    }

    fn allocation_unit(&self) -> u64 {
        self.inode.allocation_unit()
    }

    fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        change: &AttributeChange,
    ) -> Result<()> {
        self.inode.set_xattr(name, value, mode, change)
    }

    fn remove_xattr(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        self.inode.remove_xattr(name, change)
    }

    fn writable_file(
        &self,
        mapping: Arc<Mapping>,
        end_io: &Arc<EndIo>,
        options: ReadOptions,
    ) -> Result<Option<Arc<WritableFile>>> {
        let device = Arc::clone(self.inode.volume().device());
        let (inode, size) = (Arc::clone(&self.inode), self.inode.size());
        let file = WritableFile::new(mapping, inode, device, Arc::clone(end_io), size, options);
        Ok(Some(file))
    }

    fn opened_for_writing(&self) {
        self.inode.opened_for_writing();
    }

    fn closed_for_writing(&self) {
        self.inode.closed_for_writing();
    }

    fn note_modified(&self, time: Timestamp) {
        self.inode.note_modified(time);
    }

    fn note_accessed(&self, time: Timestamp) {
        self.inode.note_accessed(time);
    }

    fn has_pending(&self) -> bool {
        self.inode.has_pending()
    }

    fn write_pending(&self) -> Result<()> {
        self.inode.write_pending()
    }

    fn released(&self) -> Result<()> {
        self.inode.release()
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.inode.sync(data_only)
    }
}
