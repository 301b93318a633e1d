//! Unmapping and freeing of blocks, from the last to the first.
//! Not here: removal of extents from a map.

use std::ops::Range;

use base::{Error, FileBlock, FsBlock, Result};
use fs::Run;

use super::Progress;
use super::edit::{Map, MapBlocks, MapEdit, map_credits, tree_credits};
use super::tree::Tree;
use crate::alloc::{FREE_CREDITS, Purpose};
use crate::inode::Inode;
use crate::journal::Handle;
use crate::layout::geometry::Geometry;

impl Inode {
    /// Unmaps `range` and frees its blocks, from its end on, as far as the handle's credits reach.
    /// Returns `More(end)` if the blocks from the range's start to `end` are left. The caller
    /// provides [`credits_for_unmap`](Self::credits_for_unmap), and excludes reads and writes.
    ///
    /// Unmapping the middle of an extent needs an entry for one more extent. Errors: `NoSpace`, if
    /// not even the blocks that are reserved for ends of I/O are left.
    pub(crate) fn unmap(
        &self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
    ) -> Result<Progress> {
        let range = range.start..range.end.min(self.map_end());
        self.edit_map(handle, Purpose::EndOfIo, |edit| {
            let mut end = range.end;
            loop {
                let was_touched = std::mem::take(&mut edit.blocks.is_touched);
                let outcome = match &edit.map {
                    Map::Extents(_) => edit.unmap_extents(&(range.start..end)),
                    Map::Pointers(_) => edit.unmap_pointers(&(range.start..end)),
                };
                let is_clean = !edit.blocks.is_touched;
                edit.blocks.is_touched |= was_touched;
                match outcome {
                    // The next call fails before it changes anything.
                    Err(Error::NoSpace | Error::Corrupt(_) | Error::Io(_))
                        if is_clean && end < range.end =>
                    {
                        return Ok(Progress::More(end));
                    }
                    Err(error) => return Err(error),
                    Ok(LeafOutcome::Done) => return Ok(Progress::Done),
                    Ok(LeafOutcome::NoCredits) => return Ok(Progress::More(end)),
                    Ok(LeafOutcome::To(start)) => {
                        edit.change.record(start, end, None);
                        end = start;
                    }
                }
            }
        })
    }
}

/// The result of unmapping the part of a range in one leaf.
enum LeafOutcome {
    /// No blocks were mapped.
    Done,
    /// No blocks were unmapped, for lack of credits.
    NoCredits,
    /// From this block on, no blocks are mapped any more.
    To(FileBlock),
}

impl MapEdit<'_, '_, '_> {
    /// Unmaps the part of `range` in its last leaf, or the end of that part.
    fn unmap_extents(&mut self, range: &Range<FileBlock>) -> Result<LeafOutcome> {
        let holds_metadata = self.holds_metadata();
        let Map::Extents(tree) = &mut self.map else { unreachable!("the caller looked") };
        let Some((last, path)) = tree.extent_before(&self.blocks, range.end)? else {
            return Ok(LeafOutcome::Done);
        };
        if last.end() <= range.start {
            return Ok(LeafOutcome::Done);
        }
        // One more for the inode.
        let kept_back = u64::from(tree_credits(tree.depth()?) + 1);
        let credits = self.blocks.handle.credits_left().saturating_sub(kept_back);
        let runs = path.extents().into_iter().rev().filter_map(|extent| extent.within(range));
        let Some(start) = affordable(tree.geometry(), runs, credits, holds_metadata) else {
            return Ok(LeafOutcome::NoCredits);
        };
        let removed = start..range.end;
        let runs = path.extents().into_iter().filter_map(|extent| extent.within(&removed));
        self.blocks.read_bitmaps(runs.map(|run| (run.block, run.length)))?;
        self.blocks.read_bitmaps(path.blocks().map(|block| (block, 1)))?;
        // Reads the leaves beside this one, so it comes before any change.
        let neighbours = Neighbours::of(tree, &self.blocks, &removed);
        if let Err(error @ Error::Io(_)) = neighbours {
            return Err(error);
        }
        let removed = tree.remove(&mut self.blocks, path, &removed)?;
        match neighbours {
            Ok(neighbours) => {
                free_runs(tree, &mut self.blocks, &removed, &neighbours, holds_metadata)?;
            }
            // It is unknown whether the clusters have other blocks.
            Err(error @ Error::Corrupt(_)) => self.blocks.volume.apply_error_policy(&error),
            Err(error) => return Err(error),
        }
        Ok(LeafOutcome::To(start))
    }

    fn unmap_pointers(&mut self, range: &Range<FileBlock>) -> Result<LeafOutcome> {
        let holds_metadata = self.holds_metadata();
        let Map::Pointers(map) = &mut self.map else { unreachable!("the caller looked") };
        let Some(leaf) = map.leaf_before(&self.blocks, range)? else {
            return Ok(LeafOutcome::Done);
        };
        map.check_clusters()?;
        let kept_back = u64::from(map_credits(3) + 1);
        let credits = self.blocks.handle.credits_left().saturating_sub(kept_back);
        let runs = leaf.runs.iter().rev().copied();
        let Some(start) = affordable(map.geometry(), runs, credits, holds_metadata) else {
            return Ok(LeafOutcome::NoCredits);
        };
        let range = start..range.end;
        let runs = leaf.runs.iter().filter_map(|run| run.within(&range));
        self.blocks.read_bitmaps(runs.map(|run| (run.block, run.length)))?;
        self.blocks.read_bitmaps(leaf.chain.iter().map(|&block| (block, 1)))?;
        for run in leaf.runs.iter().filter_map(|run| run.within(&range)) {
            if self.blocks.free_data(run.block, run.length)? {
                revoke_all(&mut self.blocks, &run, holds_metadata);
            }
        }
        map.clear(&mut self.blocks, leaf, &range)?;
        Ok(LeafOutcome::To(start))
    }
}

