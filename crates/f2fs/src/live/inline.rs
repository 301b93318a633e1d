//! Inline data, which is in a file's inode. It is written to a block only. Not here: its truncation
//! (`allocation.rs`).

use base::{FileBlock, FsBlock, Result};
use iomap::MapRead;

use super::{LiveInode, NODES_MAX};
use crate::write::Demand;

impl LiveInode {
    /// Moves inline data to a block, so that it can be written.
    pub(crate) fn convert_inline(&self) -> Result<()> {
        let current = self.current();
        if current.record().inline_area.is_none() {
            return Ok(());
        }
        let mut data = current.inline_data()?;
        let is_empty = data.iter().all(|byte| *byte == 0);
        data.resize(self.volume.geometry().block_size.len(), 0);
        let placed = if is_empty { None } else { Some(self.write_block(&data)?) };
        let converted = self.change(Demand::Adds(NODES_MAX), &[], |editor, reserved| {
            editor.take_inline(self.number)?;
            if let Some((token, block)) = placed {
                reserved.take_placement(token);
                editor.set_addresses(self.number, FileBlock(0), block..FsBlock(block.0 + 1))?;
            }
            Ok(())
        });
        if let (Err(_), Some((token, _))) = (&converted, placed) {
            self.volume.writer()?.unplace(self.volume.core(), token);
        }
        self.map_changed();
        converted
    }

    /// Writes a block of data to a new place.
    fn write_block(&self, data: &[u8]) -> Result<(u64, FsBlock)> {
        let writer = self.volume.writer()?;
        let (token, range) = writer.place_after_waiting(
            self.volume.core(),
            (self.number, FileBlock(0)),
            1,
            self.temperature(),
        )?;
        let offset = self.volume.geometry().device_offset(range.start);
        if let Err(error) = self.volume.device().write_at(offset, data) {
            writer.unplace(self.volume.core(), token);
            return Err(error);
        }
        Ok((token, range.start))
    }
}
