//! Cleaning: the live blocks of sections that have free blocks move to the logs, so that a
//! checkpoint makes the sections free. In the foreground when a change or a write needs free
//! segments, and otherwise when there is time.
//!
//! - `victims.rs`: the choice of a section
//! - `owners.rs`: the live blocks of a segment, and what refers to them
//! - `mover.rs`: the move of a section
//! - `range.rs`: sections that the caller has chosen
//! - `failures.rs`: the count of failures to clean the blocks of pinned files

pub(crate) mod background;
pub(crate) mod defragment;
mod failures;
mod mover;
mod owners;
mod range;
mod victims;

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Error, InodeNumber, Result};
use fs::Cleaning;

use self::mover::Cleaned;
pub(super) use self::owners::{DataBlock, Owners};
use self::victims::{Policy, choose};
use super::writer::{Writer, WriterState};
use crate::core::Core;
use crate::geometry::SEGMENT_BLOCKS;
use crate::write::allocate::mode::Mode;

/// The sections that were chosen since cleaning began, and the pinned files that kept some of them.
#[derive(Debug, Default)]
pub(super) struct Tried {
    sections: BTreeSet<u32>,
    pinned: BTreeSet<InodeNumber>,
}

/// The number of sections that are cleaned before a checkpoint frees them. More of them would let
/// others wait longer.
const SECTIONS_MAX: usize = 4;
/// The number of times that as many are cleaned, where data needs free segments. Sections with few
/// free blocks gain one only together.
const ROUNDS_MAX: usize = 16;
/// The number of sections that are looked at, in search of those that can be cleaned.
const TRIES_MAX: usize = 64;
/// The part of the free blocks, in percent, that may be between blocks in use before a volume is
/// cleaned in the background. As in Linux.
const SCATTERED_PERCENT_MAX: u64 = 40;
/// The number of free segments, in addition to those for changed nodes, below which changes and
/// writes wait for cleaning.
pub(super) const SEGMENTS_FREE_MIN: u64 = 2;

impl WriterState {
    /// Returns the number of segments of sections without any taken block.
    pub(super) fn free_segments(&self) -> u64 {
        self.space.room(&self.logs.segments()).free_segments()
    }

    /// Returns whether the free segments are only enough for the nodes of the next checkpoint.
    pub(super) fn needs_cleaning(&self, volume: &Core) -> bool {
        let per_section = u64::from(volume.geometry().segments_per_section);
        let for_nodes = self.to_write(volume).blocks().div_ceil(SEGMENT_BLOCKS);
        let for_moves = match self.logs.mode() {
            Mode::Adaptive => 0,
            Mode::Lfs => SECTIONS_MAX as u64 * per_section,
        };
        let whole_sections = |segments: u64| segments.next_multiple_of(per_section);
        let min = whole_sections(SEGMENTS_FREE_MIN) + for_moves + whole_sections(for_nodes);
        !self.is_cleaning_futile && self.free_segments() < min
    }
}

impl Writer {
    /// Cleans some sections, and writes a checkpoint that frees them. With nothing to clean, the
    /// checkpoint frees the old versions of what has changed. Without a gain, does not try again
    /// before the next checkpoint of another cause.
    pub(super) fn clean_in_foreground(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
    ) -> Result<()> {
        let mut has_gain = state.space.has_section_to_gain(&state.logs.segments());
        if !has_gain && !volume.overlay_or_new().read().is_empty() {
            self.write_checkpoint(state, volume, false)?;
            if !state.needs_cleaning(volume) {
                return Ok(());
            }
            has_gain = state.space.has_section_to_gain(&state.logs.segments());
        }
        if !has_gain {
            state.is_cleaning_futile = true;
            return Ok(());
        }
        let rounds = match state.logs.mode() {
            Mode::Adaptive => 1,
            Mode::Lfs => ROUNDS_MAX,
        };
        let (before, mut tried) = (state.free_segments(), Tried::default());
        let mut is_futile = true;
        for _ in 0..rounds {
            let cleaned = self.clean_some(state, volume, Policy::Greedy, &mut tried)?;
            is_futile = state.free_segments() <= before;
            if !is_futile || cleaned.sections == 0 {
                break;
            }
        }
        state.is_cleaning_futile = is_futile;
        if is_futile {
            state.count_failures(volume, &tried.pinned);
        }
        Ok(())
    }

    /// Cleans some sections that are not in `tried`, so that there may be more free ones. Returns
    /// false if there was nothing to gain.
    pub(super) fn clean_for_sections(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
        tried: &mut Tried,
    ) -> Result<bool> {
        if !state.space.has_section_to_gain(&state.logs.segments()) {
            return Ok(false);
        }
        let cleaned = self.clean_some(state, volume, Policy::Greedy, tried)?;
        Ok(cleaned.sections > 0)
    }

