//! The implementation of the traits of [`fs`] for ext2, ext3 and ext4 volumes.
//! Not here: the format.

use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use base::attributes::{
    AttributeChange, Attributes, CheckSummary, DirCursor, DirEntry, StatFs, Timestamp, VolumeInfo,
    XattrMode,
};
use base::space::ReserveAccess;
use base::{BlockSize, DeviceOffset, Error, FileOffset, InodeNumber, Result, Unsupported};
use device::SharedDevice;
use fs::{
    Allocation, CheckObserver, Credentials, Data, Directory, FileData, FileSystem, NewInode,
    RenameTarget, Shift,
};
use iomap::{EndIo, MapRead, Mapping, PageCache, ReadOptions, WritableFile};

use crate::namespace::{Named, RenameMode};
use crate::superblock::Superblock;
use crate::superblock::copy::{SuperblockCopy, SuperblockLocation};
use crate::volume::Volume;
use crate::volume::options::OpenOptions;
use crate::{Inode, ROOT_INODE};

/// The formats ext2, ext3 and ext4, with the options that only they have.
#[derive(Clone, Debug, Default)]
pub struct Format {
    /// The device of the journal, if that is external.
    pub journal_device: Option<SharedDevice>,
    /// The superblock to use. By default it is the first one, or if that is damaged, a copy that is
    /// found at a usual position.
    pub superblock: Option<SuperblockLocation>,
}

impl fs::Format for Format {
    fn is_on(&self, device: &SharedDevice) -> Result<bool> {
        Ok(self.superblock.is_some() || Superblock::has_magic(device)?)
    }

    fn has_copy_on(&self, device: &SharedDevice, cache: &Arc<PageCache>) -> Result<bool> {
        Ok(Volume::has_copy(device, cache))
    }

    fn volume_bytes(&self, device: &SharedDevice) -> Option<u64> {
        Superblock::volume_bytes(device, self.superblock)
    }

    fn remains_on(&self, device: &SharedDevice) -> Option<Unsupported> {
        let copies = SuperblockCopy::find(device, u64::MAX);
        let copy = copies.first()?;
        let block_size = copy.superblock.geometry.block_size.bytes();
        Some(Unsupported::Remains { copy: copy.block, block_size })
    }

    fn open(
        &self,
        device: &SharedDevice,
        cache: &Arc<PageCache>,
        options: &fs::FormatOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        if options.writable && options.no_recovery {
            return Err(Error::InvalidArgument(
                "a volume cannot be opened for writing without recovery",
            ));
        }
        let own_options = OpenOptions {
            no_recovery: options.no_recovery,
            discard: options.discard,
            commit_interval: options.commit_interval,
            errors: options.errors,
            journal_device: self.journal_device.clone(),
            superblock: self.superblock,
            keys: Arc::clone(&options.keys),
            wait_callback: options.wait_callback.clone(),
        };
        let device = Arc::clone(device);
        let volume = if options.writable {
            Volume::open_for_writing(device, cache, &own_options)?
        } else {
            Volume::open(device, cache, &own_options)?
        };
        Ok(volume.file_system())
    }
}

#[derive(Debug)]
struct Ext4 {
    volume: Arc<Volume>,
}

impl Volume {
    /// Returns the volume as callers of any format see it.
    pub fn file_system(self: &Arc<Self>) -> Arc<dyn FileSystem> {
        Arc::new(Ext4 { volume: Arc::clone(self) })
    }
}

impl FileSystem for Ext4 {
    fn root(&self) -> InodeNumber {
        ROOT_INODE
    }

