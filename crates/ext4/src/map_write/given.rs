//! Mapping of data blocks that recovery already knows, so that none are allocated. Not here:
//! marking them as in use.

use base::{FileBlock, Result};

use super::edit::MapEdit;
use super::leaf::length_max;
use crate::alloc::Purpose;
use crate::inode::Inode;
use crate::journal::Handle;
use fs::Run;

impl Inode {
    /// Maps the first blocks of `run` in a hole of an extent tree, as many as one extent in one
    /// leaf can have. The blocks are already marked as in use. Returns the number of mapped blocks.
    /// Uses the credits of one call of [`map_new_blocks`](Self::map_new_blocks).
    pub(crate) fn map_given_blocks(&self, handle: &mut Handle<'_>, run: Run) -> Result<u64> {
        self.edit_map(handle, Purpose::Metadata, |edit| {
            let (tree, store) = edit.tree()?;
            let path = tree.path(store, run.start)?;
            let left = path.range().end.0.saturating_sub(run.start.0);
            let length = run.length.min(length_max(run.unwritten)).min(left.max(1));
            let run = Run { length, ..run };
            let clusters = edit.clusters_added(&run)?;
            let (tree, store) = edit.tree()?;
            tree.insert(store, path, run)?;
            store.clusters += clusters as i64;
            edit.change.record(run.start, run.end(), Some(run));
            Ok(length)
        })
    }
}

impl MapEdit<'_, '_, '_> {
    /// Returns the number of clusters that an unmapped run adds to the file.
    fn clusters_added(&mut self, run: &Run) -> Result<u64> {
        let per_cluster = u64::from(self.geometry().blocks_per_cluster());
        let first = FileBlock(run.start.0 - run.start.0 % per_cluster);
        let end = FileBlock(run.end().0.next_multiple_of(per_cluster));
        let clusters = (end.0 - first.0) / per_cluster;
        if per_cluster == 1 {
            return Ok(clusters);
        }
        let (tree, store) = self.tree()?;
        let before = tree.extent_before(store, run.start)?;
        let after = tree.extent_from(store, run.end())?;
        let shares_first = before.is_some_and(|(before, _)| before.end() > first);
        let shares_last = after.is_some_and(|after| after.start < end);
        let shared = match clusters {
            1 => u64::from(shares_first || shares_last),
            _ => u64::from(shares_first) + u64::from(shares_last),
        };
        Ok(clusters - shared)
    }
}
