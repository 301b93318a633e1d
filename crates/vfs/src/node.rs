//! One inode of a volume, as its users hold it. Not here: changing it (`change.rs`), changing the
//! names in a directory (`namespace.rs`, `rename.rs`).

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use base::attributes::{Attributes, DirCursor, DirEntry, FileType};
use base::locks::{Rank, RankedReadGuard, RankedRwLock, RankedWriteGuard};
use base::{Error, FileOffset, InodeNumber, Result};
use iomap::{FiemapExtent, WritableFile};
use pagecache::Mapping;

use crate::file::{File, OpenMode};
use crate::file_system::{FileData, Inode};
use crate::replacing::Replacing;
use crate::rights;
use crate::volume::Shared;

/// An inode in use. Two holders of the same number hold the same node. The last holder of one that
/// has lost its last name deletes it.
#[derive(Debug)]
pub struct Node {
    number: InodeNumber,
    kind: FileType,
    inode: Arc<dyn Inode>,
    volume: Arc<Shared>,
    mapping: OnceLock<Arc<Mapping>>,
    /// Of a regular file that was opened on a volume that is open for writing.
    pub(crate) writable: OnceLock<Arc<WritableFile>>,
    pub(crate) replacing: Replacing,
    /// The inode's lock: shared to read it, alone to change it. Not taken to read on volumes that
    /// do not change.
    state: RankedRwLock<NodeState>,
}

/// What is known of an inode beyond what its format keeps.
#[derive(Debug)]
pub(crate) struct NodeState {
    /// Whether it has a name.
    pub(crate) life: Life,
    /// Of a directory: grows with every change of its names, those that fail included.
    pub(crate) changes: u64,
    /// It is known to have no privileges that a write would take from it.
    pub(crate) is_plain: bool,
}

/// Whether an inode has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// It has, or is one of the volume's own.
    Named,
    /// It was made without one, and may get one.
    Nameless,
    /// It lost the last one for good.
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
        let state = NodeState { life, changes: 0, is_plain: false };
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
        }
    }

    /// The flags that all inodes of the volume have in effect.
    pub(crate) fn volume_flags(&self) -> u32 {
        self.volume.flags
    }

    /// The inode number.
    pub fn number(&self) -> InodeNumber {
        self.number
    }

    /// The type.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// What `stat` reports.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = self.inode.attributes();
        if let Some(file) = self.writable.get() {
            // The size on the disk comes after.
            attributes.size = file.size();
        }
        attributes
    }

    /// The inode number that `name` stands for in this directory. It may be another inode's by the
    /// time it is used: [`Volume::lookup`](crate::Volume::lookup) gives the node itself.
    pub fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        let _lock = self.lock_shared();
        self.lookup_locked(name)
    }

    /// [`lookup`](Self::lookup), by a caller who holds the lock.
    pub(crate) fn lookup_locked(&self, name: &[u8]) -> Result<InodeNumber> {
        self.require_directory()?;
        self.inode.lookup(name)
    }

    /// Calls `emit` for each entry, "." and ".." included, from `from` on until it breaks. The
    /// directory is locked meanwhile: `emit` uses no node of a volume that is open for writing.
    pub fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.require_directory()?;
        let _lock = self.lock_shared();
        self.inode.read_dir(from, emit)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        let _lock = self.lock_shared();
        match self.kind {
            FileType::Symlink => self.inode.read_link(),
            _ => Err(Error::WrongType("not a symbolic link")),
        }
    }

    /// The names of the extended attributes, with their prefixes.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let _lock = self.lock_shared();
        self.inode.list_xattrs()
    }

    /// The value of an extended attribute.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let _lock = self.lock_shared();
        self.inode.get_xattr(name)
    }

    /// Opens a regular file for reading.
    pub fn open(self: &Arc<Self>) -> Result<File> {
        self.open_for(OpenMode::default())
    }

    /// Opens a regular file.
    pub fn open_for(self: &Arc<Self>, mode: OpenMode) -> Result<File> {
        match self.kind {
            FileType::Regular => {
                self.inode.data()?;
                if mode.write {
                    self.check_open_for_writing(mode)?;
                }
                let writable = if self.volume.is_writable { self.writable()? } else { None };
                let errors = writable.map(|file| file.errors().cursor());
                Ok(File::new(Arc::clone(self), mode, errors))
            }
            FileType::Directory => Err(Error::IsDirectory),
            _ => Err(Error::WrongType("not a regular file")),
        }
    }

    fn check_open_for_writing(&self, mode: OpenMode) -> Result<()> {
        self.volume.file_system.check_writable()?;
        let attributes = self.attributes();
        if mode.append {
            rights::may_change(&attributes)
        } else {
            rights::may_overwrite(&attributes)
        }
    }

    /// Calls `emit` for each allocated extent of the file, directory or symbolic link that touches
    /// `range`, in order.
    pub fn extents(
        &self,
        range: Range<FileOffset>,
        emit: &mut dyn FnMut(FiemapExtent) -> ControlFlow<()>,
    ) -> Result<()> {
        let _lock = self.lock_shared();
        iomap::fiemap(self.inode.data()?.mapper, range, emit)
    }

    /// The cached data of a regular file, made when it is first asked for.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.mapping.get_or_init(|| self.volume.new_mapping())
    }

    /// The cached data, if it was asked for.
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

    pub(crate) fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    pub(crate) fn volume(&self) -> &Arc<Shared> {
        &self.volume
    }

    /// Locks the inode to read it, where it can change at all.
    pub(crate) fn lock_shared(&self) -> Option<RankedReadGuard<'_, NodeState>> {
        self.volume.is_writable.then(|| self.state.read())
    }

    /// [`lock_shared`](Self::lock_shared) of a volume that can change, if nobody has to be waited for.
    pub(crate) fn try_lock_shared(&self) -> Option<RankedReadGuard<'_, NodeState>> {
        self.state.try_read()
    }

    /// [`lock_shared`](Self::lock_shared) of a volume that can change.
    pub(crate) fn lock_state_shared(&self) -> RankedReadGuard<'_, NodeState> {
        self.state.read()
    }

    /// Locks the inode to change it.
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
}

impl Drop for Node {
    /// The end of an inode that has no name. The table does not keep such a node, so that this is
    /// the last user's end, whoever that is: locks of the rank of inodes may be held, later ones
    /// not.
    fn drop(&mut self) {
        if self.state.get_mut().life == Life::Named {
            return;
        }
        self.volume.nodes.remove_dead(self.number, self);
        self.drop_data();
        if let Err(error) = self.inode.released() {
            tracing::warn!("inode {} stays an orphan: {error}", self.number);
        }
    }
}
