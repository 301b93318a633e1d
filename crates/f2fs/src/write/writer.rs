//! The state of a volume that is open for writing, and changes under it.
//!
//! One lock orders all changes of nodes, allocations and checkpoints. An operation changes the
//! overlay, and takes all of its changes back if it fails. Before it begins, a checkpoint makes
//! room if the overlay has grown too large, or if blocks that the last checkpoint uses are needed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use base::cancellation::CHECK_EVERY;
use base::locks::{RankedGuard, RankedMutex};
use base::{Error, FsBlock, Ranges, Result, Unsupported};

use fs::{ErrorPolicy, FormatOptions, SyncDelays};
use parking_lot::Condvar;

use super::clock::Clock;
use super::health::Health;
use crate::core::Core;
use crate::edit::Editor;
use crate::features::Feature;
use crate::ondisk::checkpoint::{DISABLED, UNMOUNTED};
use crate::ondisk::sit::RawSitEntry;
use crate::quota::Quotas;
use crate::ranks;
use crate::summaries::{BlockKind, PackSummaries};
use crate::write::allocate::logs::Logs;
use crate::write::allocate::mode::Mode;
use crate::write::allocate::placements::Placements;
use crate::write::allocate::reserved::Reserved;
use crate::write::allocate::room::{Demand, Wanted};
use crate::write::fsync::chain::Chain;
use crate::write::fsync::group::Syncs;
use crate::write::fsync::reason::ReasonCounts;
use crate::write::gc::background::Background;
use crate::write::segments::held::HeldBlocks;
use crate::write::segments::space::Space;
use crate::write::segments::summary_blocks::SummaryBlocks;

/// The changed nodes and directory blocks after which a checkpoint is written, in bytes.
const CHANGED_BYTES_MAX: u64 = 64 << 20;
/// Nodes, and as many directory blocks, for what an operation, or a checkpoint, may need in
/// addition to what is counted.
const SPARE_BLOCKS: u64 = 64;

/// The changed nodes of a write of data: the inode, and the node with its addresses.
const NODES_OF_WRITE: u64 = 2;
/// The minimum number of sections of the main area that users cannot have; `allocate/place.rs` says
/// what they are for. Volumes of mkfs.f2fs leave more.
const KEPT_SECTIONS_MIN: u64 = 8;

/// Features of volumes that are not written, and the refusals.
const REFUSED: [(Feature, &str); 2] = [
    (Feature::ReadOnly, "writing to a volume with the feature `ro` (mkfs.f2fs -O ro)"),
    (Feature::BlockZoned, "writing to a volume with the feature `blkzoned`, of a zoned device"),
];
const DISABLED_CHECKPOINTS: &str = "writing to an f2fs volume whose checkpoints are disabled (Linux enables them with \
                                    `mount -o checkpoint=enable`)";

/// Whether segments are discarded when they become free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Discards {
    Off,
    On,
    /// The device has failed to discard, and is not asked again.
    Failed,
}

impl Discards {
    pub(super) fn new(are_wanted: bool) -> Self {
        if are_wanted { Self::On } else { Self::Off }
    }
}

/// The writing side of a volume.
#[derive(Debug)]
pub(crate) struct Writer {
    state: RankedMutex<WriterState>,
    /// The number of calls that delay the checkpoints which callers request.
    delays: RankedMutex<SyncDelays>,
    delay_ended: Condvar,
    /// Notified when writes of data have ended.
    pub(super) write_ended: Condvar,
    /// The callers of fsync(2).
    syncs: Syncs,
    /// How often these have written a checkpoint.
    sync_checkpoints: ReasonCounts,
    health: Arc<Health>,
}

