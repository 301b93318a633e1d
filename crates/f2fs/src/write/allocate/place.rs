//! Places for data on its way to the device, from the allocation to the end of the write.
//!
//! A write that was accepted has its blocks reserved. But data that is overwritten needs its old
//! and its new blocks until the next checkpoint, so a write may have to wait until blocks become
//! free. It never waits in vain, however slow the device is:
//!
//! - Users can have all blocks but 8 sections, or but those that mkfs.f2fs keeps back, if these are
//!   more. Blocks in use and reserved blocks are at most as many.
//! - Other taken blocks are those of writes in flight, which end, of old data that is still being
//!   read, and of nodes that the last checkpoint has and the next one does not.
//! - Once those writes and reads have ended, and a checkpoint is written, only blocks in use,
//!   reserved blocks, and those of atomic writes, which are reserved, are taken. A write that ends
//!   only after the waiting one, since it lies behind it in a new part of the same file, has its
//!   blocks reserved, too.
//! - Data cannot have all free blocks. It leaves one block of each log of data, a segment for
//!   directory blocks, and what a checkpoint needs for changed nodes and for the cleaning of a
//!   section (`room.rs`, `Logs::begin_segment`): less than 8 sections, as long as a checkpoint is
//!   written when more nodes have changed.
//! - The other free blocks are in free segments, or between data, where a log fills them, or
//!   between nodes. Cleaning makes a free segment of those between nodes once they are as many.
//!
//! A checkpoint names the next block of each log, so a log never takes the last block that it can
//! have. The end of a write changes nodes that exist, which have room in the next checkpoint:
//! without room for them, a write waits for others to end.
//!
//! Without writes and reads to wait for, `NoSpace` therefore means that the volume's tables
//! contradict each other. The data is lost then, and fsync(2) reports it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, FileBlock, FsBlock, InodeNumber, Result};

use super::logs::{Limits, LogName};
use super::mode::Mode;
use super::placements::{NODES_OF_PART, Placed};
use crate::core::Core;
use crate::temperature::Temperature;
use crate::write::writer::{Writer, WriterState};

/// The time after which a waiting write looks again.
const POLL_TIME: Duration = Duration::from_millis(50);

impl WriterState {
    /// Returns whether blocks may become free without a change of any file.
    fn can_wait(&self) -> bool {
        !self.placements.is_empty() || !self.held.is_empty()
    }
}

impl Writer {
    /// Allocates blocks for data of a file, at most `count`. Errors: `NoSpace` if the next
    /// checkpoint may need the blocks that are left.
    pub(crate) fn place(
        &self,
        volume: &Arc<Core>,
        (inode, at): (InodeNumber, FileBlock),
        count: u64,
        temperature: Temperature,
    ) -> Result<(u64, Range<FsBlock>)> {
        let mut state = self.lock()?;
        self.place_in(&mut state, volume, (inode, at), count, temperature)
    }

    /// Allocates blocks like [`place`](Self::place). Waits for the ends of writes in flight, and of
    /// reads of old blocks. The caller has submitted all of its writes.
    pub(crate) fn place_after_waiting(
        &self,
        volume: &Arc<Core>,
        (inode, at): (InodeNumber, FileBlock),
        count: u64,
        temperature: Temperature,
    ) -> Result<(u64, Range<FsBlock>)> {
        let mut state = self.lock()?;
        loop {
            match self.place_in(&mut state, volume, (inode, at), count, temperature) {
                Err(Error::NoSpace) if state.can_wait() => {
                    state.wait_for(&self.write_ended, POLL_TIME);
                    self.health().check()?;
                }
                placed => return placed,
            }
        }
    }

    /// Waits until a write in flight or a read of old blocks may have ended. Returns false if there
    /// is none to wait for. The caller has no placements, and has submitted all of its writes.
    pub(crate) fn wait_for_blocks(&self) -> Result<bool> {
        let mut state = self.lock()?;
        let can_wait = state.can_wait();
        if can_wait {
            state.wait_for(&self.write_ended, POLL_TIME);
        }
        self.health().check().map(|()| can_wait)
    }

