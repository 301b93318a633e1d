//! Inodes that hold values of attributes: their creation, their reference counts, and their
//! deletion with the last reference, at once if the transaction has room. Not here: reading them
//! (`value.rs`).
//!
//! `value.rs` describes the fields that such an inode has in place of times and version. New inodes
//! have one reference; a copy of an attribute block adds references.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use base::attributes::{FileType, Timestamp};
use base::checksum::crc32c;
use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result, Unsupported};

use super::body::{Attribute, Stored, hash};
use super::set::Attributes;
use super::value;
use crate::alloc::{ALLOCATE_INODE_CREDITS, FREE_CREDITS, FREE_INODE_CREDITS, Purpose};
use crate::clock::now;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::journal::Handle;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::map_write::{NewBlocks, Progress, empty_root};
use crate::orphans::write::ORPHAN_CREDITS;
use crate::volume::Volume;

const STRUCTURE: &str = "extended attribute value";
/// The credits for the map of a value with few extents.
const MAP_CREDITS: u32 = 20;
/// The credits for one more extent, and for the changes after the value is written.
const PIECE_CREDITS: u64 = 12 + 8;

/// Changes of reference counts, by value inode.
pub(super) type ReferenceChanges = BTreeMap<InodeNumber, i64>;

/// Returns the changes of references to values. A block that other inodes share keeps its
/// references.
pub(super) fn reference_changes(
    before: &Attributes,
    after: &Attributes,
    is_shared: bool,
) -> ReferenceChanges {
    let mut changes = ReferenceChanges::new();
    let mut count = |attributes: &[Attribute], by: i64| {
        for attribute in attributes {
            if let Stored::InInode { inode, .. } = attribute.value {
                *changes.entry(inode).or_default() += by;
            }
        }
    };
    count(&before.area, -1);
    count(&after.area, 1);
    if before.block != after.block {
        count(&before.block, if is_shared { 0 } else { -1 });
        count(&after.block, 1);
    }
    changes.retain(|_, by| *by != 0);
    changes
}

/// Returns the blocks that values in inodes add to the block count of an inode with these
/// attributes, in units of 512 bytes.
pub(super) fn sectors(volume: &Volume, attributes: &Attributes) -> u64 {
    let geometry = volume.geometry();
    let cluster = u64::from(geometry.block_size.bytes()) << geometry.cluster_shift;
    let sizes = attributes.area.iter().chain(&attributes.block).map(|it| match &it.value {
        Stored::InInode { size, .. } => u64::from(*size),
        Stored::ToInode(value) => value.len() as u64,
        Stored::Here(_) => 0,
    });
    sizes.map(|size| size.next_multiple_of(cluster) / 512).sum()
}

/// Returns the credits for creating and deleting inodes for this change. They suffice if the block
/// is shared, too.
pub(super) fn credits(volume: &Volume, before: &Attributes, after: &Attributes) -> u32 {
    let blocks = |bytes: u64| volume.geometry().block_size.blocks_for(bytes) as u32;
    let both = || after.area.iter().chain(&after.block);
    let made = both().map(|it| match &it.value {
        Stored::ToInode(value) => {
            ALLOCATE_INODE_CREDITS + 1 + MAP_CREDITS + blocks(value.len() as u64)
        }
        _ => 0,
    });
    let gone = reference_changes(before, after, false);
    let counted = before.area.iter().chain(&before.block).chain(both()).map(|it| match &it.value {
        Stored::InInode { inode, size } if gone.get(inode).is_some_and(|&by| by < 0) => {
            delete_credits(volume, (*size).into())
        }
        Stored::InInode { .. } => ValueInode::CREDITS,
        _ => 0,
    });
    made.chain(counted).fold(0, u32::saturating_add)
}

/// Returns the credits for deleting an inode with a value of `bytes` bytes.
fn delete_credits(volume: &Volume, bytes: u64) -> u32 {
    // The size is that of an inode that was read, and may be any number.
    let blocks = u32::try_from(volume.geometry().block_size.blocks_for(bytes)).unwrap_or(u32::MAX);
    (1 + MAP_CREDITS + FREE_CREDITS + FREE_INODE_CREDITS).saturating_add(blocks)
}