/// What changes between checkpoints, apart from the overlay.
#[derive(Debug)]
pub(super) struct WriterState {
    pub(super) space: Space,
    pub(super) logs: Logs,
    pub(super) summaries: SummaryBlocks,
    /// The entries of the first checkpoint that override those of the segment information table.
    pub(super) sit_journal: BTreeMap<u32, RawSitEntry>,
    /// Blocks of data that is on its way to the device.
    pub(super) placements: Placements,
    /// Blocks of atomic writes, with data that no node refers to yet.
    pub(super) pending: Ranges,
    /// Old blocks of data that may still be read.
    pub(super) held: HeldBlocks,
    /// The times at which data was written that was moved since the last checkpoint, by its new
    /// blocks.
    pub(super) times_of_moved: HashMap<FsBlock, u64>,
    pub(super) background: Background,
    /// The time of the first change since the last checkpoint, or of a checkpoint that found no
    /// room.
    pub(super) changed_since: Option<Instant>,
    /// Whether cleaning gains nothing before the next checkpoint.
    pub(super) is_cleaning_futile: bool,
    pub(super) clock: Clock,
    pub(super) discards: Discards,
    pub(super) quotas: Quotas,
    pub(super) health: Arc<Health>,
    /// The nodes that fsync(2) has written.
    pub(super) chain: Chain,
    next_nid: u32,
    /// Blocks of files that are reserved for data in the cache, or in blocks of atomic writes.
    pub(super) reserved: u64,
    /// Whether the volume was marked as clean, at any time since it was opened.
    is_marked_clean: bool,
    is_closed: bool,
}

impl WriterState {
    /// Returns what the next checkpoint writes at most: what is changed, and what writes in flight
    /// will change.
    pub(super) fn changed(&self, volume: &Core) -> Wanted {
        let [nodes, directory_blocks] = volume.overlay_or_new().read().block_counts();
        Wanted { nodes, directory_blocks }.and_nodes(self.placements.nodes())
    }

    /// Returns [`changed`](Self::changed), and what another write and a change of a few nodes will
    /// change.
    pub(super) fn to_write(&self, volume: &Core) -> Wanted {
        let spare = self.quotas.blocks_max() + SPARE_BLOCKS;
        let few = Wanted { nodes: spare + NODES_OF_WRITE, directory_blocks: spare };
        self.changed(volume) + few
    }

    /// Returns [`to_write`](Self::to_write), and as many nodes as change when a section is cleaned.
    pub(super) fn to_write_and_clean(&self, volume: &Core) -> Wanted {
        self.to_write(volume).and_nodes(volume.geometry().section_blocks())
    }

    /// Returns what a checkpoint must have room for before a change.
    fn wanted(&self, volume: &Core, demand: Demand) -> Wanted {
        match demand {
            Demand::Adds(nodes) => self.to_write_and_clean(volume).and_nodes(nodes),
            Demand::Changes(nodes) => self.to_write(volume).and_nodes(nodes),
            Demand::Few => self.to_write(volume),
        }
    }

    /// Returns whether the volume was marked as clean and has not changed since.
    pub(super) fn is_clean(&self, volume: &Core) -> bool {
        self.is_marked_clean
            && volume.checkpoint().has(UNMOUNTED)
            && volume.overlay_or_new().read().is_empty()
    }

    /// Returns whether a checkpoint has room for `wanted`.
    pub(super) fn has_room(&self, wanted: Wanted) -> bool {
        self.logs.has_room(wanted, &self.space)
    }

    /// Returns whether users can have `count` more blocks.
    pub(super) fn has_blocks(&self, volume: &Core, count: u64) -> bool {
        let used = Use::of(volume, self);
        used.blocks + count <= used.max
    }
}

impl Writer {
    /// Checks that the volume has no feature, and no state, that is only read. Errors:
    /// `Unsupported`.
    pub(crate) fn check_supported(volume: &Core) -> Result<()> {
        let features = volume.geometry().features;
        let refused = REFUSED.iter().find(|(feature, _)| features.has(*feature));
        let is_disabled = volume.checkpoint().has(DISABLED);
        match refused.map(|(_, refusal)| *refusal).or(is_disabled.then_some(DISABLED_CHECKPOINTS)) {
            Some(refusal) => Err(Unsupported::Operation(refusal).into()),
            None => Ok(()),
        }
    }

