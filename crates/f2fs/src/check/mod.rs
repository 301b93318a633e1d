//! The read-only consistency check of a volume, in the state of its last checkpoint, and then in
//! the state that its recovery leaves, if there is something to recover. It repairs nothing.
//!
//! Each pass uses the results of earlier ones. The superblocks and the checkpoint are checked by
//! themselves (`superblock`, `checkpoint`). The node address table says which inodes exist (`nat`).
//! Each inode is read, with its nodes, blocks, extended attributes and directory entries (`nodes`,
//! `inodes`, `data`, `xattrs`, `directories`), each block and its summary only once (`claims`,
//! `owners`). Then names and links are compared (`tree`), the blocks found with the segment
//! information table, and counts with the checkpoint (`segments`), and usage with the quota files
//! (`quota`). The last pass follows the nodes that were synced after the checkpoint (`chain`),
//! which are not recovered. If nothing was found, the volume is recovered in memory, as a writer
//! would do it, and all passes check the new checkpoint.
//!
//! Memory: one bit for each block and a byte or two for each segment of the main area, and two bits
//! for each node number, of which only the pages with a block or node in use are touched; 20 bytes
//! for each entry of the blocks of the node address table with an inode in use; a few words for
//! each directory, owner, group and project.
//!
//! Blocks of both tables that are holes of the volume's file are not read.

mod bits;
mod chain;
mod checkpoint;
mod claims;
mod data;
mod directories;
mod extent;
mod inodes;
mod nat;
mod nodes;
mod owners;
mod quota;
mod segments;
mod states;
mod superblock;
mod tree;
mod xattrs;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use base::attributes::CheckSummary;
use base::{Error, FsBlock, InodeNumber, Result};
use device::{OverlayDevice, SharedDevice};
use fs::{CheckObserver, FormatOptions, KnownHoles, OnFinding, Report};

use self::bits::Bits;
use self::claims::Claims;
use self::owners::Owners;
use self::quota::QuotaCheck;
use self::states::InodeStates;
use crate::format::Format;
use crate::geometry::Geometry;
use crate::volume::Volume;

/// The maximum memory for what a recovery writes, in bytes.
const RECOVERED_BYTES_MAX: u64 = 1 << 30;

impl Volume {
    /// Checks the whole volume, and calls `found` for each finding: [`Error::Corrupt`] for an
    /// inconsistency, [`Error::Io`] for a part that cannot be read. `found` may end the check.
    pub fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        self.check_with(&mut OnFinding(found))
    }

    /// Checks the whole volume. `observer` receives the findings, and may end the check.
    pub fn check_with(&self, observer: &mut dyn CheckObserver) -> CheckSummary {
        let summary = self.check_state(observer);
        let is_sound = summary.findings == 0 && summary.is_complete;
        let has_recovered = self.recovery().is_some() && self.writer().is_err();
        if !is_sound || !has_recovered {
            return summary;
        }
        match self.recovered() {
            Ok(recovered) => recovered.check_state(observer),
            Err(error) => {
                let mut report = Report::new(observer);
                match error {
                    Error::Corrupt(_) | Error::Io(_) => report.add(error),
                    _ => report.skip_part("checking what the recovery of this volume leaves"),
                }
                CheckSummary { findings: report.findings, is_complete: false, ..summary }
            }
        }
    }

    /// Returns the volume as its recovery leaves it, which is written to memory.
    fn recovered(&self) -> Result<Arc<Self>> {
        let block_size = self.geometry().block_size;
        let device = OverlayDevice::new(Arc::clone(self.device()), block_size, RECOVERED_BYTES_MAX);
        let device: SharedDevice = Arc::new(device);
        let cache = self.metadata().cache();
        let options = FormatOptions { writable: true, ..FormatOptions::default() };
        drop(Self::open_for_writing(Arc::clone(&device), cache, &options, &Format::default())?);
        Self::open(device, cache, &FormatOptions::default())
    }

    /// Checks the state of the last checkpoint, and the nodes that were synced after it.
    fn check_state(&self, observer: &mut dyn CheckObserver) -> CheckSummary {
        let nids = self.geometry().nid_count();
        let mut check = Check {
            volume: self,
            report: Report::new(observer),
            holes: KnownHoles::default(),
            claims: Claims::new(self.geometry()),
            owners: Owners::default(),
            table_nodes: Bits::new(nids),
            table_inodes: Rc::new(Bits::new(nids)),
            nodes: Bits::new(nids),
            states: InodeStates::default(),
            directories: BTreeMap::new(),
            orphans: BTreeSet::new(),
            counts: Counts::default(),
            quota: QuotaCheck::new(self),
            has_unread_files: false,
        };
        for pass in [
            Check::check_superblocks,
            Check::check_checkpoint,
            Check::read_pack_summaries,
            Check::check_nat,
            Check::check_orphans,
            Check::check_inodes,
            Check::check_unreached_nodes,
            Check::check_tree,
            Check::check_segments,
            Check::check_logs,
            Check::check_counts,
            Check::check_quota,
            Check::check_chain,
        ] {
            if check.report.has_ended {
                break;
            }
            pass(&mut check);
        }
        let Counts { inodes, blocks, .. } = check.counts;
        CheckSummary {
            inodes,
            directories: check.directories.len() as u64,
            clusters: blocks,
            findings: check.report.findings,
            is_complete: check.report.is_complete(),
        }
    }
}

/// A check in progress.
struct Check<'v> {
    volume: &'v Volume,
    report: Report<'v>,
    holes: KnownHoles,
    claims: Claims,
    owners: Owners,
    /// The node numbers in use.
    table_nodes: Bits,
    /// The inode numbers in use.
    table_inodes: Rc<Bits>,
    /// The nodes that were reached from their inodes.
    nodes: Bits,
    states: InodeStates,
    directories: BTreeMap<InodeNumber, DirectoryState>,
    /// The inodes to delete when the volume is next mounted for writing.
    orphans: BTreeSet<InodeNumber>,
    counts: Counts,
    quota: QuotaCheck,
    /// Whether an inode or node could not be read, so that blocks in use are unknown. That was
    /// reported.
    has_unread_files: bool,
}

/// The state of a directory.
#[derive(Clone, Copy, Debug, Default)]
struct DirectoryState {
    /// The inode of its "..".
    dot_dot: Option<InodeNumber>,
    /// The parent that the inode stores.
    stored_parent: InodeNumber,
    /// The directory with its name.
    parent: Option<InodeNumber>,
    /// The directory at which the first walk towards the root that passed this directory began.
    passed_from: Option<InodeNumber>,
}

/// Counts of what was found in use.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Blocks, including those that are only reserved.
    blocks: u64,
    nodes: u64,
    inodes: u64,
    /// Segments without blocks in use, that no log writes to, by the segment information table.
    free_segments: u64,
}

impl<'v> Check<'v> {
    fn geometry(&self) -> &'v Geometry {
        self.volume.geometry()
    }

    /// Returns the location of the checkpoint pack.
    fn pack(&self) -> FsBlock {
        self.volume.checkpoint().start
    }
}
