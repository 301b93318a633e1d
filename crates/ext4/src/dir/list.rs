//! Listing of a directory's entries from a cursor on, in the order of its blocks.
//!
//! A cursor is the byte position of an entry in the directory (for inline directories see
//! `inline.rs`). The kernel lists by hash instead. On a volume that is only read, positions never
//! change: cursors stay valid forever, each entry has its own cursor (in the kernel, names of equal
//! hash share one), blocks are read in sequence, and nothing is sorted or kept between calls.
//! Directories whose entries can move during a listing are listed by hash (`ordered.rs`).

use std::ops::ControlFlow;

use base::attributes::{DirCursor, DirEntry};
use base::{FileBlock, FileOffset, Result};
use fscrypt::ShownNames;

use super::Directory;
use super::slots::{Emit, list_slots};
use crate::dir::inline::InlineDirectory;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;

impl Inode {
    /// Calls `emit` for each entry of this directory ("." and ".." included) from `from` on, until
    /// `emit` breaks or the directory ends. Any number is a valid cursor: a number between two
    /// entries stands for the second. Encrypted names are decrypted, or without the key, shown in
    /// another form.
    pub fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = Directory::open(self)?;
        if !self.has_encrypted_names() {
            return directory.list_stored(from, emit);
        }
        let shown = ShownNames::encrypted(self.names_cipher()?);
        let hasher = match shown {
            ShownNames::NoKey => directory.hasher()?,
            _ => None,
        };
        let mut failure = Ok(());
        directory.list_stored(from, &mut |entry| {
            let dirhash = || {
                let hash = hasher.map(|hasher| hasher.hash(entry.name));
                hash.map_or([0; 2], |hash| [hash.major, hash.minor])
            };
            match shown.name(entry.name, dirhash) {
                Ok(name) => emit(DirEntry { name: &name, ..entry }),
                Err(error) => {
                    failure = Err(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failure
    }
}

impl Directory<'_> {
    /// Lists the entries with their stored names.
    pub(super) fn list_stored(&self, from: DirCursor, emit: Emit<'_>) -> Result<()> {
        if let Some(hasher) = self.listing_hasher()? {
            return self.list_ordered(&hasher, from, emit);
        }
        if self.inode.has(InodeFlags::INLINE_DATA) {
            let record = self.inode.record();
            let inline = InlineDirectory::open(self.inode.volume(), &record)?;
            return inline.list(&self.format.dir, from, emit);
        }
        self.list(FileOffset(from.0), emit)
    }

    fn list(&self, from: FileOffset, emit: Emit<'_>) -> Result<()> {
        let block_size = self.format.dir.block_size;
        let mut at = block_size.file_block(from);
        let mut blocks_read = 0;
        while let Some(block) = self.next_block(at)? {
            self.count_read(&mut blocks_read)?;
            if self.list_block(block, from, emit)?.is_break() {
                return Ok(());
            }
            at = FileBlock(block.0 + 1);
        }
        Ok(())
    }

    /// Lists the entries of one block that lie at or after `from`.
    fn list_block(
        &self,
        at: FileBlock,
        from: FileOffset,
        emit: Emit<'_>,
    ) -> Result<ControlFlow<()>> {
        let Some((buffer, location)) = self.read(at)? else { return Ok(ControlFlow::Continue(())) };
        let format = &self.format.dir;
        // No overflow: the block lies before the directory's end, which is below 2^64.
        let start = at.0 << format.block_size.shift();
        list_slots(format, &buffer, location, DirCursor(start), DirCursor(from.0), emit)
    }
}
