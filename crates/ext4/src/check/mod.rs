//! The read-only consistency check of a volume. It repairs nothing.
//!
//! Each pass uses the results of earlier ones. Groups claim the blocks of the format's own
//! structures (`groups`). Inodes claim their blocks, and their types are recorded (`inodes`,
//! `attributes`, `special`). Directory entries are counted as names of inodes (`directories`,
//! `index`). Then reachability and link counts are checked (`tree`), the references to attributes,
//! the usage in quota files (`quota`), and finally the bitmaps and counts of groups (`bitmaps`).
//!
//! Memory: a few words for each run of clusters of a group in use, and at most one bit for each of
//! its clusters; six bytes for each inode of a page in use, up to a limit; a few words for each
//! directory, shared attribute block, value inode, and owner with a quota.
//!
//! Inode tables are mostly holes in the file of a volume that is new. They are skipped without
//! being read.

mod attributes;
mod bitmaps;
mod claims;
mod directories;
mod encryption;
mod group_claims;
mod groups;
mod index;
mod inodes;
mod quota;
mod special;
mod states;
mod tree;

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::CheckSummary;
use base::{Error, FsBlock, InodeNumber, Location, Problem};
use fs::{CheckObserver, KnownHoles, OnFinding, Report};

use self::claims::Claims;
use self::quota::QuotaUsage;
use self::states::InodeStates;
use crate::features::Feature;
use crate::layout::geometry::Geometry;
use crate::ondisk::superblock::SUPERBLOCK_OFFSET;
use crate::superblock::REVISION_MAX;
use crate::volume::Volume;

const SUPERBLOCK: &str = "superblock";
/// The maximum of the logarithm of the number of groups in a flexible group.
const LOG_GROUPS_PER_FLEX_MAX: u64 = 31;

/// The only encoding of file names, UTF-8 12.1.
const ENCODING_UTF8: u64 = 1;

impl Volume {
    /// Checks the whole volume, and calls `found` for each finding: [`Error::Corrupt`] for an
    /// inconsistency, [`Error::Io`] for a part that cannot be read, [`Error::Unsupported`] for a
    /// part that is not checked. `found` may end the check.
    pub fn check(
        self: &Arc<Self>,
        found: &mut dyn FnMut(Error) -> ControlFlow<()>,
    ) -> CheckSummary {
        self.check_with(&mut OnFinding(found))
    }

    /// Checks the whole volume. `observer` receives the findings, and may end the check.
    pub fn check_with(self: &Arc<Self>, observer: &mut dyn CheckObserver) -> CheckSummary {
        let mut check = Check {
            volume: self,
            report: Report::new(observer),
            holes: KnownHoles::default(),
            claims: Claims::new(self.geometry()),
            states: InodeStates::default(),
            directories: BTreeMap::new(),
            attribute_blocks: BTreeMap::new(),
            value_inodes: BTreeMap::new(),
            orphans: HashSet::new(),
            quota: QuotaUsage::new(self),
        };
        for pass in [
            Check::check_features,
            Check::check_groups,
            Check::check_first_superblock,
            Check::check_replay,
            Check::check_orphans,
            Check::check_inodes,
            Check::check_special,
            Check::check_directories,
            Check::check_tree,
            Check::check_references,
            Check::check_quota,
            Check::check_bitmaps,
        ] {
            if check.report.has_ended {
                break;
            }
            pass(&mut check);
        }
        CheckSummary {
            inodes: check.states.used(),
            directories: check.directories.len() as u64,
            clusters: check.claims.count(),
            findings: check.report.findings,
            is_complete: check.report.is_complete(),
        }
    }
}

/// A check in progress.
struct Check<'v> {
    volume: &'v Arc<Volume>,
    report: Report<'v>,
    holes: KnownHoles,
    claims: Claims,
    states: InodeStates,
    directories: BTreeMap<InodeNumber, DirectoryState>,
    attribute_blocks: BTreeMap<FsBlock, AttributeBlock>,
    /// The number of references to each inode with an attribute value.
    value_inodes: BTreeMap<InodeNumber, u64>,
    /// The inodes to delete or to truncate when the volume is next mounted for writing.
    orphans: HashSet<InodeNumber>,
    quota: QuotaUsage,
}

/// The state of a directory.
#[derive(Clone, Copy, Debug, Default)]
struct DirectoryState {
    /// The inode of its "..".
    dot_dot: Option<InodeNumber>,
    /// The directory with its name.
    parent: Option<InodeNumber>,
    /// The directory at which the first walk towards the root that passed this directory began.
    passed_from: Option<InodeNumber>,
}

/// The state of an attribute block.
#[derive(Clone, Copy, Debug)]
struct AttributeBlock {
    /// The first inode with the block.
    inode: InodeNumber,
    /// The reference count that the block stores.
    stored: u32,
    /// The number of references found.
    found: u32,
    /// The size that attribute values in inodes add to the block count of each inode with this
    /// block, in units of 512 bytes.
    value_sectors: u64,
}

