//! Inodes of a volume that is open for writing: attributes, times, and the state that changes need.
//!
//! - `names.rs`: new inodes, and names in directories
//! - `data.rs`: the map of a file's data, for reading and writing
//! - `inline.rs`: data that is in the inode
//! - `atomic.rs`: data that a file gets all at once, or not at all
//! - `allocation.rs`: sizes, preallocated blocks, holes
//! - `clusters.rs`: clusters of compressed files that are written as a whole
//! - `compression.rs`: which files are compressed, and the blocks that this saves
//! - `decompression.rs`: compressed clusters that are stored block by block instead
//! - `overwrites.rs`: data that overwrites its old blocks: before a sync, and of cold files
//! - `pinned.rs`: files whose blocks stay where they are
//! - `xattrs.rs`: changes of extended attributes
//!
//! Not here: the changes of nodes (`edit`), and when they are written (`write`).

mod allocation;
mod atomic;
mod clusters;
mod compression;
mod data;
mod decompression;
mod inline;
mod names;
mod overwrites;
mod pinned;
mod xattrs;

use self::atomic::Pending;
use self::clusters::PlacedClusters;
pub(crate) use self::names::{Named, RenameMode};

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::attributes::{AttributeChange, Attributes, FileType, Timestamp};
use base::locks::{RankedMutex, RankedRwLock};
use base::{Error, FileBlock, InodeNumber, Result, Unsupported};
use fs::Delayed;
use iomap::{EarlierReads, WritableFile};

use crate::edit::{Editor, delete_inode};
use crate::inode::Inode;
use crate::inode::record::flags;
use crate::ondisk::node::RawInode;
use crate::ranks;
use crate::residents::Resident;
use crate::volume::Volume;
use crate::write::{Demand, Reserved};

/// The blocks that an operation may add besides those of data: an inode, its extended attributes, a
/// directory's block and the nodes above it.
const NODES_MAX: u64 = 8;

/// An inode of a volume that is open for writing.
#[derive(Debug)]
pub(crate) struct LiveInode {
    volume: Arc<Volume>,
    number: InodeNumber,
    /// The inode after its last change.
    current: RankedRwLock<Arc<Inode>>,
    /// Times that are not in the inode yet.
    noted: RankedMutex<Noted>,
    /// The blocks that have data in the cache, and none on the device.
    delayed: RankedMutex<Delayed>,
    /// The file's atomic write, if it has one.
    atomic: RankedMutex<Option<Pending>>,
    /// The placements of whole clusters.
    clusters: RankedMutex<PlacedClusters>,
    /// The generation of the map.
    generation: AtomicU64,
    /// The number of blocks that may be overwritten in place before the next sync.
    overwrites_left: AtomicU64,
    /// The number of threads that write the data again to move it.
    movers: AtomicU64,
    /// The states for writing that the vfs has got. It uses one of them.
    files: RankedMutex<Vec<Weak<WritableFile>>>,
}

/// Times that are written with the inode's next change.
#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    /// The time of the last change of the contents through the cache.
    modified: Option<Timestamp>,
    /// The time of the last read.
    accessed: Option<Timestamp>,
}

impl Noted {
    /// Puts back times that a change has taken which failed, unless there are newer ones.
    fn put_back(&mut self, taken: &Self) {
        self.modified = self.modified.or(taken.modified);
        self.accessed = self.accessed.or(taken.accessed);
    }
}

impl Resident for LiveInode {
    fn number(&self) -> InodeNumber {
        self.number
    }

    fn refresh(&self) -> Result<()> {
        // Under the lock: another thread must not replace the inode by an older one.
        let mut current = self.current.write();
        let mut changed = self.volume.inode(self.number)?;
        changed.keep_ciphers(&current);
        *current = Arc::new(changed);
        Ok(())
    }

    fn earlier_reads(&self, blocks: &Range<FileBlock>) -> Vec<EarlierReads> {
        let shift = self.volume.geometry().block_size.shift();
        let bytes = blocks.start.0 << shift..blocks.end.0 << shift;
        let files: Vec<_> = self.files.lock().iter().filter_map(Weak::upgrade).collect();
        files.iter().filter_map(|file| EarlierReads::of(file, bytes.clone())).collect()
    }

    fn map_changed(&self) {
        self.map_changed();
    }
}

impl LiveInode {
    /// Loads an inode. Errors: `NotFound` if it is not in use.
    pub(crate) fn load(volume: &Arc<Volume>, number: InodeNumber) -> Result<Self> {
        Ok(Self {
            volume: Arc::clone(volume),
            number,
            current: RankedRwLock::new(ranks::RECORD, Arc::new(volume.inode(number)?)),
            noted: RankedMutex::new(ranks::NOTED, Noted::default()),
            delayed: RankedMutex::new(ranks::DELAYED, Delayed::default()),
            atomic: RankedMutex::new(ranks::ATOMIC, None),
            clusters: RankedMutex::new(ranks::CLUSTERS, PlacedClusters::default()),
            generation: AtomicU64::new(0),
            overwrites_left: AtomicU64::new(0),
            movers: AtomicU64::new(0),
            files: RankedMutex::new(ranks::FILES, Vec::new()),
        })
    }

