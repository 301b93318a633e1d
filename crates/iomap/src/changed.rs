//! Metadata blocks that were changed in memory, copied on write: who took a block's contents before
//! a change, to read them or to write them out, keeps those.
//! Not here: the blocks as the device has them.

use std::collections::HashMap;
use std::sync::Arc;

use base::FsBlock;
use base::locks::{Rank, RankedMutex};

/// Threads that change different blocks seldom meet.
const SHARDS: usize = 16;

/// Changed blocks.
#[derive(Debug)]
pub(crate) struct ChangedBlocks {
    shards: [RankedMutex<HashMap<FsBlock, Arc<[u8]>>>; SHARDS],
}

impl Default for ChangedBlocks {
    fn default() -> Self {
        let shard = |_| RankedMutex::new(Rank::ChangedBlocks, HashMap::new());
        Self { shards: std::array::from_fn(shard) }
    }
}

impl ChangedBlocks {
    fn shard(&self, block: FsBlock) -> &RankedMutex<HashMap<FsBlock, Arc<[u8]>>> {
        &self.shards[block.0 as usize % SHARDS]
    }

    pub(crate) fn get(&self, block: FsBlock) -> Option<Arc<[u8]>> {
        self.shard(block).lock().get(&block).cloned()
    }

    /// Changes a block that is here.
    pub(crate) fn change<R>(
        &self,
        block: FsBlock,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let mut shard = self.shard(block).lock();
        shard.get_mut(&block).map(|contents| change(Arc::make_mut(contents)))
    }

    pub(crate) fn insert(&self, block: FsBlock, contents: Arc<[u8]>) {
        self.shard(block).lock().insert(block, contents);
    }

    /// Adds a block unless another thread was faster, whose changes must not be lost.
    pub(crate) fn insert_if_absent(&self, block: FsBlock, contents: Arc<[u8]>) {
        self.shard(block).lock().entry(block).or_insert(contents);
    }

    pub(crate) fn remove(&self, block: FsBlock) {
        self.shard(block).lock().remove(&block);
    }

    /// Removes a block whose contents are still these, not merely equal to them.
    pub(crate) fn remove_if_same(&self, block: FsBlock, contents: &Arc<[u8]>) {
        let mut shard = self.shard(block).lock();
        if shard.get(&block).is_some_and(|now| Arc::ptr_eq(now, contents)) {
            shard.remove(&block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: FsBlock = FsBlock(7);

    #[test]
    fn contents_taken_before_a_change_stay_as_they_were() {
        let changed = ChangedBlocks::default();
        assert!(changed.change(BLOCK, |_| ()).is_none());
        changed.insert_if_absent(BLOCK, Arc::from([1, 2]));
        changed.insert_if_absent(BLOCK, Arc::from([9, 9]));
        let before = changed.get(BLOCK).unwrap();
        changed.change(BLOCK, |bytes| bytes[0] = 5).unwrap();
        assert_eq!((&before[..], &changed.get(BLOCK).unwrap()[..]), (&[1, 2][..], &[5, 2][..]));
    }

    #[test]
    fn only_what_was_written_is_forgotten() {
        let changed = ChangedBlocks::default();
        changed.insert(BLOCK, Arc::from([1]));
        let written = changed.get(BLOCK).unwrap();
        // While it is written, others change it to something else and back.
        changed.change(BLOCK, |bytes| bytes[0] = 2).unwrap();
        changed.change(BLOCK, |bytes| bytes[0] = 1).unwrap();
        changed.remove_if_same(BLOCK, &written);
        let newer = changed.get(BLOCK).unwrap();
        changed.remove_if_same(BLOCK, &newer);
        assert!(changed.get(BLOCK).is_none());
    }
}
