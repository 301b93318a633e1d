//! Open volumes. Not here: the options for opening them (`options.rs`), and the state that nodes
//! use (`shared.rs`).

pub(crate) mod clock;
pub(crate) mod lost_files;
pub(crate) mod options;
pub(crate) mod probe;
pub(crate) mod removals;
pub(crate) mod shared;

use std::ops::{ControlFlow, Range, RangeInclusive};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use base::attributes::{CheckSummary, StatFs, VolumeInfo};
use base::locks::{Rank, RankedMutex, RankedRwLock};
use base::space::{self, ReserveAccessGuard};
use base::{Error, Foreign, FsBlock, InodeNumber, Location, Problem, Result};
use device::{OpenDevice, Part, SharedDevice};
use fs::{CheckObserver, Credentials, FileSystem, Format, Inode, OnFinding};
use pagecache::{CacheStats, DirtyStats, PageCache};

use crate::file::synchronous;
use crate::names::path::{self, Follow};
use crate::node::table::NodeTable;
use crate::node::{Life, Node};
use crate::volume::options::VolumeOptions;
use crate::volume::removals::{Removals, SETTLE_TIME};
use crate::volume::shared::Shared;
use crate::writeback::Writeback;

/// An open volume. A volume that is open for writing must be closed; dropping it has the effect of
/// a crash.
#[derive(Debug)]
pub struct Volume {
    pub(crate) shared: Arc<Shared>,
    /// What is missing of an incomplete image, and what changes have effects on.
    warnings: Vec<String>,
}

impl VolumeOptions {
    /// Opens the volume on `image`, a file or a block device. Until a volume that is open for
    /// writing is [closed](Volume::close), other programs must not use the image. Errors:
    /// [`Error::Open`] with EBUSY if another program has it open. This does not detect loop devices
    /// on the image.
    pub fn open(&self, image: impl AsRef<Path>) -> Result<Volume> {
        self.open_part(image, Part::Whole)
    }

    /// [`open`](Self::open) for a volume on a part of `image`, such as a partition.
    pub fn open_part(&self, image: impl AsRef<Path>, part: Part) -> Result<Volume> {
        let how = OpenDevice { part, read_only: !self.writable, ..OpenDevice::default() };
        Volume::open_device(device::open(image.as_ref(), how)?, self)
    }
}

impl Volume {
    /// Opens the volume on `device`, in any supported format. Replays a dirty journal: on the
    /// device if the volume is opened for writing, and otherwise in memory. [`VolumeOptions::open`]
    /// opens images by their path.
    pub fn open_device(device: SharedDevice, options: &VolumeOptions) -> Result<Self> {
        let cache = PageCache::new(options.cache)?;
        let formats: [&dyn Format; 2] = [&options.ext4, &options.f2fs];
        let format_options = options.format_options();
        let mut warnings = Vec::new();
        let file_system = if options.incomplete {
            let (file_system, lacks) =
                crate::volume::probe::open_incomplete(device, &cache, &formats, format_options)?;
            warnings = lacks;
            file_system
        } else {
            let opened = crate::volume::probe::open(&device, &cache, &formats, &format_options)?;
            if options.writable {
                warnings = crate::volume::probe::warnings_of_changes(&device, &formats);
            }
            opened
        };
        let mut volume = Self::with_file_system(file_system, cache, options)?;
        volume.warnings = warnings;
        Ok(volume)
    }

    /// Returns what the device of a volume is a member of, such as a RAID. Then the volume cannot
    /// be opened for writing on it. `None` if it is on its own, or has no superblock.
    pub fn membership(device: &SharedDevice, options: &VolumeOptions) -> Option<Foreign> {
        crate::volume::probe::membership(device, &[&options.ext4, &options.f2fs])
    }

