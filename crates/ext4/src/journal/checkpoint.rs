//! Blocks that are durable in committed transactions, but not yet where they belong.
//! Not here: when to write them.

use std::collections::BTreeMap;

use base::{FsBlock, Result};
use device::BlockDevice;
use iomap::{BlockContents, MetadataCache};
use parking_lot::Mutex;

use super::transaction::{Frozen, Release};

/// Blocks that follow each other are written by one request of at most so many bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What a checkpoint has to write: of each block the contents that were committed last.
#[derive(Default)]
pub(super) struct Checkpoint {
    /// Held while they are written, so that a revoked block is not written after its revocation is
    /// durable (J3).
    blocks: Mutex<BTreeMap<FsBlock, BlockContents>>,
}

impl Checkpoint {
    /// Adds a transaction that is durable; gives what is to be called now.
    pub(super) fn add(&self, ended: Frozen) -> Vec<Release> {
        let mut blocks = self.blocks.lock();
        for block in &ended.revoked {
            blocks.remove(block);
        }
        blocks.extend(ended.blocks);
        ended.released
    }

    /// Writes all blocks to where they belong, and waits for that. Durable after a flush.
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

    /// Keeps blocks from being written while the result is held.
    pub(super) fn alone(&self) -> impl Sized {
        self.blocks.lock()
    }
}

/// Writes blocks, in the order of the volume, and waits until all are written.
fn write_blocks(
    device: &dyn BlockDevice,
    metadata: &MetadataCache,
    blocks: &[(FsBlock, BlockContents)],
) -> Result<()> {
    let block_size = metadata.block_size();
    let per_request = (REQUEST_BYTES_MAX / block_size.len()).max(1);
    let runs = blocks.chunk_by(|one, next| one.0.0 + 1 == next.0.0);
    let requests = runs.flat_map(|run| run.chunks(per_request)).map(|request| {
        let offset = block_size.device_offset(request[0].0).expect("it lies in the volume");
        (offset, request.iter().map(|(_, contents)| contents.clone()).collect::<Vec<_>>())
    });
    device.write_all(requests.collect())
}
