//! The mark of a volume that stays open, but is clean on the device until the next change, as after
//! a remount that makes it read-only. Not here: the flags that are the mark (`use_mark.rs`).

use base::Result;
use base::locks::{Held, RankedGuard};

use super::transaction::Transaction;
use super::{Committing, End, Journal, State};
use crate::journal::use_mark::UseMark;
use crate::ranks;

impl Journal {
    /// Sets the mark of the volume, which is marked as in use.
    pub(crate) fn set_use_mark(&self, mark: UseMark) {
        let is_first = self.use_mark.set(mark).is_ok();
        debug_assert!(is_first, "a volume has one mark");
    }

    /// Returns the mark of the volume. `None` while the volume is being opened.
    pub(crate) fn use_mark(&self) -> Option<&UseMark> {
        self.use_mark.get()
    }

    /// Commits and checkpoints all changes, marks the log as empty, and the volume as clean.
    /// Changes that come meanwhile wait, and the next one marks the volume as in use. Returns
    /// whether the volume is clean: it stays in use if `may_be`, which is called when there are no
    /// changes, returns false. `end_trims` is called when [`is_clean`](Self::is_clean) returns true
    /// and no handle can start. The caller has no handle open.
    pub(crate) fn mark_clean(
        &self,
        may_be: impl FnOnce() -> bool,
        end_trims: impl FnOnce(),
    ) -> Result<bool> {
        let Some(mark) = self.use_mark() else { return self.flush().map(|()| false) };
        // Most of the work, while changes go on.
        self.flush()?;
        let _held = Held::new(ranks::TRANSACTION);
        let mut state = self.state.lock();
        while state.is_committing || state.is_locked {
            state.wait(&self.changed);
        }
        state.check_not_lost()?;
        if state.is_clean {
            return Ok(true);
        }
        state.is_committing = true;
        state.is_locked = true;
        let mut committing = Committing { journal: self, has_ended: false };
        let result = self.mark_clean_locked(state, mark, may_be, end_trims);
        if let Err(error) = &result {
            self.fail(error);
        }
        committing.has_ended = true;
        result
    }

    /// Does the work of [`mark_clean`](Self::mark_clean) once no handle can start.
    fn mark_clean_locked<'s>(
        &'s self,
        mut state: RankedGuard<'s, State>,
        mark: &UseMark,
        may_be: impl FnOnce() -> bool,
        end_trims: impl FnOnce(),
    ) -> Result<bool> {
        while state.handles > 0 {
            state.wait(&self.changed);
        }
        state.check_not_lost()?;
        if !state.running.is_empty() {
            let next = Transaction::new(state.running.id.next());
            let ended = std::mem::replace(&mut state.running, next).freeze(&self.metadata);
            drop(state);
            let id = ended.id;
            self.write(ended)?;
            state = self.state.lock();
            state.committed = id;
        }
        drop(state);
        self.write_checkpoint()?;
        if !may_be() {
            return Ok(false);
        }
        if let Some(log) = &self.log {
            log.lock().finish()?;
        }
        self.state.lock().is_clean = true;
        end_trims();
        let cleared = mark.clear();
        self.state.lock().is_clean &= cleared.is_ok();
        cleared.map(|()| true)
    }

    /// Returns whether the volume is marked as clean, or about to be.
    pub(crate) fn is_clean(&self) -> bool {
        self.state.lock().is_clean
    }

    /// Marks a volume that is marked as clean as in use, durably. The caller has no handle open.
    pub(crate) fn mark_in_use(&self) -> Result<()> {
        let _held = Held::new(ranks::TRANSACTION);
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if state.is_locked {
                state.wait(&self.changed);
            } else if state.is_clean {
                state = self.mark_in_use_locked(state)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Marks a clean volume as in use. No other thread opens a handle or marks the volume
    /// meanwhile. An error shuts the volume down.
    pub(super) fn mark_in_use_locked<'s>(
        &'s self,
        mut state: RankedGuard<'s, State>,
    ) -> Result<RankedGuard<'s, State>> {
        state.is_locked = true;
        drop(state);
        let mut unlocking = Committing { journal: self, has_ended: false };
        let marked = self.use_mark().map_or(Ok(()), UseMark::set);
        if let Err(error) = &marked {
            self.fail(error);
        }
        unlocking.has_ended = true;
        self.state.lock().is_clean &= marked.is_err();
        drop(unlocking);
        marked.map(|()| self.state.lock())
    }

    /// Ends the writing of a volume that is marked as clean, without writing to it. Returns false
    /// if it is not.
    pub(crate) fn finish_clean(&self) -> Result<bool> {
        let mut state = self.state.lock();
        while state.is_locked {
            state.wait(&self.changed);
        }
        state.check_not_lost()?;
        if state.is_clean {
            state.end = Some(End::Closed);
        }
        Ok(state.is_clean)
    }
}