    /// Cleans until nothing is left to gain.
    pub(crate) fn clean_all(&self, volume: &Arc<Core>) -> Result<Cleaning> {
        let mut total = Cleaning::default();
        // Each section is cleaned once, so that this ends.
        let mut tried = Tried::default();
        for round in 0.. {
            let mut state = self.lock()?;
            if round == 0 {
                // The use of blocks is known as of the last checkpoint.
                self.write_checkpoint(&mut state, volume, false)?;
                total.free_before = state.free_segments();
            }
            let cleaned = if state.space.has_section_to_gain(&state.logs.segments()) {
                self.clean_some(&mut state, volume, Policy::Greedy, &mut tried)?
            } else {
                Cleaning::default()
            };
            total.sections += cleaned.sections;
            total.blocks += cleaned.blocks;
            total.free_after = state.free_segments();
            if cleaned.sections == 0 {
                break;
            }
        }
        Ok(total)
    }

    /// Cleans a section, if there is something to gain. Returns whether there was.
    pub(crate) fn clean_one(&self, volume: &Arc<Core>) -> Result<bool> {
        let mut state = self.lock()?;
        // The use of blocks is known as of the last checkpoint.
        self.write_checkpoint(&mut state, volume, false)?;
        if !state.space.has_section_to_gain(&state.logs.segments()) {
            return Ok(false);
        }
        let cleaned =
            self.clean_up_to(&mut state, volume, Policy::Greedy, &mut Tried::default(), 1)?;
        Ok(cleaned.sections > 0)
    }

    /// Cleans a section, if nothing has changed since the last call, and more than 40% of the free
    /// blocks are between blocks in use. Returns whether it has. Without a gain, does nothing
    /// before the next change or checkpoint.
    pub(crate) fn clean_in_background(&self, volume: &Arc<Core>) -> Result<bool> {
        let mut state = self.lock()?;
        if state.is_clean(volume) || !state.background.begin() {
            return Ok(false);
        }
        let has_cleaned = self.clean_if_scattered(&mut state, volume)?;
        if !has_cleaned {
            state.background.rest();
        }
        Ok(has_cleaned)
    }

    /// Cleans a section, if more than 40% of the free blocks are between blocks in use. Returns
    /// whether it has.
    fn clean_if_scattered(&self, state: &mut WriterState, volume: &Arc<Core>) -> Result<bool> {
        let logs = state.logs.segments();
        let scattered: u64 = state.space.blocks_to_gain(&logs).iter().sum();
        let free = state.free_segments() * SEGMENT_BLOCKS;
        let is_scattered = scattered * 100 > (scattered + free) * SCATTERED_PERCENT_MAX;
        if !is_scattered || !state.space.has_section_to_gain(&logs) {
            return Ok(false);
        }
        let policy = Policy::CostBenefit { now: state.clock.now() };
        let cleaned = self.clean_up_to(state, volume, policy, &mut Tried::default(), 1)?;
        Ok(cleaned.sections > 0)
    }

    fn clean_some(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
        policy: Policy,
        tried: &mut Tried,
    ) -> Result<Cleaning> {
        self.clean_up_to(state, volume, policy, tried, SECTIONS_MAX)
    }

    /// Cleans up to `sections_max` sections that are not in `tried`, and adds them there. Writes a
    /// checkpoint if there were any.
    fn clean_up_to(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
        policy: Policy,
        tried: &mut Tried,
        sections_max: usize,
    ) -> Result<Cleaning> {
        let mut done = Cleaning::default();
        for _ in 0..TRIES_MAX {
            if done.sections >= sections_max as u64 {
                break;
            }
            let logs = state.logs.segments();
            let sections = state.space.sections(&logs);
            let victim = choose(
                sections.filter(|section| !tried.sections.contains(&section.number)),
                policy,
            );
            let Some(victim) = victim else { break };
            tried.sections.insert(victim.number);
            match state.clean_section(volume, victim.number) {
                Ok(Cleaned::Moved(blocks)) => {
                    done.sections += 1;
                    done.blocks += blocks;
                }
                Ok(Cleaned::Pinned(inode)) => {
                    tried.pinned.insert(inode);
                }
                // Another section may have fewer nodes to change.
                Ok(Cleaned::Unmovable | Cleaned::NoRoom) => {}
                Err(Error::NoSpace) => break,
                // The section stays as it is. Users of its files get the error.
                Err(Error::Io(error)) => tracing::warn!(%error, "a section cannot be cleaned"),
                Err(error) => return Err(error),
            }
        }
        if done.sections > 0 {
            self.write_checkpoint(state, volume, false)?;
        }
        Ok(done)
    }
}