    /// Prepares a volume for writing, without changing it.
    /// [`check_supported`](Self::check_supported) has succeeded. `quota_failure` is the error for
    /// which recovery has left the quota files as they were.
    pub(crate) fn new(
        volume: &Core,
        options: &FormatOptions,
        mode: Mode,
        quota_failure: Option<Error>,
    ) -> Result<Self> {
        let checkpoint = volume.checkpoint();
        let pack = PackSummaries::read(volume)?;
        let mut space = Space::read(volume, &pack.sit_journal)?;
        space.check_logs(&checkpoint)?;
        let logs = Logs::of(&checkpoint, mode);
        logs.set_kinds(&mut space);
        let health = Arc::new(Health::new(options.errors.unwrap_or(ErrorPolicy::Continue)));
        let state = WriterState {
            summaries: SummaryBlocks::of(volume, &space, &pack)?,
            space,
            logs,
            sit_journal: pack.sit_journal,
            placements: Placements::new(volume.geometry().addresses_per_node().into()),
            pending: Ranges::default(),
            held: HeldBlocks::default(),
            times_of_moved: HashMap::new(),
            background: Background::Waits,
            changed_since: None,
            is_cleaning_futile: false,
            discards: Discards::new(options.discard.unwrap_or(false)),
            quotas: Quotas::of(volume, quota_failure),
            health: Arc::clone(&health),
            clock: Clock::start(checkpoint.raw.elapsed_time.get()),
            chain: Chain::default(),
            next_nid: 0,
            reserved: 0,
            is_marked_clean: false,
            is_closed: false,
        };
        Ok(Self {
            state: RankedMutex::new(ranks::CHANGES, state),
            delays: RankedMutex::new(ranks::DELAYS, SyncDelays::default()),
            delay_ended: Condvar::new(),
            write_ended: Condvar::new(),
            syncs: Syncs::new(),
            sync_checkpoints: ReasonCounts::default(),
            health,
        })
    }

