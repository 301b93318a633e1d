//! Changes of a leaf's extents as a list: insertion, conversion, removal, shifts.
//! Not here: the leaf's position, and whether the list still fits into it.

use std::ops::Range;

use base::FileBlock;
use fs::Run;

use crate::ondisk::extent::WRITTEN_MAX;

/// Returns the maximum number of blocks in one extent.
pub(super) fn length_max(unwritten: bool) -> u64 {
    u64::from(if unwritten { WRITTEN_MAX - 1 } else { WRITTEN_MAX })
}

/// Appends a run to a list. Extends the last extent if that can hold all of the run.
fn push(run: Run, extents: &mut Vec<Run>) {
    let max = length_max(run.unwritten);
    if run.length > max {
        // A written extent of maximum length that becomes unwritten.
        let middle = FileBlock(run.start.0 + max);
        run.within(&(run.start..middle)).into_iter().for_each(|head| push(head, extents));
        return run.within(&(middle..run.end())).into_iter().for_each(|tail| push(tail, extents));
    }
    match extents.last_mut() {
        Some(last) if last.is_followed_by(&run) && last.length + run.length <= max => {
            last.length += run.length;
        }
        _ => extents.push(run),
    }
}

/// Inserts a run of at most [`length_max`] blocks into a hole.
pub(super) fn insert(extents: &mut Vec<Run>, run: Run) {
    let index = extents.partition_point(|extent| extent.start < run.start);
    let affected = index.saturating_sub(1)..(index + 1).min(extents.len());
    let mut new = Vec::with_capacity(3);
    extents[affected.start..index].iter().for_each(|extent| push(*extent, &mut new));
    push(run, &mut new);
    extents[index..affected.end].iter().for_each(|extent| push(*extent, &mut new));
    extents.splice(affected, new);
}

/// Returns the indices of the extents that have blocks in `range`.
fn overlapping(extents: &[Run], range: &Range<FileBlock>) -> Range<usize> {
    let first = extents.partition_point(|extent| extent.end() <= range.start);
    let last = extents.partition_point(|extent| extent.start < range.end);
    first..last.max(first)
}

/// Marks allocated blocks in `range` as written or unwritten. Returns the runs that changed.
pub(super) fn convert(
    extents: &mut Vec<Run>,
    range: &Range<FileBlock>,
    unwritten: bool,
) -> Vec<Run> {
    let changed = overlapping(extents, range);
    let affected = changed.start.saturating_sub(1)..(changed.end + 1).min(extents.len());
    let (before, after) = (FileBlock(0)..range.start, range.end..FileBlock(u64::MAX));
    let (mut new, mut converted) = (Vec::with_capacity(affected.len() + 2), Vec::new());
    for extent in &extents[affected.clone()] {
        if extent.unwritten == unwritten {
            push(*extent, &mut new);
            continue;
        }
        extent.within(&before).into_iter().for_each(|head| push(head, &mut new));
        if let Some(part) = extent.within(range) {
            converted.push(part);
            push(Run { unwritten, ..part }, &mut new);
        }
        extent.within(&after).into_iter().for_each(|tail| push(tail, &mut new));
    }
    if !converted.is_empty() {
        extents.splice(affected, new);
    }
    converted
}

/// Splits the extent that has blocks on both sides of `at`. Returns whether there is one.
pub(super) fn split(extents: &mut Vec<Run>, at: FileBlock) -> bool {
    let index = extents.partition_point(|extent| extent.end() <= at);
    let Some(extent) = extents.get(index).copied().filter(|extent| extent.start < at) else {
        return false;
    };
    let parts = [extent.within(&(extent.start..at)), extent.within(&(at..extent.end()))];
    extents.splice(index..=index, parts.into_iter().flatten());
    true
}

/// Shifts the extents that begin at or after `from` to the blocks that `target` returns, which
/// keeps their order. An extent that then continues the one before it is merged with it.
pub(super) fn shift(
    extents: &mut Vec<Run>,
    from: FileBlock,
    target: impl Fn(FileBlock) -> FileBlock,
) {
    let first = extents.partition_point(|extent| extent.start < from);
    let moved: Vec<Run> = extents.drain(first..).collect();
    for run in moved {
        push(Run { start: target(run.start), ..run }, extents);
    }
}

/// Removes `range`. Returns the runs that were mapped there.
pub(super) fn remove(extents: &mut Vec<Run>, range: &Range<FileBlock>) -> Vec<Run> {
    let affected = overlapping(extents, range);
    let old = &extents[affected.clone()];
    let removed: Vec<Run> = old.iter().filter_map(|extent| extent.within(range)).collect();
    let (before, after) = (FileBlock(0)..range.start, range.end..FileBlock(u64::MAX));
    let heads = old.iter().filter_map(|extent| extent.within(&before));
    let tails = old.iter().filter_map(|extent| extent.within(&after));
    let kept: Vec<Run> = heads.chain(tails).collect();
    extents.splice(affected, kept);
    removed
}

