//! The opening of a volume for reading. Not here: for writing (`for_writing.rs`).

mod for_writing;

use std::sync::Arc;

use base::attributes::FileType;
use base::{BlockSize, Error, Result, Unsupported};
use device::{OverlayDevice, SharedDevice};
use fscrypt::Keys;
use iomap::PageCache;

use crate::mmp::MmpBlock;
use crate::ondisk::superblock::SUPERBLOCK_OFFSET;
use crate::recovery::untorn;
use crate::superblock::copy::SuperblockCopy;
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::volume::Volume;
use crate::volume::options::OpenOptions;
use crate::volume::probe::Probed;

impl Volume {
    /// Opens the volume on `device`, with the changes in its journal. The device is not written.
    /// Metadata is cached in `cache`. If the first superblock is damaged, a copy of it is searched
    /// for.
    pub fn open(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let volume = match options.superblock {
            Some(location) => {
                let copy = SuperblockCopy::read_at(&device, location, device.size())?;
                Self::open_by_copy(device, cache, options, copy)?
            }
            None => Self::open_by_first(device, cache, options)?,
        };
        let volume = volume.with_keys(Arc::clone(&options.keys));
        match MmpBlock::of(&volume) {
            Ok(block) => block.iter().for_each(MmpBlock::warn_if_in_use),
            Err(error) => tracing::warn!("{error}"),
        }
        Ok(volume)
    }

    /// Opens the volume by its first superblock, or if that is damaged, by a reconstruction or a
    /// copy of it.
    fn open_by_first(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        match Self::probe(Arc::clone(&device), cache) {
            Ok(Probed::Ready(volume)) => Ok(volume),
            Ok(Probed::NeedsRecovery(volume)) if options.no_recovery => {
                Ok(volume.without_recovery())
            }
            Ok(Probed::NeedsRecovery(volume)) => {
                volume.recover(cache, options.journal_device.as_ref())
            }
            Err(error) => Self::open_damaged(device, cache, options, error),
        }
    }

    /// Opens a volume whose first superblock has `error`. Uses a reconstruction of the superblock
    /// if a power cut has torn it, or else a copy of it.
    fn open_damaged(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
        error: Error,
    ) -> Result<Arc<Self>> {
        let journal_device = options.journal_device.as_ref();
        if let Some(whole) = untorn(&device, cache, journal_device, &error) {
            let bytes = SUPERBLOCK_BYTES as u64;
            let unit = BlockSize::from_bytes(bytes).expect("a power of two");
            let overlay: SharedDevice = Arc::new(OverlayDevice::new(device, unit, bytes));
            overlay.write_at(SUPERBLOCK_OFFSET, &whole)?;
            return Self::open_by_first(overlay, cache, options);
        }
        match Self::copy_for(&device, cache, &error) {
            Some(copy) => Self::open_by_copy(device, cache, options, copy),
            None => Err(error),
        }
    }

    /// Searches for a copy of the superblock if `error` is corruption of the first one.
    fn copy_for(
        device: &SharedDevice,
        cache: &Arc<PageCache>,
        error: &Error,
    ) -> Option<SuperblockCopy> {
        match error {
            Error::Corrupt(corrupt) if corrupt.structure == "superblock" => {}
            _ => return None,
        }
        let mut copies = SuperblockCopy::find(device, device.size());
        // A copy that is a remnant of another file system rarely leads to a root directory.
        let leads_to_root = |copy: &SuperblockCopy| {
            let volume = Self::with_copy(Arc::clone(device), cache, copy.clone());
            let root = volume.inode_record(crate::ROOT_INODE);
            root.is_ok_and(|root| root.kind == FileType::Directory && root.links > 0)
        };
        let best = copies.iter().position(leads_to_root)?;
        Some(SuperblockCopy { reason: Some(error.clone()), ..copies.swap_remove(best) })
    }

    /// Returns the error for an attempt to write a volume whose first superblock has `error`. It
    /// names a copy of the superblock if there is one.
    pub(crate) fn refusal_for_copy(
        device: &SharedDevice,
        cache: &Arc<PageCache>,
        error: Error,
    ) -> Error {
        let Some(copy) = Self::copy_for(device, cache, &error) else { return error };
        let block_size = copy.superblock.geometry.block_size.bytes();
        Unsupported::DamagedSuperblock { copy: copy.block, block_size }.into()
    }

    /// Returns whether the first superblock of `device` is damaged or missing, and `device` has a
    /// copy of it.
    pub fn has_copy(device: &SharedDevice, cache: &Arc<PageCache>) -> bool {
        match Superblock::read(device) {
            Ok(_) => false,
            Err(error) => Self::copy_for(device, cache, &error).is_some(),
        }
    }

    /// Returns the volume with the keys of its encrypted files.
    fn with_keys(self: Arc<Self>, keys: Arc<Keys>) -> Arc<Self> {
        let mut volume =
            Arc::into_inner(self).expect("a volume that was just opened has one owner");
        volume.keys = keys;
        Arc::new(volume)
    }
}