/// A value inode whose reference count changes.
pub(super) struct ValueInode {
    inode: Arc<Inode>,
    /// The new number of references.
    references: u64,
}

impl Inode {
    /// Returns the value inodes whose reference counts change. All of them are validated.
    pub(super) fn value_inodes(&self, changes: &ReferenceChanges) -> Result<Vec<ValueInode>> {
        let holder = |(&number, &by): (&InodeNumber, &i64)| {
            let location = Location::inode(number);
            self.volume().check_not_special(STRUCTURE, number)?;
            let inode = match self.volume().special_inode(number) {
                Err(Error::NotFound) => {
                    return Err(Error::corrupt(STRUCTURE, location, Problem::Missing("inode")));
                }
                inode => inode?,
            };
            let record = inode.record();
            value::check_kind(&record)?;
            // References to Lustre's value inodes are not counted.
            let is_of_lustre = record.modified.seconds as u64 == self.number().0
                && record.generation == self.record().generation;
            let now = if is_of_lustre { 1 } else { value::reference_count(&record) };
            let references = now.checked_add_signed(by).ok_or_else(|| {
                let problem = Problem::Missing("count of the removed reference");
                Error::corrupt(STRUCTURE, location, problem)
            })?;
            Ok(ValueInode { inode: Arc::new(inode), references })
        };
        changes.iter().map(holder).collect()
    }

