//! The memory of the process with a cache of limited size.

use std::fmt;

use iomap::ReadOptions;
use pagecache::CacheOptions;

use crate::case::Content;
use crate::image::{FILE_BYTES, Image};
use crate::sides::{open_file, open_volume};

/// The limit of the cache in bytes.
const LIMIT: u64 = 64 << 20;
/// The memory that the process may use beyond the limit, in bytes: buffers of requests, stacks of
/// threads, inodes, and the program itself.
const CONSTANT: u64 = 8 << 20;

/// The results, in bytes.
pub struct Memory {
    /// The maximum size of all folios, as the cache counts it.
    counted: u64,
    /// The maximum growth of the process, as the kernel counts it.
    grown: u64,
}

impl Memory {
    /// Returns whether both values are within their limits.
    pub fn is_bounded(&self) -> bool {
        self.counted <= LIMIT && self.grown <= LIMIT + CONSTANT
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "memory, cache limit {} MiB: folios {:.1} MiB at most, process grew by {:.1} MiB \
             (allowed: {} MiB more than the limit)",
            LIMIT >> 20,
            mib(self.counted),
            mib(self.grown),
            CONSTANT >> 20
        )
    }
}

/// Reads four times the limit with several threads, in ascending and other orders, with large
/// folios and without.
pub fn check(image: &Image) -> Memory {
    let before = status_bytes("VmRSS:");
    let mut counted = 0;
    for folio_order_max in [0, CacheOptions::default().folio_order_max] {
        let cache = CacheOptions { bytes_max: LIMIT, folio_order_max };
        let volume = open_volume((image.opener())(), cache, ReadOptions::default());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let volume = &volume;
                scope.spawn(move || {
                    let content = if thread % 2 == 0 { Content::Data } else { Content::Hole };
                    let file = open_file(volume, content);
                    let mut buffer = vec![0; 64 << 10];
                    let pieces = FILE_BYTES / buffer.len() as u64;
                    // The number of pieces is a power of two, so an odd step visits each piece
                    // once.
                    let step = if thread < 2 { 1 } else { 1021 };
                    for piece in 0..pieces {
                        let at = piece * step % pieces * buffer.len() as u64;
                        file.read_at(&mut buffer, at).expect("a read");
                    }
                });
            }
        });
        counted = counted.max(volume.cache_stats().bytes_resident_max);
    }
    Memory { counted, grown: status_bytes("VmHWM:").saturating_sub(before) }
}

/// Returns a field of this process's status, in bytes.
fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect(field);
    let kibibytes = line.trim().trim_end_matches(" kB").parse::<u64>().expect(field);
    kibibytes << 10
}