    /// Returns the errors that were found since the volume was opened.
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Locks the state, also of a volume that is closed or shut down.
    pub(super) fn lock_any(&self) -> RankedGuard<'_, WriterState> {
        self.state.lock()
    }

    pub(super) fn lock(&self) -> Result<RankedGuard<'_, WriterState>> {
        let state = self.state.lock();
        self.health.check()?;
        if state.is_closed { Err(Error::ReadOnly) } else { Ok(state) }
    }

    /// Locks the state to make changes durable. Errors: `Lost` if the volume is shut down.
    pub(super) fn lock_to_sync(&self) -> Result<RankedGuard<'_, WriterState>> {
        self.lock().map_err(|error| match error {
            Error::ShutDown(cause) => Error::Lost(cause),
            error => error,
        })
    }

    /// Makes durable what was written to the device. A failed flush shuts the volume down, since it
    /// is unknown which writes are lost.
    pub(super) fn flush(&self, volume: &Core) -> Result<()> {
        volume.device().flush().inspect_err(|error| self.health.fail(error.clone()))
    }

    pub(super) fn sync_checkpoints(&self) -> &ReasonCounts {
        &self.sync_checkpoints
    }

    pub(super) fn syncs(&self) -> &Syncs {
        &self.syncs
    }

    /// Writes a checkpoint, if anything has changed. Otherwise makes durable what was written to
    /// the device.
    pub(crate) fn checkpoint(&self, volume: &Arc<Core>) -> Result<()> {
        self.wait_for_delays()?;
        let mut state = self.lock_to_sync()?;
        if volume.overlay_or_new().read().is_empty() {
            state.changed_since = None;
            return self.flush(volume);
        }
        self.write_checkpoint(&mut state, volume, false)
    }

    /// Returns since when there are changes that a checkpoint makes durable. `None` also for a
    /// volume that is closed or shut down.
    pub(crate) fn changed_since(&self) -> Option<Instant> {
        self.lock().ok()?.changed_since
    }

    /// Calls `work`. Checkpoints that are requested during the call wait for its end, unless they
    /// make room.
    pub(crate) fn delay_checkpoints(&self, work: &mut dyn FnMut()) {
        /// Ends the delay, also after a panic.
        struct Delay<'w> {
            writer: &'w Writer,
            number: u64,
        }

        impl Drop for Delay<'_> {
            fn drop(&mut self) {
                self.writer.delays.lock().end(self.number);
                self.writer.delay_ended.notify_all();
            }
        }

        let number = self.delays.lock().begin();
        let _delay = Delay { writer: self, number };
        work();
    }

    /// Waits for the delays in progress, and not for those that begin meanwhile. Errors:
    /// `Interrupted` if this thread's request is cancelled.
    pub(super) fn wait_for_delays(&self) -> Result<()> {
        let mut delays = self.delays.lock();
        let begun = delays.begun();
        while delays.has_any_of_first(begun) {
            delays.wait_for(&self.delay_ended, CHECK_EVERY);
            drop(delays);
            base::cancellation::check()?;
            delays = self.delays.lock();
        }
        Ok(())
    }

    /// Writes a checkpoint like that of [`close`](Self::close), and stays open. The next checkpoint
    /// says again that the volume is in use, and so do nodes that are synced before it.
    pub(crate) fn mark_clean(&self, volume: &Arc<Core>) -> Result<()> {
        self.wait_for_delays()?;
        let mut state = self.lock_to_sync()?;
        state.is_marked_clean = true;
        if state.is_clean(volume) {
            return self.flush(volume);
        }
        self.write_checkpoint(&mut state, volume, true)
    }

    /// Writes the last checkpoint. After `NoSpace`, the volume stays open: its changes are not
    /// lost, and fit once others make room.
    pub(crate) fn close(&self, volume: &Arc<Core>) -> Result<()> {
        let mut state = self.lock_to_sync()?;
        let result = self.write_checkpoint(&mut state, volume, true);
        state.is_closed = result != Err(Error::NoSpace);
        tracing::debug!(counts = %self.sync_checkpoints, "checkpoints that fsync has written, by their reasons");
        result
    }

    pub(super) fn write_checkpoint(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
        is_closed: bool,
    ) -> Result<()> {
        let _failing = FailOnPanic(self);
        // Otherwise the blocks of the chain would be free after this checkpoint, and then be
        // allocated while nodes are written to them.
        self.syncs.wait_for_flight();
        state.write_checkpoint(volume, is_closed).inspect_err(|error| {
            // Without room for a node, nothing has changed but that blocks are allocated.
            if *error != Error::NoSpace {
                self.health.fail(error.clone());
            }
        })
    }

    /// Marks blocks as allocated, so that nothing is written there before the next checkpoint.
    pub(crate) fn keep(&self, volume: &Core, blocks: impl Iterator<Item = (FsBlock, BlockKind)>) {
        let mut state = self.state.lock();
        for (block, kind) in blocks {
            let at = volume.geometry().segment_of(block);
            state.space.keep(at, kind);
        }
    }

    /// Changes nodes. If `work` fails, or there is no room for what it did, none of its changes of
    /// nodes stays, and then `take_back` is called for others.
    ///
    /// # Errors
    ///
    /// `NoSpace` if the volume has fewer blocks than `work` has added and reserved, or if there is
    /// no room for `demand`, and those of `work`.
    pub(crate) fn change<R>(
        &self,
        volume: &Arc<Core>,
        demand: Demand,
        work: impl FnOnce(&mut Editor<'_>, &mut Reserved<'_>) -> Result<R>,
        take_back: impl FnOnce(&mut Reserved<'_>),
    ) -> Result<R> {
        let mut state = self.lock()?;
        self.make_room(&mut state, volume, demand)?;
        state.changed_since.get_or_insert_with(Instant::now);
        let _failing = FailOnPanic(self);
        volume.overlay_or_new().write().begin();
        let mut editor = Editor::new(volume);
        editor.next_nid = state.next_nid;
        let (before, held) = (Use::of(volume, &state), state.held.len());
        let mut reserved = Reserved::new(&mut state);
        let result = work(&mut editor, &mut reserved).and_then(|result| {
            reserved.state.quotas.charge_operation(&mut editor)?;
            Ok(result)
        });
        reserved.state.next_nid = editor.next_nid;
        let after = Use::of(volume, reserved.state);
        let result = match result {
            Ok(_) if after.blocks > before.blocks && after.blocks > after.max => {
                Err(Error::NoSpace)
            }
            result => result,
        };
        volume.overlay_or_new().write().end(result.is_ok());
        if let Err(error) = &result {
            self.health.found(error);
            reserved.state.held.take_back(held);
            reserved.put_back_placements();
            take_back(&mut reserved);
            reserved.state.reserved = before.reserved;
        }
        result
    }

    /// Reserves as many blocks as `count` returns, without a change of nodes. Returns whether it
    /// does: not if `count` returns `None`.
    ///
    /// # Errors
    ///
    /// `NoSpace` if the volume has fewer blocks, and those of `count`.
    pub(crate) fn reserve(
        &self,
        volume: &Arc<Core>,
        count: impl FnOnce() -> Result<Option<u64>>,
    ) -> Result<bool> {
        let mut state = self.lock()?;
        self.make_room(&mut state, volume, Demand::Few)?;
        let Some(count) = count()? else { return Ok(false) };
        if count > 0 && !state.has_blocks(volume, count) {
            return Err(Error::NoSpace);
        }
        state.reserved += count;
        Ok(true)
    }

    /// Writes a checkpoint if the overlay would grow too large, or if it could not be written after
    /// the change; and before the first change, for a version of its own ([`Chain`]). Cleans if few
    /// segments are free.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there is no room for `demand`.
    pub(super) fn make_room(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
        demand: Demand,
    ) -> Result<()> {
        match self.try_to_make_room(state, volume, demand) {
            // Removals make room, also if other changes cannot be written before.
            Err(Error::NoSpace) if demand == Demand::Few => Ok(()),
            Ok(()) if demand != Demand::Few && !state.has_room(state.wanted(volume, demand)) => {
                Err(Error::NoSpace)
            }
            made => made,
        }
    }

    fn try_to_make_room(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
        demand: Demand,
    ) -> Result<()> {
        state.background.note_change();
        state.free_unread_if_many(volume);
        let (is_changed, bytes) = {
            let overlay = volume.overlay_or_new().read();
            (!overlay.is_empty(), overlay.bytes())
        };
        let is_short = !state.has_room(state.wanted(volume, demand));
        let is_needed = (is_short || bytes > CHANGED_BYTES_MAX) && is_changed;
        if is_needed || !state.chain.is_alone() {
            self.write_checkpoint(state, volume, false)?;
        }
        if state.needs_cleaning(volume) {
            self.clean_in_foreground(state, volume)?;
        }
        Ok(())
    }

    /// Returns the number of blocks that are reserved for data in the cache.
    pub(crate) fn reserved(&self) -> u64 {
        self.state.lock().reserved
    }

    /// Releases reserved blocks.
    pub(crate) fn unreserve(&self, blocks: u64) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(blocks);
    }
}

/// The blocks that are in use, or reserved.
#[derive(Clone, Copy, Debug)]
struct Use {
    blocks: u64,
    /// Those that are reserved.
    reserved: u64,
    /// The number of blocks that users can have.
    max: u64,
}

impl Use {
    fn of(volume: &Core, state: &WriterState) -> Self {
        let (used, max) = volume.blocks_used();
        let main = &volume.geometry().main;
        let kept = KEPT_SECTIONS_MIN * volume.geometry().section_blocks();
        let max = max.min((main.end.0 - main.start.0).saturating_sub(kept));
        Self { blocks: used + state.reserved, reserved: state.reserved, max }
    }
}

/// Shuts the volume down if the thread panics while this exists: the state in memory may be
/// inconsistent.
pub(super) struct FailOnPanic<'w>(pub(super) &'w Writer);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.health.fail(Error::Panicked("a change of the volume"));
        }
    }
}
