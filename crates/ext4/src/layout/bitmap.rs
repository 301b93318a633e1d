//! The bitmaps of a group: which clusters and which inodes are in use. Not here: changing them.

use base::checksum::crc32c;
use base::{Error, FsBlock, Location, Problem, Result};
use iomap::MetadataBuffer;

use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;
use crate::volume::Volume;

/// One bit for each cluster or inode of a group.
#[derive(Clone, Debug)]
pub struct Bitmap {
    bytes: Bytes,
    length: u32,
}

#[derive(Clone, Debug)]
enum Bytes {
    Stored(MetadataBuffer),
    /// Of a group whose bitmap was never written.
    Computed(Box<[u8]>),
}

impl Bitmap {
    /// The bits that stand for something. Those behind them in the block are padding.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Whether a bit is set: in use. Bits from `length` on are.
    pub fn is_set(&self, bit: u32) -> bool {
        if bit >= self.length {
            return true;
        }
        let byte = self.bytes().get(bit as usize / 8).copied().unwrap_or(u8::MAX);
        byte >> (bit % 8) & 1 == 1
    }

    /// How many bits are clear: free.
    pub fn free(&self) -> u32 {
        let whole = self.length as usize / 8;
        let zeros: u32 = self.bytes().iter().take(whole).map(|byte| byte.count_zeros()).sum();
        let rest = (self.length & !7..self.length).filter(|&bit| !self.is_set(bit)).count();
        zeros + rest as u32
    }

    /// The whole block, padding included.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Stored(buffer) => buffer,
            Bytes::Computed(bytes) => bytes,
        }
    }
}

impl Volume {
    /// Which clusters of a group are in use.
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

    /// Which inodes of a group are in use.
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

/// A bitmap on the device and what its group descriptor says of it.
struct Stored {
    structure: &'static str,
    block: FsBlock,
    /// Bytes under the checksum.
    covered: u32,
    checksum: u32,
}

/// What the bitmap of a group would be if only the format's own blocks were in use.
fn initial_block_bitmap(geometry: &Geometry, group: &GroupDescriptor) -> Box<[u8]> {
    let mut bytes = vec![0_u8; geometry.block_size.len()].into_boxed_slice();
    let start = geometry.group_start(group.group);
    let own = geometry.blocks_in_group(group.group);
    let mut mark = |first: FsBlock, blocks: u64| {
        // Parts in other groups are none of this bitmap's business.
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
