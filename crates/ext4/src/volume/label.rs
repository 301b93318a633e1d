//! The label of an open volume.

use base::{Error, Location, Result};
use zerocopy::FromBytes;

use crate::ondisk::superblock::{RawSuperblock, SUPERBLOCK_OFFSET};
use crate::superblock::until_nul;
use crate::volume::Volume;

const STRUCTURE: &str = "superblock";

/// The longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 16;

impl Volume {
    /// Returns the current label, without padding.
    pub fn label(&self) -> Result<Vec<u8>> {
        let block = self.geometry().superblock_block();
        let buffer = self.read_metadata(block, STRUCTURE, Location::block(block))?;
        let at = SUPERBLOCK_OFFSET.0 as usize % self.geometry().block_size.len();
        let Ok((raw, _)) = RawSuperblock::ref_from_prefix(&buffer[at..]) else {
            unreachable!("blocks of 2 KiB and more have room for the superblock");
        };
        Ok(until_nul(&raw.volume_name).to_vec())
    }

    /// Sets the label, durably, and at once in the superblock, since programs that look for labels
    /// do not replay the journal. The copies of the superblock keep the old label.
    ///
    /// Errors: `InvalidArgument` if `label` is longer than `LABEL_BYTES_MAX` bytes or contains NUL.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() > LABEL_BYTES_MAX || label.contains(&0) {
            return Err(Error::InvalidArgument(
                "the label is longer than 16 bytes, or contains NUL",
            ));
        }
        let mut name = [0; LABEL_BYTES_MAX];
        name[..label.len()].copy_from_slice(label);
        self.change(1, |handle| self.edit_superblock(handle, |raw| raw.volume_name = name))?;
        self.sync()?;
        self.writer()?.journal.flush()
    }
}
