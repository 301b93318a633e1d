//! Creation of inodes, with a name or without.
//! Not here: inherited attributes other than flags.

use std::sync::Arc;

use base::attributes::{DeviceNumber, FileType};
use base::{Error, FileBlock, InodeNumber, Result, Unsupported};
use fs::NewInode;

use super::{INODE_CREDITS, can_have_more, count_subdirectory, is_directory, touch};
use crate::alloc::{ALLOCATE_CREDITS, ALLOCATE_INODE_CREDITS, FREE_INODE_CREDITS, Purpose};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::journal::Handle;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::map_write::{NewBlocks, Progress, empty_root};
use crate::ondisk::inode::BASE_BYTES;
use crate::orphans::write::ORPHAN_CREDITS;
use crate::volume::Volume;

/// The maximum length of a symbolic link's target in the inode, where a NUL follows it.
const FAST_TARGET_BYTES_MAX: usize = 59;
/// The length of the known extra fields, in bytes.
const EXTRA_BYTES: usize = 32;
/// The credits for a new inode: itself, its first block, and freeing both.
const ALLOCATION_CREDITS: u32 =
    ALLOCATE_INODE_CREDITS + FREE_INODE_CREDITS + INODE_CREDITS + 2 * ALLOCATE_CREDITS + 2;

impl Inode {
    /// Creates an inode with a name in this directory.
    pub fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Inode>> {
        self.check_holds_names()?;
        self.check_absent(name)?;
        self.check_target(new)?;
        let is_directory = new.kind == FileType::Directory;
        if is_directory && !can_have_more(self) {
            return Err(Error::TooManyLinks);
        }
        let credits = ALLOCATION_CREDITS
            + INODE_CREDITS
            + self.credits_for_insert()
            + self.credits_for_new_xattrs(new);
        self.volume().change_with_space(credits, |handle| {
            let inode = self.create_inode(handle, new, if is_directory { 2 } else { 1 })?;
            let insert =
                |handle: &mut Handle<'_>| self.dir_insert(handle, name, inode.number(), new.kind);
            attempt(handle, |handle| inode.fill(handle, self.number(), new))
                .and_then(|()| attempt(handle, insert))
                .or_else(|failed| inode.undo_creation(handle, failed))?;
            if is_directory {
                count_subdirectory(handle, self)?;
            }
            touch(handle, self, new.time)?;
            Ok(inode)
        })
    }

    /// Creates an inode without a name, in a group near this directory. It is deleted if it is
    /// released without a name.
    pub fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<Inode>> {
        self.check_holds_names()?;
        if new.kind == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        self.check_target(new)?;
        let credits = ALLOCATION_CREDITS + ORPHAN_CREDITS + self.credits_for_new_xattrs(new);
        self.volume().change_with_space(credits, |handle| {
            let inode = self.create_inode(handle, new, 0)?;
            attempt(handle, |handle| inode.fill(handle, self.number(), new))
                .or_else(|failed| inode.undo_creation(handle, failed))?;
            self.volume().add_orphan(handle, &inode)?;
            Ok(inode)
        })
    }

    /// Returns an error if the target of a symbolic link and a NUL do not fit into a block.
    fn check_target(&self, new: &NewInode<'_>) -> Result<()> {
        let fits = new.target.len() < self.volume().geometry().block_size.len();
        if fits { Ok(()) } else { Err(Error::NameTooLong) }
    }

    fn credits_for_new_xattrs(&self, new: &NewInode<'_>) -> u32 {
        // Once to store them, and once to undo that.
        self.volume().credits_for_xattrs(new.xattrs).saturating_mul(2)
    }

