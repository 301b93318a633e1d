//! The flusher: a thread that writes back and commits old data, and writes back data above the
//! background limit. Not here: the limits (`mod.rs`), and the dirty inodes (`dirty_inodes.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::Error;
use fs::FileSystem;
use iomap::EndIo;
use parking_lot::{Condvar, Mutex};

use super::dirty_inodes::DirtyInodes;
use super::losses::Losses;
use super::settle_all;

/// The default age at which dirty data is written back. The kernel uses 30 s, but it receives every
/// sync(2).
const AGE_MAX: Duration = Duration::from_secs(5);
/// The interval at which the flusher checks for old data.
const TICK: Duration = Duration::from_millis(500);

/// A command for the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    /// Check for old data after the next tick.
    Wait,
    /// Write back all data.
    Flush,
    /// End the thread.
    Stop,
}

/// The state of the flusher, which the thread and the volume share.
#[derive(Debug)]
pub(super) struct Flusher {
    pub(super) inodes: DirtyInodes,
    /// What may be lost after an error.
    pub(super) losses: Losses,
    end_io: Arc<EndIo>,
    file_system: Arc<dyn FileSystem>,
    /// The age at which data is written back and committed.
    age_max: Duration,
    /// The time since which the device may have data that is not committed.
    uncommitted: Mutex<Option<Instant>>,
    command: Mutex<Command>,
    changed: Condvar,
}

impl Flusher {
    /// Returns the state for a thread that writes data back at the age `age_max`, or at the default
    /// age if that is zero.
    pub(super) fn new(
        end_io: Arc<EndIo>,
        file_system: Arc<dyn FileSystem>,
        age_max: Duration,
    ) -> Self {
        let age_max = if age_max.is_zero() { AGE_MAX } else { age_max };
        Self {
            inodes: DirtyInodes::new(age_max),
            losses: Losses::default(),
            end_io,
            file_system,
            age_max,
            uncommitted: Mutex::new(None),
            command: Mutex::new(Command::Wait),
            changed: Condvar::new(),
        }
    }

    /// Sends a command to the thread, unless it has the command to stop.
    pub(super) fn send(&self, command: Command) {
        let mut current = self.command.lock();
        if *current != Command::Stop {
            *current = command;
        }
        self.changed.notify_all();
    }

    /// Records that the device has data that is not committed. A later round commits it.
    pub(super) fn note_uncommitted(&self) {
        self.uncommitted.lock().get_or_insert_with(Instant::now);
    }

    /// Waits for the next command, at most for a tick.
    fn receive(&self) -> Command {
        let mut command = self.command.lock();
        if *command == Command::Wait {
            self.changed.wait_for(&mut command, TICK);
        }
        match *command {
            Command::Stop => Command::Stop,
            _ => std::mem::replace(&mut *command, Command::Wait),
        }
    }

    /// Runs one round. If any data or change is old, writes back and commits all data, so that the
    /// next round is not due soon. On a mount that does not receive sync(2), a crash after a sync
    /// loses only data that is younger than the limit.
    fn round(&self, flush_all: bool) {
        let begun = Instant::now();
        if self.end_io.take_direct_writes() {
            // The writes ended after the previous round.
            let ended = begun.checked_sub(TICK).unwrap_or(begun);
            self.uncommitted.lock().get_or_insert(ended);
        }
        let is_old = |since: Instant| since.elapsed() >= self.age_max;
        let has_old = self.inodes.has_expired()
            || self.uncommitted.lock().is_some_and(is_old)
            || self.file_system.changed_since().is_some_and(is_old);
        if !flush_all && !has_old {
            // There is nothing to write. A later change reports an error that shuts the volume
            // down.
            if let Err(error) = self.file_system.clean_in_background() {
                tracing::debug!(%error, "the volume is not cleaned");
            }
            return;
        }
        let due = self.inodes.due();
        // The flusher serves no request that could be cancelled.
        let _ = settle_all(&due);
        self.inodes.finish_round(due, begun, self.end_io.errors(), &self.losses);
        if !has_old {
            self.uncommitted.lock().get_or_insert(begun);
            return;
        }
        *self.uncommitted.lock() = None;
        let sync = self.losses.begin_sync();
        let synced = self.file_system.sync();
        if synced.is_ok() {
            self.losses.committed(sync);
        }
        if let Err(error) = synced {
            if error == Error::NoSpace {
                // The volume is not shut down. A later sync may find room.
                self.note_uncommitted();
            }
            self.end_io.errors().record(error);
        }
    }

    /// Shuts the volume down after a panic of the thread, which the panic hook has reported.
    fn panicked(&self) {
        let operation = "background writeback";
        let error = Error::Lost(Arc::new(Error::Panicked(operation)));
        self.end_io.errors().record(error);
        self.file_system.panicked(operation);
    }
}

/// Runs the thread until it gets the command to stop or the volume's writeback is dropped.
pub(super) fn run(flusher: &Weak<Flusher>) {
    loop {
        let Some(flusher) = flusher.upgrade() else { return };
        let flush_all = match flusher.receive() {
            Command::Stop => return,
            command => command == Command::Flush,
        };
        if catch_unwind(AssertUnwindSafe(|| flusher.round(flush_all))).is_err() {
            return flusher.panicked();
        }
    }
}
