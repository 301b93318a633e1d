//! Changes of inode records, in the inode table and in memory.
//! Not here: parsing (`inode/record.rs`), and an inode's data.

use base::attributes::{AttributeChange, Timestamp};
use base::checksum::crc32c;
use base::{InodeNumber, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::core::Core;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::inode::times;
use crate::journal::Handle;
use crate::layout::geometry::Geometry;
use crate::ondisk::inode::{
    BASE_BYTES, CHECKSUM_HI_OFFSET, CHECKSUM_LO_OFFSET, RawInode, RawInodeExtra,
};

const STRUCTURE: &str = "inode";

impl Inode {
    /// Records that the contents were changed in the cache. The times are written with the next
    /// change of the inode, at the latest when the inode is synced or released.
    pub fn note_modified(&self, time: Timestamp) {
        if self.pending.replace_modified(time) {
            return;
        }
        // If the clock has not advanced since the last change, nothing is new. The record's lock is
        // not taken under the lock of the noted times, since other threads take them in the
        // opposite order.
        let times = self.pending.times();
        if !self.record.read().says_modified(times.modified(time), times.changed(time)) {
            self.pending.set_modified(time);
        }
    }

    /// Records that the contents were read. The time is written as by
    /// [`note_modified`](Self::note_modified).
    pub fn note_accessed(&self, time: Timestamp) {
        self.pending.set_accessed(time);
    }

    /// Returns whether [`write_pending`](Self::write_pending) has anything to write.
    pub fn has_pending(&self) -> bool {
        self.pending.is_any()
    }

    /// Writes pending times, so that the inode can be evicted.
    pub fn write_pending(&self) -> Result<()> {
        if !self.pending.is_any() {
            return Ok(());
        }
        self.volume().change(1, |handle| self.update(handle, |_| ()))
    }

    /// Makes the inode durable. With `data_only`, attributes are made durable only if they are
    /// needed to read the data.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        if !data_only {
            self.write_pending()?;
        }
        let last = self.pending.last_change();
        let journal = &self.volume().writer()?.journal;
        if !last.map_or(Ok(false), |id| journal.sync(id))? {
            // Another thread's commit may have begun before the data was on the device.
            journal.flush_device()?;
        }
        Ok(())
    }

    /// Changes attributes.
    pub fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        self.volume().change(1, |handle| self.update(handle, |record| record.apply(change)))
    }

    /// Records that the handle's transaction changes the inode. A sync of the inode then makes the
    /// transaction durable.
    pub(crate) fn note_change(&self, handle: &Handle<'_>) {
        self.pending.note(handle.transaction());
    }

    /// Changes the record, on disk and in memory. The caller holds the inode's lock if it relies on
    /// other fields to stay unchanged.
    pub(crate) fn update(
        &self,
        handle: &mut Handle<'_>,
        change: impl FnOnce(&mut InodeRecord),
    ) -> Result<()> {
        let mut now = self.record.write();
        let mut record = InodeRecord::clone(&now);
        // First: a sync that finds no pending times any more waits for this transaction.
        self.note_change(handle);
        let times = self.pending.apply(&mut record);
        change(&mut record);
        record.fit_times();
        debug_assert_eq!((record.number, record.kind), (self.number(), self.kind()));
        self.volume()
            .write_inode_record(handle, &record)
            .inspect_err(|_| self.pending.restore(times))?;
        self.publish(&mut now, record);
        Ok(())
    }
}

impl Core {
    /// Writes a record to the inode table.
    pub(crate) fn write_inode_record(
        &self,
        handle: &mut Handle<'_>,
        record: &InodeRecord,
    ) -> Result<()> {
        let geometry = self.geometry();
        let (block, at, location) = self.inode_location(record.number)?;
        handle.edit(block, STRUCTURE, location, |table| {
            record.store(&mut table[at..at + geometry.inode_size as usize], geometry);
        })
    }
}

impl InodeRecord {
    fn says_modified(&self, modified: Timestamp, changed: Timestamp) -> bool {
        self.modified == modified && self.changed == changed
    }

    /// Changes attributes.
    pub(crate) fn apply(&mut self, change: &AttributeChange) {
        let set = |field: &mut Timestamp, to: Option<Timestamp>| {
            *field = to.unwrap_or(*field);
        };
        self.permissions = change.permissions.unwrap_or(self.permissions) & 0o7777;
        self.uid = change.uid.unwrap_or(self.uid);
        self.gid = change.gid.unwrap_or(self.gid);
        set(&mut self.accessed, change.accessed);
        set(&mut self.modified, change.modified);
        set(&mut self.changed, change.changed);
    }

    /// Writes the record over the inode's bytes. Fields that a record does not have are unchanged.
    pub(crate) fn store(&self, bytes: &mut [u8], geometry: &Geometry) {
        self.store_base(bytes, geometry);
        self.store_extra(bytes, geometry);
        let area = bytes.get_mut(self.attribute_area_start..).unwrap_or_default();
        let length = area.len().min(self.attribute_area.len());
        area[..length].copy_from_slice(&self.attribute_area[..length]);
        seal(bytes, geometry, self.number, self.generation);
    }

