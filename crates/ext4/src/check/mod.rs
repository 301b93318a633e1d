//! The read-only consistency check of a volume. Nothing is repaired.
//!
//! The order of the passes follows their needs: groups claim the blocks of the format's own structures
//! (`groups`); inodes claim theirs and give their types (`inodes`, `maps`, `attributes`, `special`);
//! directories give names to inodes (`directories`, `index`); then reachability and link counts are checked
//! (`tree`), and at last the bitmaps and counts (`bitmaps`).
//!
//! Memory: a bit for each cluster and six bytes for each inode near any in use, up to a limit,
//! and a few words for each directory, shared attribute block and attribute inode.

mod attributes;
mod bitmaps;
mod claims;
mod directories;
mod groups;
mod index;
mod inodes;
pub(crate) mod maps;
mod special;
mod states;
mod tree;

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::CheckSummary;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result, Unsupported};

use self::claims::Claims;
use self::states::InodeStates;
use crate::layout::geometry::Geometry;
use crate::volume::Volume;

impl Volume {
    /// Checks the whole volume, and calls `found` for each finding: [`Error::Corrupt`] for an inconsistency,
    /// [`Error::Io`] for a part that cannot be read, [`Error::Unsupported`] for a part that is not checked. `found`
    /// may end the check.
    pub fn check(
        self: &Arc<Self>,
        found: &mut dyn FnMut(Error) -> ControlFlow<()>,
    ) -> CheckSummary {
        let mut check = Check {
            volume: self,
            report: Report { found, findings: 0, is_broken_off: false, is_partial: false },
            claims: Claims::new(self.geometry()),
            states: InodeStates::default(),
            directories: BTreeMap::new(),
            attribute_blocks: BTreeMap::new(),
            value_inodes: BTreeMap::new(),
            orphans: HashSet::new(),
        };
        for pass in [
            Check::check_groups,
            Check::check_first_superblock,
            Check::check_orphans,
            Check::check_inodes,
            Check::check_special,
            Check::check_directories,
            Check::check_tree,
            Check::check_references,
            Check::check_bitmaps,
        ] {
            if check.report.is_broken_off {
                break;
            }
            pass(&mut check);
        }
        CheckSummary {
            inodes: check.states.used(),
            directories: check.directories.len() as u64,
            clusters: check.claims.count(),
            findings: check.report.findings,
            is_complete: !check.report.is_broken_off && !check.report.is_partial,
        }
    }
}

/// A check under way.
struct Check<'v> {
    volume: &'v Arc<Volume>,
    report: Report<'v>,
    claims: Claims,
    states: InodeStates,
    directories: BTreeMap<InodeNumber, DirectoryState>,
    attribute_blocks: BTreeMap<FsBlock, AttributeBlock>,
    /// References to the inodes that hold attribute values.
    value_inodes: BTreeMap<InodeNumber, u64>,
    /// Inodes that are to be deleted or truncated when the volume is next mounted for writing.
    orphans: HashSet<InodeNumber>,
}

/// The state of a directory.
#[derive(Clone, Copy, Debug, Default)]
struct DirectoryState {
    /// The inode of its "..".
    dot_dot: Option<InodeNumber>,
    /// The directory that has a name for it.
    parent: Option<InodeNumber>,
    /// The directory from which it was met first on the way to the root.
    passed_from: Option<InodeNumber>,
}

/// The state of an attribute block.
#[derive(Clone, Copy, Debug)]
struct AttributeBlock {
    /// References that it says it has.
    stored: u32,
    /// References found.
    found: u32,
    /// The blocks that attribute values in inodes add to the block count of each inode with this block, in units of
    /// 512 bytes.
    value_sectors: u64,
}

/// Where findings go.
struct Report<'f> {
    found: &'f mut dyn FnMut(Error) -> ControlFlow<()>,
    findings: u64,
    is_broken_off: bool,
    /// Whether something was left out.
    is_partial: bool,
}

impl Report<'_> {
    fn add(&mut self, error: Error) {
        if !self.is_broken_off {
            self.findings += 1;
            self.is_broken_off = (self.found)(error).is_break();
        }
    }

    /// Reports a part of the check that is skipped since it would take too long.
    fn leave_out(&mut self, what: &'static str) {
        self.is_partial = true;
        self.add(Unsupported::Operation(what).into());
    }

    /// Ends the check early: the rest would take too long.
    fn break_off(&mut self, what: &'static str) {
        self.leave_out(what);
        self.is_broken_off = true;
    }

    fn corrupt(&mut self, structure: &'static str, location: Location, problem: Problem) {
        self.add(Error::corrupt(structure, location, problem));
    }

    /// Returns the value, or nothing after reporting why there is none.
    fn take<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Reports two numbers that must be equal and are not.
    fn compare(
        &mut self,
        structure: &'static str,
        location: Location,
        field: &'static str,
        found: u64,
        expected: u64,
    ) {
        if found != expected {
            self.corrupt(structure, location, Problem::Mismatch { field, found, expected });
        }
    }
}

impl<'v> Check<'v> {
    fn geometry(&self) -> &'v Geometry {
        self.volume.geometry()
    }
}
