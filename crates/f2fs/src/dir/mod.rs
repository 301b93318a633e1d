//! Directories: entries in dentry areas, hashes and buckets, lookup, listing.
//! Not here: reading blocks and inodes, paths, the ciphers of names, and changes.
//!
//! A directory is either inline ([`InlineDirectory`]), or has blocks in levels of hash buckets
//! ([`Directory`]). Both take values and bytes only; their caller reads the blocks, through
//! [`Blocks`].

pub mod edit;
pub mod entries;
pub mod hash;

mod assigned;
mod fold;
pub(crate) mod levels;
mod lookup;
mod read_dir;

use std::ops::Deref;

use base::{BlockSize, Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result};

use self::entries::EntryFormat;
pub(crate) use self::lookup::stored_hash;
pub use self::lookup::{EntryName, Found, WantedName};
use crate::ondisk::dentry::DentryLayout;

pub use crate::ondisk::node::NAME_BYTES_MAX;

/// Upper limit for the number of blocks of a directory: more than all levels of buckets have.
const BLOCKS_MAX: u64 = 1 << 40;

/// Maximum number of blocks of any directory that an operation reads: 64 GiB of blocks of 4 KiB.
const BLOCKS_READ_MAX: u64 = 1 << 24;

/// The blocks of one directory, which the caller can read.
pub trait Blocks {
    /// The contents of a block.
    type Bytes: Deref<Target = [u8]>;

    /// Returns the contents of block `at`, with its position on the volume; `None` for a hole.
    fn block(&self, at: FileBlock) -> Result<Option<(Self::Bytes, FsBlock)>>;

    /// Returns the first block at or after `from` that is not a hole.
    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>>;

    /// Returns the maximum number of blocks that are not holes: those of the volume.
    fn count_max(&self) -> u64 {
        BLOCKS_READ_MAX
    }
}

/// The properties of a directory's inode and volume that lookup and listing need.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryShape {
    /// The directory.
    pub inode: InodeNumber,
    /// The volume's greatest inode number.
    pub inode_max: InodeNumber,
    /// The volume's block size.
    pub block_size: BlockSize,
    /// Number of blocks up to the directory's size, holes included.
    pub block_count: u64,
    /// Number of levels in use, `i_current_depth`.
    pub depth: u32,
    /// The binary logarithm of the number of buckets in level 0, `i_dir_level`.
    pub dir_level: u8,
    /// How names are compared if the directory ignores case.
    pub casefold: Option<Casefold>,
    /// Whether names are stored encrypted.
    pub encrypted: bool,
}

impl DirectoryShape {
    fn entry_format(&self) -> EntryFormat {
        let Self { inode, inode_max, encrypted, .. } = *self;
        EntryFormat { inode, inode_max, encrypted }
    }
}

/// Properties of a volume's encoding, for directories that ignore case.
#[derive(Clone, Copy, Debug)]
pub struct Casefold {
    /// Whether names that are not valid Unicode are refused. Otherwise they are compared byte by
    /// byte.
    pub strict: bool,
    /// Whether a lookup that finds no name by its hash reads all entries. It finds names that were
    /// hashed with other case foldings.
    pub linear_fallback: bool,
}

/// A directory with blocks.
#[derive(Debug)]
pub struct Directory<'a, B> {
    shape: &'a DirectoryShape,
    blocks: &'a B,
    /// Slots in a block.
    slots: u64,
}

impl<'a, B: Blocks> Directory<'a, B> {
    /// Returns the directory that has this shape and these blocks.
    pub fn new(shape: &'a DirectoryShape, blocks: &'a B) -> Self {
        let slots = DentryLayout::of(shape.block_size.len()).slots as u64;
        Self { shape, blocks, slots }
    }

    fn block_count(&self) -> u64 {
        self.shape.block_count.min(BLOCKS_MAX)
    }

    /// Returns the contents and the location of block `at`; `None` for a hole.
    fn block(&self, at: FileBlock) -> Result<Option<(B::Bytes, Location)>> {
        if at.0 >= self.block_count() {
            return Ok(None);
        }
        let Some((bytes, block)) = self.blocks.block(at)? else { return Ok(None) };
        debug_assert_eq!(bytes.len(), self.shape.block_size.len());
        Ok(Some((bytes, Location::inode(self.shape.inode).at_file_block(at).at_block(block))))
    }

    /// Returns the first block at or after `from` that is not a hole.
    ///
    /// # Panics
    ///
    /// If the caller's [`Blocks::next_mapped`] returns a block before `from`.
    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        if from.0 >= self.block_count() {
            return Ok(None);
        }
        let next = self.blocks.next_mapped(from)?;
        assert!(next.is_none_or(|next| next >= from), "a search for blocks went backwards");
        Ok(next.filter(|next| next.0 < self.block_count()))
    }

    /// Counts the blocks that one operation has read. Errors: `Corrupt` above a limit. A corrupt
    /// map can refer to the same blocks repeatedly.
    fn count_read(&self, count: &mut u64) -> Result<()> {
        *count += 1;
        let max = self.blocks.count_max().min(BLOCKS_READ_MAX);
        if *count > max {
            let problem = Problem::Range { field: "block count", found: *count, min: 0, max };
            return Err(Error::corrupt("directory", Location::inode(self.shape.inode), problem));
        }
        Ok(())
    }
}

/// A directory whose entries lie in its inode.
#[derive(Clone, Copy, Debug)]
pub struct InlineDirectory<'a> {
    shape: &'a DirectoryShape,
    area: &'a [u8],
    location: Location,
}

impl<'a> InlineDirectory<'a> {
    /// Returns the directory with the dentry area `area`, which lies at `location`.
    pub fn new(shape: &'a DirectoryShape, area: &'a [u8], location: Location) -> Self {
        Self { shape, area, location }
    }
}

/// Returns whether block `block` of a directory is in a bucket for `hash`.
pub(crate) fn may_have(hash: u32, depth: u32, dir_level: u8, block: FileBlock) -> bool {
    levels::buckets(hash, depth, dir_level).any(|bucket| bucket.contains(&block))
}
