//! The extents of one leaf as a list: puts runs in, marks them written, takes them out.
//! Not here: where the leaf lies, and whether the list still fits into it.

use std::ops::Range;

use base::FileBlock;

use crate::map::Run;
use crate::ondisk::extent::WRITTEN_MAX;

/// The blocks that one extent can have.
pub(super) fn length_max(unwritten: bool) -> u64 {
    u64::from(if unwritten { WRITTEN_MAX - 1 } else { WRITTEN_MAX })
}

/// Adds a run to the end of a list, to the last extent if that has room for all of it.
fn push(run: Run, extents: &mut Vec<Run>) {
    let max = length_max(run.unwritten);
    match extents.last_mut() {
        Some(last) if last.is_followed_by(&run) && last.length + run.length <= max => {
            last.length += run.length;
        }
        _ => extents.push(run),
    }
}

/// Puts a run, of at most [`length_max`] blocks, into a hole.
pub(super) fn insert(extents: &mut Vec<Run>, run: Run) {
    let index = extents.partition_point(|extent| extent.start < run.start);
    let window = index.saturating_sub(1)..(index + 1).min(extents.len());
    let mut new = Vec::with_capacity(3);
    extents[window.start..index].iter().for_each(|extent| push(*extent, &mut new));
    push(run, &mut new);
    extents[index..window.end].iter().for_each(|extent| push(*extent, &mut new));
    extents.splice(window, new);
}

/// The extents of a list that have blocks in `range`, by index.
fn overlapping(extents: &[Run], range: &Range<FileBlock>) -> Range<usize> {
    let first = extents.partition_point(|extent| extent.end() <= range.start);
    let last = extents.partition_point(|extent| extent.start < range.end);
    first..last.max(first)
}

/// Marks what is allocated in `range` written; what was not before, of all of it.
pub(super) fn convert(extents: &mut Vec<Run>, range: &Range<FileBlock>) -> Vec<Run> {
    let changed = overlapping(extents, range);
    let window = changed.start.saturating_sub(1)..(changed.end + 1).min(extents.len());
    let (before, after) = (FileBlock(0)..range.start, range.end..FileBlock(u64::MAX));
    let (mut new, mut converted) = (Vec::with_capacity(window.len() + 2), Vec::new());
    for extent in &extents[window.clone()] {
        if !extent.unwritten {
            push(*extent, &mut new);
            continue;
        }
        extent.within(&before).into_iter().for_each(|head| push(head, &mut new));
        if let Some(part) = extent.within(range) {
            converted.push(part);
            push(Run { unwritten: false, ..part }, &mut new);
        }
        extent.within(&after).into_iter().for_each(|tail| push(tail, &mut new));
    }
    if !converted.is_empty() {
        extents.splice(window, new);
    }
    converted
}

/// Takes `range` out; what was allocated there.
pub(super) fn remove(extents: &mut Vec<Run>, range: &Range<FileBlock>) -> Vec<Run> {
    let window = overlapping(extents, range);
    let old = &extents[window.clone()];
    let removed: Vec<Run> = old.iter().filter_map(|extent| extent.within(range)).collect();
    let (before, after) = (FileBlock(0)..range.start, range.end..FileBlock(u64::MAX));
    let heads = old.iter().filter_map(|extent| extent.within(&before));
    let tails = old.iter().filter_map(|extent| extent.within(&after));
    let kept: Vec<Run> = heads.chain(tails).collect();
    extents.splice(window, kept);
    removed
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
    fn a_run_joins_the_neighbours_that_it_continues() {
        let mut extents = vec![run(0, 4, 100), run(6, 2, 106)];
        insert(&mut extents, run(4, 2, 104));
        assert_eq!(extents, [run(0, 8, 100)]);
        insert(&mut extents, unwritten(8, 2, 108));
        insert(&mut extents, run(10, 2, 110));
        assert_eq!(extents, [run(0, 8, 100), unwritten(8, 2, 108), run(10, 2, 110)]);
    }

    #[test]
    fn no_extent_grows_longer_than_its_length_can_say() {
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
    fn the_middle_of_an_extent_is_converted_apart_and_then_joined() {
        let mut extents = vec![unwritten(0, 10, 100)];
        assert_eq!(convert(&mut extents, &blocks(4..6)), [unwritten(4, 2, 104)]);
        assert_eq!(extents, [unwritten(0, 4, 100), run(4, 2, 104), unwritten(6, 4, 106)]);
        assert_eq!(convert(&mut extents, &blocks(4..6)), []);
        convert(&mut extents, &blocks(6..10));
        assert_eq!(extents, [unwritten(0, 4, 100), run(4, 6, 104)]);
        convert(&mut extents, &blocks(0..20));
        assert_eq!(extents, [run(0, 10, 100)]);
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
