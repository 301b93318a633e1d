//! The bytes of an inode: its fields set, its checksum made. Not here: its map's blocks.

use base::attributes::FileType;
use base::view::view_at;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};
use zerocopy::FromBytes;

use super::blocks::Blocks;
use crate::features::Feature;
use crate::inode::record::InodeFlags;
use crate::inode::write::seal;
use crate::layout::geometry::Geometry;
use crate::ondisk::inode::{BASE_BYTES, BLOCK_OFFSET, RawInode};
use crate::volume::Volume;

const STRUCTURE: &str = "inode";
/// Bytes of the block map or its substitute.
const BLOCK_AREA_BYTES: usize = 60;

/// An inode's bytes, as many as the volume's inodes have.
#[derive(Clone)]
pub(crate) struct InodeBytes {
    number: InodeNumber,
    bytes: Vec<u8>,
}

impl InodeBytes {
    /// The inode as it lies in the table.
    pub(crate) fn read(volume: &Volume, blocks: &Blocks, number: InodeNumber) -> Result<Self> {
        let (block, at, location) = position(volume, number)?;
        let table = blocks.read(block, STRUCTURE, location)?;
        // A block holds a whole number of inodes.
        let bytes = table[at..at + volume.geometry().inode_size as usize].to_vec();
        Ok(Self { number, bytes })
    }

    /// An inode of zeroes.
    pub(crate) fn zeroed(geometry: &Geometry, number: InodeNumber) -> Self {
        Self { number, bytes: vec![0; geometry.inode_size as usize] }
    }

    /// The fields that every inode has.
    pub(crate) fn raw(&mut self) -> &mut RawInode {
        match RawInode::mut_from_prefix(&mut self.bytes) {
            Ok((raw, _)) => raw,
            Err(_) => unreachable!("inodes have at least the size of their first fields"),
        }
    }

    /// Takes over everything in `image`, the start of an inode, but the block map, as far as
    /// there is room.
    pub(crate) fn take_fields(&mut self, image: &[u8]) {
        let length = image.len().min(self.bytes.len());
        let area = BLOCK_OFFSET..BLOCK_OFFSET + BLOCK_AREA_BYTES;
        for range in [0..area.start, area.end..length] {
            self.bytes[range.clone()].copy_from_slice(&image[range]);
        }
    }

    /// Sets how many units of space the inode takes: `clusters`, for data, map and attributes.
    pub(crate) fn set_clusters(&mut self, geometry: &Geometry, clusters: u64) {
        let blocks = clusters << geometry.cluster_shift;
        let raw = self.raw();
        let in_blocks = geometry.features.has(Feature::HugeFile)
            && InodeFlags(raw.flags.get()).contains(InodeFlags::HUGE_FILE);
        let units = if in_blocks { blocks } else { blocks << (geometry.block_size.shift() - 9) };
        raw.blocks_lo = (units as u32).into();
        if geometry.features.has(Feature::HugeFile) {
            raw.blocks_high = ((units >> 32) as u16).into();
        }
    }

    /// Sets the size in bytes.
    pub(crate) fn set_size(&mut self, size: u64) {
        let raw = self.raw();
        raw.size_lo = (size as u32).into();
        raw.size_high = ((size >> 32) as u32).into();
    }

    /// Puts the inode into the table.
    pub(crate) fn write(mut self, volume: &Volume, blocks: &mut Blocks) -> Result<()> {
        let generation = self.raw().generation.get();
        seal(&mut self.bytes, volume.geometry(), self.number, generation);
        let (block, at, location) = position(volume, self.number)?;
        let table = blocks.edit(block, STRUCTURE, location)?;
        table[at..at + self.bytes.len()].copy_from_slice(&self.bytes);
        Ok(())
    }
}

/// What a fast commit says of an inode: its bytes up to the end of the extra fields.
pub(crate) struct InodeImage {
    pub bytes: Vec<u8>,
    pub kind: FileType,
    pub flags: InodeFlags,
    pub generation: u32,
}

impl InodeImage {
    /// Validates what must be sound before the inode is written.
    pub(crate) fn parse(bytes: &[u8], geometry: &Geometry, location: Location) -> Result<Self> {
        const STRUCTURE: &str = "fast commit of an inode";
        let raw: &RawInode = view_at(bytes, 0, STRUCTURE, location)?;
        let mode = raw.mode.get();
        let kind = FileType::from_mode(mode.into()).ok_or_else(|| {
            let problem = Problem::Invalid { field: "mode", found: mode.into() };
            Error::corrupt(STRUCTURE, location, problem)
        })?;
        let (found, min, max) = (bytes.len() as u64, BASE_BYTES as u64, geometry.inode_size.into());
        if found > max {
            let problem = Problem::Range { field: "length", found, min, max };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        Ok(Self {
            kind,
            flags: InodeFlags(raw.flags.get()),
            generation: raw.generation.get(),
            bytes: bytes.to_vec(),
        })
    }

    /// The bytes of the block map or its substitute.
    pub(crate) fn block_area(&self) -> [u8; BLOCK_AREA_BYTES] {
        let mut area = [0; BLOCK_AREA_BYTES];
        // An image has at least the fields that every inode has.
        area.copy_from_slice(&self.bytes[BLOCK_OFFSET..BLOCK_OFFSET + BLOCK_AREA_BYTES]);
        area
    }
}

/// The block that holds an inode, where in it, and its place for errors.
fn position(volume: &Volume, number: InodeNumber) -> Result<(FsBlock, usize, Location)> {
    let (buffer, at, location) = volume.raw_inode(number)?;
    Ok((buffer.block(), at, location))
}