/// Replaces the blocks that are mapped in the range of `run` by those of `run`, at most
/// [`length_max`] blocks.
pub(super) fn replace(extents: &mut Vec<Run>, run: Run) {
    remove(extents, &(run.start..run.end()));
    insert(extents, run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::FsBlock;

    fn run(start: u64, length: u64, block: u64) -> Run {
        Run { start: FileBlock(start), length, block: FsBlock(block), unwritten: false }
    }

    fn unwritten(start: u64, length: u64, block: u64) -> Run {
        Run { unwritten: true, ..run(start, length, block) }
    }

    fn blocks(range: Range<u64>) -> Range<FileBlock> {
        FileBlock(range.start)..FileBlock(range.end)
    }

    #[test]
    fn a_run_is_merged_with_the_neighbours_that_it_continues() {
        let mut extents = vec![run(0, 4, 100), run(6, 2, 106)];
        insert(&mut extents, run(4, 2, 104));
        assert_eq!(extents, [run(0, 8, 100)]);
        insert(&mut extents, unwritten(8, 2, 108));
        insert(&mut extents, run(10, 2, 110));
        assert_eq!(extents, [run(0, 8, 100), unwritten(8, 2, 108), run(10, 2, 110)]);
    }

    #[test]
    fn no_extent_grows_beyond_its_maximum_length() {
        let mut extents = vec![run(0, 32_767, 100)];
        insert(&mut extents, run(32_767, 1, 32_867));
        assert_eq!(extents, [run(0, 32_768, 100)]);
        insert(&mut extents, run(32_768, 1, 32_868));
        assert_eq!(extents.len(), 2);
        let mut extents = vec![unwritten(0, 32_766, 100)];
        insert(&mut extents, unwritten(32_766, 1, 32_866));
        assert_eq!(extents.len(), 1);
        insert(&mut extents, unwritten(32_767, 1, 32_867));
        assert_eq!(extents.len(), 2);
    }

    #[test]
    fn a_converted_middle_becomes_an_extent_and_is_merged_later() {
        let mut extents = vec![unwritten(0, 10, 100)];
        assert_eq!(convert(&mut extents, &blocks(4..6), false), [unwritten(4, 2, 104)]);
        assert_eq!(extents, [unwritten(0, 4, 100), run(4, 2, 104), unwritten(6, 4, 106)]);
        assert_eq!(convert(&mut extents, &blocks(4..6), false), []);
        convert(&mut extents, &blocks(6..10), false);
        assert_eq!(extents, [unwritten(0, 4, 100), run(4, 6, 104)]);
        convert(&mut extents, &blocks(0..20), false);
        assert_eq!(extents, [run(0, 10, 100)]);
    }

    #[test]
    fn blocks_become_unwritten_in_as_many_extents_as_necessary() {
        let mut extents = vec![run(0, 32_768, 100), run(40_000, 4, 90_000)];
        assert_eq!(convert(&mut extents, &blocks(0..32_768), true), [run(0, 32_768, 100)]);
        let halves = [unwritten(0, 32_767, 100), unwritten(32_767, 1, 32_867)];
        assert_eq!(extents, [halves[0], halves[1], run(40_000, 4, 90_000)]);
        assert_eq!(convert(&mut extents, &blocks(0..40_000), true), []);
        let middle = [run(40_001, 2, 90_001)];
        assert_eq!(convert(&mut extents, &blocks(40_001..40_003), true), middle);
        let parts = [run(40_000, 1, 90_000), unwritten(40_001, 2, 90_001), run(40_003, 1, 90_003)];
        assert_eq!(extents[2..], parts);
    }

    #[test]
    fn extents_are_split_and_shifted() {
        let mut extents = vec![run(0, 4, 100), run(8, 4, 104), run(14, 1, 300)];
        assert!(!split(&mut extents, FileBlock(8)) && !split(&mut extents, FileBlock(13)));
        assert!(split(&mut extents, FileBlock(9)));
        assert_eq!(extents, [run(0, 4, 100), run(8, 1, 104), run(9, 3, 105), run(14, 1, 300)]);
        shift(&mut extents, FileBlock(9), |at| FileBlock(at.0 + 2));
        assert_eq!(extents, [run(0, 4, 100), run(8, 1, 104), run(11, 3, 105), run(16, 1, 300)]);
        shift(&mut extents, FileBlock(11), |at| FileBlock(at.0 - 2));
        shift(&mut extents, FileBlock(8), |at| FileBlock(at.0 - 4));
        assert_eq!(extents, [run(0, 8, 100), run(10, 1, 300)]);
        shift(&mut extents, FileBlock(50), |at| FileBlock(at.0 - 4));
        assert_eq!(extents.len(), 2);
    }

    #[test]
    fn blocks_of_several_extents_are_replaced() {
        let mut extents = vec![run(0, 4, 100), run(4, 4, 300), unwritten(8, 4, 500)];
        replace(&mut extents, run(2, 4, 102));
        assert_eq!(extents, [run(0, 6, 100), run(6, 2, 302), unwritten(8, 4, 500)]);
        replace(&mut extents, unwritten(6, 2, 498));
        assert_eq!(extents, [run(0, 6, 100), unwritten(6, 6, 498)]);
    }

    #[test]
    fn heads_tails_middles_and_whole_extents_are_removed() {
        let mut extents = vec![run(0, 10, 100), unwritten(10, 10, 300), run(30, 10, 200)];
        assert_eq!(remove(&mut extents, &blocks(20..30)), []);
        let removed = remove(&mut extents, &blocks(8..32));
        assert_eq!(removed, [run(8, 2, 108), unwritten(10, 10, 300), run(30, 2, 200)]);
        assert_eq!(extents, [run(0, 8, 100), run(32, 8, 202)]);
        assert_eq!(remove(&mut extents, &blocks(2..4)), [run(2, 2, 102)]);
        assert_eq!(extents, [run(0, 2, 100), run(4, 4, 104), run(32, 8, 202)]);
    }
}
