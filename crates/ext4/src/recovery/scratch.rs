//! Changes that recovery makes with the ordinary writer: on a layer over the volume, from which they are returned as
//! whole blocks, so that they are made together or not at all. Not here: which changes.

use std::sync::Arc;

use base::{FsBlock, Result};
use device::{LatchDevice, OverlayDevice, SharedDevice};
use iomap::PageCache;

use crate::superblock::Superblock;
use crate::volume::{Probed, Volume};
use crate::writer::Writer;

/// The maximum of changed blocks, in bytes.
const BYTES_MAX: u64 = 512 << 20;

/// Blocks and their new contents, in the order of the volume.
pub(crate) type ChangedBlocks = Vec<(FsBlock, Box<[u8]>)>;

/// Calls `work` with the volume on `device`, open for at most `changes_max` changes, whatever its features are.
/// Returns its result and the blocks that it has changed. `device` is not written.
pub(super) fn change<R>(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    changes_max: u64,
    work: impl FnOnce(&Arc<Volume>) -> Result<R>,
) -> Result<(R, ChangedBlocks)> {
    let block_size = Superblock::read(device)?.geometry.block_size;
    let layer = Arc::new(OverlayDevice::new(Arc::clone(device), block_size, BYTES_MAX));
    let latch = Arc::new(LatchDevice::new(layer.clone()));
    let volume = reopen(&(latch.clone() as SharedDevice), cache)?;
    let writer = Writer::for_recovery(&volume, latch, changes_max)?;
    let mut volume = Arc::into_inner(volume).expect("nobody else has a volume just opened");
    volume.writer = Some(writer);
    let volume = Arc::new(volume);
    let result = work(&volume)?;
    volume.writer()?.journal.commit_all()?;
    let blocks = layer.written_blocks().into_iter();
    Ok((result, blocks.map(|(number, bytes)| (FsBlock(number), bytes)).collect()))
}

/// Returns the volume on `device`, even if its superblock says that it needs recovery.
pub(super) fn reopen(device: &SharedDevice, cache: &Arc<PageCache>) -> Result<Arc<Volume>> {
    Ok(match Volume::probe(Arc::clone(device), cache)? {
        Probed::Ready(volume) => volume,
        Probed::NeedsRecovery(unrecovered) => unrecovered.as_it_lies(),
    })
}

#[cfg(test)]
mod tests {
    use base::{Error, Unsupported};
    use device::MemoryDevice;
    use iomap::CacheOptions;

    use super::*;
    use crate::ROOT_INODE;
    use crate::common::Image;

    /// Makes `count` changes of an inode, of which `changes_max` may be made. Returns the changed blocks.
    fn change_root(count: u16, changes_max: u64) -> (Result<ChangedBlocks>, bool) {
        let image = Image::make(8, &["-t", "ext4", "-b", "1024", "-O", "quota", "-J", "size=1"]);
        let memory = Arc::new(MemoryDevice::new(image.bytes()));
        let device: SharedDevice = memory.clone();
        let cache = PageCache::new(CacheOptions::default()).unwrap();
        let changed = change(&device, &cache, changes_max, |volume| {
            let root = volume.inode(ROOT_INODE)?;
            for links in 0..count {
                volume.change(1, |handle| root.update(handle, |record| record.links += links))?;
            }
            Ok(())
        });
        (changed.map(|(_, blocks)| blocks), memory.snapshot() == image.bytes())
    }

    #[test]
    fn changes_are_returned_and_not_written() {
        let (blocks, is_unchanged) = change_root(3, 3);
        assert_eq!(blocks.unwrap().len(), 1, "the root's block of the inode table");
        assert!(is_unchanged);
    }

    #[test]
    fn changes_are_bounded() {
        let (blocks, is_unchanged) = change_root(4, 3);
        assert!(matches!(blocks, Err(Error::Unsupported(Unsupported::Operation(_)))), "{blocks:?}");
        assert!(is_unchanged);
    }
}