/// Returns the file block from which on the runs, given from the last to the first, can be freed
/// with these credits. With as many as [`FREE_CREDITS`] and one more, at least one block can.
fn affordable(
    geometry: &Geometry,
    runs: impl Iterator<Item = Run>,
    mut credits: u64,
    holds_metadata: bool,
) -> Option<FileBlock> {
    let per_group = u64::from(geometry.blocks_per_group);
    let mut start = None;
    for run in runs {
        let mut left = run.length;
        while left > 0 {
            let last = run.block.0 + left - 1 - geometry.first_data_block.0;
            let in_group = left.min(last % per_group + 1);
            let for_blocks = credits.saturating_sub(FREE_CREDITS.into());
            // Each block of metadata is revoked.
            let count = match holds_metadata {
                true => in_group.min(for_blocks),
                false if credits >= FREE_CREDITS.into() => in_group,
                false => 0,
            };
            if count == 0 {
                return start;
            }
            credits = for_blocks - if holds_metadata { count } else { 0 };
            left -= count;
            start = Some(FileBlock(run.start.0 + left));
        }
    }
    start
}

fn revoke_all(blocks: &mut MapBlocks<'_, '_, '_>, run: &Run, holds_metadata: bool) {
    if holds_metadata {
        for index in 0..run.length {
            blocks.handle.revoke(FsBlock(run.block.0 + index));
        }
    }
}

/// The file blocks that are mapped beside a range, with which it may share clusters.
#[derive(Default)]
struct Neighbours {
    /// The end of the last ones before the range.
    before: Option<FileBlock>,
    /// The start of the first ones after the range.
    after: Option<FileBlock>,
}

impl Neighbours {
    /// Finds the neighbours of a range. Without clusters, there is nothing to find.
    fn of(
        tree: &Tree<'_>,
        blocks: &MapBlocks<'_, '_, '_>,
        range: &Range<FileBlock>,
    ) -> Result<Self> {
        if tree.geometry().cluster_shift == 0 {
            return Ok(Self::default());
        }
        let before = tree.extent_before(blocks, range.start)?;
        let after = tree.extent_from(blocks, range.end)?;
        Ok(Self {
            before: before.map(|(extent, _)| extent.end().min(range.start)),
            after: after.map(|extent| extent.start.max(range.end)),
        })
    }
}

/// Frees the clusters of blocks that were removed from the map, except clusters with other blocks
/// of the file. These are in the range with these `neighbours`, in which nothing is mapped any
/// more.
fn free_runs(
    tree: &Tree<'_>,
    blocks: &mut MapBlocks<'_, '_, '_>,
    removed: &[Run],
    neighbours: &Neighbours,
    holds_metadata: bool,
) -> Result<()> {
    let geometry = tree.geometry();
    let cluster_blocks = u64::from(geometry.blocks_per_cluster());
    let mut freed_end = 0;
    for run in removed {
        let mut clusters = geometry.clusters_of(run.block, run.length);
        if cluster_blocks > 1 {
            let (first, last) = (run.start.0 % cluster_blocks, run.end().0 % cluster_blocks);
            if neighbours.before.is_some_and(|before| before.0 > run.start.0 - first) {
                clusters.start += 1;
            }
            let end = run.end().0.next_multiple_of(cluster_blocks);
            if last > 0 && neighbours.after.is_some_and(|after| after.0 < end) {
                clusters.end = clusters.end.saturating_sub(1);
            }
            // The cluster at the end of the run before this one, which was freed with that run.
            if run.start.0 != 0 && clusters.start + 1 == freed_end {
                clusters.start += 1;
            }
        }
        if clusters.start < clusters.end {
            let start = geometry.cluster_start(clusters.start);
            let end = geometry.cluster_start(clusters.end).0.min(geometry.block_count);
            freed_end = clusters.end;
            if !blocks.free_data(start, end - start.0)? {
                // Clusters that could not be freed may belong to another file.
                continue;
            }
        }
        revoke_all(blocks, run, holds_metadata);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::geometry::tests::plain;

    /// Returns how many blocks at the end of a run from the second block of a group on can be
    /// freed.
    fn freed(per_group: u32, length: u64, credits: u64, holds_metadata: bool) -> u64 {
        let geometry = Geometry { blocks_per_group: per_group, ..plain() };
        let block = FsBlock(geometry.first_data_block.0 + u64::from(per_group) + 1);
        let run = Run { start: FileBlock(7), length, block, unwritten: false };
        let start = affordable(&geometry, std::iter::once(run), credits, holds_metadata);
        start.map_or(0, |start| 7 + length - start.0)
    }

    #[test]
    fn a_run_of_data_takes_credits_for_each_of_its_groups() {
        // One block in the last group, eight in those before.
        assert_eq!(freed(8, 32, 1, false), 0);
        assert_eq!(freed(8, 32, 2, false), 1);
        assert_eq!(freed(8, 32, 4, false), 9);
        assert_eq!(freed(8, 32, 2 * 5, false), 32);
    }

    #[test]
    fn a_run_of_metadata_also_takes_a_credit_for_each_block() {
        assert_eq!(freed(8, 32, 2, true), 0);
        assert_eq!(freed(8, 32, 3, true), 1);
        assert_eq!(freed(8, 32, 5, true), 1);
        assert_eq!(freed(8, 32, 6, true), 2);
        assert_eq!(freed(8, 32, 3 + 2 + 8, true), 9);
        assert_eq!(freed(8, 32, 2 * 5 + 32, true), 32);
        // More groups than the credits are for.
        assert_eq!(freed(8, 300, 67, true), 5 + 6 * 8);
    }
}
