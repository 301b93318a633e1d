//! The verification of data against the Merkle tree, with a cache of verified blocks of the tree.

use std::sync::Arc;

use base::{BlockSize, Error, FileOffset, InodeNumber, Location, Problem, Result};
use parking_lot::Mutex;

use crate::descriptor::Descriptor;
use crate::hash::Hash;
use crate::levels::Levels;

/// The tree of a file begins at the first multiple of this number of bytes at or past the end of
/// the file, in ext4 and f2fs.
pub const TREE_ALIGNMENT: u64 = 65536;

/// The maximum number of bytes in a file's cached blocks of the tree.
const CACHE_BYTES_MAX: usize = 128 << 10;

/// The minimum number of cached blocks.
const CACHE_BLOCKS_MIN: usize = 4;

/// Reads bytes of a file from an offset past its end on.
pub type TreeRead<'a> = dyn Fn(FileOffset, &mut [u8]) -> Result<()> + 'a;

/// The verifier of a file's data.
#[derive(Debug)]
pub struct Verifier {
    descriptor: Descriptor,
    levels: Levels,
    inode: InodeNumber,
    /// The unit of the file blocks in errors.
    block_size: BlockSize,
    /// The first byte of the tree in the file.
    tree: u64,
    /// Verified blocks of the tree, the most recently used last. Held for the lookup and the
    /// insertion only.
    cache: Mutex<Vec<(u64, Arc<[u8]>)>>,
}

impl Verifier {
    /// Creates the verifier of `inode`, in a file system with blocks of `block_size`. Errors:
    /// `Corrupt` if the tree has too many levels, or larger blocks than the file system.
    pub fn new(descriptor: Descriptor, inode: InodeNumber, block_size: BlockSize) -> Result<Self> {
        let location = Location::inode(inode);
        let corrupt = |field, found| {
            let problem = Problem::Invalid { field, found };
            Err(Error::corrupt("verity descriptor", location, problem))
        };
        if descriptor.block_bytes() > block_size.len() {
            return corrupt("block size", descriptor.block_bytes() as u64);
        }
        let levels = Levels::new(&descriptor, location)?;
        // No overflow: the size is less than 2^63.
        let tree = descriptor.data_size.next_multiple_of(TREE_ALIGNMENT);
        let cache = Mutex::new(Vec::new());
        Ok(Self { descriptor, levels, inode, block_size, tree, cache })
    }

    /// Returns the descriptor.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Verifies `data`, whole blocks of the file system from byte `at` of the file on. Bytes past
    /// the end of the file are zeroes. Errors: `Corrupt` if a block of the data, or a block of the
    /// tree above it, has another hash than the tree says; those of `read_tree`.
    ///
    /// Panics if `at` is not the start of a block.
    pub fn verify(&self, at: FileOffset, data: &[u8], read_tree: &TreeRead<'_>) -> Result<()> {
        let length = self.descriptor.block_bytes();
        assert_eq!(at.0 % length as u64, 0, "verified data begins with a block");
        for (number, block) in data.chunks(length).enumerate() {
            let start = at.0.saturating_add((number * length) as u64);
            if start >= self.descriptor.data_size {
                break;
            }
            let expected =
                self.expected_hash(0, start >> self.descriptor.block_shift, read_tree)?;
            if block.len() != length || self.descriptor.hash(block) != expected {
                return Err(self.mismatch("data of a file with verity", start));
            }
        }
        Ok(())
    }

    /// Returns the hash that block `index` of the level below `level` must have; of data for level
    /// 0. Verifies the blocks of the tree above it that are not cached. Recurses at most
    /// [`LEVELS_MAX`](crate::levels::LEVELS_MAX) times.
    fn expected_hash(&self, level: usize, index: u64, read_tree: &TreeRead<'_>) -> Result<Hash> {
        if level == self.levels.count() {
            return Ok(self.descriptor.root_hash);
        }
        let position = self.levels.position(level, index);
        let block = match self.cached(position.block) {
            Some(block) => block,
            None => {
                let expected = self.expected_hash(level + 1, position.index, read_tree)?;
                // The tree of a file of less than 2^63 bytes ends before 2^64.
                let at = self.tree + (position.block << self.descriptor.block_shift);
                let mut bytes = vec![0; self.descriptor.block_bytes()];
                read_tree(FileOffset(at), &mut bytes)?;
                if self.descriptor.hash(&bytes) != expected {
                    return Err(self.mismatch("block of a Merkle tree", at));
                }
                let block = Arc::from(bytes);
                self.keep(position.block, Arc::clone(&block));
                block
            }
        };
        let length = self.descriptor.algorithm.len();
        let mut hash = [0; crate::hash::HASH_BYTES_MAX];
        let start = position.slot * length;
        hash[..length].copy_from_slice(&block[start..start + length]);
        Ok(hash)
    }

    /// Returns a verified block of the tree, if it is cached.
    fn cached(&self, number: u64) -> Option<Arc<[u8]>> {
        let mut cache = self.cache.lock();
        let at = cache.iter().rposition(|(cached, _)| *cached == number)?;
        cache[at..].rotate_left(1);
        cache.last().map(|(_, block)| Arc::clone(block))
    }

    /// Caches a verified block of the tree.
    fn keep(&self, number: u64, block: Arc<[u8]>) {
        let blocks_max = (CACHE_BYTES_MAX >> self.descriptor.block_shift).max(CACHE_BLOCKS_MIN);
        let mut cache = self.cache.lock();
        // Another thread may have cached it meanwhile.
        cache.retain(|(cached, _)| *cached != number);
        if cache.len() >= blocks_max {
            cache.remove(0);
        }
        cache.push((number, block));
    }

    fn mismatch(&self, structure: &'static str, at: u64) -> Error {
        let location =
            Location::inode(self.inode).at_file_block(self.block_size.file_block(FileOffset(at)));
        let problem = Problem::Invalid { field: "hash, in byte", found: at };
        Error::corrupt(structure, location, problem)
    }
}
