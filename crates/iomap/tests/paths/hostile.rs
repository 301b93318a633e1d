//! A format that passes on wrong mappings of a damaged image: errors, but no panic, hang or foreign
//! memory.

use std::sync::{Arc, Mutex};

use crate::support::{Random, block_size, cache};
use base::{DeviceOffset, Error, FileOffset, Result};
use device::{MemoryDevice, SharedDevice};
use iomap::{
    Iomap, IomapKind, MapFlags, MapRead, ReadContext, ReadOptions, Readahead, fiemap, lend, read,
    seek_data, seek_hole,
};

/// A format with random mappings, some of which are plausible.
#[derive(Debug)]
struct Liar(Mutex<Random>);

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Random({})", self.0)
    }
}

impl MapRead for Liar {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let mut random = self.0.lock().expect("no panic");
        let mut number = |near: u64| match random.below(6) {
            0 => random.next(),
            1 => u64::MAX - random.below(10),
            2 => random.below(1 << 20) & !4095,
            3 => near.saturating_sub(random.below(3) << 12),
            _ => near,
        };
        let (offset, length, address) = (number(at.0), number(length), number(8192));
        let kind = match random.below(5) {
            0 => IomapKind::Hole,
            1 => IomapKind::Inline,
            2 => IomapKind::Unwritten,
            _ => IomapKind::Mapped,
        };
        if random.one_in(20) {
            return Err(Error::NotFound);
        }
        Ok(Iomap {
            offset: FileOffset(offset),
            length,
            kind,
            address: (!random.one_in(4)).then_some(DeviceOffset(address)),
            flags: MapFlags { last: random.one_in(8), ..MapFlags::default() },
        })
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        let length = self.0.lock().expect("no panic").below(9000);
        Ok(vec![1; length as usize])
    }
}

#[test]
fn no_mapping_does_harm() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(vec![2; (1 << 20) + 300]));
    let mut random = Random(99);
    for seed in 0..2000 {
        let block = block_size(512 << random.below(8));
        let cache = cache(2 << 20, random.below(10) as u8);
        let mapping = cache.new_mapping(block);
        let liar = Liar(Mutex::new(Random(seed)));
        let size = match random.below(4) {
            0 => u64::MAX - random.below(3),
            1 => i64::MAX as u64 - random.below(9000),
            2 => random.next(),
            _ => random.below(1 << 21),
        };
        let options = ReadOptions {
            batch_pending_accounting: random.one_in(2),
            skip_folio_state: random.one_in(2),
            ..ReadOptions::default()
        };
        let context =
            ReadContext { mapping: &mapping, mapper: &liar, device: &device, size, options };
        let readahead = Readahead::default();
        for _ in 0..8 {
            let at = match random.below(4) {
                0 => size.saturating_sub(random.below(20_000)),
                1 => random.next(),
                _ => random.below(1 << 21),
            };
            let at = FileOffset(at);
            let mut buffer = vec![7; random.below(40_000) as usize];
            if let Ok(length) = read(&context, &readahead, at, &mut buffer) {
                assert!(buffer[..length].iter().all(|&byte| byte < 3), "foreign memory");
            }
            if let Ok(slice) = lend(&context, &readahead, at, 50_000) {
                assert!(slice.iter().all(|&byte| byte < 3), "foreign memory");
            }
        }
        let _ = seek_data(&context, FileOffset(0));
        let _ = seek_hole(&context, FileOffset(0));
        let mut left = 100;
        let _ = fiemap(&liar, FileOffset(0)..FileOffset(size), &mut |_| {
            left -= 1;
            if left == 0 {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        });
    }
}
