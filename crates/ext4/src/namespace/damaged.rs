//! Deletion of inodes with a damaged map or damaged attributes. Blocks that can still be reached
//! are freed. The rest is left to e2fsck, and the volume is marked with errors. As in the kernel,
//! an inode that has lost its last name is deleted in spite of damage. Not here: inodes without
//! damage, and inodes with a damaged record (`block_validity.rs`), which keep their names.

use std::ops::Range;

use base::{Error, FileBlock, FsBlock, Result};
use fs::Run;

use crate::indirect;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::map_walk::{self, MapRoot, MapVisitor};

/// Maximum number of valid leaves of one file that are examined.
const LEAVES_MAX: usize = 1 << 16;
/// Maximum number of blocks of one file's map that are examined. A hostile map may refer to each of
/// them many times.
const NODES_MAX: usize = 1 << 18;

impl Inode {
    /// Unmaps the reachable parts of a map in which `error` was found: each branch of its root,
    /// from its end down to the damage. Errors: `error` itself if it is not corruption, and errors
    /// that made the volume read-only.
    pub(super) fn free_sound_branches(&self, error: Error) -> Result<()> {
        self.record_corruption(error)?;
        for branch in self.branches().into_iter().rev() {
            if let Err(error) = self.unmap_all(branch) {
                self.record_corruption(error)?;
            }
        }
        Ok(())
    }

    /// Removes the inode's reference to an attribute block in which `error` was found.
    pub(super) fn drop_attributes(&self, error: Error) -> Result<()> {
        self.record_corruption(error)?;
        let drop_reference =
            |handle: &mut _| self.update(handle, |record| record.attribute_block = None);
        self.volume().change(1, drop_reference)
    }

    /// Reports corruption to the volume. Errors: any other error, and errors that made the volume
    /// read-only.
    fn record_corruption(&self, error: Error) -> Result<()> {
        if !matches!(error, Error::Corrupt(_)) {
            return Err(error);
        }
        self.volume().apply_error_policy(&error);
        self.volume().check_writable()?;
        tracing::warn!(%error, "inode {} is damaged: only what can be read of it is deleted", self.number());
        Ok(())
    }

    /// Returns the ranges of the file in the different leaves of its map, as far as the nodes above
    /// them are valid.
    fn branches(&self) -> Vec<Range<FileBlock>> {
        let (record, volume) = (self.record(), self.volume());
        if !record.flags.contains(InodeFlags::EXTENTS) {
            return indirect::branches(volume.geometry());
        }
        let validity = volume.block_validity(self.number());
        let root = MapRoot { validity, ..MapRoot::new(volume, &record) };
        let mut leaves = Leaves::default();
        map_walk::walk(volume, &root, &mut leaves);
        leaves.ranges
    }
}

/// The ranges of the valid leaves of a map.
#[derive(Default)]
struct Leaves {
    ranges: Vec<Range<FileBlock>>,
    /// The number of examined blocks of the map.
    nodes: usize,
}

impl MapVisitor for Leaves {
    fn node(&mut self, _block: FsBlock) -> bool {
        self.nodes += 1;
        self.nodes <= NODES_MAX && self.ranges.len() < LEAVES_MAX
    }

    fn run(&mut self, _run: Run) {}

    fn leaf(&mut self, range: Range<FileBlock>) {
        self.ranges.push(range);
    }

    /// No leaf below this part can be reached.
    fn fault(&mut self, _error: Error) {}
}
