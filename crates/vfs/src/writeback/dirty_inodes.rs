//! The dirty inodes of a volume. Not here: when inodes are written back (`flusher.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::locks::{Rank, RankedMutex};
use base::{Error, InodeNumber};
use iomap::{ErrorCount, WritebackErrors};

use super::losses::Losses;
use super::written_bytes::{WrittenBefore, WrittenBytes};
use crate::node::Node;

/// The age at which lazy access times are written, as in the kernel.
const LAZY_AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// The maximum number of dirty inodes with which access times may be lazy, since dirty inodes stay
/// in memory. With more, access times are written as early as data.
const LAZY_MAX: usize = 4096;
/// The maximum number of dirty inodes with which access times may wait. With more, they are written
/// at once.
const WAITING_MAX: usize = 16_384;

/// The age at which a dirty inode expires: it is then written back without a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expiry {
    /// The age of dirty data.
    Normal,
    /// 12 hours, unless the inode is written for another reason.
    Lazy,
}

/// The inodes with data or times to write. The table keeps them in memory.
#[derive(Debug)]
pub(super) struct DirtyInodes {
    inodes: RankedMutex<HashMap<InodeNumber, DirtyInode>>,
    /// The age at which inodes with [`Expiry::Normal`] expire.
    age_max: Duration,
}

#[derive(Debug)]
struct DirtyInode {
    node: Arc<Node>,
    since: Instant,
    expiry: Expiry,
    /// What was written since the last round.
    written: WrittenBytes,
    /// The number of writeback errors before these bytes were written.
    errors: Option<ErrorCount>,
}

impl DirtyInodes {
    pub(super) fn new(age_max: Duration) -> Self {
        let inodes = RankedMutex::new(Rank::DirtyInodes, HashMap::new());
        Self { inodes, age_max }
    }

    /// Adds an inode, or shortens its expiry.
    pub(super) fn add(&self, node: &Arc<Node>, expiry: Expiry) {
        self.insert(&mut self.inodes.lock(), node, expiry);
    }

    /// Adds an inode with `bytes` of new data.
    pub(super) fn add_written(&self, node: &Arc<Node>, bytes: u64) {
        let mut inodes = self.inodes.lock();
        let dirty = self.insert(&mut inodes, node, Expiry::Normal);
        dirty.written.add(bytes);
    }

    /// Returns how much was written to a file so far, for [`forget_written`](Self::forget_written)
    /// after a sync.
    pub(super) fn written(&self, node: &Node) -> Option<WrittenBefore> {
        let inodes = self.inodes.lock();
        let dirty = inodes.get(&node.number()).filter(|dirty| dirty.written.left() > 0)?;
        Some(dirty.written.begin_sync())
    }

    /// Forgets what was written to a file before a sync, which is durable now, unless some of it
    /// could not be written back. What was written during the sync may not be durable.
    pub(super) fn forget_written(&self, node: &Node, before: WrittenBefore) {
        if let Some(dirty) = self.inodes.lock().get_mut(&node.number())
            && dirty.errors == node.error_count()
        {
            dirty.written.synced(before);
        }
    }

    /// Moves what was written to a file before the end of a round to `losses`, until it is durable.
    fn pass_on(&self, node: &Node, losses: &Losses) {
        let mut inodes = self.inodes.lock();
        let Some(dirty) = inodes.get_mut(&node.number()) else { return };
        let now = node.error_count();
        let has_failed = dirty.errors.is_some() && dirty.errors != now;
        let bytes = std::mem::replace(&mut dirty.written, WrittenBytes::new()).left();
        dirty.errors = now;
        drop(inodes);
        if bytes > 0 || has_failed {
            losses.add(node.number(), bytes, has_failed);
        }
    }

    /// Adds an inode with a new access time. Returns false if there are too many inodes.
    pub(super) fn add_access(&self, node: &Arc<Node>, expiry: Expiry) -> bool {
        let mut inodes = self.inodes.lock();
        if inodes.len() >= WAITING_MAX && !inodes.contains_key(&node.number()) {
            return false;
        }
        let is_many = inodes.len() >= LAZY_MAX;
        self.insert(&mut inodes, node, if is_many { Expiry::Normal } else { expiry });
        true
    }

