//! Images of inodes in fast commits: their validation, and their copy to the inode table. Not here:
//! maps, names and link counts, for which fast commits have other tags.

use std::ops::Range;

use base::attributes::FileType;
use base::view::view_at;
use base::{Error, InodeNumber, Location, Problem, Result};
use zerocopy::FromBytes;

use crate::inode::record::{InodeFlags, InodeRecord};
use crate::inode::write::seal;
use crate::layout::geometry::Geometry;
use crate::ondisk::inode::{BASE_BYTES, BLOCK_OFFSET, RawInode};

/// The position of the block area in an inode's bytes.
const BLOCK_AREA: Range<usize> = BLOCK_OFFSET..BLOCK_OFFSET + 60;

/// An inode in a fast commit: its bytes up to the end of the extra fields.
pub(super) struct InodeImage {
    bytes: Vec<u8>,
    pub kind: FileType,
    pub flags: InodeFlags,
    pub generation: u32,
    pub links: u16,
}

impl InodeImage {
    /// Parses an image. Checks the fields that must be valid before the inode is written.
    pub(super) fn parse(bytes: &[u8], geometry: &Geometry, location: Location) -> Result<Self> {
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
            links: raw.links_count.get(),
            bytes: bytes.to_vec(),
        })
    }

    /// Checks that an inode with these fields can be read.
    pub(super) fn check(&self, geometry: &Geometry, number: InodeNumber) -> Result<()> {
        let mut bytes = vec![0; geometry.inode_size as usize];
        self.store(&mut bytes);
        let fields = raw(&mut bytes);
        // Counts of links come from the names, and sizes of directories from their names.
        fields.links_count = 1.into();
        if self.kind == FileType::Directory {
            fields.size_lo = 0.into();
            fields.size_high = 0.into();
        }
        seal_image(&mut bytes, geometry, number);
        InodeRecord::parse(&bytes, geometry, number, Location::inode(number)).map(drop)
    }

    /// Returns the bytes of the block area.
    pub(super) fn block_area(&self) -> [u8; 60] {
        let mut area = [0; 60];
        // `parse` has checked that the image contains the fields that every inode has.
        area.copy_from_slice(&self.bytes[BLOCK_AREA]);
        area
    }

    /// Returns whether `bytes` are those of an inode to which Linux's replay has just copied the
    /// image. The replay copies the block count, too, but the block area only if it contains inline
    /// data.
    pub(super) fn was_copied_to(&self, bytes: &[u8]) -> bool {
        let is_inline = self.flags.contains(InodeFlags::INLINE_DATA)
            && !self.flags.contains(InodeFlags::EXTENTS);
        let area = if is_inline { BLOCK_AREA } else { 0..0 };
        let length = self.bytes.len();
        [0..BLOCK_AREA.start, area, BLOCK_AREA.end..length]
            .into_iter()
            .all(|range| bytes.get(range.clone()).is_some_and(|found| found == &self.bytes[range]))
    }

    /// Copies all fields to an inode's bytes, except the block area and the block count.
    pub(super) fn store(&self, bytes: &mut [u8]) {
        let blocks = {
            let raw = raw(bytes);
            (raw.blocks_lo, raw.blocks_high)
        };
        let length = self.bytes.len().min(bytes.len());
        for range in [0..BLOCK_AREA.start, BLOCK_AREA.end..length] {
            bytes[range.clone()].copy_from_slice(&self.bytes[range]);
        }
        let raw = raw(bytes);
        (raw.blocks_lo, raw.blocks_high) = blocks;
    }
}

/// Returns the fields that every inode has.
pub(super) fn raw(bytes: &mut [u8]) -> &mut RawInode {
    match RawInode::mut_from_prefix(bytes) {
        Ok((raw, _)) => raw,
        Err(_) => unreachable!("inodes have at least the size of their first fields"),
    }
}

/// Updates the checksum in an inode's bytes, on volumes with checksums.
pub(super) fn seal_image(bytes: &mut [u8], geometry: &Geometry, number: InodeNumber) {
    let generation = raw(bytes).generation.get();
    seal(bytes, geometry, number, generation);
}
