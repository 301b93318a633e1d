//! Blocks that are committed, but not yet written to their home locations.
//! Not here: when to write them.

use std::collections::{BTreeMap, BTreeSet};

use base::{FsBlock, Result};
use device::BlockDevice;
use iomap::{BlockContents, MetadataCache};
use parking_lot::Mutex;

use super::transaction::{Frozen, Release};

/// The maximum number of bytes of a write request, which consists of adjacent blocks.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The blocks that the next checkpoint writes, each with the contents that were committed last.
#[derive(Default)]
pub(super) struct Checkpoint {
    /// Locked while they are written, so that a revoked block is not written after its revoke is
    /// durable (J3).
    blocks: Mutex<BTreeMap<FsBlock, BlockContents>>,
    /// The blocks that were freed and not changed since. `None` if they are not remembered.
    freed: Mutex<Option<BTreeSet<FsBlock>>>,
}

impl Checkpoint {
    /// Adds a durable transaction. Returns the functions that release its freed space.
    pub(super) fn add(&self, ended: Frozen) -> Vec<Release> {
        let mut blocks = self.blocks.lock();
        for block in &ended.revoked {
            blocks.remove(block);
        }
        if let Some(freed) = &mut *self.freed.lock() {
            freed.extend(ended.revoked);
            for (block, _) in &ended.blocks {
                freed.remove(block);
            }
        }
        blocks.extend(ended.blocks);
        ended.released
    }

    /// Writes all blocks to their home locations, and waits for the writes. A flush makes them
    /// durable.
    pub(super) fn write(&self, device: &dyn BlockDevice, metadata: &MetadataCache) -> Result<()> {
        let mut blocks = self.blocks.lock();
        let all: Vec<(FsBlock, BlockContents)> =
            blocks.iter().map(|(&block, contents)| (block, contents.clone())).collect();
        write_blocks(device, metadata, &all)?;
        for (block, contents) in &all {
            metadata.written(*block, contents);
        }
        blocks.clear();
        Ok(())
    }

    /// Remembers blocks that are freed from now on.
    pub(super) fn remember_freed(&self) {
        self.freed.lock().get_or_insert_default();
    }

    /// Returns the remembered blocks, and remembers none any more.
    pub(super) fn take_freed(&self) -> BTreeSet<FsBlock> {
        self.freed.lock().take().unwrap_or_default()
    }

    /// Prevents writes of blocks while the result is held.
    pub(super) fn lock(&self) -> impl Sized {
        self.blocks.lock()
    }
}

/// Writes `blocks`, which are sorted by number, and waits for the writes.
fn write_blocks(
    device: &dyn BlockDevice,
    metadata: &MetadataCache,
    blocks: &[(FsBlock, BlockContents)],
) -> Result<()> {
    let block_size = metadata.block_size();
    let per_request = (REQUEST_BYTES_MAX / block_size.len()).max(1);
    let runs = blocks.chunk_by(|block, next| block.0.0 + 1 == next.0.0);
    let requests = runs.flat_map(|run| run.chunks(per_request)).map(|request| {
        let offset = block_size.device_offset(request[0].0).expect("the block is in the volume");
        (offset, request.iter().map(|(_, contents)| contents.clone()).collect::<Vec<_>>())
    });
    device.write_all(requests.collect())
}
