//! The inodes of a volume, by their numbers. Not here: names.

use std::sync::Arc;

use base::{Error, InodeNumber, Location, Problem, Result};

use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::volume::Volume;

impl Volume {
    /// Returns an inode as [`inode`](Self::inode) does, by a number that does not come from a name.
    /// Errors: `NotFound` also if the inode bitmap marks it free: a table that was never used may
    /// contain arbitrary records without checksums.
    pub fn marked_inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        let (group, index) = self.geometry().inode_position(number)?;
        if !self.inode_bitmap(&self.group(group)?)?.is_set(index) {
            return Err(Error::NotFound);
        }
        self.inode(number)
    }

    /// Returns an inode that a name may refer to. Errors: `NotFound` if it is not in use, `Corrupt`
    /// if no name may refer to it.
    pub fn inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        let geometry = self.geometry();
        let fault = |problem| Error::corrupt("inode reference", Location::inode(number), problem);
        if geometry.is_reserved_inode(number) {
            let (min, max) = (geometry.first_inode.into(), geometry.inode_count.into());
            return Err(fault(Problem::Range { field: "inode number", found: number.0, min, max }));
        }
        self.check_not_special("inode reference", number)?;
        let record = self.inode_record(number)?;
        if record.links == 0 {
            return Err(Error::NotFound);
        }
        if record.flags.contains(InodeFlags::EA_INODE) {
            let found = record.flags.0.into();
            return Err(fault(Problem::Invalid { field: "flags", found }));
        }
        let inode = Inode::new(Arc::clone(self), record);
        let Some(writer) = &self.writer else { return Ok(inode) };
        // A read-only volume changes and frees nothing that the record refers to, so its readable
        // parts may be read.
        inode.check_block_references()?;
        Ok(writer.orphans.restore_orphan(inode))
    }

    /// Returns an inode that the format uses itself: the journal, a quota file, or the value of an
    /// attribute.
    pub fn special_inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        Ok(Inode::new(Arc::clone(self), self.inode_record(number)?))
    }
}
