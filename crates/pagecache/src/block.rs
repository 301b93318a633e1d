//! Blocks of pool memory that belong to no mapping.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::PAGE_SIZE;
use crate::cache::PageCache;
use crate::options::ORDER_MAX;

/// A block of memory from a cache's pool. It counts against the cache's limit. Dropping it frees
/// the memory.
pub struct PoolBlock {
    cache: Arc<PageCache>,
    frame: u32,
    order: u8,
    memory: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to this value alone, and is changed through `&mut` only.
unsafe impl Send for PoolBlock {}
// SAFETY: as above.
unsafe impl Sync for PoolBlock {}

impl PoolBlock {
    /// Returns a block with a copy of `contents`. Evicts folios if there is no free memory. Returns
    /// `None` if all memory is in use, if `contents` is larger than the largest folio, or if blocks
    /// would take more than half of the memory. The other half is left to folios.
    pub fn new(cache: &Arc<PageCache>, contents: &[u8]) -> Option<Self> {
        let order = contents.len().div_ceil(PAGE_SIZE).max(1).next_power_of_two().ilog2() as u8;
        if order > ORDER_MAX {
            return None;
        }
        let pages = 1_u64 << order;
        if cache.block_pages.fetch_add(pages, Ordering::Relaxed) + pages > cache.pages_max() / 2 {
            cache.block_pages.fetch_sub(pages, Ordering::Relaxed);
            return None;
        }
        let Some((frame, order)) = cache.allocate(order, order) else {
            cache.block_pages.fetch_sub(pages, Ordering::Relaxed);
            return None;
        };
        let memory = cache.memory(frame);
        // A folio that gets the memory later must be zeroed.
        cache.pool.frame(frame).set_blank(false);
        let length = contents.len();
        let mut block = Self { cache: Arc::clone(cache), frame, order, memory, length };
        block.copy_from_slice(contents);
        Some(block)
    }
}

impl Deref for PoolBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the frames of the block are contiguous, belong to this value until it is dropped,
        // and are initialised from the start (the arena is mapped memory).
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.length) }
    }
}

impl DerefMut for PoolBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.length) }
    }
}

impl Drop for PoolBlock {
    fn drop(&mut self) {
        self.cache.free(self.frame, self.order);
        self.cache.block_pages.fetch_sub(1 << self.order, Ordering::Relaxed);
    }
}

impl fmt::Debug for PoolBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBlock({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CacheOptions;

    #[test]
    fn folios_in_the_memory_of_a_dropped_block_are_zeroed() {
        let options = CacheOptions { bytes_max: 1 << 20, ..CacheOptions::default() };
        let cache = PageCache::new(options).expect("memory");
        drop(PoolBlock::new(&cache, &[7; PAGE_SIZE]).expect("memory"));
        let mapping = cache.new_mapping(base::BlockSize::from_bytes(4096).expect("a size"));
        for index in 0..256 {
            let crate::Insertion::New(mut folio) = mapping.insert(index, 0) else {
                panic!("memory")
            };
            folio.take_piece(PAGE_SIZE, true).zero();
            let mut bytes = [1; PAGE_SIZE];
            assert_eq!(folio.folio().copy_to(0, &mut bytes), PAGE_SIZE);
            assert_eq!(bytes, [0; PAGE_SIZE], "page {index}");
        }
    }

    #[test]
    fn blocks_take_at_most_half_of_the_memory_and_free_it_when_dropped() {
        let options = CacheOptions { bytes_max: 1 << 20, ..CacheOptions::default() };
        let cache = PageCache::new(options).expect("memory");
        let mut blocks = Vec::new();
        while let Some(block) = PoolBlock::new(&cache, &[7; 3 * PAGE_SIZE]) {
            blocks.push(block);
        }
        assert!(cache.stats().bytes_resident <= 512 << 10);
        assert!(blocks.len() >= 30, "{}", blocks.len());
        blocks[1][0] = 8;
        assert!(blocks[0].iter().all(|byte| *byte == 7) && blocks[0].len() == 3 * PAGE_SIZE);
        assert_eq!((blocks[1][0], blocks[1][1]), (8, 7));
        blocks.pop();
        blocks.push(PoolBlock::new(&cache, &[9; 16_384]).expect("the memory of the dropped block"));
        drop(blocks);
        assert_eq!(cache.stats().bytes_resident, 0);
        assert!(PoolBlock::new(&cache, &vec![0; PAGE_SIZE << 10]).is_none());
    }
}
