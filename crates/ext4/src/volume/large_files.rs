//! The feature of volumes with regular files of 2 GiB and more, which Linux adds when the first one
//! grows.

use std::sync::atomic::Ordering;

use base::Result;

use crate::features::Feature;
use crate::layout::geometry::Geometry;
use crate::ondisk::superblock::RawSuperblock;
use crate::superblock::set_feature;
use crate::volume::Volume;

/// The largest size of a file on a volume without the feature.
const SIZE_MAX: u64 = i32::MAX as u64;

impl Geometry {
    /// Returns whether the features of the volume allow a regular file of `size` bytes.
    pub(crate) fn allows_size(&self, size: u64) -> bool {
        size <= SIZE_MAX || self.features.has(Feature::LargeFile)
    }
}

impl Volume {
    /// Records in the superblock, unless it is recorded, that a regular file is about to have
    /// `size` bytes.
    pub(crate) fn note_size(&self, size: u64) -> Result<()> {
        if self.geometry().allows_size(size) {
            return Ok(());
        }
        let is_recorded = &self.writer()?.has_large_files;
        if is_recorded.load(Ordering::Acquire) {
            return Ok(());
        }
        self.change(1, |handle| self.edit_superblock(handle, add_feature))?;
        is_recorded.store(true, Ordering::Release);
        Ok(())
    }
}

fn add_feature(raw: &mut RawSuperblock) {
    set_feature(raw, Feature::LargeFile, true);
    if raw.rev_level.get() == 0 {
        // Only revision 1 has features. Revision 0 has these values for what was added.
        raw.rev_level = 1.into();
        raw.first_ino = 11.into();
        raw.inode_size = 128.into();
    }
}
