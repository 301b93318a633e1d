//! Sets and removes extended attributes of an inode, and releases those of one that is deleted.
//! Not here: what goes where (`set.rs`), bytes (`body.rs`), who may do it.
//!
//! Other inodes may use the inode's attribute block too. What it holds does not change then: an
//! inode that changes its attributes gets a block of its own. New blocks are never shared.

use std::sync::Arc;

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, FsBlock, Location, Problem, Result, Unsupported};

use super::body::{self, Attribute, Stored};
use super::entries::Entries;
use super::holders::{Holder, credits, reference_changes, sectors, unmake};
use super::name::{NameIndex, changeable_name};
use super::set::{Attributes, Room};
use super::{acl, share};
use crate::alloc::{ALLOCATE_CREDITS, FREE_METADATA_CREDITS, Purpose};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;
use crate::journal::Handle;
use crate::ondisk::inode::BASE_BYTES;
use crate::volume::Volume;

/// Blocks that change with an inode's attributes: its own, the superblock, a new block, the old.
const CREDITS: u32 = 2 + ALLOCATE_CREDITS + 1 + FREE_METADATA_CREDITS;

impl Inode {
    /// Sets an extended attribute, named as [`get_xattr`](Self::get_xattr) does, POSIX ACLs in that
    /// form too; and with it, at once, the attributes in `change`. The caller has the inode's lock
    /// exclusively.
    ///
    /// `NoSpace` when the format has no room for it, or the volume; `Unsupported` for names that it
    /// cannot store.
    pub fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        change: &AttributeChange,
    ) -> Result<()> {
        let (index, name) = changeable_name(name)?;
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

    /// Removes an extended attribute; and with it, at once, changes the attributes in `change`.
    /// `NoAttribute` when there is none of that name. The caller has the inode's lock exclusively.
    pub fn remove_xattr(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        let (index, name) = changeable_name(name)?;
        self.change_attributes(change, |_, attributes| match attributes.remove(index, name) {
            true => Ok(()),
            false => Err(Error::NoAttribute),
        })
    }

    /// Gives an inode that was made in this handle its first attributes, named as
    /// [`get_xattr`](Self::get_xattr) does. After `NoSpace`, nothing of it is left.
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
            let (index, name) = changeable_name(name)?;
            if let Some(value) = self.stored_value(index, value)? {
                after.set(&room, index, name, &value)?;
            }
        }
        // It had none whose values could be in inodes, so there are no orphans.
        self.exchange_attributes(handle, &before, after, |_| {}).map(|_| ())
    }

    /// Takes back [`store_new_xattrs`](Self::store_new_xattrs), in the same handle, from an inode
    /// that is not to be after all.
    pub(crate) fn drop_new_xattrs(&self, handle: &mut Handle<'_>) -> Result<()> {
        let (volume, none) = (self.volume(), Attributes::default());
        let changes = reference_changes(&self.all_attributes()?, &none, false);
        self.holders(&changes)?.iter().try_for_each(|holder| holder.unmake(handle))?;
        if let Some(block) = self.record().attribute_block {
            volume.free_metadata_block(handle, block)?;
            self.update(handle, |record| record.attribute_block = None)?;
        }
        Ok(())
    }

    /// Gives back what holds the attributes of an inode that is being deleted, as far as that lies
    /// outside of it. In transactions of its own.
    pub(crate) fn release_attributes(&self) -> Result<()> {
        let is_elsewhere = |it: &Attribute| !matches!(it.value, Stored::Here(_));
        loop {
            let before = self.all_attributes()?;
            let mut after = before.clone();
            // One by one: each may take a transaction. Those in a block that others use stay.
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
            self.exchange_alone(&before, &after, &AttributeChange::default())?;
        }
    }

    /// A value as the volume stores it; `None` for an ACL without entries, which is none.
    fn stored_value(&self, index: NameIndex, value: &[u8]) -> Result<Option<Vec<u8>>> {
        /// As Linux has it.
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
        let stored = acl::to_stored(value)?;
        if is_default && stored.is_some() && self.kind() != FileType::Directory {
            return Err(Error::NotPermitted("only directories have default ACLs"));
        }
        Ok(stored)
    }

    /// Everything that the inode has, `system.data` and what no user sees included.
    fn all_attributes(&self) -> Result<Attributes> {
        let record = self.record();
        let all = |entries: Entries<'_>| entries.iter().map(|it| Attribute::of(&it)).collect();
        let area = all(self.attributes_here(&record)?);
        let block = all(self.attributes_in(self.attribute_block()?.as_ref())?);
        Ok(Attributes { area, block })
    }

    fn attribute_room(&self) -> Room {
        let record = self.record();
        let geometry = self.volume().geometry();
        // The kernel sees nothing in inodes without any extra fields.
        let has_extra = record.attribute_area_start > BASE_BYTES;
        Room {
            area: if has_extra { record.attribute_area.len() } else { 0 },
            block: geometry.block_size.len(),
            has_value_inodes: geometry.features.has(Feature::EaInode),
            is_link: self.kind() == FileType::Symlink,
        }
    }

    /// Makes of the attributes what `edit` makes of them.
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
        volume.with_space(|| self.exchange_alone(&before, &after, change))
    }

    /// Stores `after` where `before` is stored, in a transaction of its own.
    fn exchange_alone(
        &self,
        before: &Attributes,
        after: &Attributes,
        change: &AttributeChange,
    ) -> Result<()> {
        let volume = self.volume();
        let most = volume.writer()?.journal.credits_max();
        let credits = CREDITS.saturating_add(credits(volume, before, after)).min(most);
        let orphans = volume.change(credits, |handle| {
            let result = self.exchange_attributes(handle, before, after.clone(), |record| {
                record.apply(change);
            });
            if matches!(result, Err(Error::NoSpace)) {
                handle.undone();
            }
            result
        })?;
        orphans.iter().try_for_each(Inode::release)
    }

    /// Stores `after` where `before` is stored, with another change of the record. `NoSpace` leaves
    /// everything as it was. Gives inodes that are orphans now, to be released when the handle has
    /// ended.
    fn exchange_attributes(
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
        let holders = self.holders(&reference_changes(before, &after, is_shared))?;
        let kept_back = u64::from(CREDITS) + u64::from(Holder::CREDITS) * holders.len() as u64;
        let made = u64::from(credits(volume, &Attributes::default(), &after));
        if !holders.is_empty() && handle.credits_left() < kept_back + made {
            let operation = "changing such large attribute values with so small a journal";
            return Err(Unsupported::Operation(operation).into());
        }
        let mut after = after;
        let made = self.make_holders(handle, &mut after)?;
        let block = match old {
            _ if after.block.is_empty() => None,
            _ if before.block == after.block => old,
            Some(old) if !is_shared => Some(old),
            _ => Some(self.new_attribute_block(handle, &made)?),
        };
        let mut orphans = Vec::new();
        for holder in &holders {
            orphans.extend(holder.count(handle, kept_back)?);
        }
        match old {
            Some(old) if block != Some(old) && is_shared => {
                share::count_down(volume, handle, self.number(), old)?;
            }
            Some(old) if block != Some(old) => volume.free_metadata_block(handle, old)?,
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

    /// A block for attributes. `NoSpace` after deleting the inodes that were `made`.
    fn new_attribute_block(&self, handle: &mut Handle<'_>, made: &[Inode]) -> Result<FsBlock> {
        let volume = self.volume();
        let goal = volume.goal_of_inode(self.number())?;
        match volume.allocate_blocks(handle, goal, 1, Purpose::Metadata, None) {
            Ok((block, _)) => Ok(block),
            Err(error) => {
                if error == Error::NoSpace {
                    unmake(handle, made)?;
                }
                Err(error)
            }
        }
    }

    /// What is stored fits where it is, unless values lie on top of each other.
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

    /// How many inodes use the attribute block, if there is one.
    fn attribute_block_references(&self) -> Result<u32> {
        let Some(block) = self.attribute_block()? else { return Ok(0) };
        share::references(&block, Location::inode(self.number()).at_block(block.block()))
    }
}

impl Volume {
    /// Notes that there are attributes on the volume, if that is not noted yet.
    fn note_attributes(&self, handle: &mut Handle<'_>) -> Result<()> {
        if self.geometry().features.has(Feature::ExtAttr) {
            return Ok(());
        }
        self.edit_superblock(handle, |raw| crate::volume::writer::set(raw, Feature::ExtAttr, true))
    }

    /// The credits that [`Inode::store_new_xattrs`] needs, beside those for making the inode.
    pub(crate) fn credits_for_xattrs(&self, xattrs: &[(&[u8], &[u8])]) -> u32 {
        if xattrs.is_empty() {
            return 0;
        }
        let mut new = Attributes::default();
        if self.geometry().features.has(Feature::EaInode) {
            // At worst, none finds room elsewhere.
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
