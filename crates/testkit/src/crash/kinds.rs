//! The kinds of volumes for power cuts, and their creation.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{BlockSize, DeviceOffset};
use device::{LatencyDevice, MemoryDevice, RecordDevice, SharedDevice};
use parking_lot::Mutex;

use super::disks::{Disks, VolumeFormat};
use super::fast::leave_fast_commits;
use super::stale::with_stale_blocks;
use crate::f2fs::make::MakeOptions;
use crate::host::command::run;
use crate::images::image::MKE2FS_CONF;
use crate::must;

const JOURNAL_UUID: &str = "12345678-1234-1234-1234-123456789abc";
const LATENCY: Duration = Duration::from_micros(20);
const QUEUE_DEPTH: usize = 4;
/// One request in this number is a straggler. Other requests, such as commits, overtake it.
const STRAGGLERS_EVERY: u64 = 7;
/// The latency of a straggler.
const STRAGGLERS_LATENCY: Duration = Duration::from_millis(2);

/// The time at which a device ends requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Before the submitter continues.
    AtOnce,
    /// After some time. Several requests are served at once, and some overtake others.
    Slow,
}

impl Pace {
    /// Returns `device` at this pace.
    fn of(self, device: SharedDevice) -> SharedDevice {
        match self {
            Self::AtOnce => device,
            Self::Slow => Arc::new(
                LatencyDevice::new(device, LATENCY, QUEUE_DEPTH)
                    .with_stragglers(STRAGGLERS_EVERY, STRAGGLERS_LATENCY),
            ),
        }
    }
}

/// A kind of volume.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The name, for the names of trials.
    pub name: &'static str,
    /// The options of mke2fs, or the name of the kind of an f2fs image.
    options: &'static str,
    megabytes: u64,
    /// Whether the kernel has left fast commits in the journal.
    pub has_fast_commits: bool,
    /// The size of the external journal's device.
    journal_megabytes: Option<u64>,
    /// The format.
    pub format: VolumeFormat,
    /// The name of the policy of the root directory, if it is encrypted, and so all files in it.
    policy: Option<&'static str>,
    /// The size of blocks that a power cut writes as a whole or not at all, in bytes.
    pub atomic_bytes: u64,
}

/// A new volume, once it was made. It is never written to.
type Made = OnceLock<SharedDevice>;

/// A new volume whose devices are recorded.
#[derive(Debug)]
pub struct Recorded {
    /// The recorder of all devices.
    pub recorder: Arc<RecordDevice>,
    /// The devices through which the volume is opened.
    pub disks: Disks,
}

impl Kind {
    const fn new(name: &'static str, megabytes: u64, options: &'static str) -> Self {
        let (has_fast_commits, journal_megabytes) = (false, None);
        let (format, policy, atomic_bytes) = (VolumeFormat::Ext4, None, 512);
        Self {
            name,
            options,
            megabytes,
            has_fast_commits,
            journal_megabytes,
            format,
            policy,
            atomic_bytes,
        }
    }

    /// Returns a kind of f2fs. The format expects of a device that it writes blocks of 4 KiB as a
    /// whole.
    const fn f2fs(name: &'static str, image: &'static str) -> Self {
        Self { format: VolumeFormat::F2fs, atomic_bytes: 4096, ..Self::new(name, 64, image) }
    }

    /// Returns a kind of f2fs whose root directory is encrypted by this policy, and so all files in
    /// it.
    const fn encrypted(name: &'static str, policy: &'static str) -> Self {
        Self { policy: Some(policy), ..Self::f2fs(name, "encrypt") }
    }