    /// Returns the volume of an open file system, which keeps its metadata in `cache`. Only for
    /// tests of this crate with file systems that are not on a device. Not a part of the library's
    /// interface.
    #[doc(hidden)]
    pub fn with_file_system(
        file_system: Arc<dyn FileSystem>,
        cache: Arc<PageCache>,
        options: &VolumeOptions,
    ) -> Result<Self> {
        let block_size = file_system.block_size();
        let writeback = if file_system.is_writable() {
            Some(Writeback::start(&cache, &file_system, options.commit_interval)?)
        } else {
            None
        };
        let bsd_groups = options.bsd_groups;
        let bsd_groups = bsd_groups.unwrap_or_else(|| file_system.default_options().bsd_groups);
        let shared = Shared {
            is_writable: file_system.is_writable(),
            is_marked_clean: AtomicBool::new(false),
            marking: RankedMutex::new(Rank::UseMark, ()),
            flags: synchronous::flags(options.sync, options.dirsync),
            file_system,
            read_options: options.read,
            direct_options: options.direct,
            auto_da_alloc: options.auto_da_alloc,
            bsd_groups,
            access: options.access,
            nodes: NodeTable::new(options.nodes_max),
            removals: Removals::default(),
            moves: RankedMutex::new(Rank::Rename, ()),
            making: RankedRwLock::new(Rank::Making, ()),
            writeback,
            cache,
            block_size,
        };
        Ok(Self { shared: Arc::new(shared), warnings: Vec::new() })
    }

    /// Returns the root directory.
    pub fn root(&self) -> Result<Arc<Node>> {
        let number = self.shared.file_system.root();
        self.node(number).map_err(|error| match error {
            // Of an incomplete image, for example.
            Error::NotFound => {
                let problem = Problem::Missing("inode");
                Error::corrupt("root directory", Location::inode(number), problem)
            }
            error => error,
        })
    }

    /// Returns the node of an inode number. On a volume that is open for writing, the caller must
    /// know that the inode stays in use; [`lookup`](Self::lookup) has no such condition. Errors:
    /// `NotFound` if the inode is not in use.
    pub fn node(&self, number: InodeNumber) -> Result<Arc<Node>> {
        self.node_or_load(number, |file_system| file_system.load_inode(number))
    }

    /// Returns the node of an inode number from a file handle of any age, such as those of NFS. The
    /// caller compares the generation, which changes when the number is reused. Errors: `NotFound`
    /// if the inode has no name.
    pub fn kept_node(&self, number: InodeNumber) -> Result<Arc<Node>> {
        let node = match self.shared.nodes.find(number) {
            Some(node) => node,
            None => {
                // The lock keeps out threads that create inodes: those have a record before they
                // have a node, and this thread would add a second node.
                let _making = self.shared.making.write();
                self.node_or_load(number, |file_system| file_system.load_kept_inode(number))?
            }
        };
        if node.attributes().links == 0 { Err(Error::NotFound) } else { Ok(node) }
    }

    fn node_or_load(
        &self,
        number: InodeNumber,
        load: impl Fn(&dyn FileSystem) -> Result<Arc<dyn Inode>>,
    ) -> Result<Arc<Node>> {
        let nodes = &self.shared.nodes;
        loop {
            let serial = match nodes.get(number) {
                Ok(node) => return Ok(node),
                Err(serial) => serial,
            };
            let inode = load(&*self.shared.file_system);
            let inode = inode.inspect_err(|_| nodes.not_loaded(number, serial))?;
            let node = Node::new(number, inode, Arc::clone(&self.shared), Life::Named);
            if let Some(node) = nodes.loaded(Arc::new(node), serial) {
                return Ok(node);
            }
        }
    }

    /// Fails for a node of another volume, whose numbers of inodes and blocks have another meaning.
    pub(crate) fn require_own(&self, node: &Node) -> Result<()> {
        if Arc::ptr_eq(node.volume(), &self.shared) {
            Ok(())
        } else {
            Err(Error::InvalidArgument("the node is on another volume"))
        }
    }

