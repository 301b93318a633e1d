//! The kinds of volumes whose power is cut.

use std::sync::Arc;
use std::time::Duration;

use device::{LatencyDevice, MemoryDevice, RecordDevice, SharedDevice};
use ext4::Volume;
use iomap::{CacheOptions, PageCache};

use crate::common::stale::with_stale_blocks;
use crate::common::{Image, number_after, open_device_for_writing};
use crate::disks::Disks;
use crate::fast::leave_fast_commits;
use crate::planted::Bug;

const JOURNAL_UUID: &str = "12345678-1234-1234-1234-123456789abc";
const LATENCY: Duration = Duration::from_micros(20);
const QUEUE_DEPTH: usize = 4;
/// One request in so many takes longer: others, commits among them, come and go meanwhile.
const STRAGGLERS_EVERY: u64 = 7;
/// How long such a request takes.
const STRAGGLERS_LATENCY: Duration = Duration::from_millis(2);

/// How a device ends requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Before the submitter goes on.
    AtOnce,
    /// After some time, several at once, some of which overtake others.
    Slow,
}

/// A kind of volume.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    /// For mke2fs.
    options: &'static str,
    megabytes: u64,
    /// The kernel has left fast commits on it.
    pub has_fast_commits: bool,
    /// Of a device of its own for the journal.
    journal_megabytes: Option<u64>,
}

impl Kind {
    const fn new(name: &'static str, megabytes: u64, options: &'static str) -> Self {
        Self { name, options, megabytes, has_fast_commits: false, journal_megabytes: None }
    }

    /// A new volume, each of whose free blocks has something in it that no file ever holds.
    pub fn device(&self, pace: Pace) -> Arc<RecordDevice> {
        Arc::new(RecordDevice::new(self.unrecorded(pace)).unwrap())
    }

    fn unrecorded(&self, pace: Pace) -> SharedDevice {
        let memory = Arc::new(self.memory());
        match pace {
            Pace::AtOnce => memory,
            Pace::Slow => Arc::new(
                LatencyDevice::new(memory, LATENCY, QUEUE_DEPTH)
                    .with_stragglers(STRAGGLERS_EVERY, STRAGGLERS_LATENCY),
            ),
        }
    }

    /// The bytes of the volume, if a journal on a device of its own follows them in the recording.
    pub fn volume_bytes(&self) -> Option<u64> {
        self.journal_megabytes.map(|_| self.megabytes << 20)
    }

    /// A new volume that has a bug, and the recorder of all its devices.
    pub fn open(&self, bug: Bug, pace: Pace) -> (Arc<RecordDevice>, Arc<Volume>) {
        let Some(megabytes) = self.journal_megabytes else {
            let device = self.device(pace);
            return (Arc::clone(&device), open_device_for_writing(bug.device(device)).unwrap());
        };
        let journal = Arc::new(self.journal(megabytes));
        let [device, journal] = RecordDevice::pair(self.unrecorded(pace), journal).unwrap();
        let device = Arc::new(device);
        let volume = bug.device(device.clone());
        let disks = Disks { volume, journal: Some(bug.device(Arc::new(journal))) };
        let options = CacheOptions { bytes_max: 32 << 20, ..CacheOptions::default() };
        let volume = disks.open_for_writing(&PageCache::new(options).unwrap()).unwrap();
        (device, volume)
    }

    fn memory(&self) -> MemoryDevice {
        let arguments: Vec<&str> = self.options.split_whitespace().collect();
        let image = Image::make(self.megabytes, &arguments);
        if self.journal_megabytes.is_some() {
            // mke2fs wants a block device for that.
            image.debugfs_write(&format!(
                "feature has_journal\nssv journal_uuid {JOURNAL_UUID}\nssv journal_dev 0x700\n"
            ));
        }
        let has_journal = image.dumpe2fs(&["-h"]).contains("has_journal");
        assert_eq!(has_journal, self.has_journal(), "{self:?}");
        let mut bytes = with_stale_blocks(&image);
        if self.has_fast_commits {
            std::fs::write(&image.path, bytes).unwrap();
            bytes = leave_fast_commits(&image);
        }
        MemoryDevice::new(bytes)
    }

    /// A journal for one volume.
    fn journal(&self, megabytes: u64) -> MemoryDevice {
        let block_size = number_after(self.options, "-b").expect("a block size").to_string();
        let arguments = ["-O", "journal_dev", "-b", &block_size, "-U", JOURNAL_UUID];
        let mut bytes = Image::make(megabytes, &arguments).bytes();
        // Its superblock follows the one that ext4 has for devices; there is the number of users.
        let superblock = bytes.iter().skip(2048).step_by(1024).position(|byte| *byte == 0xC0);
        let superblock = 2048 + 1024 * superblock.expect("a journal's superblock");
        bytes[superblock + 64..][..4].copy_from_slice(&1_u32.to_be_bytes());
        MemoryDevice::new(bytes)
    }

    /// Whether what was committed is there as a whole or not at all.
    pub fn has_journal(&self) -> bool {
        self.journal_megabytes.is_some()
            || !["^has_journal", "ext2"].iter().any(|without| self.options.contains(without))
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
/// A cut leaves of each device what was durable there, whatever there was on the other one.
pub const JOURNAL_DEVICE: &[Kind] = &[
    Kind {
        journal_megabytes: Some(2),
        ..Kind::new("journal_device", 5, "-t ext4 -b 1024 -O ^has_journal")
    },
    Kind {
        journal_megabytes: Some(2),
        ..Kind::new(
            "journal_device_without_checksums",
            5,
            "-t ext4 -b 1024 -O ^has_journal,^metadata_csum,^64bit,uninit_bg",
        )
    },
    Kind {
        journal_megabytes: Some(6),
        ..Kind::new("journal_device_4k", 8, "-t ext4 -b 4096 -O ^has_journal")
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