    /// Creates a volume, and fills its free blocks with contents that no file has. `wrap` can add a
    /// device between the volume and each recorded device. All volumes of a kind have the same
    /// contents at first.
    pub fn record(&self, pace: Pace, wrap: impl Fn(SharedDevice) -> SharedDevice) -> Recorded {
        let contents = self.contents();
        let Some(megabytes) = self.journal_megabytes else {
            return self.record_over(contents, pace, wrap);
        };
        let mut bytes = vec![0; contents.size() as usize];
        must(contents.read_at(DeviceOffset(0), &mut bytes), "memory");
        let volume = pace.of(Arc::new(MemoryDevice::new(bytes)));
        let journal = Arc::new(journal(self.options, megabytes));
        let [recorder, journal] = must(RecordDevice::pair(volume, journal), "recording");
        let recorder = Arc::new(recorder);
        let journal = Some(wrap(Arc::new(journal)));
        let disks = Disks { journal, ..Disks::new(wrap(recorder.clone()), self.format) };
        Recorded { recorder, disks }
    }

    /// Records a volume of this kind that has the contents of `before`, which is never written to,
    /// on a device without an external journal. Otherwise like [`record`](Self::record).
    pub fn record_over(
        &self,
        before: SharedDevice,
        pace: Pace,
        wrap: impl Fn(SharedDevice) -> SharedDevice,
    ) -> Recorded {
        let recorder = Arc::new(RecordDevice::over_layer(before, |device| pace.of(device)));
        let disks = Disks::new(wrap(recorder.clone()), self.format);
        Recorded { recorder, disks }
    }

    /// Returns a new volume, which is made once. All recordings of the kind share it.
    pub fn contents(&self) -> SharedDevice {
        static CONTENTS: Mutex<BTreeMap<&str, Arc<Made>>> = Mutex::new(BTreeMap::new());
        let made = Arc::clone(CONTENTS.lock().entry(self.name).or_default());
        Arc::clone(made.get_or_init(|| Arc::new(MemoryDevice::new(self.make()))))
    }

    /// Returns the size of the volume in bytes, if an external journal follows it in the recording.
    pub fn volume_bytes(&self) -> Option<u64> {
        self.journal_megabytes.map(|_| self.megabytes << 20)
    }

    fn make(&self) -> Vec<u8> {
        if self.format == VolumeFormat::F2fs {
            return self.make_f2fs();
        }
        let arguments: Vec<&str> = self.options.split_whitespace().collect();
        let folder = must(tempfile::tempdir(), "a folder");
        let image = folder.path().join("image");
        make(&image, self.megabytes, &arguments);
        if self.journal_megabytes.is_some() {
            // mke2fs requires a block device for an external journal, so set the fields with
            // debugfs.
            let script = folder.path().join("commands");
            let commands = format!(
                "feature has_journal\nssv journal_uuid {JOURNAL_UUID}\nssv journal_dev 0x700\n"
            );
            must(std::fs::write(&script, commands), "commands");
            run(Command::new("debugfs").arg("-w").arg("-f").arg(script).arg(&image));
        }
        let features = run(Command::new("dumpe2fs").arg("-h").arg(&image));
        let has_journal = String::from_utf8_lossy(&features).contains("has_journal");
        assert_eq!(has_journal, self.has_journal(), "{self:?}");
        let mut bytes = with_stale_blocks(&image);
        if self.has_fast_commits {
            must(std::fs::write(&image, bytes), "the image");
            bytes = leave_fast_commits(&image);
        }
        bytes
    }

    fn make_f2fs(&self) -> Vec<u8> {
        let folder = must(tempfile::tempdir(), "a folder");
        let image = folder.path().join("image");
        if self.options == BLOCKS_OF_16K {
            make_with_blocks_of_16k(&image, self.megabytes);
        } else {
            crate::f2fs::Kind::named(self.options).make(&image, self.megabytes);
        }
        let mut bytes = must(std::fs::read(&image), "the image");
        if let Some(policy) = self.policy {
            crate::f2fs::encrypt_root(&mut bytes, crate::images::encryption::policy(policy));
        }
        let device: SharedDevice = Arc::new(MemoryDevice::new(bytes.clone()));
        let superblock = must(f2fs::Superblock::read(&device), "the superblock");
        let geometry = &superblock.geometry;
        let main = (geometry.main.start.0 << geometry.block_size.shift()) as usize;
        for block in bytes[main..].chunks_mut(geometry.block_size.len()) {
            if block.iter().all(|byte| *byte == 0) {
                block.fill(super::stale::STALE);
            }
        }
        bytes
    }

