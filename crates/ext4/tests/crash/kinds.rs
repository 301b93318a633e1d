//! The kinds of volumes whose power is cut.

use std::sync::Arc;
use std::time::Duration;

use device::{LatencyDevice, MemoryDevice, RecordDevice};

use crate::common::Image;
use crate::common::stale::with_stale_blocks;
use crate::fast::leave_fast_commits;

const LATENCY: Duration = Duration::from_micros(20);
const QUEUE_DEPTH: usize = 4;

/// A kind of volume.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    /// For mke2fs.
    options: &'static str,
    megabytes: u64,
    /// The kernel has left fast commits on it.
    pub has_fast_commits: bool,
}

impl Kind {
    const fn new(name: &'static str, megabytes: u64, options: &'static str) -> Self {
        Self { name, options, megabytes, has_fast_commits: false }
    }

    /// A new volume, each of whose free blocks has something in it that no file ever holds.
    pub fn device(&self) -> Arc<RecordDevice> {
        Arc::new(RecordDevice::new(Arc::new(self.memory())).unwrap())
    }

    /// The same on a device that has several requests under way at once.
    pub fn slow_device(&self) -> Arc<RecordDevice> {
        let slow = LatencyDevice::new(Arc::new(self.memory()), LATENCY, QUEUE_DEPTH);
        Arc::new(RecordDevice::new(Arc::new(slow)).unwrap())
    }

    fn memory(&self) -> MemoryDevice {
        let arguments: Vec<&str> = self.options.split_whitespace().collect();
        let image = Image::make(self.megabytes, &arguments);
        let has_journal = image.dumpe2fs(&["-h"]).contains("has_journal");
        assert_eq!(has_journal, self.has_journal(), "{self:?}");
        let mut bytes = with_stale_blocks(&image);
        if self.has_fast_commits {
            std::fs::write(&image.path, bytes).unwrap();
            bytes = leave_fast_commits(&image);
        }
        MemoryDevice::new(bytes)
    }

    /// Whether what was committed is there as a whole or not at all.
    pub fn has_journal(&self) -> bool {
        !["^has_journal", "ext2"].iter().any(|without| self.options.contains(without))
    }
}

/// What mke2fs 1.47.4 makes by default.
pub const DEFAULT: Kind =
    Kind::new("default", 9, "-t ext4 -b 4096 -O orphan_file,metadata_csum_seed -J size=4");
/// Its log goes round.
pub const SMALL_BLOCKS: Kind = Kind::new("blocks_of_1k", 5, "-t ext4 -b 1024 -g 1024 -J size=1");
/// Whose log has no checksums.
pub const WITHOUT_CHECKSUMS: Kind = Kind::new(
    "without_checksums",
    5,
    "-t ext4 -b 1024 -O ^metadata_csum,^64bit,uninit_bg -J size=1",
);
pub const EXT3: Kind = Kind::new("ext3", 5, "-t ext3 -b 1024 -J size=1");
/// To be recovered first, so that cuts also come while we do that.
pub const FAST_COMMITS: &[Kind] = &[
    Kind {
        has_fast_commits: true,
        ..Kind::new("fast_commits", 6, "-t ext4 -b 1024 -O fast_commit -J size=2")
    },
    Kind {
        has_fast_commits: true,
        ..Kind::new("fast_commits_4k", 16, "-t ext4 -b 4096 -O fast_commit,orphan_file -J size=6")
    },
];
pub const WITHOUT_JOURNAL: &[Kind] = &[
    Kind::new("ext2", 5, "-t ext2 -b 1024"),
    Kind::new("ext2_blocks_of_4k", 5, "-t ext2 -b 4096"),
    Kind::new("without_journal", 5, "-t ext4 -b 1024 -O ^has_journal"),
    Kind::new("without_both", 5, "-t ext4 -b 1024 -O ^has_journal,^metadata_csum"),
];

/// Every kind that has a journal and is small.
pub const SMALL: &[Kind] = &[
    SMALL_BLOCKS,
    DEFAULT,
    WITHOUT_CHECKSUMS,
    EXT3,
    Kind::new("blocks_of_2k", 7, "-t ext4 -b 2048 -J size=2"),
    Kind::new("bigalloc", 8, "-t ext4 -b 1024 -O bigalloc -C 8192 -J size=1"),
    Kind::new("inline_data", 5, "-t ext4 -b 1024 -O inline_data -J size=1"),
];

/// Kinds whose blocks, and so whose logs, are large: a state of theirs takes its time.
pub const LARGE: &[Kind] = &[
    Kind::new("blocks_of_16k", 36, "-t ext4 -b 16384 -J size=16"),
    Kind::new("blocks_of_64k", 136, "-t ext4 -b 65536 -J size=64"),
];