    /// Reports the error of a read to the volume, and returns the result of the read.
    pub(crate) fn found<R>(&self, read: Result<R>) -> Result<R> {
        read.inspect_err(|error| self.volume.found(error))
    }

    /// Returns the inode after its last change.
    pub(crate) fn current(&self) -> Arc<Inode> {
        Arc::clone(&self.current.read())
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Records a state for writing, before anything is read through it.
    pub(crate) fn note_file(&self, file: &Arc<WritableFile>) {
        let mut files = self.files.lock();
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(file));
    }

    /// Lets readers map the file anew.
    pub(crate) fn map_changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of nodes that a change of adjacent blocks of a file changes or adds at
    /// most.
    fn nodes_of(&self, blocks: u64) -> u64 {
        blocks / u64::from(self.volume.geometry().addresses_per_node()) + NODES_MAX
    }

    /// Returns the number of blocks that the size of the file takes.
    fn blocks_of_size(&self) -> u64 {
        self.volume.geometry().block_size.blocks_for(self.current().attributes().size)
    }

    /// Changes nodes by `work`, all or nothing, and loads this inode and `others` anew.
    fn change<R>(
        &self,
        demand: Demand,
        others: &[&Self],
        work: impl FnOnce(&mut Editor<'_>, &mut Reserved<'_>) -> Result<R>,
    ) -> Result<R> {
        self.change_or_take_back(demand, others, work, |_| ())
    }

    /// [`change`](Self::change), which calls `take_back` if it fails.
    fn change_or_take_back<R>(
        &self,
        demand: Demand,
        others: &[&Self],
        work: impl FnOnce(&mut Editor<'_>, &mut Reserved<'_>) -> Result<R>,
        take_back: impl FnOnce(&mut Reserved<'_>),
    ) -> Result<R> {
        let inodes = || std::iter::once(&self).chain(others);
        let noted = RefCell::new(Vec::new());
        let result = self.volume.writer()?.change(
            self.volume.core(),
            demand,
            |editor, reserved| {
                noted.borrow_mut().extend(inodes().map(|inode| *inode.noted.lock()));
                work(editor, reserved)
            },
            |reserved| {
                take_back(reserved);
                for (inode, noted) in inodes().zip(noted.borrow().iter()) {
                    inode.noted.lock().put_back(noted);
                }
            },
        )?;
        for inode in inodes() {
            // The change is made, and cannot be taken back.
            let health = self.volume.writer()?.health();
            inode.refresh().inspect_err(|error| health.fail(error.clone()))?;
        }
        Ok(result)
    }

    /// Changes the fields of this inode, together with its noted times.
    fn update(&self, editor: &Editor<'_>, change: impl FnOnce(&mut RawInode)) -> Result<()> {
        let noted = std::mem::take(&mut *self.noted.lock());
        editor.edit_inode(self.number, |raw| {
            if let Some(time) = noted.modified {
                raw.set_modified(time);
                raw.set_changed(time);
            }
            if let Some(time) = noted.accessed {
                raw.set_accessed(time);
            }
            change(raw);
        })
    }

    /// Returns the attributes, with noted times, and the blocks of data that is in the cache only.
    pub(crate) fn attributes(&self) -> Attributes {
        let current = self.current();
        let mut attributes = current.shown_attributes();
        let noted = *self.noted.lock();
        if let Some(time) = noted.modified {
            (attributes.modified, attributes.changed) = (time, time);
        }
        attributes.accessed = noted.accessed.unwrap_or(attributes.accessed);
        let shift = self.volume.geometry().block_size.shift();
        attributes.blocks += self.delayed.lock().reserved() << (shift - 9);
        attributes
    }

    /// Changes attributes.
    pub(crate) fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        self.change(Demand::Few, &[], |editor, _| self.update(editor, |raw| apply(raw, change)))
    }

    /// Sets the flags of FS_IOC_SETFLAGS.
    pub(crate) fn set_flags(&self, wanted: u32, time: Timestamp) -> Result<()> {
        let current = self.current();
        let attributes = current.attributes();
        let can_ignore_case =
            attributes.kind == FileType::Directory && self.volume.superblock().encoding.is_some();
        let mut changeable = flags::changeable(attributes.kind);
        if can_ignore_case {
            changeable |= flags::CASEFOLDED;
        }
        if self.can_be_compressed() {
            changeable |= flags::OF_COMPRESSION;
        }
        // As in Linux, flags that only the format sets, such as that of encryption, stay.
        if wanted & !attributes.flags & !changeable != 0 {
            return Err(Unsupported::Operation("changing flags other than those of chattr").into());
        }
        let is_immutable = |flags: u32| flags & flags::IMMUTABLE != 0;
        let set = wanted & changeable;
        if set == attributes.flags & changeable {
            return Ok(());
        }
        if is_immutable(set) && is_immutable(attributes.flags) {
            return Err(Error::NotPermitted("the file is immutable"));
        }
        let changed = set ^ attributes.flags;
        if set & flags::OF_COMPRESSION == flags::OF_COMPRESSION {
            return Err(Error::InvalidArgument("a file is either compressed or not"));
        }
        if changed & flags::COMPRESSED != 0 {
            self.prepare_compression()?;
        }
        self.change(Demand::Few, &[], |editor, _| {
            if changed & flags::CASEFOLDED != 0 {
                // The hashes of names differ. Only a change adds a name, and changes exclude each
                // other.
                self.check_empty()?;
            }
            if changed & flags::COMPRESSED != 0 {
                // A recovery replays the addresses in nodes before the flag, on which their number
                // depends.
                editor.overlay.write().set_unsyncable(self.number);
            }
            if changed & set & flags::COMPRESSED != 0 {
                let new = self.volume.new_compression();
                editor.edit_extra(self.number, |extra| extra.set_compression(new))?;
            }
            self.update(editor, |raw| {
                raw.flags.set(raw.flags.get() & !changeable | set);
                raw.set_changed(time);
            })
        })
    }