    /// Returns whether the format is ext2, ext3 or ext4.
    pub fn is_ext4(&self) -> bool {
        self.format == VolumeFormat::Ext4
    }

    /// Returns whether new files are to be compressed.
    pub fn is_compressed(&self) -> bool {
        self.name == COMPRESSED
    }

    /// Returns whether all files are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.policy.is_some()
    }

    /// Returns whether files have block maps, and not extents.
    pub fn has_block_maps(&self) -> bool {
        ["-t ext2", "-t ext3"].iter().any(|format| self.options.contains(format))
    }

    /// Returns whether space is allocated in clusters (bigalloc).
    pub fn has_clusters(&self) -> bool {
        self.options.contains("bigalloc")
    }

    /// Returns whether commits are atomic.
    pub fn has_journal(&self) -> bool {
        self.journal_megabytes.is_some()
            || !["^has_journal", "ext2"].iter().any(|without| self.options.contains(without))
    }
}

/// Creates the device of an external journal for a volume with these options.
fn journal(options: &str, megabytes: u64) -> MemoryDevice {
    let block_size = number_after(options, "-b").expect("a block size").to_string();
    let arguments = ["-O", "journal_dev", "-b", &block_size, "-U", JOURNAL_UUID];
    let folder = must(tempfile::tempdir(), "a folder");
    let image = folder.path().join("image");
    make(&image, megabytes, &arguments);
    let mut bytes = must(std::fs::read(&image), "the journal");
    // The journal's superblock follows the superblock of the device. It contains the number of
    // users.
    let superblock = bytes.iter().skip(2048).step_by(1024).position(|byte| *byte == 0xC0);
    let superblock = 2048 + 1024 * superblock.expect("a journal's superblock");
    bytes[superblock + 64..][..4].copy_from_slice(&1_u32.to_be_bytes());
    MemoryDevice::new(bytes)
}

/// Creates `image` with mke2fs, with a fixed configuration.
fn make(image: &Path, megabytes: u64, options: &[&str]) {
    let file = must(std::fs::File::create(image), "the image");
    must(file.set_len(megabytes << 20), "the image");
    let config = image.with_extension("conf");
    must(std::fs::write(&config, MKE2FS_CONF), "a configuration");
    let mut command = Command::new("mke2fs");
    command.env("MKE2FS_CONFIG", config).args(["-q", "-F"]).args(options);
    run(command.arg(image));
}

/// The name of the kind with compressed files.
const COMPRESSED: &str = "f2fs_compressed";
/// The image of volumes of f2fs with blocks of 16 KiB, which mkfs.f2fs does not make.
const BLOCKS_OF_16K: &str = "blocks of 16 KiB";

/// Creates an image of f2fs with blocks of 16 KiB, checksums of inodes and several summaries in a
/// block.
fn make_with_blocks_of_16k(image: &Path, megabytes: u64) {
    const EXTRA_ATTR: u32 = 0x8;
    const INODE_CHECKSUM: u32 = 0x20;
    const PACKED_SSA: u32 = 0x1_0000;
    let block_size = BlockSize::from_bytes(16 << 10).expect("a power of two");
    let mut options = MakeOptions::new(block_size, megabytes << 20);
    options.features = EXTRA_ATTR | INODE_CHECKSUM | PACKED_SSA;
    crate::f2fs::make::make_file(image, &options);
}