    fn block_size(&self) -> BlockSize {
        self.volume.geometry().block_size
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn fs::Inode>> {
        let inode =
            self.volume.inode(number).inspect_err(|error| self.volume.apply_error_policy(error))?;
        Ok(wrap(Arc::new(inode)))
    }

    fn load_kept_inode(&self, number: InodeNumber) -> Result<Arc<dyn fs::Inode>> {
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

    fn reserve_access_of(&self, by: &Credentials) -> ReserveAccess {
        self.volume.reserve_access_of(by.uid, |gid| by.is_in_group(gid))
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
        let copy = self.volume.warning();
        let copy = copy.map(|copy| format!("the superblock in use is the {copy}"));
        let journal = self.volume.journal_damage().map(|error| {
            format!("the journal is damaged ({error}): the changes in it from there on are missing")
        });
        let parts: Vec<String> = copy.into_iter().chain(journal).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn default_options(&self) -> fs::DefaultOptions {
        let defaults = self.volume.superblock().default_options();
        fs::DefaultOptions { bsd_groups: defaults.bsd_groups, others: defaults.others }
    }

    fn has_error_mark(&self) -> bool {
        crate::orphans::found::has_errors(&self.volume)
    }

    fn check(&self, observer: &mut dyn CheckObserver) -> CheckSummary {
        self.volume.check_with(observer)
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

    fn mark_clean(&self) -> Result<()> {
        if self.is_writable() { self.volume.mark_clean() } else { Ok(()) }
    }

    fn mark_in_use(&self) -> Result<()> {
        self.volume.mark_in_use()
    }

    fn close(&self) -> Result<()> {
        if self.is_writable() { self.volume.close() } else { Ok(()) }
    }
}

#[derive(Debug)]
struct Ext4Inode {
    inode: Arc<Inode>,
}

impl Ext4Inode {
    /// Reports an error that a read has found to the volume.
    fn found(&self, error: &Error) {
        self.inode.volume().apply_error_policy(error);
    }
}

/// Returns this format's inode behind `inode`. Errors: `InvalidArgument` if it belongs to another
/// format.
fn own(inode: &dyn fs::Inode) -> Result<&Arc<Inode>> {
    let own = inode.as_any().downcast_ref::<Ext4Inode>();
    own.map(|own| &own.inode).ok_or(Error::InvalidArgument("the inode is on another volume"))
}

fn wrap(inode: Arc<Inode>) -> Arc<dyn fs::Inode> {
    Arc::new(Ext4Inode { inode })
}

impl fs::Inode for Ext4Inode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        self.inode.attributes()
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

    fn verity_digest(&self) -> Result<Option<String>> {
        self.inode.verity_digest()
    }

    fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        self.inode.set_attributes(change)
    }

    fn set_flags(&self, flags: u32, time: Timestamp) -> Result<()> {
        self.inode.set_flags(flags, time)
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

    fn release(&self) -> Result<()> {
        self.inode.release()
    }

    fn sync(&self, _range: Range<u64>, data_only: bool) -> Result<()> {
        self.inode.sync(data_only)
    }
}

impl Directory for Ext4Inode {
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

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn fs::Inode>> {
        self.inode.create(name, new).map(wrap)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<dyn fs::Inode>> {
        self.inode.create_unnamed(new).map(wrap)
    }

    fn link(&self, name: &[u8], inode: &dyn fs::Inode, time: Timestamp) -> Result<()> {
        self.inode.link(name, own(inode)?, time)
    }

    fn unlink(&self, name: &[u8], inode: &dyn fs::Inode, time: Timestamp) -> Result<()> {
        self.inode.unlink(name, own(inode)?, time)
    }

    fn rmdir(&self, name: &[u8], inode: &dyn fs::Inode, time: Timestamp) -> Result<()> {
        self.inode.rmdir(name, own(inode)?, time)
    }

    fn rename(
        &self,
        name: &[u8],
        moved: &dyn fs::Inode,
        to: RenameTarget<'_>,
        mode: fs::RenameMode<'_>,
        time: Timestamp,
    ) -> Result<()> {
        let from = Named { directory: &self.inode, name };
        let target = Named { directory: own(to.directory)?, name: to.name };
        let replaced = to.replaced.map(own).transpose()?;
        let mode = match mode {
            fs::RenameMode::Move => RenameMode::Move,
            fs::RenameMode::Exchange => RenameMode::Exchange,
            fs::RenameMode::Whiteout(inode) => RenameMode::Whiteout(Arc::clone(own(inode)?)),
        };
        own(moved)?.rename(from, target, replaced, &mode, time)
    }
}

impl Data for Ext4Inode {
    fn data(&self) -> Result<FileData<'_>> {
        if !self.inode.has_map() {
            return Err(Error::WrongType("files of this type have no data blocks"));
        }
        self.inode.check_readable()?;
        let mapper: &dyn MapRead = &*self.inode;
        Ok(FileData { mapper, size: self.inode.size() })
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
}

impl Allocation for Ext4Inode {
    fn size_max(&self) -> u64 {
        self.inode.size_max()
    }

    fn set_size(&self, size: u64, keeps_space: bool, time: Timestamp) -> Result<()> {
        self.inode.set_size(size, keeps_space, time)
    }

    fn preallocate(&self, range: Range<FileOffset>) -> Result<()> {
        self.inode.preallocate(range)
    }

    fn prepare_to_clear(&self) -> Result<()> {
        self.inode.convert_inline_data_if_any()
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
        donor: &dyn fs::Inode,
        to: FileOffset,
        copy: &mut dyn FnMut(Range<FileOffset>, DeviceOffset) -> Result<()>,
    ) -> Result<u64> {
        self.inode.move_extents(range, own(donor)?, to, copy)
    }

    fn allocation_unit(&self) -> u64 {
        self.inode.allocation_unit()
    }
}
