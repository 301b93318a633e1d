//! Marking of the blocks of files as in use. Linux marks all blocks of a file as free when it
//! replays the inode, and as in use at the end of its replay. If that replay was interrupted, the
//! log still contains the fast commits, and all blocks of their files are marked as free. This does
//! not apply to blocks of extended attributes: they are not in the map, so the replay does not mark
//! them. Not here: the bitmaps (`alloc/recovery.rs`).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use base::{Error, FsBlock, InodeNumber, Result, Unsupported};
use fs::Run;

use super::outcome::{FileState, Outcome};
use super::{existing_record, has_map};
use crate::inode::record::InodeRecord;
use crate::map_walk::{self, MapRoot, MapVisitor};
use crate::volume::Volume;

/// The maximum number of extents, or runs of pointers, in the current maps of all files.
const RUNS_MAX: u64 = 1 << 26;
/// The maximum number of nodes in the current maps of all files.
const NODES_MAX: usize = 1 << 22;

impl Outcome {
    /// Marks blocks as in use, for every kept inode in the fast commits: the blocks that the fast
    /// commits map, and the blocks of the current map, including its nodes. Also marks the blocks
    /// of the current map of inodes that will be deleted. Skips the current map of another reused
    /// inode, since it belongs to the old file. Blocks of damaged inodes and maps are not marked.
    ///
    /// Returns the number of clusters in each current map without damage.
    pub(super) fn claim(
        &self,
        is_kept: impl Fn(InodeNumber) -> bool,
        is_deleted: impl Fn(InodeNumber) -> bool,
    ) -> Result<BTreeMap<InodeNumber, u64>> {
        let mut counts = BTreeMap::new();
        let kept = self.files.iter().filter(|(number, _)| is_kept(**number));
        for run in kept.flat_map(|(_, file)| mapped(file)) {
            self.volume.allocator()?.claim_blocks(run.block, run.length)?;
        }
        let mut claim = Claim {
            volume: &self.volume,
            nodes: HashSet::new(),
            runs: 0,
            clusters: 0,
            last_cluster: None,
            is_sound: true,
            has_warned: false,
            outcome: Ok(()),
        };
        for number in self.numbers() {
            let is_skipped = |file: &FileState| file.is_new || !is_kept(number);
            if !is_deleted(number) && self.files.get(&number).is_some_and(is_skipped) {
                continue;
            }
            match existing_record(&self.volume, number) {
                Ok(Some(record)) => {
                    counts.extend(claim.file(&self.volume, &record)?.map(|count| (number, count)));
                }
                Ok(None) => {}
                Err(error @ Error::Corrupt(_)) => {
                    tracing::warn!(%error, "the blocks of an inode in a fast commit cannot be marked as in use");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(counts)
    }

    /// Returns the inodes that fast commits contain: files, directories, and inodes of names.
    fn numbers(&self) -> BTreeSet<InodeNumber> {
        let mut numbers: BTreeSet<InodeNumber> = self.files.keys().copied().collect();
        numbers.extend(self.directories.keys());
        let names = self.directories.values().flat_map(|names| names.entries.values());
        numbers.extend(names.filter_map(|name| name.now));
        let geometry = self.volume.geometry();
        numbers.retain(|&number| !geometry.is_reserved_inode(number));
        numbers
    }
}

/// Returns the runs that fast commits map in a file.
pub(super) fn mapped(file: &FileState) -> impl Iterator<Item = Run> {
    file.map.runs().filter(|_| file.has_tree())
}

/// A visitor that marks the blocks of maps as in use.
struct Claim<'a> {
    volume: &'a Volume,
    /// The visited nodes. On a hostile volume, several files can share a node.
    nodes: HashSet<FsBlock>,
    /// The number of visited runs and damaged parts.
    runs: u64,
    /// The number of clusters in the present map.
    clusters: u64,
    /// The last cluster of data so far. The next run of the present file may begin in it.
    last_cluster: Option<u64>,
    /// Whether no damage was found in the present map.
    is_sound: bool,
    /// Whether a warning about the present file was logged.
    has_warned: bool,
    /// The first error. It ends the walk.
    outcome: Result<()>,
}

impl Claim<'_> {
    /// Marks the blocks of a file, unless the file has no links. Returns the number of its
    /// clusters, unless its map is damaged.
    fn file(&mut self, volume: &Arc<Volume>, record: &InodeRecord) -> Result<Option<u64>> {
        if record.links == 0 || !has_map(volume, record) {
            return Ok(None);
        }
        (self.clusters, self.last_cluster) = (0, None);
        (self.is_sound, self.has_warned) = (true, false);
        let root = MapRoot::new(volume, record);
        map_walk::walk(volume, &root, self);
        self.outcome.clone()?;
        Ok(self.is_sound.then_some(self.clusters))
    }

    fn claim_node(&self, block: FsBlock) -> Result<()> {
        if self.nodes.len() > NODES_MAX {
            let operation = "replaying fast commits that change files with so many nodes";
            return Err(Unsupported::Operation(operation).into());
        }
        self.volume.allocator()?.claim_blocks(block, 1)
    }

    fn claim_run(&mut self, run: Run) -> Result<()> {
        self.count_run()?;
        let clusters = self.volume.geometry().clusters_of(run.block, run.length);
        let is_shared = self.last_cluster == Some(clusters.start);
        self.clusters += clusters.end - clusters.start - u64::from(is_shared);
        self.last_cluster = Some(clusters.end - 1);
        self.volume.allocator()?.claim_blocks(run.block, run.length)
    }

    fn count_run(&mut self) -> Result<()> {
        self.runs += 1;
        if self.runs > RUNS_MAX {
            let operation = "replaying fast commits that change files with so many extents";
            return Err(Unsupported::Operation(operation).into());
        }
        Ok(())
    }
}

impl MapVisitor for Claim<'_> {
    fn node(&mut self, block: FsBlock) -> bool {
        if self.outcome.is_err() || !self.nodes.insert(block) {
            self.is_sound = false;
            return false;
        }
        self.clusters += 1;
        self.outcome = self.claim_node(block);
        self.outcome.is_ok()
    }

    fn run(&mut self, run: Run) {
        if self.outcome.is_ok() {
            self.outcome = self.claim_run(run);
        }
    }

    fn fault(&mut self, error: Error) {
        self.is_sound = false;
        match error {
            // A block of pointers may have thousands of invalid ones.
            Error::Corrupt(_) => {
                if !self.has_warned {
                    tracing::warn!(%error, "the blocks in damaged parts of a map are not marked as in use");
                    self.has_warned = true;
                }
                if self.outcome.is_ok() {
                    self.outcome = self.count_run();
                }
            }
            error if self.outcome.is_ok() => self.outcome = Err(error),
            _ => {}
        }
    }
}
