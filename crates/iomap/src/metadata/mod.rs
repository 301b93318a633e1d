//! The cache of a volume's metadata blocks, with a mark for blocks whose checksum was verified.
//! Not here: changed blocks (`changed.rs`), and when they are written (the format).

pub(crate) mod changed;

use std::ops::{Deref, Range};
use std::sync::Arc;

use base::{BlockSize, DeviceOffset, Error, FileOffset, FsBlock, Location, Problem, Result};
use device::SharedDevice;
use pagecache::{Mapping, PAGE_SIZE, PageCache};

use crate::mapping::{Iomap, IomapKind, MapFlags, MapRead};
use crate::metadata::changed::{BlockContents, ChangedBlocks};
use crate::read::context::{ReadContext, ReadOptions};
use crate::read::populate::populate;
use crate::read::readahead::ReadaheadWindow;
use crate::read::{FolioSlice, lend_with};

/// The share of the cache that changed blocks should take at most is one part in so many.
const CHANGED_SHARE: u64 = 4;

/// The metadata blocks of one volume. They share the memory of a [`PageCache`] with the data.
#[derive(Debug)]
pub struct MetadataCache {
    device: SharedDevice,
    block_size: BlockSize,
    mapping: Arc<Mapping>,
    whole_device: WholeDevice,
    changed: ChangedBlocks,
}

impl MetadataCache {
    /// Returns the cache of the blocks of `device`, of `block_size` bytes each, in the memory of
    /// `cache`.
    pub fn new(cache: &Arc<PageCache>, device: SharedDevice, block_size: BlockSize) -> Self {
        let mapping = cache.new_mapping(block_size);
        let whole_device = WholeDevice { size: device.size() };
        let changed = ChangedBlocks::new(cache);
        Self { device, block_size, mapping, whole_device, changed }
    }

    /// Returns the number of changed blocks that should be in memory at most: a quarter of the
    /// cache's memory.
    pub fn changed_max(&self) -> u64 {
        // Each has a folio's memory of its own.
        (self.mapping.cache().pages_max() / CHANGED_SHARE) >> self.mapping.order_min()
    }

    /// Returns the cache with the blocks' memory.
    pub fn cache(&self) -> &Arc<PageCache> {
        self.mapping.cache()
    }

    /// Returns the size of a block.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Returns the block, from the cache or the device. Errors: `Corrupt` for a block outside the
    /// device, since the reference to `structure` at `location` is corrupt.
    pub fn read(
        &self,
        block: FsBlock,
        structure: &'static str,
        location: Location,
    ) -> Result<MetadataBuffer> {
        if let Some(contents) = self.changed.get(block) {
            return Ok(MetadataBuffer { block, memory: Memory::Changed(contents) });
        }
        let blocks = self.whole_device.size >> self.block_size.shift();
        let offset =
            self.block_size.device_offset(block).filter(|_| block.0 < blocks).ok_or_else(|| {
                let max = blocks.saturating_sub(1);
                let problem = Problem::Range { field: "block", found: block.0, min: 0, max };
                Error::corrupt(structure, location, problem)
            })?;
        let slice =
            lend_with(&self.read_context(), None, FileOffset(offset.0), self.block_size.len())?;
        // A folio holds whole blocks, and the caller asked for one block.
        assert_eq!(slice.len(), self.block_size.len(), "a part of a block");
        let mark = ((offset.0 % PAGE_SIZE as u64) >> self.block_size.shift()) as u32;
        Ok(MetadataBuffer { block, memory: Memory::Cached { slice, mark } })
    }

    /// Starts to read the blocks of `around` with one request, if `block`, which is one of them, is
    /// not in memory. Does not wait, and returns no errors: a later reader of a block gets its
    /// error.
    pub fn read_ahead(&self, block: FsBlock, around: Range<FsBlock>) {
        let page_of = |block| Some(self.block_size.device_offset(block)?.0 / PAGE_SIZE as u64);
        let Some(page) = page_of(block) else { return };
        let Some(start) = page_of(around.start) else { return };
        let Some(end) = page_of(around.end) else { return };
        if self.changed.get(block).is_some() || self.mapping.get(page).is_some() {
            return;
        }
        // Folios are not larger than a block needs, since a block's mark is that of its folio.
        let order = self.mapping.order_min();
        let start = start >> order << order;
        let end = end.max(page + 1).next_multiple_of(1 << order);
        populate(&self.read_context(), &ReadaheadWindow { start, end, mark: None, order }, None);
    }