    fn store_base(&self, bytes: &mut [u8], geometry: &Geometry) {
        let Ok((raw, _)) = RawInode::mut_from_prefix(bytes) else {
            unreachable!("inodes have at least the size of their first fields");
        };
        // The type bits lie in the upper four of sixteen.
        raw.mode = (self.kind.mode_bits() as u16 | self.permissions).into();
        raw.uid = (self.uid as u16).into();
        raw.uid_high = ((self.uid >> 16) as u16).into();
        raw.gid = (self.gid as u16).into();
        raw.gid_high = ((self.gid >> 16) as u16).into();
        raw.links_count = self.links.into();
        raw.size_lo = (self.size as u32).into();
        raw.size_high = ((self.size >> 32) as u32).into();
        raw.atime = (self.accessed.seconds as u32).into();
        raw.ctime = (self.changed.seconds as u32).into();
        raw.mtime = (self.modified.seconds as u32).into();
        raw.dtime = self.deleted.into();
        if geometry.has_inode_versions() {
            raw.version_lo = (self.version as u32).into();
        }
        raw.block = self.block_area;
        raw.generation = self.generation.into();
        let attributes = self.attribute_block.map_or(0, |block| block.0);
        raw.file_acl_lo = (attributes as u32).into();
        if geometry.has_high_attribute_blocks() {
            raw.file_acl_high = ((attributes >> 32) as u16).into();
        }
        let (units, flags) = self.blocks_stored(geometry);
        raw.flags = flags.0.into();
        raw.blocks_lo = (units as u32).into();
        if geometry.features.has(Feature::HugeFile) {
            raw.blocks_high = ((units >> 32) as u16).into();
        }
    }

    /// Returns the allocated space, and the flags that determine its unit: 512 bytes if the field
    /// can hold that number, otherwise blocks.
    fn blocks_stored(&self, geometry: &Geometry) -> (u64, InodeFlags) {
        let plain = InodeFlags(self.flags.0 & !InodeFlags::HUGE_FILE.0);
        let in_blocks = geometry.features.has(Feature::HugeFile) && self.blocks >> 48 != 0;
        if in_blocks {
            let flags = InodeFlags(plain.0 | InodeFlags::HUGE_FILE.0);
            (self.blocks >> (geometry.block_size.shift() - 9), flags)
        } else {
            (self.blocks, plain)
        }
    }

    fn store_extra(&self, bytes: &mut [u8], geometry: &Geometry) {
        let room = self.attribute_area_start.saturating_sub(BASE_BYTES);
        let Some(tail) = bytes.get_mut(BASE_BYTES..) else { return };
        let mut extra = RawInodeExtra::default();
        let known = tail.len().min(size_of::<RawInodeExtra>());
        if known == 0 {
            return;
        }
        extra.as_mut_bytes()[..known].copy_from_slice(&tail[..known]);
        extra.extra_isize = (room as u16).into();
        extra.ctime_extra = times::extra_bits(self.changed).into();
        extra.mtime_extra = times::extra_bits(self.modified).into();
        extra.atime_extra = times::extra_bits(self.accessed).into();
        let created = self.created.unwrap_or_default();
        extra.crtime = (created.seconds as u32).into();
        extra.crtime_extra = times::extra_bits(created).into();
        if geometry.has_inode_versions() {
            extra.version_hi = ((self.version >> 32) as u32).into();
        }
        if geometry.features.has(Feature::Project) {
            extra.projid = self.project.unwrap_or(0).into();
        }
        // The size of the extra fields is always stored, the other fields as far as the inode has
        // them.
        let there = room.max(2).min(known);
        tail[..there].copy_from_slice(&extra.as_bytes()[..there]);
    }
}

/// Writes the checksum of an inode's bytes, if the volume has checksums.
pub(crate) fn seal(bytes: &mut [u8], geometry: &Geometry, number: InodeNumber, generation: u32) {
    let Some(seed) = geometry.inode_seed(number, generation) else { return };
    let has_high = bytes.get(BASE_BYTES..BASE_BYTES + 2).is_some_and(|size| {
        usize::from(u16::from_le_bytes([size[0], size[1]])) >= CHECKSUM_HI_OFFSET + 2 - BASE_BYTES
    });
    let halves: &[usize] =
        if has_high { &[CHECKSUM_LO_OFFSET, CHECKSUM_HI_OFFSET] } else { &[CHECKSUM_LO_OFFSET] };
    for &at in halves {
        bytes[at..at + 2].fill(0);
    }
    let checksum = crc32c(seed, bytes).to_le_bytes();
    for (&at, half) in halves.iter().zip(checksum.chunks_exact(2)) {
        bytes[at..at + 2].copy_from_slice(half);
    }
}
