//! Opening a recorded volume.

use std::sync::Arc;

use iomap::{DirectOptions, SplitExtents};
use pagecache::CacheOptions;
use testkit::crash::{Disks, VolumeFormat};
use testkit::encryption;
use vfs::{Credentials, Volume, VolumeOptions};

use crate::planted::Bug;

/// Opens a volume for writing, possibly with a bug. The seed decides when direct writes split
/// extents, and whether f2fs discards segments that become free.
pub fn open(disks: &Disks, bug: Bug, seed: u64) -> Volume {
    let discard = disks.format == VolumeFormat::F2fs && seed % 2 == 0;
    let options = VolumeOptions { discard: Some(discard), ..options(disks, bug, seed) };
    Volume::open_device(disks.volume.clone(), &options).unwrap()
}

/// Returns the options with which [`open`] opens a volume, without discards.
pub fn options(disks: &Disks, bug: Bug, seed: u64) -> VolumeOptions {
    let split = if seed % 2 == 0 { SplitExtents::AtEnd } else { SplitExtents::Before };
    VolumeOptions {
        writable: true,
        cache: CacheOptions { bytes_max: 32 << 20, ..CacheOptions::default() },
        direct: DirectOptions { split, ..DirectOptions::default() },
        keys: Arc::new(encryption::master_keys()),
        auto_da_alloc: bug != Bug::LateReplacement,
        ext4: ext4::Format { journal_device: disks.journal.clone(), ..ext4::Format::default() },
        ..VolumeOptions::default()
    }
}

/// Compresses files that are created in the root directory from now on.
pub fn compress_new_files(volume: &Volume) {
    /// FS_COMPR_FL.
    const COMPRESSED: u32 = 4;
    volume.root().unwrap().set_flags(COMPRESSED, &Credentials::ROOT).unwrap();
}
