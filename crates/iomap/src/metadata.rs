//! Metadata blocks of a volume, cached, with a mark for those whose checksum was verified.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{BlockSize, Error, FsBlock, Place, Problem, Result};
use device::SharedDevice;
use pagecache::PageCache;
use parking_lot::Mutex;

/// The metadata blocks of one volume.
#[derive(Debug)]
pub struct MetadataCache {
    device: SharedDevice,
    block_size: BlockSize,
    blocks: Mutex<HashMap<FsBlock, MetadataBuffer>>,
}

impl MetadataCache {
    /// The blocks of `block_size` bytes of `device`, cached in `cache`.
    pub fn new(_cache: &Arc<PageCache>, device: SharedDevice, block_size: BlockSize) -> Self {
        Self { device, block_size, blocks: Mutex::default() }
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
        if let Some(buffer) = self.blocks.lock().get(&block) {
            return Ok(buffer.clone());
        }
        let blocks = self.device.size() >> self.block_size.shift();
        let offset =
            self.block_size.device_offset(block).filter(|_| block.0 < blocks).ok_or_else(|| {
                let max = blocks.saturating_sub(1);
                let problem = Problem::Range { field: "block", found: block.0, min: 0, max };
                Error::corrupt(structure, place, problem)
            })?;
        let mut bytes = vec![0; self.block_size.len()];
        self.device.read_at(offset, &mut bytes)?;
        let buffer = MetadataBuffer {
            block,
            inner: Arc::new(Inner { bytes, verified: AtomicBool::new(false) }),
        };
        Ok(self.blocks.lock().entry(block).or_insert(buffer).clone())
    }
}

#[derive(Debug)]
struct Inner {
    bytes: Vec<u8>,
    verified: AtomicBool,
}

/// One block's bytes; holding it keeps the block in memory.
#[derive(Clone, Debug)]
pub struct MetadataBuffer {
    block: FsBlock,
    inner: Arc<Inner>,
}

impl MetadataBuffer {
    /// Which block this is.
    pub fn block(&self) -> FsBlock {
        self.block
    }

    /// Runs `verify` unless it has passed before for this block while it was cached. Only for
    /// blocks that have one meaning (bitmaps, extent nodes, directory blocks of one inode …).
    pub fn verify_once(&self, verify: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        if !self.inner.verified.load(Ordering::Acquire) {
            verify(self)?;
            self.inner.verified.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Deref for MetadataBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.inner.bytes
    }
}
