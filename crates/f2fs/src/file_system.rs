//! The implementation of the traits of [`fs`] for f2fs volumes.
//! Not here: the format.

use std::any::Any;
use std::ops::{ControlFlow, Range, RangeInclusive};
use std::sync::Arc;
use std::time::Instant;

use base::attributes::{
    AttributeChange, Attributes, CheckSummary, DirCursor, DirEntry, StatFs, Timestamp, VolumeInfo,
    XattrMode,
};
use base::{BlockSize, Error, FileOffset, FsBlock, InodeNumber, Result, Unsupported};
use device::SharedDevice;
use fs::{
    Allocation, AtomicWrite, CheckObserver, Cleaning, Data, Directory, FileData, FileSystem,
    NewInode, RangeCleaning, RenameTarget, Shift,
};
use iomap::{EndIo, Mapping, PageCache, ReadOptions, WritableFile};

use crate::core::Core;
use crate::features::Feature;
use crate::format::Format;
use crate::inode::Inode;
use crate::live::{LiveInode, Named, RenameMode};
use crate::residents::Resident;
use crate::superblock::Superblock;
use crate::volume::Volume;
use crate::write::Writer;

impl fs::Format for Format {
    fn is_on(&self, device: &SharedDevice) -> Result<bool> {
        Superblock::has_magic(device)
    }

    fn has_copy_on(&self, device: &SharedDevice, _cache: &Arc<PageCache>) -> Result<bool> {
        Ok(Superblock::has_copy(device))
    }

    fn volume_bytes(&self, device: &SharedDevice) -> Option<u64> {
        Superblock::volume_bytes(device)
    }

    fn remains_on(&self, _device: &SharedDevice) -> Option<Unsupported> {
        // There are two superblocks, and a volume is opened from either.
        None
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
        let device = Arc::clone(device);
        let volume = if options.writable {
            Volume::open_for_writing(device, cache, options, self)?
        } else {
            Volume::open(device, cache, options)?
        };
        Ok(Arc::new(F2fs { volume, cleans_in_background: self.cleans_in_background }))
    }
}

#[derive(Debug)]
struct F2fs {
    volume: Arc<Volume>,
    cleans_in_background: bool,
}

impl F2fs {
    fn load(&self, number: InodeNumber) -> Result<Arc<dyn fs::Inode>> {
        if self.volume.superblock().quota_files().contains(&Some(number)) {
            // No valid directory has a name for it, and its blocks change in the overlay only.
            return Err(Error::NotFound);
        }
        if self.is_writable() {
            return LiveInode::load(&self.volume, number).map(wrap);
        }
        Ok(Arc::new(self.volume.inode(number)?))
    }

    /// Cleans, and reports damage that cleaning finds.
    fn clean_with<R>(&self, clean: impl FnOnce(&Writer, &Arc<Core>) -> Result<R>) -> Result<R> {
        clean(self.volume.writer()?, self.volume.core())
            .inspect_err(|error| self.volume.found(error))
    }
}

impl FileSystem for F2fs {
    fn root(&self) -> InodeNumber {
        self.volume.geometry().root
    }

