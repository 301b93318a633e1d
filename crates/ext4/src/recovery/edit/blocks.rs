//! Blocks that recovery changes: kept until all changes are known to be sound, then written.
//! Not here: what is in the blocks.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use base::{Error, FsBlock, Location, Result};
use device::SharedDevice;

use crate::volume::Volume;

/// Bytes of changed blocks at a time, at most.
pub(super) const BYTES_MAX: u64 = 512 << 20;

/// The changed blocks of one volume.
pub(crate) struct Blocks {
    volume: Arc<Volume>,
    changed: BTreeMap<FsBlock, Box<[u8]>>,
}

impl Blocks {
    pub(super) fn new(volume: Arc<Volume>) -> Self {
        Self { volume, changed: BTreeMap::new() }
    }

    /// A copy of the block as it is now.
    pub(crate) fn read(
        &self,
        block: FsBlock,
        structure: &'static str,
        location: Location,
    ) -> Result<Box<[u8]>> {
        match self.changed.get(&block) {
            Some(bytes) => Ok(bytes.clone()),
            None => Ok(self.volume.read_metadata(block, structure, location)?[..].into()),
        }
    }

    /// The block, to be changed.
    pub(crate) fn edit(
        &mut self,
        block: FsBlock,
        structure: &'static str,
        location: Location,
    ) -> Result<&mut [u8]> {
        self.check_room(block)?;
        match self.changed.entry(block) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let bytes = self.volume.read_metadata(block, structure, location)?[..].into();
                Ok(new.insert(bytes))
            }
        }
    }

    /// Gives the block, which lies in the volume, another content.
    pub(crate) fn replace(&mut self, block: FsBlock, bytes: Box<[u8]>) -> Result<()> {
        self.check_room(block)?;
        self.changed.insert(block, bytes);
        Ok(())
    }

    fn check_room(&self, block: FsBlock) -> Result<()> {
        let held = self.changed.len() as u64;
        let max = BYTES_MAX >> self.volume.geometry().block_size.shift();
        if held < max || self.changed.contains_key(&block) {
            return Ok(());
        }
        Err(Error::OutOfMemory)
    }

    /// The changes, in the order of the volume.
    pub(super) fn into_changes(self) -> Vec<(FsBlock, Box<[u8]>)> {
        self.changed.into_iter().collect()
    }

    /// Writes the changes to `target`.
    pub(super) fn write(self, target: &SharedDevice) -> Result<()> {
        let block_size = self.volume.geometry().block_size;
        for (block, bytes) in &self.changed {
            let offset = block_size.device_offset(*block).expect("the block lies in the volume");
            target.write_at(offset, bytes)?;
        }
        Ok(())
    }
}