    /// Returns the first blocks from `from` on that may have data. All blocks before them are
    /// zeroes, since they are in holes of the device, and need not be read. Blocks past the end
    /// count as data, whose reads fail.
    pub fn next_data(&self, from: FsBlock) -> Range<FsBlock> {
        const END: FsBlock = FsBlock(u64::MAX);
        let device_end = FsBlock(self.whole_device.size >> self.block_size.shift());
        if from >= device_end || !self.changed.is_empty() {
            return from..END;
        }
        let offset = self.block_size.device_offset(from);
        match offset.and_then(|offset| self.device.next_data(offset)) {
            Some(data) => {
                let start = FsBlock(data.start.0 >> self.block_size.shift());
                let end = FsBlock(self.block_size.blocks_for(data.end.0));
                start.min(device_end)..end
            }
            None => device_end..END,
        }
    }

    fn read_context(&self) -> ReadContext<'_> {
        ReadContext {
            mapping: &self.mapping,
            mapper: &self.whole_device,
            device: &self.device,
            size: self.whole_device.size,
            options: ReadOptions::default(),
        }
    }

    /// Changes a block in memory. Buffers of the block keep its previous contents. The change stays
    /// in memory until [`written`](Self::written) or [`discard`](Self::discard) is called for the
    /// block. `change` is called under a lock, and must not read metadata. Errors: those of
    /// [`read`](Self::read).
    pub fn change<R>(
        &self,
        block: FsBlock,
        structure: &'static str,
        location: Location,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let mut change = Some(change);
        loop {
            let done = self.changed.change(block, |bytes| change.take().map(|f| f(bytes)));
            if let Some(Some(result)) = done {
                return Ok(result);
            }
            let before = self.read(block, structure, location)?;
            self.changed.insert_if_absent(block, &before);
        }
    }

    /// Replaces the contents of a block, which is in the volume, in memory.
    pub fn replace(&self, block: FsBlock, contents: &[u8]) {
        assert_eq!(contents.len(), self.block_size.len(), "a part of a block");
        self.changed.insert(block, contents);
    }

    /// Returns the contents of a block that was changed and not discarded since.
    pub fn changed(&self, block: FsBlock) -> Option<BlockContents> {
        self.changed.get(block)
    }

    /// Records that the device has `contents` of the block. If the block was not changed since they
    /// were taken, it is clean.
    pub fn written(&self, block: FsBlock, contents: &BlockContents) {
        // Before the block is read from the device again: the folio has its old contents.
        self.invalidate_folio(block);
        self.changed.remove_if_same(block, contents);
    }

    /// Discards the block's contents in memory.
    pub fn discard(&self, block: FsBlock) {
        self.invalidate_folio(block);
        self.changed.remove(block);
    }

    /// Removes the folio with the block, and its marks, from the cache.
    fn invalidate_folio(&self, block: FsBlock) {
        if let Some(offset) = self.block_size.device_offset(block) {
            let page = offset.0 / PAGE_SIZE as u64;
            self.mapping.invalidate(page, page + 1);
        }
    }
}

/// The bytes of a block at the time when it was read. They stay in memory while the buffer exists.
#[derive(Clone, Debug)]
pub struct MetadataBuffer {
    block: FsBlock,
    memory: Memory,
}

#[derive(Clone, Debug)]
enum Memory {
    /// The contents on the device.
    Cached {
        slice: FolioSlice,
        /// The number of the folio's mark for a verified block.
        mark: u32,
    },
    Changed(BlockContents),
}

impl MetadataBuffer {
    /// Returns a buffer with `contents`, which the caller keeps in memory instead of those of
    /// `block`.
    pub fn with_contents(block: FsBlock, contents: BlockContents) -> Self {
        Self { block, memory: Memory::Changed(contents) }
    }

    /// Returns the block's number.
    pub fn block(&self) -> FsBlock {
        self.block
    }

    /// Calls `verify`, unless it has succeeded for this block since the block was read, or the
    /// block was changed in memory, which leaves it valid. Only for blocks with one meaning
    /// (bitmaps, extent nodes, directory blocks of one inode …).
    pub fn verify_once(&self, verify: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        let Memory::Cached { slice, mark } = &self.memory else { return Ok(()) };
        match slice.folio() {
            Some(folio) if folio.has_mark(*mark) => Ok(()),
            folio => {
                verify(self)?;
                if let Some(folio) = folio {
                    folio.set_mark(*mark);
                }
                Ok(())
            }
        }
    }
}

impl Deref for MetadataBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Cached { slice, .. } => slice,
            Memory::Changed(contents) => contents,
        }
    }
}

/// The device as a file, whose bytes are at the same offsets.
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
