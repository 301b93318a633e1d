//! Nodes: the inodes in use.
//! Not here: changes of attributes (`change.rs`) and of names (`names/`), and open files (`file/`).

pub(crate) mod access;
pub(crate) mod atomic_writes;
pub(crate) mod change;
pub(crate) mod locked;
pub(crate) mod note_access;
pub(crate) mod quiesced;
pub(crate) mod replacing;
pub(crate) mod rights;
pub(crate) mod table;

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use base::attributes::{Attributes, DirCursor, DirEntry, FileType, StatFs};
use base::locks::{Rank, RankedReadGuard, RankedRwLock, RankedWriteGuard};
use base::{DeviceOffset, Error, FileOffset, InodeNumber, Result};
use fs::{FileData, Inode};
use iomap::{FiemapExtent, ReadContext, WritableFile};
use pagecache::{Mapping, PAGE_SIZE};
use parking_lot::{RwLock, RwLockWriteGuard};

use crate::node::atomic_writes::AtomicWrites;
use crate::node::replacing::Replacing;
use crate::volume::shared::Shared;

/// An inode in use. There is one node for each inode number. When an inode has no name, its last
/// user deletes it.
#[derive(Debug)]
pub struct Node {
    number: InodeNumber,
    kind: FileType,
    inode: Arc<dyn Inode>,
    volume: Arc<Shared>,
    mapping: OnceLock<Arc<Mapping>>,
    /// The state for writing. Only regular files have it, once they were opened on a volume that is
    /// open for writing.
    pub(crate) writable: OnceLock<Arc<WritableFile>>,
    pub(crate) replacing: Replacing,
    /// The inode's lock: shared for reads, exclusive for changes. Reads of a read-only volume do
    /// not take it.
    state: RankedRwLock<NodeState>,
    /// Held while a change drops data, first from the cache and then from the format. Only syncs
    /// wait for it, without locks.
    dropping: RwLock<()>,
}

/// The part of an inode's state that only the vfs needs.
#[derive(Debug)]
pub(crate) struct NodeState {
    /// Whether the inode has a name.
    pub(crate) life: Life,
    /// For a directory: the number of changes of its names, including failed ones.
    pub(crate) changes: u64,
    /// Whether the inode is known to have no privileges that a write clears.
    pub(crate) is_plain: bool,
    pub(crate) atomic: AtomicWrites,
}

/// Whether an inode has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// It has a name, or is one of the format's own inodes.
    Named,
    /// It was created without a name, and may get one.
    Nameless,
    /// It has lost its last name for good.
    Removed,
}

impl Node {
    pub(crate) fn new(
        number: InodeNumber,
        inode: Arc<dyn Inode>,
        volume: Arc<Shared>,
        life: Life,
    ) -> Self {
        let kind = inode.attributes().kind;
        let state =
            NodeState { life, changes: 0, is_plain: false, atomic: AtomicWrites::default() };
        let state = RankedRwLock::new(Rank::Inode, state);
        Self {
            number,
            kind,
            inode,
            volume,
            mapping: OnceLock::new(),
            writable: OnceLock::new(),
            replacing: Replacing::default(),
            state,
            dropping: RwLock::new(()),
        }
    }