    fn block_size(&self) -> BlockSize {
        self.volume.geometry().block_size
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn fs::Inode>> {
        self.load(number).inspect_err(|error| self.volume.found(error))
    }

    fn load_kept_inode(&self, number: InodeNumber) -> Result<Arc<dyn fs::Inode>> {
        match self.load(number) {
            Ok(inode) if inode.attributes().links > 0 => Ok(inode),
            // The caller may pass any number: this error is no damage of the volume.
            Ok(_) | Err(Error::Corrupt(_)) => Err(Error::NotFound),
            Err(error) => Err(error),
        }
    }

    fn statfs(&self) -> StatFs {
        self.volume.statfs()
    }

    fn info(&self) -> VolumeInfo {
        let info = self.volume.info();
        let label = self.label().unwrap_or_else(|_| info.label.clone());
        VolumeInfo { label, ..info }
    }

    fn label(&self) -> Result<Vec<u8>> {
        match self.volume.writer() {
            Ok(writer) => writer.label(self.volume.core()),
            Err(_) => Ok(self.volume.info().label),
        }
    }

    fn set_label(&self, label: &[u8]) -> Result<()> {
        self.volume.writer()?.set_label(self.volume.core(), label)
    }

    fn feature_bits(&self) -> Option<u32> {
        Some(self.volume.geometry().features.bits())
    }

    fn warning(&self) -> Option<String> {
        self.volume.warning()
    }

    fn has_error_mark(&self) -> bool {
        self.volume.checkpoint().has(crate::ondisk::checkpoint::NEEDS_FSCK)
    }

    fn check(&self, observer: &mut dyn CheckObserver) -> CheckSummary {
        self.volume.check_with(observer)
    }

    fn device(&self) -> &SharedDevice {
        self.volume.device()
    }

    fn is_writable(&self) -> bool {
        self.volume.writer().is_ok()
    }

    fn check_writable(&self) -> Result<()> {
        self.volume.writer()?.health().check()
    }

    fn panicked(&self, operation: &'static str) {
        if let Ok(writer) = self.volume.writer() {
            writer.health().fail(Error::Panicked(operation));
        }
    }

    fn delay_commits(&self, work: &mut dyn FnMut()) {
        match self.volume.writer() {
            Ok(writer) => writer.delay_checkpoints(work),
            Err(_) => work(),
        }
    }

    fn trim(&self, bytes: Range<u64>, bytes_min: u64) -> Result<u64> {
        self.volume.writer()?.trim(self.volume.core(), bytes, bytes_min)
    }

    fn clean(&self) -> Result<Cleaning> {
        self.clean_with(Writer::clean_all)
    }

    fn clean_some(&self) -> Result<bool> {
        self.clean_with(Writer::clean_one)
    }

    fn clean_range(
        &self,
        blocks: RangeInclusive<FsBlock>,
        skips_kept: bool,
    ) -> Result<RangeCleaning> {
        self.clean_with(|writer, volume| writer.clean_range(volume, blocks, skips_kept))
    }

    fn wait_until_idle(&self) {
        self.volume.decode_pool().wait_until_idle();
    }

    fn clean_in_background(&self) -> Result<bool> {
        if !self.cleans_in_background {
            return Ok(false);
        }
        self.clean_with(Writer::clean_in_background)
    }

    fn changed_since(&self) -> Option<Instant> {
        self.volume.writer().ok()?.changed_since()
    }

    fn sync(&self) -> Result<()> {
        match self.volume.writer() {
            Ok(writer) => writer.checkpoint(self.volume.core()),
            Err(_) => Ok(()),
        }
    }

    fn mark_clean(&self) -> Result<()> {
        match self.volume.writer() {
            Ok(writer) => writer.mark_clean(self.volume.core()),
            Err(_) => Ok(()),
        }
    }

    fn close(&self) -> Result<()> {
        match self.volume.writer() {
            Ok(writer) => writer.close(self.volume.core()),
            Err(_) => Ok(()),
        }
    }
}

impl fs::Inode for Inode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        self.shown_attributes()
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.read_link()
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.list_xattrs()
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr(name)
    }

    fn verity_digest(&self) -> Result<Option<String>> {
        self.verity_digest()
    }
}

impl Directory for Inode {
    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        self.lookup(name)
    }

    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.read_dir(from, emit)
    }
}

impl Data for Inode {
    fn data(&self) -> Result<FileData<'_>> {
        self.check_readable()?;
        Ok(FileData { mapper: self, size: self.attributes().size })
    }

    fn compression(&self) -> Result<Option<fs::Compression>> {
        compression(self)
    }
}

impl Allocation for Inode {
    fn check_movable(&self) -> Result<()> {
        self.check_movable()
    }

