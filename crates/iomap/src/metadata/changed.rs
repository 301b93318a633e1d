//! Metadata blocks that were changed in memory, copied on write: a caller that took the contents of
//! a block before a change, to read them or to write them out, keeps those contents. Not here: the
//! blocks as the device has them.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use base::FsBlock;
use base::locks::{Rank, RankedMutex};
use pagecache::{PageCache, PoolBlock};

/// The number of shards. Threads that change different blocks rarely wait for each other.
const SHARDS: usize = 16;

/// The contents of a metadata block at one time. Clones share them.
#[derive(Clone, Debug)]
pub struct BlockContents(Arc<Memory>);

#[derive(Debug)]
enum Memory {
    /// In the cache's limit.
    Pool(PoolBlock),
    /// Changed blocks have half of the cache, all of it is in use, or the contents never were in a
    /// cache.
    Heap(Box<[u8]>),
}

impl BlockContents {
    /// Returns a copy of `bytes` in the memory of `cache`, or on the heap if there is no room.
    pub fn new(cache: &Arc<PageCache>, bytes: &[u8]) -> Self {
        let memory = match PoolBlock::new(cache, bytes) {
            Some(block) => Memory::Pool(block),
            None => Memory::Heap(bytes.into()),
        };
        Self(Arc::new(memory))
    }

    /// Returns whether these are the same contents in the same memory. While both exist, neither
    /// has changed.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the bytes for changing them: those of a copy on the heap, if there are clones.
    pub fn to_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Self::from(self.to_vec());
        }
        self.bytes_mut()
    }

    /// Returns the bytes for changing them: those of a copy, if there are clones.
    fn make_mut(&mut self, cache: &Arc<PageCache>) -> &mut [u8] {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Self::new(cache, self);
        }
        self.bytes_mut()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match Arc::get_mut(&mut self.0).expect("a copy has no clones") {
            Memory::Pool(block) => block,
            Memory::Heap(bytes) => bytes,
        }
    }
}

impl Deref for BlockContents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Memory::Pool(block) => block,
            Memory::Heap(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for BlockContents {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for BlockContents {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Memory::Heap(bytes.into())))
    }
}

impl PartialEq for BlockContents {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for BlockContents {}

/// Changed blocks.
#[derive(Debug)]
pub(crate) struct ChangedBlocks {
    cache: Arc<PageCache>,
    shards: [RankedMutex<HashMap<FsBlock, BlockContents>>; SHARDS],
}

impl ChangedBlocks {
    /// Returns an empty set, whose contents are in the memory of `cache`.
    pub(crate) fn new(cache: &Arc<PageCache>) -> Self {
        let shard = |_| RankedMutex::new(Rank::ChangedBlocks, HashMap::new());
        Self { cache: Arc::clone(cache), shards: std::array::from_fn(shard) }
    }

    fn shard(&self, block: FsBlock) -> &RankedMutex<HashMap<FsBlock, BlockContents>> {
        &self.shards[block.0 as usize % SHARDS]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    pub(crate) fn get(&self, block: FsBlock) -> Option<BlockContents> {
        self.shard(block).lock().get(&block).cloned()
    }

    /// Changes a block of the set.
    pub(crate) fn change<R>(
        &self,
        block: FsBlock,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let mut shard = self.shard(block).lock();
        shard.get_mut(&block).map(|contents| change(contents.make_mut(&self.cache)))
    }

    pub(crate) fn insert(&self, block: FsBlock, contents: &[u8]) {
        let contents = BlockContents::new(&self.cache, contents);
        self.shard(block).lock().insert(block, contents);
    }

    /// Adds a block, unless another thread has added it before: its changes must not be lost.
    pub(crate) fn insert_if_absent(&self, block: FsBlock, contents: &[u8]) {
        let contents = BlockContents::new(&self.cache, contents);
        self.shard(block).lock().entry(block).or_insert(contents);
    }

    pub(crate) fn remove(&self, block: FsBlock) {
        self.shard(block).lock().remove(&block);
    }

    /// Removes a block whose contents are still these, not merely equal to them.
    pub(crate) fn remove_if_same(&self, block: FsBlock, contents: &BlockContents) {
        let mut shard = self.shard(block).lock();
        if shard.get(&block).is_some_and(|now| Arc::ptr_eq(&now.0, &contents.0)) {
            shard.remove(&block);
        }
    }
}

#[cfg(test)]
mod tests {
    use pagecache::CacheOptions;

    use super::*;

    const BLOCK: FsBlock = FsBlock(7);

    fn empty() -> ChangedBlocks {
        let options = CacheOptions { bytes_max: 1 << 20, ..CacheOptions::default() };
        ChangedBlocks::new(&PageCache::new(options).expect("memory"))
    }

    #[test]
    fn contents_from_before_a_change_stay_the_same() {
        let changed = empty();
        assert!(changed.change(BLOCK, |_| ()).is_none());
        changed.insert_if_absent(BLOCK, &[1, 2]);
        changed.insert_if_absent(BLOCK, &[9, 9]);
        let before = changed.get(BLOCK).unwrap();
        changed.change(BLOCK, |bytes| bytes[0] = 5).unwrap();
        assert_eq!((&before[..], &changed.get(BLOCK).unwrap()[..]), (&[1, 2][..], &[5, 2][..]));
    }

    #[test]
    fn only_contents_that_were_written_are_removed() {
        let changed = empty();
        changed.insert(BLOCK, &[1]);
        let written = changed.get(BLOCK).unwrap();
        // During the write, other threads change the block to other contents and back.
        changed.change(BLOCK, |bytes| bytes[0] = 2).unwrap();
        changed.change(BLOCK, |bytes| bytes[0] = 1).unwrap();
        changed.remove_if_same(BLOCK, &written);
        let newer = changed.get(BLOCK).unwrap();
        changed.remove_if_same(BLOCK, &newer);
        assert!(changed.get(BLOCK).is_none());
    }

    #[test]
    fn contents_are_in_the_memory_of_the_cache_until_they_have_half_of_it() {
        let changed = empty();
        for block in 0..1000 {
            changed.insert(FsBlock(block), &[block as u8; 4096]);
        }
        let stats = changed.cache.stats();
        let resident = stats.bytes_resident;
        assert!(resident <= 512 << 10 && resident > 480 << 10, "{stats:?}");
        for block in 0..1000 {
            let block = FsBlock(block);
            let before = changed.get(block).unwrap();
            changed.change(block, |bytes| bytes[0] ^= 0xff).unwrap();
            assert_eq!((before[0], before[4095]), (block.0 as u8, block.0 as u8));
            assert_eq!(changed.get(block).unwrap()[0], !before[0]);
            changed.remove(block);
        }
        assert_eq!(changed.cache.stats().bytes_resident, 0);
    }
}
