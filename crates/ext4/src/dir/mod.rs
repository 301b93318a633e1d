//! Directories: entries in blocks, the hash index, listing, lookup, and changes.
//! Not here: paths, and names that ignore case.

pub mod block;
pub mod hash;
pub mod index;

pub(crate) mod inline;
pub(crate) mod list;
pub(crate) mod lookup;

mod build;
mod inline_write;
mod insert;
mod leaf;
mod node;
mod ordered;
mod recovery;
mod remove;
mod slots;
mod split;

#[cfg(test)]
mod change_tests;

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Location, Problem, Result};
use fs::Piece;
use iomap::MetadataBuffer;

use self::block::DirFormat;
use self::index::IndexFormat;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Maximum number of blocks of one directory that an operation reads: 64 GiB of blocks of 4 KiB.
const BLOCKS_READ_MAX: u64 = 1 << 24;

const STRUCTURE: &str = "directory block";

/// A directory with blocks (inline directories have none), and the properties that its blocks are
/// parsed by.
pub(crate) struct Directory<'a> {
    inode: &'a Inode,
    format: IndexFormat,
    /// Number of blocks, holes included.
    blocks: FileBlock,
    is_hashed: bool,
}

impl<'a> Directory<'a> {
    /// Opens a directory. Errors: `NotDirectory`.
    pub(crate) fn open(inode: &'a Inode) -> Result<Self> {
        if inode.kind() != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(Self::new(inode))
    }

    /// Opens a directory without checking its type.
    pub(crate) fn new(inode: &'a Inode) -> Self {
        let superblock = inode.volume().superblock();
        let geometry = &superblock.geometry;
        let dir = DirFormat {
            inode: inode.number(),
            block_size: geometry.block_size,
            has_file_types: geometry.features.has(Feature::Filetype),
            inode_max: InodeNumber(geometry.inode_count.into()),
            checksum_seed: inode.record().checksum_seed,
            is_encrypted: inode.has(InodeFlags::ENCRYPTED),
        };
        Self {
            inode,
            format: IndexFormat {
                dir,
                is_large: geometry.features.has(Feature::LargeDir),
                hash_seed: superblock.directory_hash.seed,
                is_hash_unsigned: superblock.directory_hash.unsigned,
            },
            blocks: FileBlock(geometry.block_size.blocks_for(inode.size())),
            is_hashed: inode.has(InodeFlags::INDEX),
        }
    }

    fn location(&self) -> Location {
        Location::inode(self.inode.number())
    }

    pub(crate) fn format(&self) -> &IndexFormat {
        &self.format
    }

    /// Returns the first block at or after `at` that is not in a hole.
    pub(crate) fn next_block(&self, mut at: FileBlock) -> Result<Option<FileBlock>> {
        while at < self.blocks {
            match self.inode.piece_at(at, self.blocks)? {
                Piece::Run(run) if !run.unwritten => return Ok(Some(at)),
                piece => at = piece.end(),
            }
        }
        Ok(None)
    }

    /// Reads block `at` and verifies its checksum; `None` in a hole.
    fn read(&self, at: FileBlock) -> Result<Option<(MetadataBuffer, Location)>> {
        let Some((buffer, location)) = self.block(at)? else { return Ok(None) };
        buffer.verify_once(|bytes| self.verify(at, bytes, location))?;
        Ok(Some((buffer, location)))
    }

    /// Reads block `at` without verifying its checksum; `None` in a hole.
    pub(crate) fn block(&self, at: FileBlock) -> Result<Option<(MetadataBuffer, Location)>> {
        if at >= self.blocks {
            return Ok(None);
        }
        let Some(buffer) = self.inode.read_block(at, STRUCTURE)? else { return Ok(None) };
        let location =
            Location::inode(self.inode.number()).at_file_block(at).at_block(buffer.block());
        Ok(Some((buffer, location)))
    }

    /// Verifies a block's checksum.
    pub(crate) fn verify(&self, at: FileBlock, bytes: &[u8], location: Location) -> Result<()> {
        let is_root = at == FileBlock(0);
        if self.is_hashed && (is_root || self.format.dir.is_index_node(bytes)) {
            self.format.verify(bytes, is_root, location)
        } else {
            self.format.dir.verify_leaf(bytes, location)
        }
    }

    /// Counts the blocks that one operation has read. Errors: `Corrupt` above a limit. A directory
    /// cannot have more blocks than the volume, but a corrupt map can refer to the same blocks
    /// repeatedly, and a volume in a sparse file can have more blocks than can be read in
    /// reasonable time.
    pub(crate) fn count_read(&self, count: &mut u64) -> Result<()> {
        *count += 1;
        let max = self.inode.volume().geometry().block_count.min(BLOCKS_READ_MAX);
        if *count > max {
            let problem = Problem::Range { field: "block count", found: *count, min: 1, max };
            return Err(Error::corrupt("directory", Location::inode(self.inode.number()), problem));
        }
        Ok(())
    }
}

/// Returns an error for names that no file can have.
pub(crate) fn check_new_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    if is_dots(name) {
        return Err(Error::Exists);
    }
    if name.is_empty() || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Error::InvalidArgument("the name is empty, or contains a slash or NUL"));
    }
    Ok(())
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
