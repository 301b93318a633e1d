//! The label of an open volume, in both copies of the superblock.

use std::mem::offset_of;

use base::checksum::crc32_le;
use base::{DeviceOffset, Error, Result};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use super::writer::Writer;
use crate::core::Core;
use crate::features::Feature;
use crate::ondisk::superblock::RawSuperblock;
use crate::superblock::{MAGIC, OFFSET_IN_BLOCK, SUPERBLOCK_BYTES, Superblock};

/// The longest label, in units of UTF-16.
const LABEL_UNITS_MAX: usize = 512;

impl Writer {
    /// Returns the current label.
    pub(crate) fn label(&self, volume: &Core) -> Result<Vec<u8>> {
        // No copy is being written meanwhile.
        let _state = self.lock_any();
        Ok(Superblock::read(volume.device())?.label)
    }

    /// Sets the label, durably.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument` if `label` has no form in UTF-16, is too long, or contains NUL.
    /// - Those of the device. Nothing is written to the volume afterwards.
    pub(crate) fn set_label(&self, volume: &Core, label: &[u8]) -> Result<()> {
        let label = units(label)?;
        let _state = self.lock()?;
        let current = Superblock::read(volume.device())?;
        let written = write_copies(volume, &current, label);
        if let Err(error) = &written {
            // A failed flush may be that of data, too.
            self.health().fail(error.clone());
        }
        written
    }
}

/// Returns the label in UTF-16, padded with zeroes.
fn units(label: &[u8]) -> Result<[U16; LABEL_UNITS_MAX]> {
    let refused = Error::InvalidArgument(
        "the label is longer than 512 units of UTF-16, is not UTF-8, or contains NUL",
    );
    let text = std::str::from_utf8(label).map_err(|_| refused.clone())?;
    let mut units = [U16::ZERO; LABEL_UNITS_MAX];
    if text.contains('\0') || text.encode_utf16().count() > units.len() {
        return Err(refused);
    }
    for (unit, value) in units.iter_mut().zip(text.encode_utf16()) {
        unit.set(value);
    }
    Ok(units)
}

/// Writes both copies of the superblock, one after the other: at any time, one of them is whole.
fn write_copies(volume: &Core, current: &Superblock, label: [U16; LABEL_UNITS_MAX]) -> Result<()> {
    let geometry = volume.geometry();
    let mut raw = current.raw().clone();
    raw.label = label;
    if geometry.features.has(Feature::SuperblockChecksum) {
        let end = offset_of!(RawSuperblock, checksum);
        let checksum = crc32_le(MAGIC, &raw.as_bytes()[..end]);
        raw.checksum.set(checksum);
    }
    let second = u64::from(geometry.block_size.bytes());
    // A damaged copy first, since only the other one is whole.
    let starts = if current.damage.is_some() { [0, second] } else { [second, 0] };
    for start in starts {
        let mut block = vec![0; geometry.block_size.len()];
        volume.device().read_at(DeviceOffset(start), &mut block)?;
        // Boot code may lie before it.
        let at = OFFSET_IN_BLOCK as usize;
        block[at..at + SUPERBLOCK_BYTES].copy_from_slice(raw.as_bytes());
        volume.device().write_at(DeviceOffset(start), &block)?;
        volume.device().flush()?;
    }
    Ok(())
}