    /// Creates inodes for the values that need them. Errors: `NoSpace` if no inode or no space is
    /// left. The created inodes are deleted again.
    pub(super) fn create_value_inodes(
        &self,
        handle: &mut Handle<'_>,
        attributes: &mut Attributes,
    ) -> Result<Vec<Inode>> {
        let mut made = Vec::new();
        for attribute in attributes.area.iter_mut().chain(&mut attributes.block) {
            let Stored::ToInode(value) = &attribute.value else { continue };
            let checksum = crc32c(self.volume().geometry().checksum_seed, value);
            let size = value.len() as u32;
            match self.create_value_inode(handle, value, checksum) {
                Ok(holder) => {
                    let inode = holder.number();
                    attribute.value = Stored::InInode { inode, size };
                    attribute.hash = hash(&attribute.name, &checksum.to_le_bytes());
                    made.push(holder);
                }
                Err(error) => {
                    if error == Error::NoSpace {
                        delete_new(handle, &made)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    fn create_value_inode(
        &self,
        handle: &mut Handle<'_>,
        value: &[u8],
        checksum: u32,
    ) -> Result<Self> {
        let volume = self.volume();
        let number = volume.allocator()?.allocate_inode(handle, self.number(), false)?;
        let record = self.value_inode_record(number, value.len() as u64, checksum);
        let (block, at, location) = volume.inode_location(number)?;
        let geometry = volume.geometry();
        handle.edit(block, "inode", location, |table| {
            let bytes = &mut table[at..at + geometry.inode_size as usize];
            bytes.fill(0);
            record.store(bytes, geometry);
        })?;
        let holder = Inode::new(Arc::clone(volume), record);
        match holder.write_value(handle, value) {
            Ok(()) => Ok(holder),
            Err(error) => {
                if error == Error::NoSpace {
                    holder.delete_new_value_inode(handle)?;
                }
                Err(error)
            }
        }
    }

    /// Returns the record of a new inode for a value of this inode's attribute.
    fn value_inode_record(&self, number: InodeNumber, size: u64, checksum: u32) -> InodeRecord {
        let (owner, geometry) = (self.record(), self.volume().geometry());
        let generation = RandomState::new().hash_one(number.0) as u32;
        let uses_extents = geometry.features.has(Feature::Extent);
        let map_flag = if uses_extents { InodeFlags::EXTENTS.0 } else { 0 };
        let (seconds, now) = (|seconds| Timestamp { seconds, nanoseconds: 0 }, now());
        InodeRecord {
            number,
            kind: FileType::Regular,
            permissions: 0o600,
            links: 1,
            size,
            blocks: 0,
            flags: InodeFlags(InodeFlags::EA_INODE.0 | map_flag),
            generation,
            // The low half of the reference count. Its high half is in the time of change.
            version: 1,
            changed: seconds(0),
            accessed: seconds(checksum.into()),
            modified: now,
            created: owner.created.map(|_| now),
            deleted: 0,
            attribute_block: None,
            block_area: if uses_extents { empty_root() } else { [0; 60] },
            attribute_area: vec![0; owner.attribute_area.len()].into(),
            checksum_seed: geometry.inode_seed(number, generation),
            ..InodeRecord::clone(&owner)
        }
    }

    fn write_value(&self, handle: &mut Handle<'_>, value: &[u8]) -> Result<()> {
        let block_size = self.volume().geometry().block_size;
        let mut rest = value.chunks(block_size.len());
        let mut at = FileBlock(0);
        while rest.len() > 0 {
            let wanted = rest.len() as u64;
            if handle.credits_left() < wanted + PIECE_CREDITS {
                return Err(Error::NoSpace);
            }
            let purpose = Purpose::Metadata;
            let request = NewBlocks { at, wanted, unwritten: false, purpose };
            let run = self.map_new_blocks(handle, request)?.run;
            for (index, part) in (0..run.length).zip(rest.by_ref()) {
                let mut bytes = part.to_vec();
                bytes.resize(block_size.len(), 0);
                handle.replace(FsBlock(run.block.0 + index), bytes);
            }
            at = run.end();
        }
        Ok(())
    }

    /// Deletes a value inode without references. Returns false if its map is damaged, or needs more
    /// changes than the handle allows.
    fn delete_value_inode(&self, handle: &mut Handle<'_>) -> Result<bool> {
        let all = FileBlock(0)..FileBlock(FILE_BLOCKS_MAX);
        let changes = handle.changes();
        match self.unmap(handle, all) {
            Ok(Progress::Done) => {}
            Ok(Progress::More(_)) => return Ok(false),
            Err(Error::Corrupt(_)) if handle.changes() == changes => return Ok(false),
            Err(error) => return Err(error),
        }
        self.update(handle, |record| {
            record.links = 0;
            record.size = 0;
            record.version = 0;
            // The field has 32 bits, and zero stands for an inode that was not deleted.
            record.deleted = (now().seconds as u32).max(1);
        })?;
        self.volume().allocator()?.retire_inode(handle, self.number(), false)?;
        Ok(true)
    }

    /// Deletes a value inode that was created in this handle.
    fn delete_new_value_inode(&self, handle: &mut Handle<'_>) -> Result<()> {
        if self.delete_value_inode(handle)? {
            return Ok(());
        }
        Err(Unsupported::Operation("deleting an attribute value in several transactions").into())
    }
}

impl ValueInode {
    /// The credits that [`store_count`](Self::store_count) needs at least.
    pub(super) const CREDITS: u32 = 1 + ORPHAN_CREDITS;

    /// Writes the reference count. If it is 0, deletes the inode, unless fewer than `kept_back`
    /// credits would be left. Then the inode becomes an orphan, and is returned for the caller to
    /// release.
    pub(super) fn store_count(
        &self,
        handle: &mut Handle<'_>,
        kept_back: u64,
    ) -> Result<Option<Arc<Inode>>> {
        let (inode, volume) = (&self.inode, self.inode.volume());
        let needed = u64::from(delete_credits(volume, inode.size()));
        let is_gone = self.references == 0;
        let has_room = handle.credits_left() >= needed.saturating_add(kept_back);
        if is_gone && has_room && inode.delete_value_inode(handle)? {
            return Ok(None);
        }
        inode.update(handle, |record| {
            record.changed = Timestamp { seconds: (self.references >> 32) as i64, nanoseconds: 0 };
            record.version = self.references & 0xFFFF_FFFF;
            record.links = u16::from(!is_gone);
        })?;
        if !is_gone {
            return Ok(None);
        }
        volume.add_orphan(handle, inode)?;
        Ok(Some(Arc::clone(inode)))
    }

    /// Deletes a value inode that was created in this handle.
    pub(super) fn delete_new(&self, handle: &mut Handle<'_>) -> Result<()> {
        self.inode.delete_new_value_inode(handle)
    }
}

/// Deletes value inodes that were created in this handle.
pub(super) fn delete_new(handle: &mut Handle<'_>, made: &[Inode]) -> Result<()> {
    made.iter().try_for_each(|holder| holder.delete_new_value_inode(handle))
}
