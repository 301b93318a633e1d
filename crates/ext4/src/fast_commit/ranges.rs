//! The ranges of a file that fast commits map and unmap. The last change of each block counts.
//! Not here: changing the file's map.

use std::collections::BTreeMap;
use std::ops::Range;

use base::FileBlock;
use fs::Run;

/// The changes that fast commits make to a file's map.
#[derive(Clone, Debug, Default)]
pub(super) struct MapChanges {
    /// The file blocks that are mapped or unmapped.
    touched: base::Ranges,
    /// The runs to which these blocks are mapped. Touched blocks without a run are unmapped.
    runs: BTreeMap<FileBlock, Run>,
}

impl MapChanges {
    /// Maps a run. Replaces earlier changes in its range.
    pub(super) fn map(&mut self, run: Run) {
        self.unmap(run.start..run.end());
        self.runs.insert(run.start, run);
    }

    /// Unmaps a range. Replaces earlier changes in it.
    pub(super) fn unmap(&mut self, range: Range<FileBlock>) {
        if range.is_empty() {
            return;
        }
        self.touched.insert(range.start.0..range.end.0);
        let before = FileBlock(0)..range.start;
        let after = range.end..FileBlock(u64::MAX);
        let first = self.runs.range(..range.start).next_back();
        let rest = self.runs.range(range.clone());
        let known: Vec<Run> = first.into_iter().chain(rest).map(|(_, run)| *run).collect();
        for run in known.into_iter().filter(|run| run.end() > range.start) {
            self.runs.remove(&run.start);
            for part in [run.within(&before), run.within(&after)].into_iter().flatten() {
                self.runs.insert(part.start, part);
            }
        }
    }

    /// Returns the ranges that are mapped or unmapped, in order.
    pub(super) fn touched(&self) -> impl Iterator<Item = Range<FileBlock>> {
        self.touched.iter().map(|range| FileBlock(range.start)..FileBlock(range.end))
    }

    /// Returns the mapped runs, in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        self.runs.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use base::FsBlock;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_change_of_a_block_counts(
            steps in prop::collection::vec((any::<bool>(), 0..40_u64, 0..20_u64, any::<bool>()), 1..30),
        ) {
            let mut changes = MapChanges::default();
            let mut expected = BTreeMap::new();
            for (step, (maps, start, length, unwritten)) in (0_u64..).zip(steps) {
                let block = |at: u64| FsBlock(1000 * step + at);
                if maps && length > 0 {
                    let run = Run { start: FileBlock(start), length, block: block(start), unwritten };
                    changes.map(run);
                } else {
                    changes.unmap(FileBlock(start)..FileBlock(start + length));
                }
                for at in start..start + length {
                    expected.insert(at, maps.then(|| (block(at), unwritten)));
                }
            }
            let mut found: BTreeMap<u64, Option<(FsBlock, bool)>> = BTreeMap::new();
            for at in changes.touched().flat_map(|range| range.start.0..range.end.0) {
                prop_assert!(found.insert(at, None).is_none());
            }
            for run in changes.runs() {
                for index in 0..run.length {
                    let block = FsBlock(run.block.0 + index);
                    let before = found.insert(run.start.0 + index, Some((block, run.unwritten)));
                    prop_assert_eq!(before, Some(None));
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
