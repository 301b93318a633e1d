//! Exchanges blocks of one file for blocks of another: which data they have is the caller's concern.
//! Only extents can do that. Not here: choosing the blocks.

use base::{Error, FileBlock, FsBlock, Result};

use super::edit::{Map, MapBlocks};
use super::leaf;
use super::rewrite::Rewrite;
use super::tree::{Path, Tree};
use crate::alloc::Purpose;
use crate::inode::Inode;
use crate::journal::Handle;
use crate::map::Run;

/// Blocks of two files that are to change places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pair {
    /// The first file block of the one file.
    pub at: FileBlock,
    /// The first file block of the other file, the donor.
    pub donor_at: FileBlock,
    /// Blocks: at least one, and at most [`LENGTH_MAX`](Self::LENGTH_MAX).
    pub length: u64,
    /// The first volume block that the file has.
    pub block: FsBlock,
    /// The first volume block that the donor has.
    pub donor_block: FsBlock,
    /// Whether the file's blocks read as zeroes; those that it gets then do, too.
    pub unwritten: bool,
    /// Whether the donor's do.
    pub donor_unwritten: bool,
}

impl Pair {
    /// What one extent can say, written or not.
    pub(crate) const LENGTH_MAX: u64 = 32_767;
    /// Pairs that one call of [`Inode::exchange`] takes: as many extents are put into a leaf, which
    /// becomes two leaves at most.
    pub(crate) const COUNT_MAX: usize = 32;

    /// The first blocks of it.
    fn first(self, length: u64) -> Option<Self> {
        (length > 0).then_some(Self { length: length.min(self.length), ..self })
    }

    /// What is left without the first blocks.
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

    /// What the file has there.
    fn run(&self) -> Run {
        let &Self { at: start, length, block, unwritten, .. } = self;
        Run { start, length, block, unwritten }
    }

    /// What it will have.
    fn new_run(&self) -> Run {
        Run { block: self.donor_block, ..self.run() }
    }

    /// What the donor has.
    fn donor_run(&self) -> Run {
        let (start, block, unwritten) = (self.donor_at, self.donor_block, self.donor_unwritten);
        Run { start, block, unwritten, ..self.run() }
    }

    /// What it will have: nothing that anybody reads.
    fn new_donor_run(&self) -> Run {
        Run { start: self.donor_at, unwritten: true, ..self.run() }
    }
}

impl Inode {
    /// Exchanges the blocks of `pairs`, which follow each other in both files, from the first on, as
    /// far as the first leaf of each map goes: gives how many blocks that were, at least one. What the
    /// donor gets is unwritten. The caller gives the credits for one call of
    /// [`map_new_blocks`](Self::map_new_blocks) for each file, and keeps reads and writes away from
    /// both ranges. `InvalidArgument` where the maps say something else than the pairs.
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
            // Both can be done, or nothing is.
            let handle = &mut *store.handle;
            let done = donor.edit_locked_map(handle, Purpose::Metadata, donor_change, |edit| {
                let (tree, store) = edit.tree()?;
                let path = tree.path(store, first.donor_at)?;
                let (old, new) = (Pair::donor_run, Pair::new_donor_run);
                let prepared = prepare(tree, store, path, &pairs, old, new)?;
                tree.carry_out(store, prepared)?;
                for run in pairs.iter().map(Pair::new_donor_run) {
                    edit.change.changed(run.start, run.end(), Some(run));
                }
                Ok(())
            });
            let (tree, store) = edit.tree()?;
            if let Err(error) = done {
                Tree::cancel(store, prepared)?;
                return Err(error);
            }
            // What goes wrong from here on leaves one map without the other.
            store.is_touched = true;
            tree.carry_out(store, prepared)?;
            for run in pairs.iter().map(Pair::new_run) {
                edit.change.changed(run.start, run.end(), Some(run));
            }
            Ok(pairs.iter().map(|pair| pair.length).sum())
        })
    }
}

/// The first pairs, or parts of them, as far as both leaves go.
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

/// Gets ready to have the leaf at the end of `path` say what `new` gives in the place of what `old`
/// gives, which it must say now.
fn prepare(
    tree: &Tree<'_>,
    store: &mut MapBlocks<'_, '_, '_>,
    path: Path,
    pairs: &[Pair],
    old: impl Fn(&Pair) -> Run,
    new: impl Fn(&Pair) -> Run,
) -> Result<Rewrite> {
    let mut extents = path.extents();
    if !pairs.iter().all(|pair| says(&extents, &old(pair))) {
        return Err(Error::InvalidArgument("blocks that became others while they were moved"));
    }
    pairs.iter().for_each(|pair| leaf::replace(&mut extents, new(pair)));
    tree.prepare(store, path, &extents)
}

/// Whether these are the blocks that a leaf has where `run` lies.
fn says(extents: &[Run], run: &Run) -> bool {
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
