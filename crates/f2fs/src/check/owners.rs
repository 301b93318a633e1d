//! The check of summaries: each block in use has an entry that names the node that refers to it.

use base::{FsBlock, Location, Problem};

use super::Check;
use crate::features::Feature;
use crate::ondisk::summary::RawSummary;
use crate::summaries::{AreaSummary, BlockKind, Log, PackSummaries};

const STRUCTURE: &str = "summary";

/// The summaries, and the last one that was read.
#[derive(Default)]
pub(super) struct Owners {
    pub(super) pack: PackSummaries,
    /// Whether the pack's summaries could not be read, which was reported.
    is_pack_unread: bool,
    last: Option<(u32, AreaSummary)>,
}

/// The owner that a block's summary must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) kind: BlockKind,
    pub(super) nid: u32,
    /// The version of the node number. Counts for data only.
    pub(super) version: u8,
    /// The index of the address in the node. Counts for data only.
    pub(super) index: u32,
}

impl Check<'_> {
    fn has_summaries(&self) -> bool {
        // Nothing is ever cleaned on a volume that is never written.
        !self.geometry().features.has(Feature::ReadOnly)
    }

    pub(super) fn read_pack_summaries(&mut self) {
        // The pack of a volume that is never written has the journal, too.
        match self.report.ok(PackSummaries::read(self.volume)) {
            Some(pack) => self.owners.pack = pack,
            None => self.owners.is_pack_unread = true,
        }
    }

    /// Checks the summary of `block`, which is in the main area. Reports the first wrong entry and
    /// a wrong footer of each segment.
    pub(super) fn check_owner(&mut self, block: FsBlock, owner: Owner, location: Location) {
        if !self.has_summaries() {
            return;
        }
        let (segment, index) = self.claims.position(block);
        let logs = Log::all(&self.volume.checkpoint());
        // A node log comes first, as for fsck.f2fs.
        if let Some(log) = logs.iter().rev().find(|log| log.segment == segment) {
            if log.kind != owner.kind {
                self.report_kind(segment, owner, location);
            } else if let Some(found) = self.owners.pack.owner(log, index).cloned() {
                self.compare_owner(segment, &found, owner, location);
            } else if log.kind == BlockKind::Data && !self.owners.is_pack_unread {
                let problem = Problem::Missing("entry");
                self.report.corrupt(STRUCTURE, location, problem);
            }
            return;
        }
        let summary = match &self.owners.last {
            Some((last, summary)) if *last == segment => summary.clone(),
            _ => {
                let read = AreaSummary::read(self.volume, segment);
                let Some(summary) = self.report.ok(read) else { return };
                self.owners.last = Some((segment, summary.clone()));
                summary
            }
        };
        let footer = summary.footer().map(|footer| footer.kind);
        let is_right = match self.report.ok(footer) {
            Some(0) => owner.kind == BlockKind::Data,
            Some(1) => owner.kind == BlockKind::Node,
            _ => false,
        };
        if !is_right {
            self.report_kind(segment, owner, location);
        }
        if let Some(found) = self.report.ok(summary.owner(index)) {
            self.compare_owner(segment, found, owner, location);
        }
    }

    fn report_kind(&mut self, segment: u32, owner: Owner, location: Location) {
        let Some(known) = self.claims.segment_mut(segment) else { return };
        if !std::mem::replace(&mut known.footer_reported, true) {
            let expected = if owner.kind == BlockKind::Node { "type node" } else { "type data" };
            self.report.corrupt(STRUCTURE, location, Problem::Missing(expected));
        }
    }

    fn compare_owner(
        &mut self,
        segment: u32,
        found: &RawSummary,
        owner: Owner,
        location: Location,
    ) {
        if self.claims.segment(segment).entry_reported {
            return;
        }
        let mut fields = vec![("node number", found.nid.get(), owner.nid)];
        if owner.kind == BlockKind::Data {
            fields.push(("version", found.version.into(), owner.version.into()));
            fields.push(("index", found.index.get().into(), owner.index));
        }
        let wrong = fields.into_iter().find(|(_, found, expected)| found != expected);
        if let Some((field, found, expected)) = wrong {
            let (found, expected) = (found.into(), expected.into());
            let problem = Problem::Mismatch { field, found, expected };
            self.report.corrupt(STRUCTURE, location, problem);
            if let Some(known) = self.claims.segment_mut(segment) {
                known.entry_reported = true;
            }
        }
    }
}
