//! The map of the internal journal: in its inode, and the superblock's copy of it.
//! Not here: the journal (`jbd2`), and where a volume has it (`recovery/locate.rs`).

use std::collections::HashSet;
use std::ops::Range;

use base::attributes::FileType;
use base::{Error, FsBlock, InodeNumber};
use fs::Run;

use crate::core::Core;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::map_walk::{self, MapRoot, MapVisitor};
use crate::ondisk::extent;

/// The value of `jnl_backup_type` for a copy of the block map.
const BACKUP_OF_BLOCKS: u8 = 1;
/// The maximum number of runs of a journal: one per block of a block map of 4 GiB. A hostile block
/// map can have far more runs, since it can refer to a few blocks many times.
pub(crate) const RUNS_MAX: usize = 1 << 20;

/// Returns the block ranges of the internal journal, including those of its map. If the map cannot
/// be read completely, adds the ranges in the superblock's copy of it.
pub(crate) fn journal_runs(volume: &Core) -> AllRuns {
    let Some(number) = volume.superblock().inodes.journal else { return AllRuns::default() };
    let mut runs = AllRuns::default();
    match volume.inode_record(number) {
        Ok(record) => runs.add(volume, &record),
        Err(error) => runs.fault(error),
    }
    if runs.is_damaged {
        if let Some(record) = backup_record(volume, number) {
            runs.add(volume, &record);
        }
    }
    runs
}

/// All blocks of the journal's map, including those of the map itself.
#[derive(Default)]
pub(crate) struct AllRuns {
    pub ranges: Vec<Range<u64>>,
    /// Whether ranges are missing, since there are more than the maximum.
    pub is_incomplete: bool,
    nodes: HashSet<FsBlock>,
    /// Whether a part of the map cannot be read.
    is_damaged: bool,
}

impl AllRuns {
    /// Adds the blocks of the map in `record`.
    fn add(&mut self, volume: &Core, record: &InodeRecord) {
        self.nodes.clear();
        map_walk::walk(volume, &MapRoot::new(volume, record), self);
    }

    fn push(&mut self, range: Range<u64>) {
        if self.ranges.len() < RUNS_MAX {
            self.ranges.push(range);
        } else {
            self.is_incomplete = true;
        }
    }
}

impl MapVisitor for AllRuns {
    fn node(&mut self, block: FsBlock) -> bool {
        let is_new = self.nodes.insert(block);
        if is_new {
            self.push(block.0..block.0 + 1);
        }
        is_new && !self.is_incomplete
    }

    fn run(&mut self, run: Run) {
        self.push(run.block.0..run.block.0 + run.length);
    }

    fn fault(&mut self, _error: Error) {
        self.is_damaged = true;
    }
}

/// Returns the journal's inode from its copy in the superblock.
pub(crate) fn backup_record(volume: &Core, number: InodeNumber) -> Option<InodeRecord> {
    let raw = volume.superblock().raw();
    if raw.jnl_backup_type != BACKUP_OF_BLOCKS {
        return None;
    }
    let [map @ .., size_high, size_low] = &raw.jnl_blocks;
    let mut block_area = [0; 60];
    for (bytes, word) in block_area.chunks_exact_mut(4).zip(map) {
        bytes.copy_from_slice(&word.get().to_le_bytes());
    }
    // The copy has no flags. The root of an extent tree in an inode has space for 4 entries. In a
    // block map that begins with the same 8 bytes, the second block would be far before the first.
    let [magic_low, magic_high, _, _, max_low, max_high, ..] = block_area;
    let is_tree = u16::from_le_bytes([magic_low, magic_high]) == extent::MAGIC
        && u16::from_le_bytes([max_low, max_high]) == 4;
    Some(InodeRecord {
        number,
        kind: FileType::Regular,
        permissions: 0o600,
        uid: 0,
        gid: 0,
        links: 1,
        size: u64::from(size_high.get()) << 32 | u64::from(size_low.get()),
        blocks: 0,
        flags: if is_tree { InodeFlags::EXTENTS } else { InodeFlags::default() },
        generation: 0,
        version: 0,
        accessed: Default::default(),
        changed: Default::default(),
        modified: Default::default(),
        created: None,
        deleted: 0,
        project: None,
        attribute_block: None,
        block_area,
        attribute_area: Box::default(),
        attribute_area_start: 0,
        // mke2fs creates journal inodes with generation 0.
        checksum_seed: volume.geometry().inode_seed(number, 0),
    })
}
