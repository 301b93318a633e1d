//! The mark on the device of a volume that is open for writing: flags of the superblock, and
//! multiple-mount protection. Not here: when the mark is set and cleared (`volume/writer.rs`,
//! `journal/clean.rs`).

use std::sync::{Arc, OnceLock};

use base::{Location, Result};
use device::SharedDevice;
use iomap::MetadataCache;

use crate::features::Feature;
use crate::layout::geometry::Geometry;
use crate::mmp::MmpHold;
use crate::ondisk::superblock::{RawSuperblock, STATE_VALID};
use crate::superblock::{self, set_feature};

const STRUCTURE: &str = "superblock";

/// The mark of one volume.
pub(crate) struct UseMark {
    device: SharedDevice,
    metadata: Arc<MetadataCache>,
    geometry: Geometry,
    has_log: bool,
    /// `STATE_VALID` if the superblock had this state before the volume was opened.
    valid: u16,
    mmp: OnceLock<MmpHold>,
}

impl UseMark {
    /// Returns the mark of the volume on `device`, whose superblock has had the state `state`
    /// before the volume was opened.
    pub(crate) fn new(
        device: SharedDevice,
        metadata: Arc<MetadataCache>,
        geometry: Geometry,
        has_log: bool,
        state: u16,
    ) -> Self {
        let valid = state & STATE_VALID;
        Self { device, metadata, geometry, has_log, valid, mmp: OnceLock::new() }
    }

    /// Adds the multiple-mount protection, which is released while the volume is marked as clean.
    pub(crate) fn add_mmp(&self, mmp: MmpHold) {
        let is_first = self.mmp.set(mmp).is_ok();
        debug_assert!(is_first, "a volume has one protection");
    }

    /// Sets the mark, durably. With `STATE_ERRORS` in `errors`, also records that the volume has
    /// errors. The volume must not be changed concurrently.
    pub(crate) fn set_with(&self, errors: u16) -> Result<()> {
        let has_orphan_file = self.geometry.features.has(Feature::OrphanFile);
        self.change_flags(|raw| {
            if self.has_log {
                set_feature(raw, Feature::NeedsRecovery, true);
            } else {
                raw.state = (raw.state.get() & !STATE_VALID).into();
            }
            if has_orphan_file {
                // After a crash, the orphan file is read only if this flag is set.
                set_feature(raw, Feature::OrphanPresent, true);
            }
            raw.state = (raw.state.get() | errors).into();
        })
    }

    /// Sets the mark again. Errors: `InUse` if another host has had the volume in the meantime.
    pub(crate) fn set(&self) -> Result<()> {
        if let Some(mmp) = self.mmp.get() {
            mmp.resume()?;
        }
        self.set_with(0)
    }

    /// Clears the mark, durably. All changes are at their home locations, and there are no orphans.
    pub(crate) fn clear(&self) -> Result<()> {
        self.clear_flags(true)?;
        self.mmp.get().map_or(Ok(()), MmpHold::pause)
    }

    /// Clears the flags only, for a volume that is about to be released. `has_no_orphans` tells
    /// whether the orphan file is empty.
    pub(crate) fn clear_flags(&self, has_no_orphans: bool) -> Result<()> {
        self.change_flags(|raw| {
            set_feature(raw, Feature::NeedsRecovery, false);
            if has_no_orphans {
                set_feature(raw, Feature::OrphanPresent, false);
            }
            raw.state = (raw.state.get() | self.valid).into();
        })
    }

    /// Changes flags of the superblock in place, durably, outside any transaction. The volume must
    /// not be changed concurrently. Only flags that recovery can reconstruct from a torn superblock
    /// are changed in this way (`recovery/torn.rs`).
    fn change_flags(&self, change: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        let block = self.geometry.superblock_block();
        self.metadata.change(block, STRUCTURE, Location::block(block), |bytes| {
            superblock::edit(bytes, &self.geometry, change);
        })?;
        if let Some(contents) = self.metadata.changed(block) {
            let offset = self.geometry.block_size.device_offset(block);
            let offset = offset.expect("the block is in the volume");
            self.device.write_at(offset, &contents)?;
            self.metadata.written(block, &contents);
        }
        self.device.flush()
    }
}