    fn pin_failures(&self) -> Result<Option<u32>> {
        Ok(self.pin_failures())
    }
}

/// Returns how the data of an inode is compressed.
fn compression(inode: &Inode) -> Result<Option<fs::Compression>> {
    if !inode.volume().geometry().features.has(Feature::Compression) {
        return Err(Unsupported::Operation("compression").into());
    }
    Ok(inode.record().compression.map(|compression| fs::Compression {
        algorithm: compression.algorithm.number(),
        log_cluster_blocks: compression.cluster_size.log(),
        saved_blocks: compression.saved_blocks,
    }))
}

/// Returns this format's inode behind `inode`. Errors: `InvalidArgument` if it belongs to another
/// format.
fn own(inode: &dyn fs::Inode) -> Result<&LiveInode> {
    let own = inode.as_any().downcast_ref::<WritableInode>().map(|own| &*own.0);
    own.ok_or(Error::InvalidArgument("the inode is on another volume"))
}

/// An inode of a volume that is open for writing.
#[derive(Debug)]
struct WritableInode(Arc<LiveInode>);

fn wrap(inode: LiveInode) -> Arc<dyn fs::Inode> {
    let inode = Arc::new(inode);
    inode.volume().residents().add(Arc::clone(&inode) as Arc<dyn Resident>);
    Arc::new(WritableInode(inode))
}

impl fs::Inode for WritableInode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.0.found(self.0.current().read_link())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.0.found(self.0.current().list_xattrs())
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.0.found(self.0.current().get_xattr(name))
    }

    fn verity_digest(&self) -> Result<Option<String>> {
        self.0.found(self.0.current().verity_digest())
    }

    fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        self.0.set_attributes(change)
    }

    fn set_flags(&self, flags: u32, time: Timestamp) -> Result<()> {
        self.0.set_flags(flags, time)
    }

    fn set_project(&self, project: u32, time: Timestamp) -> Result<()> {
        self.0.set_project(project, time)
    }

    fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        change: &AttributeChange,
    ) -> Result<()> {
        self.0.set_xattr(name, value, mode, change)
    }

    fn remove_xattr(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        self.0.remove_xattr(name, change)
    }

    fn note_modified(&self, time: Timestamp) {
        self.0.note_modified(time);
    }

    fn note_accessed(&self, time: Timestamp) {
        self.0.note_accessed(time);
    }

    fn has_pending(&self) -> bool {
        self.0.has_pending()
    }

    fn write_pending(&self) -> Result<()> {
        self.0.write_pending()
    }

    fn release(&self) -> Result<()> {
        self.0.release()
    }

    fn will_sync(&self) {
        self.0.will_sync();
    }

    fn set_moving(&self, is_moving: bool) {
        self.0.set_moving(is_moving);
    }

    fn sync(&self, _range: Range<u64>, data_only: bool) -> Result<()> {
        self.0.sync(data_only)
    }
}

impl Directory for WritableInode {
    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        self.0.found(self.0.current().lookup(name))
    }

    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.found(self.0.current().read_dir(from, emit))
    }

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn fs::Inode>> {
        self.0.create(name, new).map(wrap)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<dyn fs::Inode>> {
        self.0.create_unnamed(new).map(wrap)
    }

    fn link(&self, name: &[u8], inode: &dyn fs::Inode, time: Timestamp) -> Result<()> {
        self.0.link(name, own(inode)?, time)
    }

    fn unlink(&self, name: &[u8], inode: &dyn fs::Inode, time: Timestamp) -> Result<()> {
        self.0.unlink(name, own(inode)?, time)
    }

    fn rmdir(&self, name: &[u8], inode: &dyn fs::Inode, time: Timestamp) -> Result<()> {
        self.0.rmdir(name, own(inode)?, time)
    }

    fn rename(
        &self,
        name: &[u8],
        moved: &dyn fs::Inode,
        to: RenameTarget<'_>,
        mode: fs::RenameMode<'_>,
        time: Timestamp,
    ) -> Result<()> {
        let from = Named { directory: &self.0, name };
        let target = Named { directory: own(to.directory)?, name: to.name };
        let replaced = to.replaced.map(own).transpose()?;
        let mode = match mode {
            fs::RenameMode::Move => RenameMode::Move,
            fs::RenameMode::Exchange => RenameMode::Exchange,
            fs::RenameMode::Whiteout(inode) => RenameMode::Whiteout(own(inode)?),
        };
        own(moved)?.rename(from, target, replaced, mode, time)
    }
}