impl<'v> Check<'v> {
    fn geometry(&self) -> &'v Geometry {
        self.volume.geometry()
    }

    /// Reports inodes and devices that the superblock names, and that contradict the features or
    /// each other.
    fn check_named_inodes(&mut self) {
        let features = &self.geometry().features;
        let raw = self.volume.superblock().raw();
        let location = Location::byte(SUPERBLOCK_OFFSET.0);
        if features.has(Feature::NeedsRecovery) && !features.has(Feature::HasJournal) {
            let problem = Problem::Missing("journal that needs_recovery is about");
            self.report.corrupt(SUPERBLOCK, location, problem);
        }
        if features.has(Feature::HasJournal) && raw.journal_inum.get() != 0 {
            // They name an external journal.
            let uuid = raw.journal_uuid.iter().copied().find(|&byte| byte != 0).unwrap_or(0);
            for (field, found) in [
                ("journal UUID", uuid.into()),
                ("journal device", u64::from(raw.journal_dev.get())),
            ] {
                self.report.compare(SUPERBLOCK, location, field, found, 0);
            }
        }
        // As e2fsck, also without the features: reserved inodes have other uses.
        let has_orphan_file = features.has(Feature::OrphanFile);
        for (field, found, usual) in [
            ("user quota inode", raw.usr_quota_inum.get(), 3),
            ("group quota inode", raw.grp_quota_inum.get(), 4),
            ("project quota inode", raw.prj_quota_inum.get(), 0),
            ("orphan file inode", if has_orphan_file { 0 } else { raw.orphan_file_inum.get() }, 0),
        ] {
            // Inode 1 has no contents that a quota file could harm.
            let is_reserved = (2..self.geometry().first_inode).contains(&found);
            if is_reserved && found != usual {
                let problem = Problem::Invalid { field, found: found.into() };
                self.report.corrupt(SUPERBLOCK, location, problem);
            }
        }
    }

    /// Reports features that are not known, and whose structures are not checked, and fields of the
    /// superblock that contradict the features.
    fn check_features(&mut self) {
        let features = &self.geometry().features;
        self.report.ok(features.check_known());
        let raw = self.volume.superblock().raw();
        let location = Location::byte(SUPERBLOCK_OFFSET.0);
        if !features.has(Feature::Bigalloc) {
            let (found, expected) = (raw.clusters_per_group.get(), raw.blocks_per_group.get());
            let (found, expected) = (found.into(), expected.into());
            self.report.compare(SUPERBLOCK, location, "clusters per group", found, expected);
        }
        if !features.has(Feature::HasJournal) {
            let found = raw.journal_inum.get().into();
            self.report.compare(SUPERBLOCK, location, "journal inode", found, 0);
            // It names the device of a journal.
            if let Some(&found) = raw.journal_uuid.iter().find(|&&byte| byte != 0) {
                let found = found.into();
                self.report.compare(SUPERBLOCK, location, "journal UUID", found, 0);
            }
        }
        self.report.ok(self.volume.superblock().check_cluster_size());
        self.check_named_inodes();
        let (found, max) = (raw.rev_level.get().into(), REVISION_MAX.into());
        if found > max {
            let problem = Problem::Range { field: "revision", found, min: 0, max };
            self.report.corrupt(SUPERBLOCK, location, problem);
        }
        let found = raw.log_groups_per_flex.into();
        if found > LOG_GROUPS_PER_FLEX_MAX {
            let (field, max) = ("logarithm of groups per flexible group", LOG_GROUPS_PER_FLEX_MAX);
            self.report.corrupt(SUPERBLOCK, location, Problem::Range { field, found, min: 0, max });
        }
        // As e2fsck: what is reserved for root is at most a half.
        let (high, low) = (raw.r_blocks_count_hi.get(), raw.r_blocks_count_lo.get());
        let high = if features.has(Feature::SixtyFourBit) { high } else { 0 };
        let (found, max) =
            (u64::from(high) << 32 | u64::from(low), self.geometry().block_count / 2);
        if found > max {
            let problem = Problem::Range { field: "reserved block count", found, min: 0, max };
            self.report.corrupt(SUPERBLOCK, location, problem);
        }
        if features.has(Feature::Casefold) {
            let found = raw.encoding.get().into();
            self.report.compare(SUPERBLOCK, location, "encoding", found, ENCODING_UTF8);
        }
        if features.has(Feature::OrphanFile)
            && self.volume.superblock().inodes.orphan_file.is_none()
        {
            self.report.corrupt(
                SUPERBLOCK,
                location,
                Problem::Missing("number of the orphan file"),
            );
        }
    }
}
