//! Clusters of compressed files that are stored block by block instead: before the file ends in
//! one, and before a part of one changes that is larger than a folio can be.
//!
//! The format allows this for any cluster of a compressed file, and Linux does it for data that
//! does not compress. The data is written to new blocks, and one change then replaces the mark and
//! the addresses of the whole cluster, so that a crash leaves either form.
//!
//! While the compressed form is still being read, no other data goes to its blocks
//! (`write/segments/held.rs`). Not here: clusters that are written (`clusters.rs`), their form
//! (`compress`), and its parsing for reads (`inode/clusters.rs`).

use std::ops::Range;

use base::{FileBlock, FileOffset, Result, Unsupported};
use iomap::{Cluster, MapRead};

use super::clusters::{Part, unplace};
use super::{LiveInode, NODES_MAX};
use crate::inode::map::{BlockState, END};
use crate::write::Demand;

impl LiveInode {
    /// Fails for compressed files, whose clusters only writes and truncations change, as in Linux.
    pub(super) fn check_uncompressed(&self) -> Result<()> {
        if self.current().record().compression.is_none() {
            return Ok(());
        }
        let feature = "pinning, atomic writes, holes and shifts of compressed files";
        Err(Unsupported::Inode { inode: self.number, feature }.into())
    }

    /// Stores the compressed clusters with any of `blocks` block by block. No data of them is
    /// dirty.
    pub(super) fn decompress(&self, blocks: &Range<FileBlock>) -> Result<()> {
        if self.current().record().compression.is_none() {
            return Ok(());
        }
        let mut at = blocks.start;
        while at < blocks.end {
            let current = self.current();
            let piece = current.piece_at(at, blocks.end)?;
            if matches!(piece.state, BlockState::Compressed(_)) {
                let offset = FileOffset(at.0 << self.volume.geometry().block_size.shift());
                let cluster = current.cluster(offset)?;
                let data = self.decoded(&cluster);
                // Cleaning may have moved the cluster, and its old blocks may have other data.
                if self.current().cluster(offset)? != cluster {
                    continue;
                }
                if !self.replace_cluster(&cluster, &data?)? {
                    continue;
                }
            }
            at = piece.end;
        }
        Ok(())
    }

    /// Stores the cluster that a truncation to `end` cuts block by block.
    pub(super) fn decompress_cut(&self, end: FileBlock) -> Result<()> {
        let cut = self
            .current()
            .record()
            .compression
            .filter(|compression| compression.cluster_size.first_block(end) != end);
        match cut {
            Some(_) => self.decompress(&(end..FileBlock(end.0 + 1))),
            None => Ok(()),
        }
    }

    /// Stores the cluster that the file ends in block by block, before the file grows to `size`
    /// bytes: data past the end, which Linux leaves there if the power fails after a truncation,
    /// must not be shown.
    pub(super) fn decompress_end(&self, size: u64) -> Result<()> {
        let current = self.current();
        if current.record().compression.is_none() || size <= current.attributes().size {
            return Ok(());
        }
        let blocks = self.volume.geometry().block_size.blocks_for(current.attributes().size);
        self.decompress_cut(FileBlock(blocks))
    }

    /// Returns how many blocks compression saves in the clusters from block `end` on.
    pub(super) fn saved_from(&self, end: FileBlock) -> Result<u64> {
        let (current, mut at, mut saved) = (self.current(), end, 0);
        let Some(compression) = current.record().compression else { return Ok(0) };
        let size = compression.cluster_size;
        if current.record().inline_area.is_some() || compression.saved_blocks == 0 {
            return Ok(0);
        }
        while at < END {
            let piece = current.piece_at(at, END)?;
            if matches!(piece.state, BlockState::Compressed(_)) {
                saved += current.saved_in_cluster(size.first_block(at))?;
            }
            at = piece.end;
        }
        Ok(saved)
    }

    /// Stores `data`, which was read from `cluster`, block by block instead. Returns false, and
    /// changes nothing, if the cluster was moved since.
    fn replace_cluster(&self, cluster: &Cluster, data: &[u8]) -> Result<bool> {
        let block_size = self.volume.geometry().block_size;
        let first = block_size.file_block(cluster.offset);
        let count = cluster.length >> block_size.shift();
        let blocks = first..FileBlock(first.0 + count);
        let parts = self.place_slots(first, count, true)?;
        let changed = self.store(first, data, &parts).and_then(|()| {
            self.change(Demand::Adds(NODES_MAX), &[], |editor, reserved| {
                let inode = self.volume.inode(self.number)?;
                if inode.cluster(cluster.offset)? != *cluster {
                    return Ok(false);
                }
                let saved = inode.saved_in_cluster(first)?;
                let (mut at, mut old) = (first, Vec::new());
                for (token, range) in &parts {
                    reserved.take_placement(*token);
                    old.extend(editor.set_addresses(self.number, at, range.clone())?.blocks);
                    at.0 += range.end.0 - range.start.0;
                }
                self.map_changed();
                reserved.hold(self.volume.core(), (self.number, &blocks), &old);
                editor.count_saved_blocks(self.number, -(saved as i64)).map(|()| true)
            })
        });
        if changed != Ok(true) {
            unplace(&self.volume, &parts);
        }
        self.map_changed();
        changed
    }

    /// Returns the data of a cluster, with zeroes past the end of the file.
    fn decoded(&self, cluster: &Cluster) -> Result<Vec<u8>> {
        let current = self.current();
        let length = cluster.stored.iter().map(|run| run.length).sum::<u64>();
        // A cluster has at most 256 blocks.
        let (mut stored, mut data) = (vec![0; length as usize], vec![0; cluster.length as usize]);
        let mut rest = stored.as_mut_slice();
        for run in &cluster.stored {
            let (part, others) = rest.split_at_mut(run.length as usize);
            self.volume.device().read_at(run.address, part)?;
            rest = others;
        }
        if let Some(encoding) = current.encoding() {
            encoding.decode.decode(cluster.offset, &mut stored, &mut data)?;
        }
        let valid = current.attributes().size.saturating_sub(cluster.offset.0);
        if let Some(behind) = usize::try_from(valid).ok().and_then(|valid| data.get_mut(valid..)) {
            behind.fill(0);
        }
        Ok(data)
    }

    /// Writes the data of blocks from `at` on to new blocks.
    fn store(&self, at: FileBlock, data: &[u8], parts: &[Part]) -> Result<()> {
        let block_size = self.volume.geometry().block_size;
        let (transform, mut at, mut rest) = (self.transform(), at, data);
        for (_, range) in parts {
            let count = range.end.0 - range.start.0;
            let (part, others) = rest.split_at((count << block_size.shift()) as usize);
            let mut written = part.to_vec();
            if let Some(transform) = &transform {
                transform.store(FileOffset(at.0 << block_size.shift()), part, &mut written)?;
            }
            let offset = self.volume.geometry().device_offset(range.start);
            self.volume.device().write_at(offset, &written)?;
            (at.0, rest) = (at.0 + count, others);
        }
        Ok(())
    }
}