/// Returns the first number in the text after `label`.
pub(super) fn number_after(text: &str, label: &str) -> Option<u64> {
    let rest = text.split_once(label)?.1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Volumes of f2fs, named as the kinds of images.
pub const F2FS: &[Kind] =
    &[Kind::f2fs("f2fs", "plain"), Kind::f2fs("f2fs_attributes", "attributes")];
/// A volume of f2fs with checksums of inodes, on a device that tears blocks.
pub const F2FS_TORN: Kind =
    Kind { atomic_bytes: 512, ..Kind::f2fs("f2fs_torn_blocks", "attributes") };
/// A volume of f2fs that can have compressed files.
pub const F2FS_COMPRESSED: Kind = Kind::f2fs(COMPRESSED, "lz4");
/// A volume of f2fs with encrypted files.
pub const F2FS_ENCRYPTED: Kind = Kind::encrypted("f2fs_encrypted", "v2");
/// Volumes of f2fs with encrypted files, by other policies. The initialization vectors of the
/// second and third one depend on the number of the inode.
pub const F2FS_OTHER_POLICIES: &[Kind] = &[
    Kind::encrypted("f2fs_encrypted_v1", "v1"),
    Kind::encrypted("f2fs_encrypted_lblk64", "lblk64"),
    Kind::encrypted("f2fs_encrypted_lblk32", "lblk32"),
    Kind::encrypted("f2fs_encrypted_units_of_1k", "units of 1024"),
];
/// A volume of f2fs with blocks of 16 KiB.
pub const F2FS_16K: Kind = Kind {
    megabytes: 256,
    atomic_bytes: 16 << 10,
    ..Kind::f2fs("f2fs_blocks_of_16k", BLOCKS_OF_16K)
};

/// The defaults of mke2fs 1.47.4.
pub const DEFAULT: Kind =
    Kind::new("default", 9, "-t ext4 -b 4096 -O orphan_file,metadata_csum_seed -J size=4");
/// Small blocks, with a log that wraps around.
pub const SMALL_BLOCKS: Kind = Kind::new("blocks_of_1k", 5, "-t ext4 -b 1024 -g 1024 -J size=1");
/// A volume whose log has no checksums.
pub const WITHOUT_CHECKSUMS: Kind = Kind::new(
    "without_checksums",
    5,
    "-t ext4 -b 1024 -O ^metadata_csum,^64bit,uninit_bg -J size=1",
);
/// Files with block maps.
pub const EXT3: Kind = Kind::new("ext3", 5, "-t ext3 -b 1024 -J size=1");
/// Volumes that must be recovered first, so that some cuts happen during this recovery.
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
/// Volumes with an external journal. Data that is durable on one device may not be on the other.
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
/// Volumes without a journal, which promise only files that were synced.
pub const WITHOUT_JOURNAL: &[Kind] = &[
    Kind::new("ext2", 5, "-t ext2 -b 1024"),
    Kind::new("ext2_blocks_of_4k", 5, "-t ext2 -b 4096"),
    // Has a copy of the superblock, since a power cut may tear the first one.
    Kind::new("without_journal", 9, "-t ext4 -b 1024 -O ^has_journal"),
    Kind::new("without_both", 5, "-t ext4 -b 1024 -O ^has_journal,^metadata_csum"),
];

/// Small volumes with a journal.
pub const SMALL: &[Kind] = &[
    SMALL_BLOCKS,
    DEFAULT,
    WITHOUT_CHECKSUMS,
    EXT3,
    Kind::new("blocks_of_2k", 7, "-t ext4 -b 2048 -J size=2"),
    Kind::new("bigalloc", 8, "-t ext4 -b 1024 -O bigalloc -C 8192 -J size=1"),
    Kind::new("inline_data", 5, "-t ext4 -b 1024 -O inline_data -J size=1"),
];

/// Volumes with large blocks, and so with large logs, whose states take longer to judge.
pub const LARGE: &[Kind] = &[
    Kind::new("blocks_of_16k", 36, "-t ext4 -b 16384 -J size=16"),
    Kind::new("blocks_of_64k", 136, "-t ext4 -b 65536 -J size=64"),
];
