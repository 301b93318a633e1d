//! Exchanges of blocks between two files with extents.
//! Not here: the choice of the blocks, and their data.

use base::{Error, FileBlock, FsBlock, Result};
use fs::Run;

use super::edit::{Map, MapBlocks};
use super::leaf;
use super::rewrite::Rewrite;
use super::tree::{Path, Tree};
use crate::alloc::Purpose;
use crate::inode::Inode;
use crate::journal::Handle;

/// Ranges of two files whose blocks are exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pair {
    /// The first file block of the first file.
    pub at: FileBlock,
    /// The first file block of the second file, the donor.
    pub donor_at: FileBlock,
    /// The number of blocks: at least one, and at most [`LENGTH_MAX`](Self::LENGTH_MAX).
    pub length: u64,
    /// The first volume block of the file's range.
    pub block: FsBlock,
    /// The first volume block of the donor's range.
    pub donor_block: FsBlock,
    /// Whether the file's blocks are unwritten; then its new blocks are, too.
    pub unwritten: bool,
    /// Whether the donor's blocks are unwritten.
    pub donor_unwritten: bool,
}

impl Pair {
    /// The maximum length of an extent, written or not.
    pub(crate) const LENGTH_MAX: u64 = 32_767;
    /// The maximum of pairs for one call of [`Inode::exchange`]: as many extents are added to a
    /// leaf, which becomes two leaves at most.
    pub(crate) const COUNT_MAX: usize = 32;

    /// Returns the first blocks of the pair.
    fn first(self, length: u64) -> Option<Self> {
        (length > 0).then_some(Self { length: length.min(self.length), ..self })
    }

    /// Returns the pair without its first blocks.
    pub(crate) fn without_first(self, length: u64) -> Option<Self> {
        (length < self.length).then(|| Self {
            at: FileBlock(self.at.0 + length),
            donor_at: FileBlock(self.donor_at.0 + length),
            length: self.length - length,
            block: FsBlock(self.block.0 + length),
            donor_block: FsBlock(self.donor_block.0 + length),
            ..self
        })
    }

    /// Returns the file's extent.
    fn run(&self) -> Run {
        let &Self { at: start, length, block, unwritten, .. } = self;
        Run { start, length, block, unwritten }
    }

    /// Returns the file's new extent.
    fn new_run(&self) -> Run {
        Run { block: self.donor_block, ..self.run() }
    }

    /// Returns the donor's extent.
    fn donor_run(&self) -> Run {
        let (start, block, unwritten) = (self.donor_at, self.donor_block, self.donor_unwritten);
        Run { start, block, unwritten, ..self.run() }
    }

    /// Returns the donor's new extent, which is unwritten.
    fn new_donor_run(&self) -> Run {
        Run { start: self.donor_at, unwritten: true, ..self.run() }
    }
}

impl Inode {
    /// Exchanges the blocks of `pairs`, which are contiguous in both files, from the first one on,
    /// up to the end of the first leaf of each map. Returns the number of blocks, at least one. The
    /// donor's new blocks are unwritten. The caller provides the credits for one call of
    /// [`map_new_blocks`](Self::map_new_blocks) for each file, and excludes reads and writes of
    /// both ranges. Errors: `InvalidArgument` if the maps differ from the pairs.
    pub(crate) fn exchange(
        &self,
        handle: &mut Handle<'_>,
        donor: &Self,
        pairs: &[Pair],
    ) -> Result<u64> {
        let Some(first) = pairs.first() else { return Ok(0) };
        self.edit_map(handle, Purpose::Metadata, |edit| {
            let donor_change = donor.map.change_second();
            let (tree, store) = edit.tree()?;
            let path = tree.path(store, first.at)?;
            let end = path.range().end;
            let donor_end = {
                let mut map = Map::new(store.volume, &donor.record());
                map.tree()?.path(store, first.donor_at)?.range().end
            };
            let pairs = within_leaves(pairs, end, donor_end);
            let prepared = prepare(tree, store, path, &pairs, Pair::run, Pair::new_run)?;
            // Both changes are prepared before either is made.
            let handle = &mut *store.handle;
            let done = donor.edit_locked_map(handle, Purpose::Metadata, donor_change, |edit| {
                let (tree, store) = edit.tree()?;
                let path = tree.path(store, first.donor_at)?;
                let (old, new) = (Pair::donor_run, Pair::new_donor_run);
                let prepared = prepare(tree, store, path, &pairs, old, new)?;
                tree.carry_out(store, prepared)?;
                for run in pairs.iter().map(Pair::new_donor_run) {
                    edit.change.record(run.start, run.end(), Some(run));
                }
                Ok(())
            });
            let (tree, store) = edit.tree()?;
            if let Err(error) = done {
                Tree::cancel(store, prepared)?;
                return Err(error);
            }
            // An error from here on would leave one map changed and the other not.
            store.is_touched = true;
            tree.carry_out(store, prepared)?;
            for run in pairs.iter().map(Pair::new_run) {
                edit.change.record(run.start, run.end(), Some(run));
            }
            Ok(pairs.iter().map(|pair| pair.length).sum())
        })
    }
}

/// Returns the first pairs, or parts of them, up to the end of both leaves.
fn within_leaves(pairs: &[Pair], end: FileBlock, donor_end: FileBlock) -> Vec<Pair> {
    let mut within = Vec::with_capacity(pairs.len());
    for pair in pairs.iter().take(Pair::COUNT_MAX) {
        let left = |at: FileBlock, end: FileBlock| end.0.saturating_sub(at.0);
        let room = left(pair.at, end).min(left(pair.donor_at, donor_end));
        within.extend(pair.first(room));
        if room < pair.length {
            break;
        }
    }
    within
}

/// Prepares a rewrite of the leaf at the end of `path` that replaces the extents that `old`
/// returns, which it must have, by those that `new` returns.
fn prepare(
    tree: &Tree<'_>,
    store: &mut MapBlocks<'_, '_, '_>,
    path: Path,
    pairs: &[Pair],
    old: impl Fn(&Pair) -> Run,
    new: impl Fn(&Pair) -> Run,
) -> Result<Rewrite> {
    let mut extents = path.extents();
    if !pairs.iter().all(|pair| contains(&extents, &old(pair))) {
        return Err(Error::InvalidArgument("the file's blocks have changed meanwhile"));
    }
    pairs.iter().for_each(|pair| leaf::replace(&mut extents, new(pair)));
    tree.prepare(store, path, &extents)
}

/// Returns whether `extents` map all of `run` as it is.
fn contains(extents: &[Run], run: &Run) -> bool {
    let range = run.start..run.end();
    let mut at = run.start;
    for part in extents.iter().filter_map(|extent| extent.within(&range)) {
        let expected = run.block.0 + (at.0 - run.start.0);
        if part.start != at || part.block.0 != expected || part.unwritten != run.unwritten {
            return false;
        }
        at = part.end();
    }
    at == range.end
}
