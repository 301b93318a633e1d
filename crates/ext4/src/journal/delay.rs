//! Delays of commits for the sake of data: data under writeback when a commit is requested becomes
//! durable with that commit, and not with the next one. Not here: the choice of data
//! (`vfs/node/replacing.rs`).
//!
//! The end of I/O opens handles, so the commit waits before it blocks new handles. A thread that
//! delays a commit may itself need one, because the transaction is full, or because freed space is
//! available only after a commit. So may the threads that it waits for. Such a commit waits for no
//! delay, and the data becomes durable with the next commit.

use base::locks::RankedGuard;

use super::{Journal, State};

/// A guard that delays the commits that are requested before it is dropped.
#[derive(Debug)]
pub(crate) struct Delay<'j> {
    journal: &'j Journal,
    number: u64,
}

impl Journal {
    /// Delays commits until the result is dropped.
    pub(crate) fn delay_commits(&self) -> Delay<'_> {
        let mut state = self.state.lock();
        let number = state.delays.begin();
        Delay { journal: self, number }
    }

    /// Waits for the first `count` delays. It does not wait for later ones: they might never end,
    /// and a thread that a later delay waits for may itself wait for this commit to make room.
    pub(super) fn wait_for_delays(&self, state: &mut RankedGuard<'_, State>, count: u64) {
        while state.end.is_none() && state.delays.has_any_of_first(count) {
            state.wait(&self.changed);
        }
    }
}

impl Drop for Delay<'_> {
    fn drop(&mut self) {
        let mut state = self.journal.state.lock();
        if state.delays.end(self.number) && state.is_committing {
            self.journal.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use base::cancellation::{self, CHECK_EVERY};
    use base::{Error, FsBlock, Location};

    use super::*;
    use crate::journal::handle::tests::journal;

    fn wait_until_committing(journal: &Journal) {
        while !journal.state.lock().is_committing {
            thread::yield_now();
        }
    }

    #[test]
    fn a_delayed_commit_contains_changes_made_during_the_delay() {
        let journal = journal();
        journal.start(1).unwrap().revoke(FsBlock(1));
        let delay = journal.delay_commits();
        thread::scope(|scope| {
            let commit = scope.spawn(|| journal.commit_all().unwrap());
            wait_until_committing(&journal);
            let mut handle = journal.start(1).unwrap();
            handle.edit(FsBlock(7), "test", Location::default(), |bytes| bytes[0] = 1).unwrap();
            drop(handle);
            // The commit does not wait for a later delay.
            let later = journal.delay_commits();
            drop(delay);
            commit.join().unwrap();
            assert!(journal.state.lock().running.is_empty());
            drop(later);
        });
    }

    #[test]
    fn a_commit_that_makes_room_does_not_wait_for_a_delay() {
        let journal = journal();
        let _delay = journal.delay_commits();
        let first = journal.start(1).unwrap().transaction();
        for block in 0..=journal.blocks_max {
            journal.start(1).unwrap().revoke(FsBlock(block));
        }
        assert_eq!(journal.start(1).unwrap().transaction(), first.next());
        journal.commit_for_room().unwrap();
    }

    #[test]
    fn a_thread_that_needs_room_ends_the_delays_of_another_threads_commit() {
        let journal = journal();
        journal.start(1).unwrap().revoke(FsBlock(1));
        let _delay = journal.delay_commits();
        thread::scope(|scope| {
            let commit = scope.spawn(|| journal.commit_all().unwrap());
            wait_until_committing(&journal);
            journal.commit_for_room().unwrap();
            commit.join().unwrap();
        });
    }

    #[test]
    fn a_commit_does_not_wait_for_a_delay_that_begins_after_it() {
        let journal = journal();
        journal.start(1).unwrap().revoke(FsBlock(1));
        let first = journal.delay_commits();
        let begun = journal.state.lock().delays.begun();
        let _later = journal.delay_commits();
        drop(first);
        // The later delay takes the part of one that begins between the decision to commit and the
        // commit.
        journal.wait_for_delays(&mut journal.state.lock(), begun);
    }

    #[test]
    fn a_cancelled_request_ends_a_sync_but_no_other_commit() {
        let journal = journal();
        journal.start(1).unwrap().revoke(FsBlock(1));
        let delay = journal.delay_commits();
        thread::scope(|scope| {
            let first = scope.spawn(|| journal.commit_all());
            wait_until_committing(&journal);
            let second = scope.spawn(|| {
                let _cancellable = cancellation::cancel_when(|| true);
                [journal.sync(journal.latest()).map(drop), journal.commit_all()]
            });
            // If `commit_all` could be cancelled, the thread would finish in this time.
            let mut checks = 0..4;
            while checks.next().is_some() && !second.is_finished() {
                thread::sleep(CHECK_EVERY);
            }
            drop(delay);
            assert_eq!(second.join().unwrap(), [Err(Error::Interrupted), Ok(())]);
            first.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_commit_does_not_wait_for_delays_after_a_failure() {
        let journal = journal();
        journal.start(1).unwrap().revoke(FsBlock(1));
        let _delay = journal.delay_commits();
        thread::scope(|scope| {
            let commit = scope.spawn(|| journal.commit_all());
            wait_until_committing(&journal);
            journal.fail_after_panic("caused by the test");
            assert!(commit.join().unwrap().is_err());
        });
    }
}
