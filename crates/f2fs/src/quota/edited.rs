//! The blocks of a quota file in the overlay, which the next checkpoint writes as it does those of
//! directories.

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Location, Problem, Result};
use fs::quota::{BLOCK_BYTES, QuotaBlock, ReadBlocks, WriteBlocks};

use crate::dir::Blocks;
use crate::edit::Editor;
use crate::inode::Inode;
use crate::ondisk::node::NULL_ADDRESS;

/// A quota file that changes.
pub(super) struct EditedFile<'e, 'v> {
    editor: &'e mut Editor<'v>,
    inode: Inode,
}

impl<'e, 'v> EditedFile<'e, 'v> {
    /// Returns the quota file with this number. Errors: `Corrupt` if it is no regular file with
    /// plain blocks.
    pub(super) fn new(editor: &'e mut Editor<'v>, number: InodeNumber) -> Result<Self> {
        let inode = match editor.inode(number) {
            Err(Error::NotFound) => {
                let (location, problem) = (Location::inode(number), Problem::Missing("inode"));
                return Err(Error::corrupt("quota file", location, problem));
            }
            inode => inode?,
        };
        let record = inode.record();
        let is_plain = inode.attributes().kind == FileType::Regular
            && record.inline_area.is_none()
            && record.compression.is_none()
            && !record.is_encrypted;
        if is_plain {
            return Ok(Self { editor, inode });
        }
        let problem = Problem::Missing("plain blocks of a regular file");
        Err(Error::corrupt("quota file", Location::inode(number), problem))
    }

    /// Returns the volume's block that has a block of the file, and the latter's first byte in it.
    fn place(&self, block: u32) -> (FileBlock, usize) {
        let per_block = self.editor.volume.geometry().block_size.len() / BLOCK_BYTES;
        let (at, index) = (block as usize / per_block, block as usize % per_block);
        (FileBlock(at as u64), index * BLOCK_BYTES)
    }

    /// Lets the file have a block that ends at byte `end`.
    fn grow(&mut self, at: FileBlock, end: u64) -> Result<()> {
        let number = self.inode.number();
        let slot = self.editor.slot_of(number, at, true)?.expect("missing nodes were added");
        if self.editor.address(slot)? == NULL_ADDRESS {
            self.editor.reserve_slot(slot)?;
        }
        self.editor.edit_inode(number, |raw| raw.size.set(raw.size.get().max(end)))?;
        self.inode = self.editor.inode(number)?;
        Ok(())
    }
}

impl ReadBlocks for EditedFile<'_, '_> {
    fn location(&self) -> Location {
        Location::inode(self.inode.number())
    }

    fn size(&self) -> u64 {
        self.inode.attributes().size
    }

    fn read(&self, block: u32) -> Result<QuotaBlock> {
        let (at, start) = self.place(block);
        let mut contents = [0; BLOCK_BYTES];
        if let Some((buffer, _)) = self.inode.block(at)? {
            contents.copy_from_slice(&buffer[start..start + BLOCK_BYTES]);
        }
        Ok(contents)
    }
}

impl WriteBlocks for EditedFile<'_, '_> {
    fn write(&mut self, block: u32, contents: &QuotaBlock) -> Result<()> {
        let (number, (at, start)) = (self.inode.number(), self.place(block));
        let end = (u64::from(block) + 1) * BLOCK_BYTES as u64;
        let found = self.inode.block(at)?.map(|(buffer, _)| buffer.to_vec());
        if found.is_none() || end > self.size() {
            self.grow(at, end)?;
        }
        let mut whole =
            found.unwrap_or_else(|| vec![0; self.editor.volume.geometry().block_size.len()]);
        whole[start..start + BLOCK_BYTES].copy_from_slice(contents);
        self.editor.overlay.write().put_directory_block(number, at, whole)
    }
}
