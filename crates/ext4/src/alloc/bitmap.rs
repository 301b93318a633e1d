//! Bitmaps of a group: the clusters and the inodes that are in use.
//! Not here: changing them.

use base::checksum::crc32c;
use base::{Error, FsBlock, Location, Problem, Result};
use iomap::MetadataBuffer;

use crate::core::Core;
use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;

/// One bit for each cluster or inode of a group.
#[derive(Clone, Debug)]
pub struct Bitmap {
    bytes: Bytes,
    length: u32,
}

#[derive(Clone, Debug)]
enum Bytes {
    Stored(MetadataBuffer),
    /// The bitmap of a group that was never written.
    Computed(Box<[u8]>),
}

impl Bitmap {
    /// Returns the number of bits that have a meaning. The bits behind them in the block are
    /// padding.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Returns whether a bit is set: its cluster or inode is in use. Bits from `length` on count as
    /// set.
    pub fn is_set(&self, bit: u32) -> bool {
        if bit >= self.length {
            return true;
        }
        let byte = self.bytes().get(bit as usize / 8).copied().unwrap_or(u8::MAX);
        byte >> (bit % 8) & 1 == 1
    }

    /// Returns the number of clear bits: free clusters or inodes.
    pub fn free(&self) -> u32 {
        let whole = self.length as usize / 8;
        let zeros: u32 = self.bytes().iter().take(whole).map(|byte| byte.count_zeros()).sum();
        let rest = (self.length & !7..self.length).filter(|&bit| !self.is_set(bit)).count();
        zeros + rest as u32
    }

    /// Returns the whole block, padding included.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Stored(buffer) => buffer,
            Bytes::Computed(bytes) => bytes,
        }
    }
}

impl Core {
    /// Returns the bitmap of the clusters of a group that are in use.
    pub fn block_bitmap(&self, group: &GroupDescriptor) -> Result<Bitmap> {
        let geometry = self.geometry();
        let length = geometry.clusters_for(geometry.blocks_in_group(group.group)) as u32;
        if group.blocks_uninitialised {
            let bytes = Bytes::Computed(initial_block_bitmap(geometry, group));
            return Ok(Bitmap { bytes, length });
        }
        let stored = Stored {
            structure: "block bitmap",
            block: group.block_bitmap,
            covered: geometry.clusters_per_group() / 8,
            checksum: group.block_bitmap_checksum,
        };
        Ok(Bitmap { bytes: Bytes::Stored(self.read_bitmap(group, &stored)?), length })
    }

    /// Returns the bitmap of the inodes of a group that are in use.
    pub fn inode_bitmap(&self, group: &GroupDescriptor) -> Result<Bitmap> {
        let geometry = self.geometry();
        let length = geometry.inodes_per_group;
        if group.inodes_uninitialised {
            let bytes = Bytes::Computed(vec![0; geometry.block_size.len()].into());
            return Ok(Bitmap { bytes, length });
        }
        let stored = Stored {
            structure: "inode bitmap",
            block: group.inode_bitmap,
            covered: length / 8,
            checksum: group.inode_bitmap_checksum,
        };
        Ok(Bitmap { bytes: Bytes::Stored(self.read_bitmap(group, &stored)?), length })
    }

    fn read_bitmap(&self, group: &GroupDescriptor, bitmap: &Stored) -> Result<MetadataBuffer> {
        let location = Location::group(group.group).at_block(bitmap.block);
        let buffer = self.read_metadata(bitmap.block, bitmap.structure, location)?;
        if let Some(seed) = self.geometry().metadata_seed() {
            let mask = self.geometry().bitmap_checksum_mask();
            buffer.verify_once(|bytes| {
                let covered = bytes.get(..bitmap.covered as usize).unwrap_or_default();
                let (stored, computed) = (bitmap.checksum, crc32c(seed, covered) & mask);
                if stored == computed {
                    return Ok(());
                }
                let problem = Problem::Checksum { stored, computed };
                Err(Error::corrupt(bitmap.structure, location, problem))
            })?;
        }
        Ok(buffer)
    }
}

/// A bitmap on the device, as its group descriptor describes it.
struct Stored {
    structure: &'static str,
    block: FsBlock,
    /// Number of bytes that the checksum covers.
    covered: u32,
    checksum: u32,
}

/// Returns the block bitmap of a group in which only the format's own blocks are in use.
fn initial_block_bitmap(geometry: &Geometry, group: &GroupDescriptor) -> Box<[u8]> {
    let mut bytes = vec![0_u8; geometry.block_size.len()].into_boxed_slice();
    let start = geometry.group_start(group.group);
    let own = geometry.blocks_in_group(group.group);
    let mut mark = |first: FsBlock, blocks: u64| {
        // Structures of this group may lie partly in other groups, whose bitmaps cover that part.
        for block in first.0.max(start.0)..(first.0 + blocks).min(start.0 + own) {
            let bit = (block - start.0) >> geometry.cluster_shift;
            if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
                *byte |= 1 << (bit % 8);
            }
        }
    };
    mark(start, geometry.leading_metadata_blocks(group.group));
    mark(group.block_bitmap, 1);
    mark(group.inode_bitmap, 1);
    mark(group.inode_table, geometry.inode_table_blocks().into());
    bytes
}
