//! Changes of an inode's extended attributes, and their release when the inode is deleted.
//! Not here: the choice of positions (`set.rs`), encoding (`body.rs`), permissions.
//!
//! Other inodes may use the inode's attribute block, too. Such a block never changes: an inode that
//! changes its attributes gets its own block. New blocks are never shared.

use std::sync::Arc;

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, FsBlock, Location, Problem, Result, Unsupported};

use super::body::{self, Attribute, Stored};
use super::entries::Entries;
use super::name::NAMES;
use super::set::{Attributes, Room};
use super::share;
use super::value_inodes::{ValueInode, credits, delete_new, reference_changes, sectors};
use crate::alloc::{ALLOCATE_CREDITS, FREE_METADATA_CREDITS, Goal, Purpose};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;
use crate::journal::Handle;
use crate::ondisk::inode::BASE_BYTES;
use crate::superblock::set_feature;
use crate::volume::Volume;
use fs::xattr::NameIndex;

/// Credits for the blocks that change with an inode's attributes: its own, the superblock, a new
/// block, the old block.
const CREDITS: u32 = 2 + ALLOCATE_CREDITS + 1 + FREE_METADATA_CREDITS;

impl Inode {
    /// Sets an extended attribute, and in the same transaction the attributes in `change`. Name and
    /// value have the form of [`get_xattr`](Self::get_xattr), also for POSIX ACLs. The caller holds
    /// the inode's lock exclusively.
    ///
    /// Errors: `NoSpace` if the format or the volume has no room for the value; `Unsupported` for
    /// names that cannot be stored.
    pub fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        change: &AttributeChange,
    ) -> Result<()> {
        let (index, name) = NAMES.changeable_name(name)?;
        let value = self.stored_value(index, value)?;
        self.change_attributes(change, |room, attributes| {
            match (mode, attributes.contains(index, name)) {
                (XattrMode::Create, true) => return Err(Error::Exists),
                (XattrMode::Replace, false) => return Err(Error::NoAttribute),
                _ => {}
            }
            match &value {
                Some(value) => attributes.set(room, index, name, value),
                None => {
                    attributes.remove(index, name);
                    Ok(())
                }
            }
        })
    }

    /// Removes an extended attribute, and changes the attributes in `change` in the same
    /// transaction. Errors: `NoAttribute` if it does not exist. The caller holds the inode's lock
    /// exclusively.
    pub fn remove_xattr(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        let (index, name) = NAMES.changeable_name(name)?;
        self.change_attributes(change, |_, attributes| {
            if attributes.remove(index, name) { Ok(()) } else { Err(Error::NoAttribute) }
        })
    }

    /// Sets the first attributes of an inode that was created in this handle, named as in
    /// [`get_xattr`](Self::get_xattr). Errors: after `NoSpace`, none of them is set.
    pub(crate) fn store_new_xattrs(
        &self,
        handle: &mut Handle<'_>,
        xattrs: &[(&[u8], &[u8])],
    ) -> Result<()> {
        if xattrs.is_empty() {
            return Ok(());
        }
        let (room, before) = (self.attribute_room(), self.all_attributes()?);
        let mut after = before.clone();
        for (name, value) in xattrs {
            let (index, name) = NAMES.changeable_name(name)?;
            if let Some(value) = self.stored_value(index, value)? {
                after.set(&room, index, name, &value)?;
            }
        }
        // The inode had no value inodes that could become orphans.
        self.replace_attributes(handle, &before, after, |_| {}).map(|_| ())
    }

    /// Undoes [`store_new_xattrs`](Self::store_new_xattrs) in the same handle, when the creation of
    /// the inode fails.
    pub(crate) fn drop_new_xattrs(&self, handle: &mut Handle<'_>) -> Result<()> {
        let (volume, none) = (self.volume(), Attributes::default());
        let changes = reference_changes(&self.all_attributes()?, &none, false);
        self.value_inodes(&changes)?.iter().try_for_each(|holder| holder.delete_new(handle))?;
        if let Some(block) = self.record().attribute_block {
            volume.allocator()?.free_metadata_block(handle, block)?;
            self.update(handle, |record| record.attribute_block = None)?;
        }
        Ok(())
    }

    /// Frees the attribute block and value inodes of an inode that is being deleted, in separate
    /// transactions.
    pub(crate) fn release_attributes(&self) -> Result<()> {
        let is_elsewhere = |it: &Attribute| !matches!(it.value, Stored::Here(_));
        loop {
            let before = self.all_attributes()?;
            let mut after = before.clone();
            // One value at a time, since each may take a transaction. Values of a block that other
            // inodes use stay.
            if let Some(index) = before.area.iter().position(is_elsewhere) {
                after.area.remove(index);
            } else if self.attribute_block_references()? > 1 {
                after.block.clear();
            } else if let Some(index) = before.block.iter().position(is_elsewhere) {
                after.block.remove(index);
            } else {
                after.block.clear();
            }
            if before == after && self.record().attribute_block.is_none() {
                return Ok(());
            }
            self.replace_in_transaction(&before, &after, &AttributeChange::default())?;
        }
    }

    /// Returns a value in stored form; `None` for an ACL without entries, which means no ACL.
    fn stored_value(&self, index: NameIndex, value: &[u8]) -> Result<Option<Vec<u8>>> {
        /// As in Linux.
        const VALUE_BYTES_MAX: usize = 64 << 10;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::InvalidArgument("the attribute's value is too long"));
        }
        let is_default = index == NameIndex::ACL_DEFAULT;
        if !is_default && index != NameIndex::ACL_ACCESS {
            return Ok(Some(value.to_vec()));
        }
        if self.kind() == FileType::Symlink {
            return Err(Unsupported::Operation("an ACL of a symbolic link").into());
        }
        let stored = fs::acl::stored::to_stored(value)?;
        if is_default && stored.is_some() && self.kind() != FileType::Directory {
            return Err(Error::NotPermitted("only directories have default ACLs"));
        }
        Ok(stored)
    }

    /// Returns all attributes of the inode, including `system.data` and attributes that users
    /// cannot see.
    fn all_attributes(&self) -> Result<Attributes> {
        let record = self.record();
        let all = |entries: Entries<'_>| entries.iter().map(|it| Attribute::of(&it)).collect();
        let area = all(self.attributes_in_inode(&record)?);
        let block = all(self.attributes_in_block(self.attribute_block()?.as_ref())?);
        Ok(Attributes { area, block })
    }

    fn attribute_room(&self) -> Room {
        let record = self.record();
        let geometry = self.volume().geometry();
        // The kernel ignores attributes in inodes without extra fields.
        let has_extra = record.attribute_area_start > BASE_BYTES;
        Room {
            area: if has_extra { record.attribute_area.len() } else { 0 },
            block: geometry.block_size.len(),
            has_value_inodes: geometry.features.has(Feature::EaInode),
            is_link: self.kind() == FileType::Symlink,
        }
    }

    /// Replaces the attributes by the result of `edit`.
    fn change_attributes(
        &self,
        change: &AttributeChange,
        edit: impl FnOnce(&Room, &mut Attributes) -> Result<()>,
    ) -> Result<()> {
        let volume = self.volume();
        volume.writer()?;
        let before = self.all_attributes()?;
        let mut after = before.clone();
        edit(&self.attribute_room(), &mut after)?;
        volume.allocator()?.with_space(|| self.replace_in_transaction(&before, &after, change))
    }

    /// Replaces the attributes `before` by `after`, in a transaction.
    fn replace_in_transaction(
        &self,
        before: &Attributes,
        after: &Attributes,
        change: &AttributeChange,
    ) -> Result<()> {
        let volume = self.volume();
        let most = volume.writer()?.journal.credits_max();
        let credits = CREDITS.saturating_add(credits(volume, before, after)).min(most);
        let orphans = volume.change(credits, |handle| {
            let result = self.replace_attributes(handle, before, after.clone(), |record| {
                record.apply(change);
            });
            if matches!(result, Err(Error::NoSpace)) {
                handle.mark_undone();
            }
            result
        })?;
        orphans.iter().try_for_each(Inode::release)
    }

    /// Replaces the attributes `before` by `after`, and changes the record. Errors: after
    /// `NoSpace`, nothing is changed. Returns inodes that became orphans. The caller releases them
    /// after the handle has ended.
    fn replace_attributes(
        &self,
        handle: &mut Handle<'_>,
        before: &Attributes,
        after: Attributes,
        change: impl FnOnce(&mut InodeRecord),
    ) -> Result<Vec<Arc<Inode>>> {
        let volume = self.volume();
        let (record, geometry) = (self.record(), volume.geometry());
        self.check_room(&after)?;
        let _shared = volume.writer()?.shared_attributes.lock();
        let old = record.attribute_block;
        let is_shared = self.attribute_block_references()? > 1;
        let holders = self.value_inodes(&reference_changes(before, &after, is_shared))?;
        let kept_back = u64::from(CREDITS) + u64::from(ValueInode::CREDITS) * holders.len() as u64;
        let made = u64::from(credits(volume, &Attributes::default(), &after));
        if !holders.is_empty() && handle.credits_left() < kept_back + made {
            let operation = "changing attribute values that are too large for the journal";
            return Err(Unsupported::Operation(operation).into());
        }
        let mut after = after;
        let made = self.create_value_inodes(handle, &mut after)?;
        let block = match old {
            _ if after.block.is_empty() => None,
            _ if before.block == after.block => old,
            Some(old) if !is_shared => Some(old),
            _ => Some(self.new_attribute_block(handle, &made)?),
        };
        let mut orphans = Vec::new();
        for holder in &holders {
            orphans.extend(holder.store_count(handle, kept_back)?);
        }
        match old {
            Some(old) if block != Some(old) && is_shared => {
                share::count_down(volume, handle, self.number(), old)?;
            }
            Some(old) if block != Some(old) => {
                volume.allocator()?.free_metadata_block(handle, old)?
            }
            _ => {}
        }
        let area = (before.area != after.area)
            .then(|| body::area(&after.area, record.attribute_area.len()));
        let values_after = sectors(volume, &after);
        if let Some(block) = block.filter(|_| before.block != after.block) {
            let mut bytes = body::block(after.block, geometry.block_size.len());
            body::seal_block(&mut bytes, block, geometry.metadata_seed());
            handle.replace(block, bytes);
        }
        volume.note_attributes(handle)?;
        let of_block = u64::from(geometry.block_size.bytes() / 512) << geometry.cluster_shift;
        let of_block = |block: Option<_>| if block.is_some() { of_block } else { 0 };
        let added = of_block(block) + values_after;
        let removed = of_block(old) + sectors(volume, before);
        self.update(handle, |record| {
            record.blocks = (record.blocks + added).saturating_sub(removed);
            record.attribute_block = block;
            if let Some(area) = area {
                record.attribute_area = area;
            }
            change(record);
        })?;
        Ok(orphans)
    }

    /// Allocates a block for attributes. Errors: after `NoSpace`, the inodes `made` are deleted.
    fn new_attribute_block(&self, handle: &mut Handle<'_>, made: &[Inode]) -> Result<FsBlock> {
        let volume = self.volume();
        let goal = Goal::in_any_group(volume.allocator()?.goal_of_inode(self.number())?);
        match volume.allocator()?.allocate_blocks(handle, goal, 1, Purpose::Metadata, None) {
            Ok((block, _)) => Ok(block),
            Err(error) => {
                if error == Error::NoSpace {
                    delete_new(handle, made)?;
                }
                Err(error)
            }
        }
    }

    /// Returns an error if the attributes do not fit. Stored attributes fit, unless their values
    /// overlap.
    fn check_room(&self, attributes: &Attributes) -> Result<()> {
        let area = attributes.area.is_empty()
            || body::fits_area(&attributes.area, self.record().attribute_area.len());
        let block = self.volume().geometry().block_size.len();
        if area && body::fits_block(&attributes.block, block) {
            return Ok(());
        }
        let problem = Problem::Repeated("part of a value");
        Err(Error::corrupt("extended attribute", Location::inode(self.number()), problem))
    }

    /// Returns the number of inodes that use the attribute block; 0 without a block.
    fn attribute_block_references(&self) -> Result<u32> {
        let Some(block) = self.attribute_block()? else { return Ok(0) };
        share::references(&block, Location::inode(self.number()).at_block(block.block()))
    }
}

impl Volume {
    /// Records in the superblock that the volume has attributes, unless that is recorded.
    fn note_attributes(&self, handle: &mut Handle<'_>) -> Result<()> {
        if self.geometry().features.has(Feature::ExtAttr) {
            return Ok(());
        }
        self.edit_superblock(handle, |raw| set_feature(raw, Feature::ExtAttr, true))
    }

    /// Returns the credits that [`Inode::store_new_xattrs`] needs, in addition to those for
    /// creating the inode.
    pub(crate) fn credits_for_xattrs(&self, xattrs: &[(&[u8], &[u8])]) -> u32 {
        if xattrs.is_empty() {
            return 0;
        }
        let mut new = Attributes::default();
        if self.geometry().features.has(Feature::EaInode) {
            // At worst, every value gets an inode.
            new.block.extend(xattrs.iter().map(|(name, value)| Attribute {
                index: NameIndex::USER,
                name: (*name).into(),
                value: Stored::ToInode(value.to_vec()),
                hash: 0,
            }));
        }
        CREDITS.saturating_add(credits(self, &Attributes::default(), &new))
    }
}
