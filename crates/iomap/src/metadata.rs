//! Metadata blocks of a volume, cached, with a mark for those whose checksum was verified.

use std::ops::Deref;
use std::sync::Arc;

use base::{BlockSize, DeviceOffset, Error, FileOffset, FsBlock, Place, Problem, Result};
use device::SharedDevice;
use pagecache::{Mapping, PAGE_SIZE, PageCache};

use crate::mapping::{Iomap, IomapKind, MapFlags, MapRead};
use crate::read::{FolioSlice, ReadContext, ReadOptions, lend_with};

/// The metadata blocks of one volume. They share the memory of a [`PageCache`] with the data.
#[derive(Debug)]
pub struct MetadataCache {
    device: SharedDevice,
    block_size: BlockSize,
    mapping: Arc<Mapping>,
    whole_device: WholeDevice,
}

impl MetadataCache {
    /// The blocks of `block_size` bytes of `device`, cached in `cache`.
    pub fn new(cache: &Arc<PageCache>, device: SharedDevice, block_size: BlockSize) -> Self {
        let mapping = cache.new_mapping(block_size);
        let whole_device = WholeDevice { size: device.size() };
        Self { device, block_size, mapping, whole_device }
    }

    /// The size of a block.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The block, from the cache or the device. A block outside the device is a corrupt
    /// reference to `structure` from `place`.
    pub fn read(
        &self,
        block: FsBlock,
        structure: &'static str,
        place: Place,
    ) -> Result<MetadataBuffer> {
        let blocks = self.whole_device.size >> self.block_size.shift();
        let offset =
            self.block_size.device_offset(block).filter(|_| block.0 < blocks).ok_or_else(|| {
                let max = blocks.saturating_sub(1);
                let problem = Problem::Range { field: "block", found: block.0, min: 0, max };
                Error::corrupt(structure, place, problem)
            })?;
        let context = ReadContext {
            mapping: &self.mapping,
            mapper: &self.whole_device,
            device: &self.device,
            size: self.whole_device.size,
            options: ReadOptions::default(),
        };
        let slice = lend_with(&context, None, FileOffset(offset.0), self.block_size.len())?;
        // A folio holds whole blocks, and this one was asked for as one.
        assert_eq!(slice.len(), self.block_size.len(), "a part of a block");
        let mark = ((offset.0 % PAGE_SIZE as u64) >> self.block_size.shift()) as u32;
        Ok(MetadataBuffer { block, slice, mark })
    }
}

/// One block's bytes; holding it keeps the block in memory.
#[derive(Clone, Debug)]
pub struct MetadataBuffer {
    block: FsBlock,
    slice: FolioSlice,
    /// The folio's mark that says that this block was verified.
    mark: u32,
}

impl MetadataBuffer {
    /// Which block this is.
    pub fn block(&self) -> FsBlock {
        self.block
    }

    /// Runs `verify` unless it has passed before for this block while it was cached. Only for
    /// blocks that have one meaning (bitmaps, extent nodes, directory blocks of one inode …).
    pub fn verify_once(&self, verify: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        match self.slice.folio() {
            Some(folio) if folio.has_mark(self.mark) => Ok(()),
            folio => {
                verify(self)?;
                if let Some(folio) = folio {
                    folio.set_mark(self.mark);
                }
                Ok(())
            }
        }
    }
}

impl Deref for MetadataBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.slice
    }
}

/// The device as a file: every byte lies where it says.
#[derive(Debug)]
struct WholeDevice {
    size: u64,
}

impl MapRead for WholeDevice {
    fn map_read(&self, _at: FileOffset, _length: u64) -> Result<Iomap> {
        Ok(Iomap {
            offset: FileOffset(0),
            length: self.size,
            kind: IomapKind::Mapped,
            address: Some(DeviceOffset(0)),
            flags: MapFlags::default(),
        })
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}
