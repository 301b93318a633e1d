//! The charges of changes: what the inodes' nodes say after an operation, compared with before it.
//! So no operation has to count by itself. The quota files change in the overlay, together with the
//! nodes, and become durable with them.
//!
//! A recovery is charged in the same way, compared with the checkpoint: what fsync(2) writes does
//! not have the quota files.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base::{Error, InodeNumber, Location, Result};
use fs::quota::{Place, QuotaFile, QuotaKind, UsageChange, charge_at};

use super::Charged;
use super::edited::EditedFile;
use crate::core::Core;
use crate::edit::Editor;
use crate::nat::Nid;
use crate::node::Node;
use crate::ondisk::checkpoint::QUOTA_NEEDS_FSCK;
use crate::overlay::{Change, ChangedNode};

/// The blocks that an operation may add to the next checkpoint: those of the entries for two ids of
/// each kind, and of new entries.
const BLOCKS_MAX: u64 = 16;

/// The kind and the id of a quota.
type Owner = (usize, u32);

/// The quota files of a volume that is open for writing.
#[derive(Debug)]
pub(crate) struct Quotas {
    /// The files by kind. All are `None` while quota is off: if the volume has none, or if the
    /// files need repair.
    files: [Option<InodeNumber>; QuotaKind::ALL.len()],
    /// The entries that were changed. One that was taken back is not there.
    places: HashMap<Owner, Place>,
    /// Whether the files needed repair before.
    needed_repair: bool,
    /// The error that has turned quota off.
    failure: Option<Error>,
}

impl Quotas {
    /// Returns the quota files of a volume. Those that need repair are left as they are, as in
    /// Linux, and all of them if recovery has left them with `failure`.
    pub(crate) fn of(volume: &Core, failure: Option<Error>) -> Self {
        let needed_repair = volume.checkpoint().has(QUOTA_NEEDS_FSCK);
        let is_off = needed_repair || failure.is_some();
        let files = if is_off { Default::default() } else { volume.superblock().quota_files() };
        Self { files, places: HashMap::new(), needed_repair, failure }
    }

    /// Returns whether the quota files need repair.
    pub(crate) fn is_damaged(&self) -> bool {
        self.needed_repair || self.failure.is_some()
    }

    /// Returns the error that has turned quota off, if there was one since the volume was opened.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Returns about how many blocks an operation adds to the next checkpoint.
    pub(crate) fn blocks_max(&self) -> u64 {
        if self.is_on() { BLOCKS_MAX } else { 0 }
    }

    fn is_on(&self) -> bool {
        self.files.iter().any(Option::is_some)
    }

    /// Charges the changes of the operation that is under way.
    pub(crate) fn charge_operation(&mut self, editor: &mut Editor<'_>) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let changed = editor.overlay.read().changed_by_operation();
        self.charge(editor, changed)
    }

    /// Charges all changes since the last checkpoint, which a recovery has made.
    pub(crate) fn charge_recovery(&mut self, editor: &mut Editor<'_>) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let nodes = editor.overlay.read().nodes();
        let changed =
            nodes.into_iter().map(|(nid, after)| ChangedNode { nid, before: None, after });
        self.charge(editor, changed.collect())
    }

    /// Charges changes. Files that are damaged or cannot be read turn quota off. Errors: `NoSpace`,
    /// and `Unsupported` if a recovery needs too much memory.
    fn charge(&mut self, editor: &mut Editor<'_>, changed: Vec<ChangedNode>) -> Result<()> {
        match self.try_charge(editor, changed) {
            Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
                tracing::warn!(%error, "quota is off until fsck.f2fs has repaired its files");
                (self.files, self.failure) = (Default::default(), Some(error));
                Ok(())
            }
            charged => charged,
        }
    }

    fn try_charge(&mut self, editor: &mut Editor<'_>, changed: Vec<ChangedNode>) -> Result<()> {
        let mut charges = BTreeMap::new();
        for node in changed {
            self.add_charges(editor.volume, node, &mut charges)?;
        }
        let mut charges = charges.into_iter();
        charges.try_for_each(|((kind, id), change)| self.charge_id(editor, (kind, id), change))
    }

    /// Adds what a change of a node charges.
    fn add_charges(
        &self,
        volume: &Arc<Core>,
        node: ChangedNode,
        charges: &mut BTreeMap<Owner, UsageChange>,
    ) -> Result<()> {
        let ChangedNode { nid, before, after } = node;
        if self.files.contains(&Some(InodeNumber(nid.0.into()))) {
            return Ok(());
        }
        let before = match before {
            Some(change) => charged_by(volume, nid, &change)?,
            None => charged_in_checkpoint(volume, nid)?,
        };
        let after = charged_by(volume, nid, &after)?;
        if before == after {
            return Ok(());
        }
        for (charged, was_used) in [(before, true), (after, false)] {
            let Some(Charged { ids, usage }) = charged else { continue };
            for ((kind, file), id) in self.files.iter().enumerate().zip(ids) {
                if file.is_some() {
                    charges.entry((kind, id)).or_default().add(usage, was_used);
                }
            }
        }
        Ok(())
    }

    fn charge_id(
        &mut self,
        editor: &mut Editor<'_>,
        (kind, id): Owner,
        change: UsageChange,
    ) -> Result<()> {
        let Some(number) = self.files[kind].filter(|_| change != UsageChange::default()) else {
            return Ok(());
        };
        let mut file = EditedFile::new(editor, number)?;
        if let Some(place) = self.places.get(&(kind, id)) {
            if charge_at(&mut file, *place, id, change)? {
                return Ok(());
            }
        }
        let place = QuotaFile::open(QuotaKind::ALL[kind], file)?.charge(id, change)?;
        self.places.insert((kind, id), place);
        Ok(())
    }
}

/// Returns what a node in the overlay is charged. `None` if it is not an inode.
fn charged_by(volume: &Core, nid: Nid, change: &Change) -> Result<Option<Charged>> {
    match change {
        Change::Contents(node) if node.inode.0 == u64::from(nid.0) => {
            let node = Node::new(node.buffer(), nid, node.inode)?;
            Charged::of(&node, volume.geometry()).map(Some)
        }
        Change::Contents(_) | Change::Freed => Ok(None),
    }
}

/// Returns what a node was charged in the last checkpoint. `None` if it was not an inode.
fn charged_in_checkpoint(volume: &Core, nid: Nid) -> Result<Option<Charged>> {
    let address = match volume.node_address(nid) {
        Err(Error::NotFound) => return Ok(None),
        address => address?,
    };
    if address.inode.0 != u64::from(nid.0) {
        return Ok(None);
    }
    let buffer = volume.metadata().read(address.block, "inode", Location::inode(address.inode))?;
    Charged::of(&Node::new(buffer, nid, address.inode)?, volume.geometry()).map(Some)
}
