//! The blocks of the orphan file: verification and changes. Not here: reading them (`file.rs`).

use base::checksum::crc32c;
use base::view::view_at;
use base::{Error, FsBlock, Location, Problem, Result};
use iomap::MetadataBuffer;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::ondisk::orphan::{ORPHAN_MAGIC, RawOrphanTail};

pub(crate) const ORPHAN_FILE: &str = "orphan file";
pub(super) const BLOCK: &str = "orphan file block";

/// A verified block of the orphan file.
pub(crate) struct OrphanBlock {
    buffer: MetadataBuffer,
    /// The location of the block, for errors.
    pub location: Location,
}

impl OrphanBlock {
    /// Returns a block of the file after its verification. `seed` is the checksum seed of the
    /// file's inode, or `None` on a volume without checksums.
    pub(super) fn new(
        buffer: MetadataBuffer,
        seed: Option<u32>,
        location: Location,
    ) -> Result<Self> {
        let location = location.at_block(buffer.block());
        verify(&buffer, buffer.block(), seed, location)?;
        Ok(Self { buffer, location })
    }

    /// Returns the block number.
    pub(crate) fn block(&self) -> FsBlock {
        self.buffer.block()
    }

    /// Returns the checksum that the block stores, which has no meaning on a volume without
    /// checksums.
    pub(crate) fn stored_checksum(&self) -> u32 {
        let tail = RawOrphanTail::ref_from_suffix(&self.buffer);
        tail.map_or(0, |(_, tail)| tail.checksum.get())
    }

    /// Returns the slots: inode numbers, or zero for a free slot.
    pub(crate) fn numbers(&self) -> &[U32] {
        let covered = &self.buffer[..tail_at(self.buffer.len())];
        let count = covered.len() / size_of::<U32>();
        <[U32]>::ref_from_prefix_with_elems(covered, count)
            .map(|(numbers, _)| numbers)
            .unwrap_or_default()
    }
}

fn tail_at(block_bytes: usize) -> usize {
    block_bytes.saturating_sub(size_of::<RawOrphanTail>())
}

fn verify(bytes: &[u8], block: FsBlock, seed: Option<u32>, location: Location) -> Result<()> {
    let at = tail_at(bytes.len());
    let tail: &RawOrphanTail = view_at(bytes, at, BLOCK, location)?;
    let (found, expected) = (tail.magic.get().into(), ORPHAN_MAGIC.into());
    if found != expected {
        return Err(Error::corrupt(BLOCK, location, Problem::Magic { found, expected }));
    }
    let (stored, computed) = (tail.checksum.get(), checksum(seed, block, &bytes[..at]));
    match computed {
        Some(computed) if stored != computed => {
            Err(Error::corrupt(BLOCK, location, Problem::Checksum { stored, computed }))
        }
        _ => Ok(()),
    }
}

/// Changes the slots in a block, as bytes, and updates its checksum. `seed` is the checksum seed of
/// the file's inode, or `None` on a volume without checksums.
pub(crate) fn edit(
    bytes: &mut [u8],
    block: FsBlock,
    seed: Option<u32>,
    change: impl FnOnce(&mut [u8]),
) {
    let Ok((numbers, tail)) = RawOrphanTail::mut_from_suffix(bytes) else {
        unreachable!("a block has more bytes than the tail");
    };
    change(numbers);
    if let Some(computed) = checksum(seed, block, numbers) {
        tail.checksum = computed.into();
    }
}

fn checksum(seed: Option<u32>, block: FsBlock, numbers: &[u8]) -> Option<u32> {
    seed.map(|seed| crc32c(crc32c(seed, &block.0.to_le_bytes()), numbers))
}