    pub(super) fn remove(&self, number: InodeNumber) {
        let removed = self.inodes.lock().remove(&number);
        // Dropped without the lock.
        drop(removed);
    }

    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.inodes.lock());
        // Dropped without the lock.
        drop(all);
    }

    /// Returns whether any inode has expired.
    pub(super) fn has_expired(&self) -> bool {
        self.inodes.lock().values().any(|dirty| self.is_expired(dirty))
    }

    /// Returns all inodes, in the order of [`choose`](Self::choose).
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.choose(|_| true)
    }

    /// Returns all inodes except those with lazy access times that have not expired, in the order
    /// of [`choose`](Self::choose).
    pub(super) fn due(&self) -> Vec<Arc<Node>> {
        self.choose(|dirty| dirty.expiry == Expiry::Normal || self.is_expired(dirty))
    }

    /// Returns the chosen inodes, those that have been dirty longest first. So files that were
    /// written one after the other get adjacent blocks in that order.
    fn choose(&self, is_chosen: impl Fn(&DirtyInode) -> bool) -> Vec<Arc<Node>> {
        let inodes = self.inodes.lock();
        let chosen = inodes.values().filter(|dirty| is_chosen(dirty));
        let mut chosen: Vec<_> =
            chosen.map(|dirty| (dirty.since, Arc::clone(&dirty.node))).collect();
        drop(inodes);
        chosen.sort_by_key(|(since, node)| (*since, node.number()));
        chosen.into_iter().map(|(_, node)| node).collect()
    }

    fn is_expired(&self, dirty: &DirtyInode) -> bool {
        let age_max = match dirty.expiry {
            Expiry::Normal => self.age_max,
            Expiry::Lazy => LAZY_AGE_MAX,
        };
        dirty.since.elapsed() >= age_max
    }

    /// Ends a round of writeback that began at `begun`: writes the pending times of `nodes`, and
    /// removes clean inodes. The data of inodes that are still dirty became so during the round, so
    /// their age starts at `begun`. Errors in writing times go to `errors`, and what was written to
    /// `losses`.
    pub(super) fn finish_round(
        &self,
        nodes: Vec<Arc<Node>>,
        begun: Instant,
        errors: &WritebackErrors,
        losses: &Losses,
    ) {
        for node in nodes {
            self.pass_on(&node, losses);
            let mut is_lost = false;
            // Also of files that other writes have made dirty again.
            if let Err(error) = node.inode().write_pending() {
                tracing::warn!("inode {}: {error}", node.number());
                is_lost = matches!(error, Error::ShutDown(_) | Error::Lost(_));
                errors.record(error);
            }
            if !node.is_settled() {
                if let Some(dirty) = self.inodes.lock().get_mut(&node.number()) {
                    dirty.since = dirty.since.max(begun);
                }
                continue;
            }
            let mut inodes = self.inodes.lock();
            // A concurrent change makes the file dirty, or its times pending, before it adds the
            // inode: either it adds the inode after this removal, or this check sees the change.
            // Once the volume is shut down, pending times cannot be written any more.
            let has_pending = node.inode().has_pending() && !is_lost;
            let is_clean = node.is_settled() && !has_pending;
            let removed = if is_clean { inodes.remove(&node.number()) } else { None };
            drop(inodes);
            // Dropped without the lock.
            drop(removed);
        }
    }

    fn insert<'i>(
        &self,
        inodes: &'i mut HashMap<InodeNumber, DirtyInode>,
        node: &Arc<Node>,
        expiry: Expiry,
    ) -> &'i mut DirtyInode {
        let dirty = inodes.entry(node.number()).or_insert_with(|| DirtyInode {
            node: Arc::clone(node),
            since: Instant::now(),
            expiry,
            written: WrittenBytes::new(),
            errors: node.error_count(),
        });
        if dirty.expiry == Expiry::Lazy && expiry == Expiry::Normal {
            dirty.expiry = expiry;
            dirty.since = Instant::now();
        }
        dirty
    }
}
