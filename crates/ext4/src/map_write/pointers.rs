//! In-place changes of a block map: setting pointers, which adds blocks of pointers as needed, and
//! clearing pointers, which frees blocks of pointers that become empty. Not here: the choice of
//! data blocks, and allocation of blocks for pointers.
//!
//! As in `rewrite.rs`, blocks are allocated before anything is changed.

use std::ops::Range;

use base::{FileBlock, FsBlock, InodeNumber, Location, Result, Unsupported};
use fs::Run;

use super::tree::NodeStore;
use crate::block_validity::BlockValidity;
use crate::indirect;
use crate::layout::geometry::Geometry;

const STRUCTURE: &str = "indirect block";
const DIRECT: u64 = indirect::DIRECT as u64;
const POINTER_BYTES: usize = 4;
/// The end of the blocks that pointers can refer to. Pointers have 32 bits. Only such blocks are
/// allocated for block maps.
pub(super) const POINTED_END: FsBlock = FsBlock(1 << 32);

/// The error for files with block maps.
pub(crate) const NEEDS_EXTENTS: Unsupported =
    Unsupported::Operation("fallocate other than hole punching in files with block maps");
/// The error for block maps on volumes with clusters.
pub(crate) const NO_CLUSTERS: Unsupported =
    Unsupported::Operation("a block map on a volume with clusters");

/// A block map that is being changed.
pub(super) struct Pointers<'g> {
    /// The pointers in the inode.
    pub area: [u8; 60],
    pub validity: BlockValidity<'g>,
    pub inode: InodeNumber,
}

/// Returns the number of pointers in a block.
fn per_block(geometry: &Geometry) -> u64 {
    u64::from(geometry.block_size.bytes()) / POINTER_BYTES as u64
}

/// Returns the file blocks whose pointers are in the same block, or in the inode, as that of `at`.
pub(super) fn leaf_of(geometry: &Geometry, at: FileBlock) -> Range<FileBlock> {
    match at.0.checked_sub(DIRECT) {
        None => FileBlock(0)..FileBlock(DIRECT),
        Some(past) => {
            // All trees begin at a multiple of `count`, counted from the direct blocks' end.
            let count = per_block(geometry);
            let start = DIRECT + past / count * count;
            FileBlock(start)..FileBlock(start + count)
        }
    }
}

/// The path to a file block's pointer.
struct Route {
    /// The index of the pointer in the inode.
    root: usize,
    /// The index of the pointer in each block on the path. Empty for direct pointers.
    below: Vec<usize>,
}

impl Route {
    fn to(geometry: &Geometry, at: FileBlock) -> Self {
        let Some(mut rest) = at.0.checked_sub(DIRECT) else {
            return Self { root: at.0 as usize, below: Vec::new() };
        };
        let count = per_block(geometry);
        let mut level = 1;
        // The caller stays within the map's limit of three levels.
        while level < 3 && rest >= count.pow(level) {
            rest -= count.pow(level);
            level += 1;
        }
        let index = |level| (rest / count.pow(level) % count) as usize;
        let below = (0..level).rev().map(index).collect();
        Self { root: DIRECT as usize + level as usize - 1, below }
    }
}

fn word(bytes: &[u8], index: usize) -> FsBlock {
    let at = index * POINTER_BYTES;
    let bytes = bytes[at..at + POINTER_BYTES].try_into().expect("the range has four bytes");
    FsBlock(u32::from_le_bytes(bytes).into())
}

/// Sets `count` pointers from `index` on to the blocks from `block` on.
fn set_words(bytes: &mut [u8], index: usize, block: FsBlock, count: u64) {
    let words = bytes[index * POINTER_BYTES..].chunks_exact_mut(POINTER_BYTES);
    for (block, word) in (block.0..block.0 + count).zip(words) {
        let block = u32::try_from(block).expect("only blocks within 32 bits are allocated");
        word.copy_from_slice(&block.to_le_bytes());
    }
}

fn clear_words(bytes: &mut [u8], words: &Range<usize>) {
    bytes[words.start * POINTER_BYTES..words.end * POINTER_BYTES].fill(0);
}

