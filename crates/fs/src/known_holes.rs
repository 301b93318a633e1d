//! The last hole and the last data of the device that a scan of metadata blocks found. Adjacent
//! blocks are mostly both in a hole, or both have data, and asking the host for each of them would
//! take longer than to read it.

use std::ops::Range;

use base::FsBlock;
use iomap::MetadataCache;

/// What is known of the blocks from `start` on.
#[derive(Debug)]
pub struct KnownHoles {
    start: FsBlock,
    /// The first blocks from `start` on that may have data.
    data: Range<FsBlock>,
}

impl Default for KnownHoles {
    fn default() -> Self {
        Self { start: FsBlock(0), data: FsBlock(0)..FsBlock(0) }
    }
}

impl KnownHoles {
    /// Returns the first block from `from` on that may have data, or is past the end of the device.
    /// All before it are zeroes.
    pub fn next_data(&mut self, metadata: &MetadataCache, from: FsBlock) -> FsBlock {
        if !(self.start..self.data.end).contains(&from) {
            self.start = from;
            self.data = metadata.next_data(from);
        }
        from.max(self.data.start)
    }

    /// Returns whether a block is zeroes since it is in a hole.
    pub fn has(&mut self, metadata: &MetadataCache, block: FsBlock) -> bool {
        self.next_data(metadata, block) > block
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use base::{BlockSize, DeviceOffset, Result};
    use device::{Bio, BlockDevice};
    use iomap::{CacheOptions, PageCache};

    use super::*;

    /// A device of 100 blocks with data in blocks 10 to 19, at the end of block 40, and at the
    /// beginning of block 99.
    #[derive(Debug, Default)]
    struct Device {
        questions: AtomicU64,
    }

    const BLOCK: u64 = 4096;
    const DATA: [Range<u64>; 3] =
        [10 * BLOCK..20 * BLOCK, 41 * BLOCK - 1..41 * BLOCK, 99 * BLOCK..99 * BLOCK + 1];

    impl BlockDevice for Device {
        fn size(&self) -> u64 {
            100 * BLOCK
        }

        fn is_read_only(&self) -> bool {
            true
        }

        fn submit(&self, _: Vec<Bio>) {
            unreachable!("no block is read");
        }

        fn flush(&self) -> Result<()> {
            Ok(())
        }

        fn discard(&self, _: DeviceOffset, _: u64) -> Result<()> {
            Ok(())
        }

        fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
            Ok(())
        }

        fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
            self.questions.fetch_add(1, Ordering::Relaxed);
            let range = DATA.into_iter().find(|range| range.end > offset.0)?;
            Some(DeviceOffset(range.start.max(offset.0))..DeviceOffset(range.end))
        }
    }

    #[test]
    fn the_device_is_asked_once_for_each_range_with_data() {
        let device = Arc::new(Device::default());
        let options = CacheOptions { bytes_max: 1 << 20, ..CacheOptions::default() };
        let cache = PageCache::new(options).expect("memory");
        let block_size = BlockSize::from_bytes(4096).expect("a power of two");
        let metadata = MetadataCache::new(&cache, device.clone(), block_size);
        let mut holes = KnownHoles::default();
        for block in 0..100 {
            let has_data = matches!(block, 10..20 | 40 | 99);
            assert_eq!(holes.has(&metadata, FsBlock(block)), !has_data, "block {block}");
        }
        assert_eq!(device.questions.load(Ordering::Relaxed), 3);
        // Backwards, too.
        assert_eq!(holes.next_data(&metadata, FsBlock(5)), FsBlock(10));
        assert_eq!(holes.next_data(&metadata, FsBlock(20)), FsBlock(40));
        assert_eq!(holes.next_data(&metadata, FsBlock(99)), FsBlock(99));
        // Blocks past the end are no holes: their reads fail.
        assert!(!holes.has(&metadata, FsBlock(100)));
        assert!(!holes.has(&metadata, FsBlock(u64::MAX)));
        // Blocks that were changed in memory are data, wherever they are.
        metadata.replace(FsBlock(50), &[1; 4096]);
        let mut holes = KnownHoles::default();
        assert!(!holes.has(&metadata, FsBlock(50)));
    }
}