    /// Marks data as being dropped from the cache, until the format has the change, and the
    /// returned guard is dropped. A sync that came between both would return success although
    /// neither the data nor the change is durable. So syncs [wait](Self::wait_for_dropped_data).
    /// The caller holds the inode's lock.
    pub(crate) fn begin_to_drop_data(&self) -> RwLockWriteGuard<'_, ()> {
        self.dropping.write()
    }

    /// Returns whether data is being dropped from the cache.
    pub(crate) fn is_dropping_data(&self) -> bool {
        self.dropping.try_read().is_none()
    }

    /// Waits until the format has the changes that have begun to drop data. Syncs call this after
    /// writeback: data that is dropped later is on the device. The caller holds no locks.
    pub(crate) fn wait_for_dropped_data(&self) {
        if self.is_dropping_data() {
            base::waiting::about_to_wait();
            drop(self.dropping.read());
        }
    }

    /// Returns the flags that all inodes of the volume have in effect.
    pub(crate) fn volume_flags(&self) -> u32 {
        self.volume.flags
    }

    /// Returns the inode number.
    pub fn number(&self) -> InodeNumber {
        self.number
    }

    /// Returns the type.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// Returns whether the inode is immutable (`chattr +i`).
    pub fn is_immutable(&self) -> bool {
        rights::may_change(&self.attributes()).is_err()
    }

    /// Returns whether the inode is append-only (`chattr +a`).
    pub fn is_append_only(&self) -> bool {
        rights::is_append_only(&self.attributes())
    }

    /// Returns the attributes that stat(2) reports.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = self.inode.attributes();
        if let Some(file) = self.writable.get() {
            // The size on the disk is updated later.
            attributes.size = file.size();
        }
        attributes
    }

    /// Returns the inode number of `name` in this directory. If the name is removed concurrently,
    /// the number may soon belong to another inode; [`Volume::lookup`](crate::Volume::lookup)
    /// returns the node itself.
    pub fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        let _lock = self.lock_shared();
        self.lookup_locked(name)
    }

    /// [`lookup`](Self::lookup) for callers that hold the lock.
    pub(crate) fn lookup_locked(&self, name: &[u8]) -> Result<InodeNumber> {
        self.require_directory()?;
        self.inode.lookup(name)
    }

    /// Calls `emit` for each entry from `from` on, including "." and "..", until it breaks. The
    /// directory is locked during the calls: `emit` must not use nodes of a volume that is open for
    /// writing.
    pub fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.require_directory()?;
        let _lock = self.lock_shared();
        self.inode.read_dir(from, emit)
    }

    /// Returns the target of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        let _lock = self.lock_shared();
        match self.kind {
            FileType::Symlink => self.inode.read_link(),
            _ => Err(Error::WrongType("not a symbolic link")),
        }
    }

    /// Returns the names of the extended attributes, with their prefixes.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let _lock = self.lock_shared();
        self.inode.list_xattrs()
    }

    /// Returns the value of an extended attribute.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let _lock = self.lock_shared();
        self.inode.get_xattr(name)
    }

    /// Returns the digest of a file with fs-verity, in the form of `fsverity digest`; `None` for
    /// other inodes. The file's data is compared with it when it is read.
    pub fn verity_digest(&self) -> Result<Option<String>> {
        let _lock = self.lock_shared();
        self.inode.verity_digest()
    }

    /// Calls `emit` for each allocated extent of the file, directory or symbolic link that touches
    /// `range`, in order. The inode is locked during the calls: `emit` must not use files or nodes
    /// of a volume that is open for writing.
    pub fn extents(
        &self,
        range: Range<FileOffset>,
        emit: &mut dyn FnMut(FiemapExtent) -> ControlFlow<()>,
    ) -> Result<()> {
        let _lock = self.lock_shared();
        iomap::fiemap(self.inode.data()?.mapper, range, emit)
    }

    /// Returns where on the device the data of a regular file from `at` on lies, if all `length`
    /// bytes of it are written, and adjacent there. Writes cached data back before. Returns `None`
    /// for holes, blocks without data, and data that the device has in another form: within
    /// metadata, or compressed. Past the end of the file, the last block counts as a whole.
    pub fn device_offset(&self, at: FileOffset, length: u64) -> Result<Option<DeviceOffset>> {
        if self.kind() != FileType::Regular {
            return Err(Error::InvalidArgument("only regular files have blocks of data"));
        }
        let end = at.0.saturating_add(length);
        self.write_back_and_wait_cancellable(at.0..end)?;
        let mut found = None;
        self.extents(at..FileOffset(at.0.saturating_add(1)), &mut |extent| {
            found = Some(extent);
            ControlFlow::Break(())
        })?;
        let Some(FiemapExtent { logical, physical, length: extent_length, flags }) = found else {
            return Ok(None);
        };
        let has_form = flags.delalloc || flags.unwritten || flags.inline || flags.encoded;
        let Some(into) = at.0.checked_sub(logical.0) else { return Ok(None) };
        let wanted = end.min(self.attributes().size.max(at.0.saturating_add(1)));
        if has_form || logical.0.saturating_add(extent_length) < wanted {
            return Ok(None);
        }
        Ok(physical.0.checked_add(into).map(DeviceOffset))
    }

    /// Returns the mapping with the cached data of a regular file. Creates it on first use.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.mapping.get_or_init(|| {
            let mapping = self.volume.new_mapping();
            self.fit_clusters(&mapping);
            mapping
        })
    }

    /// Makes the folios of an empty mapping contain whole clusters, if those are written as a
    /// whole.
    fn fit_clusters(&self, mapping: &Mapping) {
        if let Some(order) = self.cluster_order() {
            mapping.set_order_min(order);
        }
    }

    /// [`fit_clusters`](Self::fit_clusters) for a file without blocks that may have become a
    /// compressed one. The caller holds the lock.
    pub(crate) fn refit_clusters(&self) -> Result<()> {
        let Some(mapping) = self.mapping.get() else { return Ok(()) };
        if self.cluster_order().is_some_and(|order| order > mapping.order_min()) {
            if let Some(file) = self.writable()? {
                // Nothing but zeroes is lost.
                iomap::drop_cache(file);
            }
            self.fit_clusters(mapping);
        }
        Ok(())
    }

    /// Returns the order of folios that contain one cluster.
    fn cluster_order(&self) -> Option<u8> {
        let data = self.inode.data().ok().filter(|_| self.volume.is_writable)?;
        let bytes = data.mapper.cluster_bytes()?;
        Some(bytes.div_ceil(PAGE_SIZE as u64).ilog2() as u8)
    }

    /// Returns the mapping with the cached data, if it was created.
    pub(crate) fn mapping_if_any(&self) -> Option<&Arc<Mapping>> {
        self.mapping.get()
    }

    pub(crate) fn data(&self) -> Result<FileData<'_>> {
        let data = self.inode.data()?;
        Ok(match self.writable.get() {
            Some(file) => FileData { size: file.size(), ..data },
            None => data,
        })
    }

    /// Returns what reads of `data` need.
    pub(crate) fn read_context<'a>(&'a self, data: FileData<'a>) -> ReadContext<'a> {
        ReadContext {
            mapping: self.mapping(),
            mapper: data.mapper,
            device: self.volume.file_system.device(),
            size: data.size,
            options: self.volume.read_options,
        }
    }

    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// Returns counts of space and inodes of the volume.
    pub fn statfs(&self) -> StatFs {
        self.volume.file_system.statfs()
    }

    pub(crate) fn volume(&self) -> &Arc<Shared> {
        &self.volume
    }

    /// Locks the inode, shared, if the volume is open for writing.
    pub(crate) fn lock_shared(&self) -> Option<RankedReadGuard<'_, NodeState>> {
        self.volume.is_writable.then(|| self.state.read())
    }

    /// Locks the inode, shared, without waiting.
    pub(crate) fn try_lock_shared(&self) -> Option<RankedReadGuard<'_, NodeState>> {
        self.state.try_read()
    }

    /// Locks the inode, shared.
    pub(crate) fn lock_state_shared(&self) -> RankedReadGuard<'_, NodeState> {
        self.state.read()
    }

    /// Locks the inode exclusively.
    pub(crate) fn lock(&self) -> RankedWriteGuard<'_, NodeState> {
        self.state.write()
    }

    /// [`lock`](Self::lock) while other inodes are locked: see `locked.rs`.
    pub(crate) fn lock_nested(&self) -> RankedWriteGuard<'_, NodeState> {
        self.state.write_nested()
    }

    pub(crate) fn require_directory(&self) -> Result<()> {
        if self.kind == FileType::Directory { Ok(()) } else { Err(Error::NotDirectory) }
    }

    /// Checks that no open file and no window refers to the node, since both have a reference to
    /// it.
    fn debug_assert_unused(&self) {
        debug_assert_eq!(self.replacing.writer_count(), 0, "a released inode is open for writing");
        let has_windows = self.mapping.get().is_some_and(|mapping| mapping.has_windows());
        debug_assert!(!has_windows, "a released inode is mapped into memory");
    }
}

impl Drop for Node {
    /// Deletes an inode that has no name. The table does not keep such a node, so its last user
    /// drops it, on any thread. The caller may hold locks of the rank of inodes, but none of later
    /// ranks.
    fn drop(&mut self) {
        // A second panic would abort the program.
        let is_checked = !std::thread::panicking();
        if is_checked {
            self.debug_assert_unused();
        }
        if self.state.get_mut().life == Life::Named {
            return;
        }
        self.volume.nodes.remove_dead(self.number, self);
        self.drop_data();
        if is_checked {
            // The format frees the blocks next. A write in flight would destroy the data of another
            // file.
            assert!(!self.has_direct_requests(), "direct I/O of a deleted inode is in flight");
        }
        if let Err(error) = self.inode.release() {
            tracing::warn!("inode {} stays an orphan: {error}", self.number);
        }
        self.volume.removals.end();
    }
}
