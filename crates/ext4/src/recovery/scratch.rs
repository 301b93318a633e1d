//! Changes that recovery makes with the ordinary writer. They are made on an overlay over the
//! volume, and returned as whole blocks, so that the caller can apply all of them or none. Not
//! here: the changes themselves.

use std::sync::Arc;

use base::{Result, Unsupported};
use device::{LatchDevice, OverlayBlocks, OverlayDevice, SharedDevice};
use iomap::PageCache;

use crate::alloc::Allocator;
use crate::journal::Journal;
use crate::orphans::set::OrphanSet;
use crate::superblock::Superblock;
use crate::superblock::error_log::{ErrorLog, RecordedErrors};
use crate::volume::Volume;
use crate::volume::probe::Probed;
use crate::volume::writer::Writer;

/// The default maximum size of all changed blocks, in bytes.
pub(super) const BYTES_MAX: u64 = 512 << 20;

/// Limits for the time and the memory of a recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The maximum number of changes.
    pub changes: u64,
    /// The maximum size of all changed blocks, in bytes.
    pub bytes: u64,
}

/// Calls `work` with the volume on `device`, which `work` can change within `limits`, with any
/// features. Returns the result of `work` and the changed blocks. Does not write to `device`.
/// Errors: `Unsupported` if a limit is exceeded.
pub(super) fn change<R>(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    limits: Limits,
    work: impl FnOnce(&Arc<Volume>) -> Result<R>,
) -> Result<(R, OverlayBlocks)> {
    let block_size = Superblock::read(device)?.geometry.block_size;
    let layer = Arc::new(OverlayDevice::new(Arc::clone(device), block_size, limits.bytes));
    let latch = Arc::new(LatchDevice::new(layer.clone()));
    let volume = reopen(&(latch.clone() as SharedDevice), cache)?;
    let writer = writer(&volume, &reopen(device, cache)?, latch, limits.changes)?;
    let mut volume = Arc::into_inner(volume)
        .expect("no other reference exists to a volume that was just opened");
    volume.writer = Some(writer);
    let volume = Arc::new(volume);
    let commit = |result| volume.writer()?.journal.commit_all().map(|()| result);
    match work(&volume).and_then(commit) {
        Ok(result) => {
            let mut blocks = layer.take_blocks();
            // A freed block may now belong to another file by a fast commit. Its data must not be
            // overwritten.
            for freed in volume.writer()?.journal.take_freed() {
                blocks.remove(&freed.0);
            }
            Ok((result, blocks))
        }
        Err(_) if layer.was_full() => {
            Err(Unsupported::Operation("a recovery that changes too many blocks").into())
        }
        Err(error) => Err(error),
    }
}

/// Returns the state for at most `changes_max` changes of `volume`: without a log, a thread, and an
/// error policy. `latch` is the volume's device, and `before` the volume without these changes.
pub(crate) fn writer(
    volume: &Arc<Volume>,
    before: &Arc<Volume>,
    latch: Arc<LatchDevice>,
    changes_max: u64,
) -> Result<Writer> {
    let errors = ErrorLog::new(volume.geometry().clone(), RecordedErrors::default());
    let journal = Journal::new(latch, Arc::clone(volume.metadata()), None, errors);
    let journal = Arc::new(journal.of_recovery(changes_max));
    let orphans = OrphanSet::open_for_recovery(volume)?;
    let before = Arc::clone(before.core());
    let allocator = Allocator::for_recovery(volume.core(), &journal, orphans.numbers(), before);
    Ok(Writer::new(journal, allocator, orphans, None))
}

/// Returns the volume on `device`, even if its superblock says that it needs recovery.
pub(super) fn reopen(device: &SharedDevice, cache: &Arc<PageCache>) -> Result<Arc<Volume>> {
    Ok(match Volume::probe(Arc::clone(device), cache)? {
        Probed::Ready(volume) => volume,
        Probed::NeedsRecovery(unrecovered) => unrecovered.without_recovery(),
    })
}

#[cfg(test)]
mod tests {
    use base::{Error, FsBlock, Unsupported};
    use device::MemoryDevice;
    use iomap::CacheOptions;

    use super::*;
    use crate::ROOT_INODE;
    use crate::common::Image;

    const LIMITS: Limits = Limits { changes: 3, bytes: 1024 };

    /// Changes the root inode `count` times. Returns the changed blocks, and whether the device is
    /// unchanged.
    fn change_root(count: u16, limits: Limits) -> (Result<OverlayBlocks>, bool) {
        let image = Image::make(8, &["-t", "ext4", "-b", "1024", "-O", "quota", "-J", "size=1"]);
        let memory = Arc::new(MemoryDevice::new(image.bytes()));
        let device: SharedDevice = memory.clone();
        let cache = PageCache::new(CacheOptions::default()).unwrap();
        let changed = change(&device, &cache, limits, |volume| {
            let root = volume.inode(ROOT_INODE)?;
            for links in 0..count {
                volume.change(1, |handle| root.update(handle, |record| record.links += links))?;
            }
            Ok(())
        });
        (changed.map(|(_, blocks)| blocks), memory.snapshot() == image.bytes())
    }

    #[test]
    fn changed_blocks_are_returned_and_not_written() {
        let (blocks, is_unchanged) = change_root(3, LIMITS);
        assert_eq!(blocks.unwrap().len(), 1, "the root's block of the inode table");
        assert!(is_unchanged);
    }

    #[test]
    fn too_many_changes_fail() {
        let (blocks, is_unchanged) = change_root(4, LIMITS);
        assert!(matches!(blocks, Err(Error::Unsupported(Unsupported::Operation(_)))), "{blocks:?}");
        assert!(is_unchanged);
    }

    #[test]
    fn a_block_that_is_freed_after_its_change_is_not_returned() {
        let image = Image::make(8, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
        let device: SharedDevice = Arc::new(MemoryDevice::new(image.bytes()));
        let cache = PageCache::new(CacheOptions::default()).unwrap();
        let limits = Limits { changes: 100, bytes: 1 << 20 };
        let (freed, reused) = (FsBlock(8000), FsBlock(8001));
        let changed = change(&device, &cache, limits, |volume| {
            let commit = || volume.writer()?.journal.commit_all();
            let write = |block, byte| {
                volume.change(1, |handle| {
                    handle.replace(block, [byte; 1024]);
                    Ok(())
                })
            };
            for block in [freed, reused] {
                write(block, 1)?;
                commit()?;
                volume.change(1, |handle| {
                    handle.revoke(block);
                    Ok(())
                })?;
                commit()?;
            }
            write(reused, 2)
        });
        let (_, blocks) = changed.unwrap();
        assert!(!blocks.contains_key(&freed.0));
        assert_eq!(blocks[&reused.0][..], [2; 1024]);
    }

    #[test]
    fn too_many_changed_blocks_fail() {
        let (blocks, is_unchanged) = change_root(1, Limits { bytes: 0, ..LIMITS });
        assert!(matches!(blocks, Err(Error::Unsupported(Unsupported::Operation(_)))), "{blocks:?}");
        assert!(is_unchanged);
    }
}