impl Data for WritableInode {
    fn data(&self) -> Result<FileData<'_>> {
        let current = self.0.current();
        current.check_readable()?;
        Ok(FileData { mapper: &*self.0, size: current.attributes().size })
    }

    fn writable_file(
        &self,
        mapping: Arc<Mapping>,
        end_io: &Arc<EndIo>,
        options: ReadOptions,
    ) -> Result<Option<Arc<WritableFile>>> {
        let device = Arc::clone(self.0.volume().device());
        let (inode, size) = (Arc::clone(&self.0), self.0.current().attributes().size);
        let file = WritableFile::new(mapping, inode, device, Arc::clone(end_io), size, options);
        self.0.note_file(&file);
        Ok(Some(file))
    }

    fn check_changeable(&self) -> Result<()> {
        self.0.check_changeable()
    }

    fn compression(&self) -> Result<Option<fs::Compression>> {
        compression(&self.0.current())
    }

    fn set_compression(&self, algorithm: u8, log_cluster_blocks: u8) -> Result<()> {
        self.0.set_compression(algorithm, log_cluster_blocks)
    }

    fn release_saved_blocks(&self, time: Timestamp) -> Result<u64> {
        self.0.release_saved_blocks(time)
    }

    fn reserve_saved_blocks(&self, time: Timestamp) -> Result<u64> {
        self.0.reserve_saved_blocks(time)
    }

    fn start_atomic_write(&self, kind: AtomicWrite) -> Result<()> {
        self.0.start_atomic_write(kind)
    }

    fn commit_atomic_write(&self, size: u64) -> Result<()> {
        self.0.commit_atomic_write(size)
    }

    fn abort_atomic_write(&self) {
        self.0.abort_atomic_write();
    }
}

impl Allocation for WritableInode {
    fn size_max(&self) -> u64 {
        self.0.size_max()
    }

    fn check_truncation(&self, size: u64) -> Result<()> {
        self.0.check_truncation(size)
    }

    fn set_size(&self, size: u64, keeps_space: bool, time: Timestamp) -> Result<()> {
        self.0.set_size(size, keeps_space, time)
    }

    fn preallocate(&self, range: Range<FileOffset>) -> Result<()> {
        self.0.preallocate(range)
    }

    fn clear(&self, range: Range<FileOffset>, keeps_space: bool) -> Result<()> {
        self.0.clear(range, keeps_space)
    }

    fn prepare_to_clear(&self) -> Result<()> {
        self.0.prepare_to_clear()
    }

    fn shift(&self, range: Range<FileOffset>, to: Shift, size: u64, time: Timestamp) -> Result<()> {
        self.0.shift(range, to, size, time)
    }

    fn pin_failures(&self) -> Result<Option<u32>> {
        Ok(self.0.current().pin_failures())
    }

    fn set_pinned(&self, is_pinned: bool) -> Result<()> {
        self.0.set_pinned(is_pinned)
    }

    fn is_moved_by_writing(&self) -> bool {
        true
    }

    fn check_room_to_move(&self, bytes: u64) -> Result<()> {
        let volume = self.0.volume();
        volume.writer()?.check_room_to_move(volume, bytes)
    }

    fn check_movable(&self) -> Result<()> {
        self.0.check_changeable()?;
        self.0.current().check_movable()
    }

    fn allocation_unit(&self) -> u64 {
        self.0.volume().geometry().block_size.bytes().into()
    }
}