    /// Returns an error if this is not a directory, or was removed.
    pub(super) fn check_holds_names(&self) -> Result<()> {
        if !is_directory(self) {
            return Err(Error::NotDirectory);
        }
        if self.record().links == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Returns an error if the name exists.
    pub(super) fn check_absent(&self, name: &[u8]) -> Result<()> {
        match self.lookup(name) {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Allocates an inode and writes its record. Its data is not written.
    fn create_inode(
        &self,
        handle: &mut Handle<'_>,
        new: &NewInode<'_>,
        links: u16,
    ) -> Result<Arc<Inode>> {
        let volume = self.volume();
        let is_directory = new.kind == FileType::Directory;
        let number = volume.allocator()?.allocate_inode(handle, self.number(), is_directory)?;
        let record = record_of(volume, number, new, links, self.record().flags);
        volume.write_new_inode(handle, &record)?;
        Ok(Arc::new(Inode::new(Arc::clone(volume), record)))
    }

    /// Writes the initial contents of an inode: attributes, entries of a directory, the target of a
    /// link.
    fn fill(
        self: &Arc<Self>,
        handle: &mut Handle<'_>,
        parent: InodeNumber,
        new: &NewInode<'_>,
    ) -> Result<()> {
        self.store_new_xattrs(handle, new.xattrs)?;
        match new.kind {
            FileType::Directory => self.dir_init(handle, parent),
            FileType::Symlink if new.target.len() > FAST_TARGET_BYTES_MAX => {
                let (at, unwritten, purpose) = (FileBlock(0), false, Purpose::Metadata);
                let wanted = NewBlocks { at, wanted: 1, unwritten, purpose };
                let run = self.map_new_blocks(handle, wanted)?.run;
                let mut bytes = vec![0; self.volume().geometry().block_size.len()];
                bytes[..new.target.len()].copy_from_slice(new.target);
                handle.replace(run.block, bytes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Frees an inode that was created in this handle and has no name. If the failed part has left
    /// changes, the inode stays, and the error shuts the volume down. Returns the error.
    fn undo_creation(&self, handle: &mut Handle<'_>, failed: Failed) -> Result<()> {
        if failed.left_changes {
            return Err(failed.error);
        }
        if self.has_map() && !self.has(InodeFlags::INLINE_DATA) {
            let all = FileBlock(0)..FileBlock(FILE_BLOCKS_MAX);
            if self.unmap(handle, all)? != Progress::Done {
                // Only one or two blocks are mapped, and there were credits for them.
                return Err(Unsupported::Operation(
                    "undoing the creation of an inode in several transactions",
                )
                .into());
            }
        }
        self.drop_new_xattrs(handle)?;
        self.update(handle, super::release::mark_deleted)?;
        self.volume().allocator()?.retire_inode(handle, self.number(), is_directory(self))?;
        handle.mark_undone();
        Err(failed.error)
    }
}

/// The failure of one part of an operation.
struct Failed {
    error: Error,
    /// Whether the part may have left changes.
    left_changes: bool,
}

/// Runs one part of an operation.
fn attempt(
    handle: &mut Handle<'_>,
    part: impl FnOnce(&mut Handle<'_>) -> Result<()>,
) -> std::result::Result<(), Failed> {
    let before = handle.changes();
    part(handle).map_err(|error| {
        // If it runs out of space, a part undoes its own changes.
        let is_as_before =
            handle.changes() == before || matches!(error, Error::NoSpace | Error::FileTooLarge);
        Failed { error, left_changes: !is_as_before }
    })
}

impl Volume {
    /// Writes the record of a new inode to the table.
    fn write_new_inode(&self, handle: &mut Handle<'_>, record: &InodeRecord) -> Result<()> {
        let geometry = self.geometry();
        let (block, at, location) = self.inode_location(record.number)?;
        handle.edit(block, "inode", location, |table| {
            let bytes = &mut table[at..at + geometry.inode_size as usize];
            bytes.fill(0);
            record.store(bytes, geometry);
        })
    }
}

/// Returns the record of a new inode.
fn record_of(
    volume: &Volume,
    number: InodeNumber,
    new: &NewInode<'_>,
    links: u16,
    parent: InodeFlags,
) -> InodeRecord {
    let geometry = volume.geometry();
    let has_map = matches!(new.kind, FileType::Regular | FileType::Directory)
        || new.kind == FileType::Symlink && new.target.len() > FAST_TARGET_BYTES_MAX;
    let uses_extents = has_map && geometry.features.has(Feature::Extent);
    let mut flags = parent.inherited_by(new.kind);
    if uses_extents {
        flags.0 |= InodeFlags::EXTENTS.0;
    }
    let generation = random();
    let extra = extra_bytes(volume);
    let start = BASE_BYTES + extra;
    let size = match new.kind {
        FileType::Symlink => new.target.len() as u64,
        _ => 0,
    };
    let mut record = InodeRecord {
        number,
        kind: new.kind,
        permissions: new.permissions & 0o7777,
        uid: new.uid,
        gid: new.gid,
        links,
        size,
        blocks: 0,
        flags,
        generation,
        version: 0,
        accessed: new.time,
        changed: new.time,
        modified: new.time,
        created: (extra >= 24).then_some(new.created),
        deleted: 0,
        project: geometry.features.has(Feature::Project).then_some(0),
        attribute_block: None,
        block_area: if uses_extents { empty_root() } else { area_of(new, has_map) },
        attribute_area: vec![0; (geometry.inode_size as usize).saturating_sub(start)].into(),
        attribute_area_start: start.min(geometry.inode_size as usize),
        checksum_seed: geometry.inode_seed(number, generation),
    };
    record.fit_times();
    record
}

/// Returns the initial block area of an inode without an extent tree.
fn area_of(new: &NewInode<'_>, has_map: bool) -> [u8; 60] {
    let mut area = [0; 60];
    match new.kind {
        FileType::Symlink if !has_map => area[..new.target.len()].copy_from_slice(new.target),
        FileType::CharacterDevice | FileType::BlockDevice => {
            let DeviceNumber { major, minor } = new.device;
            // The old form has 8 bits for each; the new one 12 and 20.
            if major < 256 && minor < 256 {
                area[..4].copy_from_slice(&(major << 8 | minor).to_le_bytes());
            } else {
                let packed = minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12;
                area[4..8].copy_from_slice(&packed.to_le_bytes());
            }
        }
        _ => {}
    }
    area
}

/// Returns the length of the extra fields of new inodes, in bytes.
fn extra_bytes(volume: &Volume) -> usize {
    let room = (volume.geometry().inode_size as usize).saturating_sub(BASE_BYTES);
    let wanted = usize::from(volume.superblock().raw().want_extra_isize.get());
    let wanted = if wanted == 0 { EXTRA_BYTES } else { wanted };
    if wanted > room || wanted % 4 != 0 { EXTRA_BYTES.min(room) } else { wanted }
}

/// Returns an unpredictable number, for generations of inodes.
fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u32
}

#[cfg(test)]
mod tests {
    use base::{Location, Problem};

    use super::*;
    use crate::ROOT_INODE;
    use crate::common::{Image, new_inode, open_for_writing};

    /// Returns the error of creating an inode with `part`, which fails, and these credits; and the
    /// result of the next change.
    fn fail_creation(
        credits: u32,
        part: impl FnOnce(&Inode, &mut Handle<'_>) -> Result<()>,
    ) -> (Error, Result<()>) {
        let image = Image::make(8, &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
        let volume = open_for_writing(&image);
        let free = volume.statfs().inodes_free;
        let root = volume.inode(ROOT_INODE).unwrap();
        let failed = volume.change(credits, |handle| {
            let inode = root.create_inode(handle, &new_inode(FileType::Regular), 1)?;
            attempt(handle, |handle| part(&inode, handle))
                .or_else(|failed| inode.undo_creation(handle, failed))
        });
        let next = volume.change(1, |handle| root.update(handle, |_| ()));
        if next.is_ok() {
            assert_eq!(volume.statfs().inodes_free, free);
            volume.close().unwrap();
        }
        (failed.unwrap_err(), next)
    }

    fn map_a_block(inode: &Inode, handle: &mut Handle<'_>) -> Result<()> {
        let (unwritten, purpose) = (false, Purpose::Metadata);
        let wanted = NewBlocks { at: FileBlock(5000), wanted: 1, unwritten, purpose };
        inode.map_new_blocks(handle, wanted).map(drop)
    }

    fn corrupt() -> Error {
        Error::corrupt("directory", Location::default(), Problem::Missing("something"))
    }

    #[test]
    fn a_new_inode_is_freed_if_a_later_part_fails_without_changes() {
        let (error, next) = fail_creation(100, |_, _| Err(corrupt()));
        assert_eq!((error, next), (corrupt(), Ok(())));
        let (error, next) =
            fail_creation(100, |inode, handle| map_a_block(inode, handle).and(Err(Error::NoSpace)));
        assert_eq!((error, next), (Error::NoSpace, Ok(())));
    }

    #[test]
    fn a_failure_that_leaves_changes_shuts_the_volume_down() {
        let (error, next) =
            fail_creation(100, |inode, handle| map_a_block(inode, handle).and(Err(corrupt())));
        assert_eq!(error, corrupt());
        assert!(matches!(next, Err(Error::ShutDown(_))), "{next:?}");
        // Too few credits are left to unmap the block.
        let (error, next) =
            fail_creation(14, |inode, handle| map_a_block(inode, handle).and(Err(Error::NoSpace)));
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert!(matches!(next, Err(Error::ShutDown(_))), "{next:?}");
    }
}
