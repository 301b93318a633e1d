//! Clusters of compressed files that are written as a whole: their new blocks, and the change of
//! their addresses.
//!
//! A cluster that is stored in compressed form has a mark in its first slot, then the addresses of
//! its blocks, then blocks that are reserved for data that does not compress. Not here: the choice
//! of the clusters (`iomap`), and their form (`compress`).

use std::collections::HashMap;
use std::ops::Range;

use base::{Error, FileBlock, FsBlock, Result};
use iomap::{ClusterPlacement, ClusterWrite, StoredRun, Token};

use super::LiveInode;
use crate::edit::Editor;
use crate::inode::map::BlockState;
use crate::ondisk::node::{COMPRESS_ADDRESS, NEW_ADDRESS, NULL_ADDRESS};
use crate::volume::Volume;
use crate::write::Reserved;

/// The new blocks of a part of a cluster, and the token of their placement.
pub(super) type Part = (u64, Range<FsBlock>);

/// Placements of whole clusters, by the token of their first part.
pub(super) type PlacedClusters = HashMap<u64, PlacedCluster>;

/// The placement of a whole cluster.
#[derive(Debug)]
pub(super) struct PlacedCluster {
    /// The blocks of the file whose data is written.
    blocks: Range<FileBlock>,
    is_encoded: bool,
    parts: Vec<Part>,
}

impl PlacedCluster {
    /// Ends the placement, whose data did not reach the device.
    pub(super) fn unplace(&self, volume: &Volume) {
        unplace(volume, &self.parts);
    }
}

/// Ends placements whose data is not used.
pub(super) fn unplace(volume: &Volume, parts: &[Part]) {
    if let Ok(writer) = volume.writer() {
        parts.iter().for_each(|(token, _)| writer.unplace(volume, *token));
    }
}

impl LiveInode {
    /// Allocates blocks for a whole cluster.
    pub(super) fn place_whole(
        &self,
        cluster: &ClusterWrite,
        may_wait: bool,
    ) -> Result<ClusterPlacement> {
        let shift = self.volume.geometry().block_size.shift();
        let blocks = self.blocks_of(&cluster.range);
        let parts = self.place_slots(
            FileBlock(blocks.start.0 + u64::from(cluster.is_encoded)),
            cluster.stored_length >> shift,
            may_wait,
        )?;
        let runs = parts.iter().map(|(_, range)| StoredRun {
            address: self.volume.geometry().device_offset(range.start),
            length: (range.end.0 - range.start.0) << shift,
        });
        let (runs, token) = (runs.collect(), parts[0].0);
        let placed = PlacedCluster { blocks, is_encoded: cluster.is_encoded, parts };
        self.clusters.lock().insert(token, placed);
        Ok(ClusterPlacement { runs, token: Token(token) })
    }

    /// Allocates `count` blocks for the slots from `at` on, all or none.
    pub(super) fn place_slots(
        &self,
        at: FileBlock,
        count: u64,
        may_wait: bool,
    ) -> Result<Vec<Part>> {
        loop {
            match self.try_place_slots(at, count) {
                // The blocks of other parts are not kept meanwhile: two threads would wait for
                // those of each other.
                Err(Error::NoSpace) if may_wait && self.volume.writer()?.wait_for_blocks()? => {}
                placed => return placed,
            }
        }
    }

    fn try_place_slots(&self, at: FileBlock, count: u64) -> Result<Vec<Part>> {
        let (writer, temperature) = (self.volume.writer()?, self.current().record().temperature);
        let (mut parts, mut done) = (Vec::new(), 0);
        while done < count {
            let owner = (self.number, FileBlock(at.0 + done));
            let placed = writer.place(self.volume.core(), owner, count - done, temperature);
            let (token, range) = placed.inspect_err(|_| unplace(&self.volume, &parts))?;
            done += range.end.0 - range.start.0;
            parts.push((token, range));
        }
        Ok(parts)
    }

    /// Removes the placement of a whole cluster. `None` if `token` is that of another placement.
    pub(super) fn take_cluster(&self, token: Token) -> Option<PlacedCluster> {
        self.clusters.lock().remove(&token.0)
    }

    /// Gives a cluster the blocks of a placement, whose data is on the device. Returns the blocks
    /// of the file whose data was written, and those of the device that the cluster had.
    pub(super) fn put_cluster(
        &self,
        editor: &mut Editor<'_>,
        reserved: &mut Reserved<'_>,
        placed: &PlacedCluster,
    ) -> Result<(Range<FileBlock>, Vec<Range<FsBlock>>)> {
        let PlacedCluster { blocks, is_encoded, parts } = placed;
        let first = blocks.start;
        let inode = editor.inode(self.number)?;
        let length = inode
            .record()
            .compression
            .map_or(0, |compression| u64::from(compression.cluster_size.blocks()));
        let was_encoded =
            matches!(inode.piece_at(first, blocks.end)?.state, BlockState::Compressed(_));
        let saved_before = if was_encoded { inode.saved_in_cluster(first)? } else { 0 };
        let mut slots = Vec::with_capacity(length as usize);
        if *is_encoded {
            slots.push(COMPRESS_ADDRESS);
        }
        for (token, range) in parts {
            reserved.take_placement(*token);
            // Addresses have 32 bits.
            slots.extend((range.start.0..range.end.0).map(|block| block as u32));
        }
        let stored = slots.len() as u64 - u64::from(*is_encoded);
        let mut saved = 0;
        if *is_encoded {
            slots.resize(length as usize, NEW_ADDRESS);
            saved = length - stored;
        } else if was_encoded {
            // The file ends in the cluster, or its data does not compress any more.
            slots.resize(length as usize, NULL_ADDRESS);
        }
        let replaced = editor.set_cluster(self.number, first, &slots)?;
        if !was_encoded {
            reserved.remove(replaced.holes);
        }
        if saved != saved_before {
            editor.count_saved_blocks(self.number, saved as i64 - saved_before as i64)?;
        }
        Ok((blocks.clone(), replaced.blocks))
    }
}