/// Returns whether all pointers except `words` are zero.
fn is_empty_without(bytes: &[u8], words: &Range<usize>) -> bool {
    let (before, rest) = bytes.split_at(words.start * POINTER_BYTES);
    let after = &rest[words.len() * POINTER_BYTES..];
    before.iter().chain(after).all(|&byte| byte == 0)
}

/// The pointers in the last block of pointers, or in the inode, that a range refers to.
pub(super) struct Leaf {
    range: Range<FileBlock>,
    /// The blocks of pointers on the path, the top one first. Empty for the direct pointers.
    pub chain: Vec<FsBlock>,
    /// The runs of the pointers within the range. Not empty.
    pub runs: Vec<Run>,
}

impl<'g> Pointers<'g> {
    pub(super) fn geometry(&self) -> &'g Geometry {
        self.validity.geometry
    }
}

impl Pointers<'_> {
    /// Returns an error on volumes with clusters, where the kernel does not support block maps
    /// either.
    pub(super) fn check_clusters(&self) -> Result<()> {
        if self.geometry().cluster_shift > 0 {
            return Err(NO_CLUSTERS.into());
        }
        Ok(())
    }

    fn location(&self, block: FsBlock) -> Location {
        Location::inode(self.inode).at_block(block)
    }

    fn read<S: NodeStore>(&self, store: &S, block: FsBlock) -> Result<S::Bytes> {
        let location = self.location(block);
        self.validity.check(STRUCTURE, location, block, 1)?;
        store.read(block, location)
    }

    /// Maps a run of blocks before [`POINTED_END`]. Its pointers are zero, and are all in one block
    /// or in the inode.
    pub(super) fn insert(&mut self, store: &mut impl NodeStore, run: Run) -> Result<()> {
        let Route { root, below } = Route::to(self.geometry(), run.start);
        let Some((&last, upper)) = below.split_last() else {
            set_words(&mut self.area, root, run.block, run.length);
            return Ok(());
        };
        let mut chain = Vec::new();
        let mut block = word(&self.area, root);
        for &index in &below {
            if block.0 == 0 {
                break;
            }
            chain.push(block);
            block = word(&self.read(store, block)?, index);
        }
        let new = self.allocate_nodes(store, below.len() - chain.len(), run.block)?;
        // From the last block up, so that each block is written before a pointer to it.
        let bytes = || vec![0; self.geometry().block_size.len()];
        let mut pointer = (run.block, run.length);
        let mut index = last;
        let mut uppers = upper.iter().rev();
        for &block in new.iter().rev() {
            let mut bytes = bytes();
            set_words(&mut bytes, index, pointer.0, pointer.1);
            store.create(block, bytes);
            pointer = (block, 1);
            index = uppers.next().copied().unwrap_or_default();
        }
        match chain.last() {
            Some(&block) => store.edit(block, self.location(block), |bytes| {
                set_words(bytes, index, pointer.0, pointer.1);
            }),
            None => {
                set_words(&mut self.area, root, pointer.0, 1);
                Ok(())
            }
        }
    }

    /// Allocates all `count` blocks for pointers, or none.
    fn allocate_nodes(
        &self,
        store: &mut impl NodeStore,
        count: usize,
        goal: FsBlock,
    ) -> Result<Vec<FsBlock>> {
        let mut allocated = Vec::with_capacity(count);
        for _ in 0..count {
            match store.allocate_node(goal) {
                Ok(block) => allocated.push(block),
                Err(error) => {
                    allocated.into_iter().try_for_each(|block| store.release_unused(block))?;
                    return Err(error);
                }
            }
        }
        Ok(allocated)
    }

    /// Returns the last block of pointers in `range`, or the direct pointers, with a pointer in
    /// `range` that is not zero.
    pub(super) fn leaf_before(
        &self,
        store: &impl NodeStore,
        range: &Range<FileBlock>,
    ) -> Result<Option<Leaf>> {
        let mut end = range.end;
        while end > range.start {
            let at = FileBlock(end.0 - 1);
            let leaf = leaf_of(self.geometry(), at);
            let chain = match self.chain(store, at)? {
                Ok(chain) => chain,
                Err(hole_start) => {
                    end = hole_start;
                    continue;
                }
            };
            let within = leaf.start.max(range.start)..end;
            let runs = match chain.last() {
                Some(&block) => self.runs(&self.read(store, block)?, leaf.start, &within)?,
                None => self.runs(&self.area, leaf.start, &within)?,
            };
            if !runs.is_empty() {
                return Ok(Some(Leaf { range: leaf, chain, runs }));
            }
            end = leaf.start;
        }
        Ok(None)
    }

    /// Returns the blocks of pointers on the path to `at`. If one of them is missing, the error is
    /// the start of the hole that results.
    fn chain(
        &self,
        store: &impl NodeStore,
        at: FileBlock,
    ) -> Result<std::result::Result<Vec<FsBlock>, FileBlock>> {
        let Route { root, below } = Route::to(self.geometry(), at);
        let (mut chain, mut block) = (Vec::new(), word(&self.area, root));
        // The number of file blocks from the start of a missing block's range to `at`.
        let count = per_block(self.geometry());
        for (depth, &index) in below.iter().enumerate() {
            let offset = below[depth..].iter().fold(0, |sum, &index| sum * count + index as u64);
            if block.0 == 0 {
                return Ok(Err(FileBlock(at.0 - offset)));
            }
            chain.push(block);
            if depth + 1 < below.len() {
                let bytes = self.read(store, block)?;
                block = word(&bytes, index);
                if block.0 == 0 {
                    // Includes the missing blocks before it.
                    let missing = (0..index).rev().take_while(|&i| word(&bytes, i).0 == 0).count();
                    let levels = (below.len() - depth - 1) as u32;
                    let inner = below[depth + 1..].iter();
                    let offset = inner.fold(0, |sum, &index| sum * count + index as u64);
                    return Ok(Err(FileBlock(at.0 - offset - missing as u64 * count.pow(levels))));
                }
            }
        }
        Ok(Ok(chain))
    }

    /// Returns the runs of the pointers from `start` on, within `range`.
    fn runs(&self, bytes: &[u8], start: FileBlock, range: &Range<FileBlock>) -> Result<Vec<Run>> {
        let (mut runs, mut blocks) = (Vec::new(), self.validity.checker());
        for at in range.start.0..range.end.0 {
            let block = word(bytes, (at - start.0) as usize);
            if block.0 != 0 {
                let location = Location::inode(self.inode).at_file_block(FileBlock(at));
                blocks.check("block pointer", location, block, 1)?;
                let (start, length, unwritten) = (FileBlock(at), 1, false);
                Run { start, length, block, unwritten }.push_onto(&mut runs);
            }
        }
        Ok(runs)
    }

    /// Clears the pointers of a leaf that are in `range`, and frees the blocks of pointers that
    /// become empty.
    pub(super) fn clear(
        &mut self,
        store: &mut impl NodeStore,
        leaf: Leaf,
        range: &Range<FileBlock>,
    ) -> Result<()> {
        let (start, end) = (leaf.range.start.max(range.start), leaf.range.end.min(range.end));
        let index = |block: FileBlock| (block.0 - leaf.range.start.0) as usize;
        let mut words = index(start)..index(end);
        let Route { root, below } = Route::to(self.geometry(), leaf.range.start);
        for (depth, &block) in leaf.chain.iter().enumerate().rev() {
            if !is_empty_without(&self.read(store, block)?, &words) {
                return store.edit(block, self.location(block), |bytes| clear_words(bytes, &words));
            }
            store.free(block)?;
            // The pointer to the freed block.
            let index = depth.checked_sub(1).map_or(root, |upper| below[upper]);
            words = index..index + 1;
        }
        clear_words(&mut self.area, &words);
        Ok(())
    }
}

#[cfg(test)]
#[path = "pointers_tests.rs"]
mod tests;