    /// Sets the project id.
    pub(crate) fn set_project(&self, project: u32, time: Timestamp) -> Result<()> {
        match self.current().attributes().project {
            // As in Linux, an inode without the field has project 0.
            now if now.unwrap_or(0) == project => Ok(()),
            None => {
                let feature = "project ids of volumes or inodes without them";
                Err(Unsupported::Inode { inode: self.number, feature }.into())
            }
            Some(_) => self.change(Demand::Few, &[], |editor, _| {
                editor.edit_extra(self.number, |extra| extra.project.set(project))?;
                self.update(editor, |raw| raw.set_changed(time))
            }),
        }
    }

    /// Records a change of the contents in the cache.
    pub(crate) fn note_modified(&self, time: Timestamp) {
        let current = self.current();
        let stored = current.attributes();
        let mut noted = self.noted.lock();
        // Within a tick of the clock, a sync need not write the inode again.
        let is_stored = stored.modified == time && stored.changed == time;
        if noted.modified.is_some() || !is_stored {
            noted.modified = Some(time);
        }
    }

    /// Records a read of the contents.
    pub(crate) fn note_accessed(&self, time: Timestamp) {
        self.noted.lock().accessed = Some(time);
    }

    /// Returns whether there are times that are not in the inode yet.
    pub(crate) fn has_pending(&self) -> bool {
        let noted = *self.noted.lock();
        noted.modified.is_some() || noted.accessed.is_some()
    }

    /// Writes noted times to the inode.
    pub(crate) fn write_pending(&self) -> Result<()> {
        if !self.has_pending() {
            return Ok(());
        }
        self.change(Demand::Few, &[], |editor, _| self.update(editor, |_| ()))
    }

    /// Makes the inode durable.
    pub(crate) fn sync(&self, data_only: bool) -> Result<()> {
        self.overwrites_left.store(0, Ordering::Relaxed);
        if !data_only {
            self.write_pending()?;
        }
        self.volume.writer()?.sync_inode(self.volume.core(), self.number)
    }

    /// Deletes the inode after its last use, if it has no name.
    pub(crate) fn release(&self) -> Result<()> {
        if self.current().attributes().links > 0 {
            return Ok(());
        }
        debug_assert!(!self.has_atomic_write(), "the file that has started it is open");
        let writer = self.volume.writer()?;
        let delayed = std::mem::take(&mut *self.delayed.lock());
        writer.unreserve(delayed.reserved());
        let delete = |editor: &mut Editor<'_>, _: &mut Reserved<'_>| {
            let inode = editor.inode(self.number)?;
            delete_inode(editor, &inode)?;
            editor.overlay.write().set_orphan(self.number, false);
            Ok(())
        };
        writer.change(self.volume.core(), Demand::Few, delete, |_| ())
    }

    /// Fails for inodes whose data or names cannot be changed. Of an encrypted file, this finds the
    /// cipher, without which no data may become dirty: it could not be written back. Of a file that
    /// Linux was extending, the first change truncates it to its size.
    pub(crate) fn check_changeable(&self) -> Result<()> {
        let current = self.current();
        let record = current.record();
        current.check_readable()?;
        if record.compression.is_some_and(|compression| compression.is_released) {
            return Err(Error::NotPermitted("the blocks that compression saves were released"));
        }
        if record.has_flag(flags::VERITY) {
            let feature = "changing files with fs-verity";
            return Err(Unsupported::Inode { inode: self.number, feature }.into());
        }
        self.truncate_if_due()
    }
}

fn apply(raw: &mut RawInode, change: &AttributeChange) {
    if let Some(permissions) = change.permissions {
        raw.mode.set(raw.mode.get() & !0o7777 | permissions & 0o7777);
    }
    if let Some(uid) = change.uid {
        raw.uid.set(uid);
    }
    if let Some(gid) = change.gid {
        raw.gid.set(gid);
    }
    if let Some(time) = change.accessed {
        raw.set_accessed(time);
    }
    if let Some(time) = change.modified {
        raw.set_modified(time);
    }
    if let Some(time) = change.changed {
        raw.set_changed(time);
    }
}
