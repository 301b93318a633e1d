//! Targets of symbolic links: in the inode's block area, inline, or in a block.

use base::attributes::FileType;
use base::{Error, FileBlock, Place, Problem, Result};

use crate::features::Feature;
use crate::inline;
use crate::inode::Inode;
use crate::inode_record::InodeFlags;

const STRUCTURE: &str = "symbolic link";

impl Inode {
    /// The target of this symbolic link: not empty, and without a NUL, where it ends if one lies
    /// before its size.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        let record = self.record();
        if record.kind != FileType::Symlink {
            return Err(Error::WrongType("not a symbolic link"));
        }
        self.check_readable()?;
        let target = if self.has(InodeFlags::INLINE_DATA) {
            let data = inline::data(self)?;
            let (needed, available) = (record.size, data.len() as u64);
            if available < needed {
                return Err(self.fault(Problem::Truncated { needed, available }));
            }
            data
        } else if self.is_fast_symlink() {
            self.prefix(&record.block_area)?.to_vec()
        } else {
            let block = self.read_block(FileBlock(0), STRUCTURE)?;
            let block = block.ok_or_else(|| self.fault(Problem::Missing("block")))?;
            self.prefix(&block)?.to_vec()
        };
        let end = target.iter().position(|&byte| byte == 0).unwrap_or(target.len());
        match target.get(..end) {
            Some(target) if !target.is_empty() => Ok(target.to_vec()),
            _ => Err(self.fault(Problem::Missing("target"))),
        }
    }

    /// Whether the target lies in the block area. Since attribute values in inodes count as the
    /// inode's blocks, the size decides where the volume can have those.
    pub(crate) fn is_fast_symlink(&self) -> bool {
        let (record, geometry) = (self.record(), self.volume().geometry());
        if record.kind != FileType::Symlink || self.has(InodeFlags::INLINE_DATA) {
            return false;
        }
        if geometry.features.has(Feature::EaInode) {
            return record.size < record.block_area.len() as u64;
        }
        let cluster_sectors =
            u64::from(geometry.block_size.bytes() / 512) << geometry.cluster_shift;
        let attributes = record.attribute_block.map_or(0, |_| cluster_sectors);
        record.blocks.saturating_sub(attributes) == 0
    }

    /// As many bytes as the link's size says, which must be less than the room: a NUL follows.
    fn prefix<'b>(&self, room: &'b [u8]) -> Result<&'b [u8]> {
        let (found, max) = (self.record().size, (room.len() as u64).saturating_sub(1));
        usize::try_from(found)
            .ok()
            .filter(|_| found <= max)
            .and_then(|size| room.get(..size))
            .ok_or_else(|| self.fault(Problem::Range { field: "size", found, min: 1, max }))
    }

    fn fault(&self, problem: Problem) -> Error {
        Error::corrupt(STRUCTURE, Place::inode(self.number()), problem)
    }
}
