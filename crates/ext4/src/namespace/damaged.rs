//! Deletion of inodes with a damaged map or damaged attributes. Blocks that can still be reached are freed. The rest
//! is left to e2fsck, and the volume is marked with errors. As in the kernel, an inode that has lost its last name is
//! deleted in spite of damage.
//! Not here: inodes without damage, and inodes with a damaged record (`layout/block_validity.rs`), which keep their
//! names.

use std::ops::Range;

use base::{Error, FileBlock, Location, Result};

use crate::extent::{self, Expected, Node, STRUCTURE};
use crate::indirect;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::layout::geometry::FILE_BLOCKS_MAX;

/// Maximum number of leaves of one file that are examined.
const BRANCHES_MAX: usize = 1 << 16;

impl Inode {
    /// Unmaps the reachable parts of a map in which `error` was found: each branch of its root, from its end down to
    /// the damage. Errors: `error` itself if it is not corruption, and errors that made the volume read-only.
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

    /// Reports corruption to the volume. Errors: any other error, and errors that made the volume read-only.
    fn record_corruption(&self, error: Error) -> Result<()> {
        if !matches!(error, Error::Corrupt(_)) {
            return Err(error);
        }
        self.volume().apply_error_policy(&error);
        self.volume().check_writable()?;
        tracing::warn!(%error, "inode {} is damaged: only what can be read of it is deleted", self.number());
        Ok(())
    }

    /// Returns the ranges of the file in the different leaves of its map, as far as the nodes above them are valid.
    fn branches(&self) -> Vec<Range<FileBlock>> {
        let (record, geometry) = (self.record(), self.volume().geometry());
        if !record.flags.contains(InodeFlags::EXTENTS) {
            return indirect::branches(geometry);
        }
        let location = Location::inode(self.number());
        let validity = self.volume().block_validity(self.number());
        let mut branches = Vec::new();
        let root = Node::parse(&record.block_area, validity, Expected::of_root(), location);
        if let Ok(root) = root {
            self.add_branches(&root, FileBlock(FILE_BLOCKS_MAX), &mut branches);
        }
        branches
    }

    /// Adds the ranges of the leaves below a node that ends at `end`. The depth falls with each call.
    fn add_branches(&self, node: &Node, end: FileBlock, branches: &mut Vec<Range<FileBlock>>) {
        let (volume, seed) = (self.volume(), self.record().checksum_seed);
        let validity = volume.block_validity(self.number());
        let ends = node.children().iter().skip(1).map(|&(next, _)| next).chain([end]);
        for (&(start, block), end) in node.children().iter().zip(ends) {
            if branches.len() >= BRANCHES_MAX {
                return;
            }
            let range = start..end;
            let location = Location::inode(self.number()).at_file_block(start).at_block(block);
            let expected = || Expected { depth: node.depth.checked_sub(1), range: range.clone() };
            let child = volume.read_metadata(block, STRUCTURE, location).and_then(|bytes| {
                extent::verify_block(&bytes, validity, &expected(), seed, location)?;
                Node::parse(&bytes, validity, expected(), location)
            });
            match child {
                Ok(child) if child.depth > 0 => self.add_branches(&child, end, branches),
                Ok(_) => branches.push(range),
                // No leaf below this node can be reached.
                Err(_) => {}
            }
        }
    }
}