    fn place_in(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
        (inode, at): (InodeNumber, FileBlock),
        count: u64,
        temperature: Temperature,
    ) -> Result<(u64, Range<FsBlock>)> {
        let geometry = volume.geometry();
        let log = LogName::of_data(temperature);
        let allocate_within = |state: &mut WriterState, limits| {
            let WriterState { logs, space, .. } = state;
            logs.allocate(log, count, limits, space, geometry)
        };
        let allocate = |state: &mut WriterState| {
            let limits = Limits::leave(state.to_write_and_clean(volume));
            allocate_within(state, limits)
        };
        state.background.note_change();
        // A checkpoint also writes the nodes that the ends of writes change.
        let is_short =
            |state: &WriterState| !state.has_room(state.to_write(volume).and_nodes(NODES_OF_PART));
        let was_short = is_short(state);
        if was_short && !volume.overlay_or_new().read().is_empty() {
            self.write_checkpoint(state, volume, false)?;
        }
        if state.needs_cleaning(volume) {
            self.clean_in_foreground(state, volume)?;
        }
        if was_short && is_short(state) && !state.placements.is_empty() {
            return Err(Error::NoSpace);
        }
        let mut range = allocate(state);
        if range == Err(Error::NoSpace) {
            state.free_unread(volume);
            if !volume.overlay_or_new().read().is_empty() {
                self.write_checkpoint(state, volume, false)?;
            }
            range = allocate(state);
        }
        if range == Err(Error::NoSpace) {
            self.clean_in_foreground(state, volume)?;
            range = allocate(state);
        }
        if range == Err(Error::NoSpace) && !state.can_wait() {
            let limits = Limits::leave(state.to_write(volume)).or_mix();
            range = allocate_within(state, limits);
        }
        let range = range?;
        let placed = Placed { inode, at, range: range.clone(), is_overwrite: false };
        Ok((state.placements.add(placed), range))
    }

    /// Ends a placement whose data did not reach the device.
    pub(crate) fn unplace(&self, volume: &Core, token: u64) {
        let mut state = self.lock_any();
        let placed = state.placements.remove(token);
        if let Some(placed) = placed.filter(|placed| !placed.is_overwrite) {
            let WriterState { logs, space, .. } = &mut *state;
            logs.release(placed.range, space, volume.geometry());
        }
        self.write_ended.notify_all();
    }

    /// Records an update in place (IPU): a write to the blocks that `look_up` returns, which the
    /// file has at `at`. No address changes during the call. `None` with `mode=lfs`, which writes
    /// nothing in place, and if the blocks are not the file's, which records the corruption.
    pub(crate) fn place_over(
        &self,
        volume: &Arc<Core>,
        (inode, at): (InodeNumber, FileBlock),
        look_up: impl FnOnce() -> Result<Option<Range<FsBlock>>>,
    ) -> Result<Option<(u64, Range<FsBlock>)>> {
        let mut state = self.lock()?;
        if state.logs.mode() == Mode::Lfs {
            return Ok(None);
        }
        state.background.note_change();
        let Some(range) = look_up()? else { return Ok(None) };
        let placed = Placed { inode, at, range: range.clone(), is_overwrite: true };
        if let Err(error) = state.check_owned(volume, &placed) {
            tracing::debug!(%error, "data is not written in place");
            self.health().found(&error);
            return Ok(None);
        }
        Ok(Some((state.placements.add(placed), range)))
    }

    /// Checks that a pinned file can be written in place at these blocks, which it has at `at`.
    /// Errors: `Corrupt` if they are not its own, and those of reading nodes and summaries.
    pub(crate) fn check_in_place(
        &self,
        volume: &Arc<Core>,
        (inode, at): (InodeNumber, FileBlock),
        range: Range<FsBlock>,
    ) -> Result<()> {
        let placed = Placed { inode, at, range, is_overwrite: true };
        let checked = self.lock()?.check_owned(volume, &placed);
        checked.inspect_err(|error| self.health().found(error))
    }

    /// Ends the placements that overwrite blocks. Returns whether there are others among `tokens`.
    pub(crate) fn end_overwrites(&self, tokens: impl Iterator<Item = u64>) -> bool {
        let mut state = self.lock_any();
        let (mut has_overwrites, mut has_others) = (false, false);
        for token in tokens {
            let is_overwrite = state.placements.remove_overwrite(token);
            has_overwrites |= is_overwrite;
            has_others |= !is_overwrite;
        }
        if has_overwrites {
            self.write_ended.notify_all();
        }
        has_others
    }

    /// Lets callers know that writes have ended.
    pub(crate) fn note_ended(&self) {
        self.write_ended.notify_all();
    }
}
