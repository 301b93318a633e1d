//! Kinds of volumes, their images, and how they are opened.

use std::sync::Arc;

use base::Result;
use device::{MemoryDevice, SharedDevice};
use testkit::crash::{self, F2FS, F2FS_16K, F2FS_COMPRESSED, F2FS_ENCRYPTED};
use testkit::{Mke2fs, encryption};
use vfs::{Credentials, Volume, VolumeOptions};

use crate::worker::Work;

/// A kind of volume.
#[derive(Debug)]
pub enum Kind {
    /// ext3 or ext4.
    Ext { format: &'static str, block_size: u32, arguments: &'static str, megabytes: u64 },
    /// f2fs.
    F2fs(&'static crash::Kind),
}

pub const KINDS: [Kind; 9] = [
    ext4(1024, 6, "-J size=1 -e continue"),
    ext4(1024, 6, "-O orphan_file -J size=1 -e remount-ro"),
    ext4(4096, 12, "-O bigalloc -C 16384 -J size=4 -e panic"),
    ext4(1024, 6, "-O ^has_journal"),
    Kind::Ext { format: "ext3", block_size: 1024, arguments: "-J size=1", megabytes: 6 },
    // With checksums and quota files.
    Kind::F2fs(&F2FS[1]),
    Kind::F2fs(&F2FS_COMPRESSED),
    Kind::F2fs(&F2FS_ENCRYPTED),
    Kind::F2fs(&F2FS_16K),
];

const fn ext4(block_size: u32, megabytes: u64, arguments: &'static str) -> Kind {
    Kind::Ext { format: "ext4", block_size, arguments, megabytes }
}

impl Kind {
    pub fn image(&self) -> SharedDevice {
        match self {
            Self::Ext { format, block_size, arguments, megabytes } => {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("image");
                let made = Mke2fs::new(format, *block_size).with(arguments);
                Mke2fs { size: megabytes << 20, ..made }.make(&path, None);
                Arc::new(MemoryDevice::new(std::fs::read(path).unwrap()))
            }
            Self::F2fs(kind) => kind.contents(),
        }
    }

    pub fn open(&self, device: SharedDevice, writable: bool) -> Result<Volume> {
        let keys = Arc::new(encryption::master_keys());
        let mut options = VolumeOptions { writable, keys, ..VolumeOptions::default() };
        options.cache.bytes_max = 8 << 20;
        Volume::open_device(device, &options)
    }

    /// Prepares a new volume for its files.
    pub fn prepare(&self, volume: &Volume) -> Result<()> {
        /// FS_COMPR_FL, which new files inherit.
        const COMPRESSED: u32 = 4;
        if self.is_compressed() {
            volume.root()?.set_flags(COMPRESSED, &Credentials::ROOT)?;
        }
        Ok(())
    }

    /// Returns what threads do on such a volume.
    pub fn work(&self) -> Work {
        Work {
            // As large as two clusters of compressed files.
            write_bits_max: if self.is_compressed() { 15 } else { 13 },
            uses_all_writes: matches!(self, Self::F2fs(_)) && !self.is_compressed(),
        }
    }

    /// Returns whether a recovery finds the changes since the last sync all or not at all.
    pub fn has_journal(&self) -> bool {
        !matches!(self, Self::Ext { arguments, .. } if arguments.contains("^has_journal"))
    }

    /// Returns whether new blocks are zeroed on the device before they get data.
    pub fn zeroes_blocks(&self) -> bool {
        matches!(self, Self::Ext { format: "ext3", .. })
    }

    /// Returns whether a volume counts the errors that have shut it down.
    pub fn records_errors(&self) -> bool {
        matches!(self, Self::Ext { .. })
    }

    pub fn block_size(&self) -> usize {
        match self {
            Self::Ext { block_size, .. } => *block_size as usize,
            Self::F2fs(kind) => kind.atomic_bytes as usize,
        }
    }

    /// Returns whether a device always writes a sector together with the one before: the two
    /// sectors of the superblock of ext4, as its checksum requires; without a journal, which
    /// protects from torn blocks, the two sectors of every kilobyte; the blocks of f2fs.
    pub fn is_with_previous(&self, sector: u64) -> bool {
        match self {
            Self::Ext { .. } => sector == 3 || !self.has_journal() && sector % 2 == 1,
            Self::F2fs(kind) => sector % (kind.atomic_bytes / 512) != 0,
        }
    }

    fn is_compressed(&self) -> bool {
        matches!(self, Self::F2fs(kind) if kind.is_compressed())
    }
}