    /// Returns the node of `name` in `directory`. Errors: `InvalidArgument` if the directory is on
    /// another volume.
    pub fn lookup(&self, directory: &Node, name: &[u8]) -> Result<Arc<Node>> {
        self.require_own(directory)?;
        // Under the lock the name stays, so the inode stays in use.
        let _lock = directory.lock_shared();
        self.entry_node(directory.number(), directory.lookup_locked(name)?)
    }

    /// Returns the node of an entry of `directory`. Errors: `Corrupt` if the inode is not in use.
    pub fn entry_node(&self, directory: InodeNumber, number: InodeNumber) -> Result<Arc<Node>> {
        self.node(number).map_err(|error| match error {
            Error::NotFound => Error::corrupt(
                "directory entry",
                Location::inode(directory),
                Problem::Missing("the inode that it names"),
            ),
            error => error,
        })
    }

    /// Returns the node at `path`, which is relative to the root. An empty path is the root.
    /// Errors: `InvalidArgument` if `path` contains NUL.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Arc<Node>> {
        path::check(path)?;
        path::walk(self, path, follow)
    }

    /// Returns counts of space and inodes.
    pub fn statfs(&self) -> StatFs {
        self.shared.file_system.statfs()
    }

    /// Returns the granularity of inode times, in nanoseconds.
    pub fn time_granularity(&self) -> u32 {
        self.shared.file_system.time_granularity()
    }

    /// Makes this thread allocate space on behalf of `by` until the guard is dropped. Not all users
    /// may allocate the blocks reserved for root. A thread without a guard may.
    pub fn act_for(&self, by: &Credentials) -> ReserveAccessGuard {
        space::set_reserve_access(self.shared.file_system.reserve_access_of(by))
    }

    /// Discards free blocks in `bytes`, in runs of at least `bytes_min`. An image file becomes
    /// sparse there, and a disk need not keep their contents. Returns the number of bytes
    /// discarded.
    ///
    /// Errors: `InvalidArgument` for a range of less than a block or past the volume's end.
    pub fn trim(&self, bytes: Range<u64>, bytes_min: u64) -> Result<u64> {
        self.shared.begin_change()?;
        self.shared.file_system.trim(bytes, bytes_min)
    }

    /// Moves data so that the free space becomes contiguous, until no further segment can be freed.
    /// Errors: `Unsupported` for formats that write in place.
    pub fn clean(&self) -> Result<fs::Cleaning> {
        self.shared.begin_change()?;
        self.shared.file_system.clean()
    }

    /// Does a small part of [`clean`](Self::clean). Returns whether there was something to gain.
    /// Errors: `Unsupported` for formats that write in place.
    pub fn clean_some(&self) -> Result<bool> {
        self.shared.begin_change()?;
        self.shared.file_system.clean_some()
    }

    /// Cleans the sections that have `blocks`, also those with nothing to gain, up to the first one
    /// that does not become free. With `skips_kept`, goes on after sections with blocks that stay.
    /// Errors: `InvalidArgument` unless all blocks are in the main area; `Unsupported` for formats
    /// other than f2fs.
    pub fn clean_range(
        &self,
        blocks: RangeInclusive<FsBlock>,
        skips_kept: bool,
    ) -> Result<fs::RangeCleaning> {
        self.shared.begin_change()?;
        self.shared.file_system.clean_range(blocks, skips_kept)
    }

    /// Returns the current label, without padding.
    pub fn label(&self) -> Result<Vec<u8>> {
        self.shared.file_system.label()
    }

    /// Sets the label, durably. Errors: `InvalidArgument` if the format has no room for it.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.shared.begin_change()?;
        self.shared.file_system.set_label(label)
    }

    /// Returns a description of the volume for users.
    pub fn info(&self) -> VolumeInfo {
        self.shared.file_system.info()
    }

    /// Returns the bits of the features of an f2fs volume, as its superblock has them. Returns
    /// `None` for other formats.
    pub fn feature_bits(&self) -> Option<u32> {
        self.shared.file_system.feature_bits()
    }

    /// Returns a warning if the superblock is damaged and a copy of it is in use, or if the image
    /// is incomplete, or if changes of a volume that is open for writing have effects outside of
    /// it. Users should see it before they rely on the data.
    pub fn warning(&self) -> Option<String> {
        let warnings: Vec<String> =
            self.shared.file_system.warning().into_iter().chain(self.warnings.clone()).collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// Returns the mount options that the volume has of its own.
    pub fn default_options(&self) -> fs::DefaultOptions {
        self.shared.file_system.default_options()
    }

    /// Returns whether the volume says that errors were found in it since the last repair: the
    /// error flag of an ext4 superblock, or the mark of an f2fs checkpoint that fsck is needed.
    pub fn has_error_mark(&self) -> bool {
        self.shared.file_system.has_error_mark()
    }

    /// Checks the whole volume without changing it. Calls `found` for every inconsistency. The
    /// check ends early if `found` breaks.
    pub fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        self.check_with(&mut OnFinding(found))
    }

    /// Checks the whole volume without changing it. `observer` receives the inconsistencies and the
    /// progress, and may end the check early.
    pub fn check_with(&self, observer: &mut dyn CheckObserver) -> CheckSummary {
        self.shared.file_system.check(observer)
    }

    /// Returns whether the volume is open for writing.
    pub fn is_writable(&self) -> bool {
        self.shared.is_writable
    }

    /// Makes all earlier changes durable. Errors: also writeback errors of all files since the last
    /// call.
    pub fn sync(&self) -> Result<()> {
        let flushed = self.flush_data();
        if matches!(flushed, Err(Error::Interrupted)) {
            return flushed;
        }
        let losses = self.shared.writeback.as_ref().map(|writeback| writeback.losses());
        let sync = losses.map(|losses| (losses, losses.begin_sync()));
        let synced = self.shared.file_system.sync();
        if let (Ok(()), Some((losses, sync))) = (&synced, sync) {
            losses.committed(sync);
        }
        if flushed.is_err() {
            // The caller gets only the error.
            tracing::error!("not all written data could be made durable{}", self.lost_files());
        }
        if let (Err(Error::Interrupted), Some(writeback)) = (&synced, &self.shared.writeback) {
            writeback.note_uncommitted();
        }
        flushed.and(synced)
    }

    /// Returns whether data of any file could not be written back, whether or not a sync has
    /// reported that.
    pub fn has_lost_data(&self) -> bool {
        self.shared.writeback.as_ref().is_some_and(|writeback| writeback.losses().has_failed())
    }

    /// Returns the files with data that may be lost, the bytes that were written to them, and
    /// whether there are others.
    pub(crate) fn known_losses(&self) -> (Vec<(InodeNumber, u64)>, bool) {
        self.shared.writeback.as_ref().map(|writeback| writeback.losses().all()).unwrap_or_default()
    }

    /// Makes all earlier changes durable, and leaves the device as [`close`](Self::close) does, as
    /// Linux does when a volume becomes read-only: of ext4, programs that do not replay the journal
    /// then read the current contents. The volume stays open. Until its next change, accesses leave
    /// access times as they are; the change marks the volume as in use again, durably and before
    /// anything else is written.
    ///
    /// Errors: as [`sync`](Self::sync).
    pub fn mark_clean(&self) -> Result<()> {
        if !self.is_writable() {
            return Ok(());
        }
        // Before the sync, so that accesses leave no times to write.
        self.shared.is_marked_clean.store(true, Ordering::Release);
        let synced = self.sync();
        // A change that comes meanwhile waits. Otherwise, it could clear the flag before the format
        // has marked the volume, and further changes would leave the mark.
        let _marking = self.shared.marking.lock();
        self.shared.is_marked_clean.store(true, Ordering::Release);
        let marked = synced.and_then(|()| self.shared.file_system.mark_clean());
        if marked.is_err() {
            self.shared.is_marked_clean.store(false, Ordering::Release);
        }
        marked
    }

    /// Marks a volume as in use that was [marked as clean](Self::mark_clean), as Linux does when a
    /// volume becomes writable again. Otherwise its next change does this.
    pub fn mark_in_use(&self) -> Result<()> {
        self.shared.begin_change()
    }

    fn flush_data(&self) -> Result<()> {
        self.shared.writeback.as_ref().map_or(Ok(()), |writeback| writeback.flush_all())
    }

    /// Closes a volume that is open for writing: makes all changes durable, and marks the volume as
    /// clean. Later changes fail. Files without a name that are still in use are deleted when the
    /// volume is next opened for writing.
    pub fn close(&self) -> Result<()> {
        if let Some(writeback) = &self.shared.writeback {
            writeback.close();
            // Waits for changes and direct requests that were admitted before.
            self.shared.nodes.all().iter().for_each(|node| node.wait_for_changes());
        }
        let flushed = self.flush_data();
        // Data of files without a name, too, since others may get its blocks once the volume is
        // opened again.
        self.shared.nodes.all().iter().for_each(|node| node.write_back_and_wait());
        if flushed.is_ok() && self.shared.file_system.check_writable().is_ok() {
            // Changes check under the inode's lock that the volume is open, so none came after the
            // flush.
            let has_dirty_data = |writeback: &Writeback| writeback.has_dirty_data();
            debug_assert!(
                !self.shared.writeback.as_ref().is_some_and(has_dirty_data),
                "a volume is closed with data that is not written back"
            );
        }
        if let Some(writeback) = &self.shared.writeback {
            // Inodes without a name are deleted when the last reference is dropped, which a thread
            // of the writeback may have.
            writeback.stop();
        }
        let losses = self.shared.writeback.as_ref().map(|writeback| writeback.losses());
        let sync = losses.map(|losses| (losses, losses.begin_sync()));
        let closed = self.shared.file_system.close();
        if let (Ok(()), Some((losses, sync))) = (&closed, sync) {
            losses.committed(sync);
        }
        flushed.and(closed)
    }

    /// Returns the number of removed files that were freed so far.
    pub fn freed_files(&self) -> u64 {
        self.shared.removals.freed()
    }

    /// Returns whether a change that failed for lack of space may succeed since more than `freed`
    /// removed files were freed, or after a wait: see
    /// [`change_after_removals`](Self::change_after_removals).
    pub fn may_free_more(&self, freed: u64) -> bool {
        self.shared.removals.may_free_more(freed)
    }

    /// Calls `change`. If it fails for lack of space, which `is_full` tells, while removed files
    /// are about to be freed, waits for these, and calls it again. Users of a volume through a
    /// protocol release files later than they believe. `change` must be one that can be repeated
    /// after it has failed.
    pub fn change_after_removals<T, E>(
        &self,
        mut change: impl FnMut() -> Result<T, E>,
        is_full: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let removals = &self.shared.removals;
        let mut end = None;
        loop {
            let freed = removals.freed();
            let changed = change();
            if !changed.as_ref().is_err_and(&is_full) {
                return changed;
            }
            let end = *end.get_or_insert_with(|| Instant::now() + 2 * SETTLE_TIME);
            base::waiting::about_to_wait();
            if Instant::now() >= end || !removals.wait(freed, end) {
                return changed;
            }
        }
    }

    /// Returns counts of the folio cache's memory and work.
    pub fn cache_stats(&self) -> CacheStats {
        self.shared.cache.stats()
    }

    /// Returns counts of dirty data in the folio cache.
    pub fn dirty_stats(&self) -> DirtyStats {
        self.shared.cache.dirty_stats()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Threads that hold a node would keep the device in use for a moment longer. Without the
        // dirty inodes and the table, no cycles of references between nodes and their volume are
        // left.
        if let Some(writeback) = &self.shared.writeback {
            writeback.stop();
            writeback.clear();
        }
        self.shared.file_system.wait_until_idle();
        self.shared.nodes.clear();
    }
}
