//! Targets of symbolic links: in the inode's block area, inline, or in a block.

use base::attributes::FileType;
use base::{Error, FileBlock, Location, Problem, Result};

use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::inline;
use crate::inode::record::InodeFlags;

const STRUCTURE: &str = "symbolic link";

impl Inode {
    /// Returns the target of this symbolic link. The target is not empty. It ends at the first NUL,
    /// or at the link's size. The target of an encrypted link is decrypted, or without the key,
    /// shown in another form.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        let record = self.record();
        if record.kind != FileType::Symlink {
            return Err(Error::WrongType("not a symbolic link"));
        }
        let room = self.link_room()?;
        let target = self.prefix(&room)?;
        if self.has_encrypted_names() {
            return fscrypt::shown_target(target, self.names_cipher()?, self.number());
        }
        let end = target.iter().position(|&byte| byte == 0).unwrap_or(target.len());
        match target.get(..end) {
            Some(target) if !target.is_empty() => Ok(target.to_vec()),
            _ => Err(self.fault(Problem::Missing("target"))),
        }
    }

    /// Returns all bytes that have room for the target, which is at their start.
    pub(crate) fn link_room(&self) -> Result<Vec<u8>> {
        let record = self.record();
        let area = &record.block_area;
        if self.has(InodeFlags::INLINE_DATA) {
            return Ok([area, inline::value(self.volume(), &record)?.bytes].concat());
        }
        if self.is_fast_symlink() {
            return Ok(area.to_vec());
        }
        let block = self.read_block(FileBlock(0), STRUCTURE)?;
        block.map(|block| block.to_vec()).ok_or_else(|| self.fault(Problem::Missing("block")))
    }

    /// Returns whether the target lies in the block area. If the volume can have attribute values
    /// in inodes, the size decides, since the blocks of such values count as blocks of the link.
    pub(crate) fn is_fast_symlink(&self) -> bool {
        let (record, geometry) = (self.record(), self.volume().geometry());
        if record.kind != FileType::Symlink || self.has(InodeFlags::INLINE_DATA) {
            return false;
        }
        // A target that is too long for the area cannot lie there, even if the link has no blocks.
        let fits = record.size < record.block_area.len() as u64;
        if geometry.features.has(Feature::EaInode) || !fits {
            return fits;
        }
        let cluster_sectors =
            u64::from(geometry.block_size.bytes() / 512) << geometry.cluster_shift;
        let attributes = record.attribute_block.map_or(0, |_| cluster_sectors);
        record.blocks.saturating_sub(attributes) == 0
    }

    /// Returns as many bytes as the link's size. Except in inline data, there must be room for a
    /// NUL after them.
    fn prefix<'b>(&self, room: &'b [u8]) -> Result<&'b [u8]> {
        let ends_with_nul = !self.has(InodeFlags::INLINE_DATA);
        let max = (room.len() as u64).saturating_sub(ends_with_nul.into());
        let found = self.record().size;
        usize::try_from(found)
            .ok()
            .filter(|_| found <= max)
            .and_then(|size| room.get(..size))
            .ok_or_else(|| self.fault(Problem::Range { field: "size", found, min: 1, max }))
    }

    fn fault(&self, problem: Problem) -> Error {
        Error::corrupt(STRUCTURE, Location::inode(self.number()), problem)
    }
}
