//! The guard: mounts for the server, watches it, and unmounts in the end. It never accesses the
//! image.

use std::cell::RefCell;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::control::{Control, Event, Message, wait};
use super::mark::Mark;
use super::process;
use super::signals::Signals;
use super::system_log::Severity;
use super::task::{self, Task};
use super::{
    Plan, SessionError, Sockets, failure_of, kill_check, locate, messages, system_call, upgrade,
};
use crate::child::Child;
use crate::mount::{self, Claimed, Detached, MountError, MountId, MountOptions, MountRequest};
use crate::transport::connect_device;

/// The time within which the kernel has to write the data that it holds.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which further requests to end count as the same request. Signals are often sent to
/// both processes.
const SAME_REQUEST: Duration = Duration::from_secs(1);
/// The time within which the server has to end after the mount has ended.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The time within which the server has to end after `Quit`, or after it has closed its end of the
/// socket.
const QUIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time within which a server has to end after it was killed, or after its connection was
/// aborted.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval at which the guard looks whether the server was killed, but cannot end.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// The time within which a server that may have much data to write has to end after `Quit`.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(600);

/// Runs the guard: see the parent module. Drops `held` after the server has ended, and before other
/// programs learn of it.
pub fn run<H, E: Display>(
    plan: &Plan,
    sockets: Sockets,
    server: Child,
    ready: Option<OwnedFd>,
    held: H,
) -> Result<(), SessionError<E>> {
    plan.inherited.close();
    process::leave_directory();
    if plan.confinement.is_any() {
        process::clear_environment_but_path();
        if let Err(error) = confine::confine_guard(plan.confinement, &confine::Proof::open()) {
            server.kill();
            let _ = server.wait();
            return Err(SessionError::Confine(error));
        }
    }
    let control = Control::new(sockets.control);
    let signals = match Signals::install() {
        Ok(signals) => signals,
        Err(errno) => {
            server.kill();
            let _ = server.wait();
            return Err(SessionError::Host("handle signals", errno));
        }
    };
    locate::start(sockets.locate);
    kill_check::start(sockets.kill_check);
    system_call::start(sockets.system_call);
    let device = Arc::default();
    upgrade::start(sockets.upgrade, &plan.upgrade, Arc::clone(&device));
    let mut guard = Guard {
        plan,
        control,
        signals,
        server,
        ring_device: sockets.ring_device,
        mount: None,
        device,
        has_block_device: false,
        marks: Vec::new(),
        failure: RefCell::default(),
        is_requested: false,
        messages: Some(sockets.messages),
        passing_on: None,
    };
    let outcome = guard.run(ready);
    if let Some(passing_on) = &guard.passing_on {
        // The server has ended, unless it cannot.
        passing_on.outcome_within(KILL_TIMEOUT);
    }
    match &outcome {
        // Locks of what it may still write are not released. They end with it.
        Err(SessionError::Host(_, Errno::TIMEDOUT)) => std::mem::forget(held),
        // Before other programs learn of the end.
        _ => {
            drop(held);
            plan.upgrade.release();
        }
    }
    guard.conclude(&outcome);
    outcome
}

/// Claims the device or image before the server reads from it.
fn claim(plan: &Plan) -> Result<Option<Claimed>, MountError> {
    mount::check_free(&plan.directory)?;
    plan.claim.as_ref().map_or(Ok(None), |claim| claim.acquire(&plan.options))
}

struct Guard<'a> {
    plan: &'a Plan,
    control: Control,
    signals: Signals,
    server: Child,
    /// The device of the server's rings, until it is connected.
    ring_device: Option<OwnedFd>,
    /// The mount, once there is one.
    mount: Option<MountId>,
    /// The device number of the mount, once there is one.
    device: Arc<OnceLock<String>>,
    /// Whether the mount has a block device, so that further mounts share it.
    has_block_device: bool,
    /// The marks by which other programs find this process, once there is a mount.
    marks: Vec<Mark>,
    /// The error with which the server has closed the volume.
    failure: RefCell<Option<String>>,
    /// Whether the end of a mount that can be used was requested.
    is_requested: bool,
    /// The pipe with what the server prints in the background, until a task reads it.
    messages: Option<OwnedFd>,
    /// The task that passes on what the server prints in the background.
    passing_on: Option<Task<()>>,
}

impl Guard<'_> {
    /// Mounts once the server has opened the volume, and watches the mount to its end.
    fn run<E>(&mut self, ready: Option<OwnedFd>) -> Result<(), SessionError<E>> {
        match self.wait() {
            Ok(Event::Message(Message::Prepared)) => {}
            Ok(Event::Signal) => return self.abort(END_TIMEOUT, SessionError::Interrupted),
            other => return Err(failure_of(self.end(&other))),
        }
        let claimed = match claim(self.plan) {
            Ok(claimed) => claimed,
            Err(error) => return self.abort(END_TIMEOUT, error.into()),
        };
        // If the server has ended, the wait for its message returns `Closed`.
        let _ = self.control.send(&Message::Watching);
        let writable = match self.wait() {
            Ok(Event::Message(Message::Opened { writable })) => writable,
            // The server is opening the volume, or waits to do so. Data that it writes then
            // survives a kill.
            Ok(Event::Signal) => return self.abort(END_TIMEOUT, SessionError::Interrupted),
            other => return Err(failure_of(self.end(&other))),
        };
        let (detached, _descriptor) = match claimed {
            Some(Claimed::ByMount(detached)) => (Some(detached), None),
            Some(Claimed::ByDescriptor(descriptor)) => (None, Some(descriptor)),
            None => (None, None),
        };
        match self.attach(detached, writable) {
            Ok(()) => self.report_and_watch(ready),
            Err(error) => self.abort(WRITE_TIMEOUT, error.into()),
        }
    }

    /// Tells programs that wait for the end the outcome.
    fn conclude<E: Display>(&self, outcome: &Result<(), SessionError<E>>) {
        // The server's own words, if it has failed.
        let failure = self.failure.borrow();
        let error = outcome.as_ref().err();
        let error = error.map(|error| failure.clone().unwrap_or_else(|| error.to_string()));
        for mark in &self.marks {
            mark.conclude(error.as_deref());
        }
    }

    /// Waits for an event of the server, a signal, or until `other` is ready. Keeps the error of
    /// the server, instead of returning it.
    fn wait_for(
        &self,
        other: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> Result<Event, Errno> {
        loop {
            match wait(Some(&self.control), &self.signals, other, timeout) {
                Ok(Event::Message(Message::Failed(text))) if self.failure.borrow().is_none() => {
                    self.failure.replace(Some(text));
                }
                event => return event,
            }
        }
    }

    /// Waits for a message of the server, or a signal.
    fn wait(&self) -> Result<Event, Errno> {
        self.wait_for(None, None)
    }

    /// Waits for a message of the server, or a signal, up to `timeout`. If that is zero, returns
    /// `Timeout` even if there is a message, so that a server that keeps sending cannot outlast its
    /// time.
    fn wait_within(&self, timeout: Option<Duration>) -> Result<Event, Errno> {
        match timeout {
            Some(Duration::ZERO) => Ok(Event::Timeout),
            timeout => self.wait_for(None, timeout),
        }
    }

    /// [`wait_within`](Self::wait_within) for a server that serves a mount. If the server was
    /// killed and does not end, aborts its connection: one of its threads waits in the kernel for
    /// an answer of another one.
    fn watch_within(&self, timeout: Option<Duration>) -> Result<Event, Errno> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut was_ending = false;
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let slice = left.unwrap_or(CHECK_EVERY).min(CHECK_EVERY);
            let event = self.wait_within(Some(slice));
            let is_last = left.is_some_and(|left| left <= slice);
            if is_last || !matches!(event, Ok(Event::Timeout)) {
                return event;
            }
            let is_ending = self.server.is_ending();
            if is_ending && was_ending {
                self.abort_connection();
            }
            was_ending = is_ending;
        }
    }

    /// Makes the kernel fail all requests of the mount.
    fn abort_connection(&self) {
        let Some(mount) = &self.mount else { return };
        match mount::abort(mount) {
            Ok(()) => tracing::warn!("the server was killed: accesses to the mount fail"),
            Err(errno) => tracing::error!("cannot abort the connection of the server: {errno}"),
        }
    }

    /// Mounts, and passes the connection to the server. The mount is read-only if the volume is not
    /// `writable`.
    fn attach(&mut self, detached: Option<Detached>, writable: bool) -> Result<(), MountError> {
        let plan = self.plan;
        let options =
            MountOptions { writable: plan.options.writable && writable, ..plan.options.clone() };
        self.has_block_device = detached.is_some();
        let source = plan.options.fsname.as_ref().map_or_else(|| plan.source.clone(), Into::into);
        let connection = match detached {
            Some(detached) => {
                // Before the mount is attached, since other programs can unmount it from then on.
                self.mount = detached.id();
                if let Some(id) = &self.mount {
                    let names = [id.name(&source), id.name_of_device()];
                    self.marks = names.iter().filter_map(|name| Mark::set(name)).collect();
                }
                if plan.options.writable && !writable {
                    detached.make_read_only()?;
                }
                detached.attach(&plan.directory)?
            }
            None => {
                let directory = &*plan.directory;
                let request = MountRequest { source: source.clone(), directory, options: &options };
                let connection = mount::mount(&request)?;
                self.mount = MountId::find(directory).map(|(id, _)| id);
                let name = self.mount.as_ref().map(|id| id.name(&source));
                self.marks = name.iter().filter_map(|name| Mark::set(name)).collect();
                connection
            }
        };
        if let Some(mount) = &self.mount {
            let _ = self.device.set(mount.device.clone());
        }
        if plan.options.writeback
            && let Some(mount) = &self.mount
        {
            mount::lift_limit_on_writeback(&mount.device, self.has_block_device);
        }
        // The confined server cannot change the flags of open files.
        let flags = rustix::fs::fcntl_getfl(&connection).map_err(MountError::Device)?;
        rustix::fs::fcntl_setfl(&connection, flags | OFlags::NONBLOCK)
            .map_err(MountError::Device)?;
        let has_rings = self.ring_device.take().is_some_and(|device| {
            let connected = connect_device(&device, &connection);
            connected
                .inspect_err(|error| tracing::debug!("cannot connect the rings: {error}"))
                .is_ok()
        });
        // The guard keeps no copy of the connection, so that the connection ends with the server.
        let _ = self.control.send(&Message::Mounted { connection, has_rings });
        Ok(())
    }

    /// Watches the server after mounting, and unmounts in the end. Writes to `ready` when the mount
    /// can be used.
    fn report_and_watch<E>(&mut self, ready: Option<OwnedFd>) -> Result<(), SessionError<E>> {
        match self.wait() {
            Ok(Event::Message(Message::Serving)) => {}
            Ok(Event::Signal) => {
                self.detach();
                return self.abort(WRITE_TIMEOUT, SessionError::Interrupted);
            }
            other => {
                self.detach();
                return self.end(&other);
            }
        }
        if let Some(ready) = ready {
            self.go_into_background(&ready);
        }
        let last = self.watch();
        if self.is_requested {
            self.detach();
            return self.end(&last);
        }
        // A server that dies, or that violates the protocol, leaves its mount. Otherwise, programs
        // that use it would go on in the directory below.
        let outcome = self.end(&last);
        if self.mounts().is_empty() {
            return outcome;
        }
        self.say_that_mount_stays();
        Err(failure_of(outcome))
    }

    /// Says what is left of the mount, and of the data, of a server that has died.
    fn say_that_mount_stays(&self) {
        let directory = self.plan.directory.display();
        let lost = match self.is_writable() {
            true => {
                "data that was synced is durable, and data that was written shortly before may be lost; "
            }
            false => "",
        };
        tracing::error!(
            "{directory}: the server has died: {lost}accesses fail until `bifolio umount` removes the mount, or \
             `bifolio mount` replaces it"
        );
    }

    /// Waits for the end of the server after its `last` event. A server that has closed its end of
    /// the socket is about to end. Any other, which may have been compromised, is killed.
    fn end<E>(&self, last: &Result<Event, Errno>) -> Result<(), SessionError<E>> {
        if !matches!(last, Ok(Event::Closed)) {
            self.server.kill();
        }
        if let Some(outcome) = self.server.ended_within(QUIT_TIMEOUT) {
            return Ok(outcome?);
        }
        self.server.kill();
        if let Some(outcome) = self.server.ended_within(KILL_TIMEOUT) {
            return Ok(outcome?);
        }
        self.abort_connection();
        match self.server.ended_within(KILL_TIMEOUT) {
            Some(outcome) => Ok(outcome?),
            None => Err(SessionError::Host("end the server", Errno::TIMEDOUT)),
        }
    }

    /// Ends a server that has not failed itself, and returns `error`. The server gets the time
    /// `timeout` to close its volume, unless another signal comes.
    fn abort<E>(&self, timeout: Duration, error: SessionError<E>) -> Result<(), SessionError<E>> {
        let has_ended = self.is_writable()
            && self.control.send(&Message::Quit).is_ok()
            && self.await_end(timeout);
        let last = if has_ended { Event::Closed } else { Event::Timeout };
        let _ = self.end::<E>(&Ok(last));
        Err(error)
    }

    /// Waits until the server has closed its end of the socket, which happens at its end. Returns
    /// false after `timeout`, or after a signal that requests the end again.
    fn await_end(&self, timeout: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            match self.wait_within(Some(left)) {
                Ok(Event::Closed) => return true,
                Ok(Event::Message(_)) => {}
                Ok(Event::Signal) if begun.elapsed() < SAME_REQUEST => {}
                _ => return false,
            }
        }
    }

    /// Detaches from the terminal, and lets the caller return.
    fn go_into_background(&mut self, ready: &OwnedFd) {
        process::leave_terminal();
        if let Ok(null) = process::open_null() {
            let _ = process::leave_streams(&null, &null);
        }
        self.plan.system_log.open();
        if let Some(reader) = self.messages.take() {
            self.passing_on = messages::start(reader, Arc::clone(&self.plan.system_log)).ok();
        }
        // The caller may have been killed. The mount exists all the same.
        let _ = rustix::io::write(ready, &[1]);
    }

    /// Watches the server until it has ended or must be killed. Returns the last event.
    fn watch(&mut self) -> Result<Event, Errno> {
        let mut until: Option<Instant> = None;
        let mut has_sent_quit = false;
        // The time of the first request to end.
        let mut requested: Option<Instant> = None;
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let event = self.watch_within(left);
            let is_request =
                matches!(event, Ok(Event::Signal | Event::Message(Message::EndRequested)));
            if is_request && requested.is_some_and(|first| first.elapsed() < SAME_REQUEST) {
                continue;
            }
            match event {
                Ok(Event::Signal | Event::Message(Message::EndRequested)) if until.is_none() => {
                    let first = *requested.get_or_insert_with(Instant::now);
                    self.is_requested = true;
                    let text =
                        format!("{}: a signal ends the mount", self.plan.directory.display());
                    self.plan.system_log.send(Severity::Info, &text);
                    if !self.sync(first) {
                        return Ok(Event::Closed);
                    }
                    let timeout = self.unmount();
                    until = Some(Instant::now() + timeout);
                }
                // The mount is detached, but still in use or mounted elsewhere, too. Or the end was
                // requested again.
                Ok(Event::Timeout | Event::Signal | Event::Message(Message::EndRequested))
                    if !has_sent_quit =>
                {
                    has_sent_quit = true;
                    let timeout = if self.is_writable() { WRITE_TIMEOUT } else { QUIT_TIMEOUT };
                    until = Some(Instant::now() + timeout);
                    let _ = self.control.send(&Message::Quit);
                }
                // After a second `Quit`, the server waits for no requests.
                Ok(Event::Signal | Event::Message(Message::EndRequested)) => {
                    let _ = self.control.send(&Message::Quit);
                }
                // The server has ended, does not end in time, or violates the protocol.
                last => return last,
            }
        }
    }

    /// Makes the kernel send the data that it holds to the server: data of mappings, and with
    /// `writeback` all written data. The time limit begins at `requested`. Returns false if the
    /// server has ended before.
    fn sync(&self, requested: Instant) -> bool {
        let mounts = self.mounts();
        let Some((directory, _)) = mounts.first().filter(|_| self.is_writable()) else {
            return true;
        };
        let syncing = match Self::start_sync(directory.clone()) {
            Ok(syncing) => syncing,
            Err(errno) => {
                tracing::warn!("cannot sync the mount: {errno}");
                return true;
            }
        };
        loop {
            let left = SYNC_TIMEOUT.saturating_sub(requested.elapsed());
            match self.wait_for(Some(syncing.as_fd()), Some(left)) {
                Ok(Event::Signal | Event::Message(Message::EndRequested))
                    if requested.elapsed() < SAME_REQUEST => {}
                Ok(Event::Closed) => return false,
                Ok(Event::Other) => {
                    if let Some(Err(errno)) = syncing.outcome() {
                        tracing::warn!("not all written data could be made durable: {errno}");
                    }
                    return true;
                }
                // The timeout has expired, or the end was requested again.
                _ => {
                    tracing::warn!(
                        "the sync of the mount was too slow or was interrupted: data that was not synced \
                         may be lost"
                    );
                    return true;
                }
            }
        }
    }

    /// Starts the sync of the mount on `directory`.
    fn start_sync(directory: PathBuf) -> Result<Task<Result<(), Errno>>, Errno> {
        Task::start(move || task::sync(&directory))
    }

    /// Detaches the mounts, even if they are in use. Returns the time for which the server may go
    /// on to serve their users.
    fn unmount(&self) -> Duration {
        let is_in_use = self.mounts().iter().any(|(directory, _)| mount::is_in_use(directory));
        if is_in_use {
            tracing::warn!("the mount is in use: accesses to its open files will fail");
        }
        self.detach();
        if is_in_use { Duration::ZERO } else { END_TIMEOUT }
    }

    /// Detaches the mounts that are still attached. Limits the wait, since the kernel may wait
    /// until the server has written all data.
    fn detach(&self) {
        for (directory, mount) in self.mounts() {
            let path = directory.clone();
            let detaching = Task::start(move || mount::detach(&path, &mount));
            let outcome = match detaching {
                Ok(detaching) => detaching.outcome_within(END_TIMEOUT).unwrap_or(Ok(())),
                Err(errno) => Err(MountError::Unmount(errno)),
            };
            if let Err(error) = outcome {
                tracing::error!("{}: {error}", directory.display());
            }
        }
    }

    /// Returns the mounts of the session that are attached, with their mount points: its own if it
    /// is the topmost one on the directory, and further ones.
    fn mounts(&self) -> Vec<(PathBuf, MountId)> {
        let Some(mount) = &self.mount else { return Vec::new() };
        let own = self.is_mounted().then(|| (self.plan.directory.clone(), mount.clone()));
        // The number of a device that is not a block device may be another mount's by now.
        let further = if self.has_block_device { mount.further() } else { Vec::new() };
        own.into_iter().chain(further).collect()
    }

    /// Returns whether the server may have the volume open for writing.
    fn is_writable(&self) -> bool {
        self.plan.options.writable || self.plan.upgrade.is_done()
    }

    /// Returns whether the topmost mount on the directory is still the session's.
    fn is_mounted(&self) -> bool {
        let found = MountId::find(&self.plan.directory).map(|(found, _)| found);
        found.is_some() && found == self.mount
    }
}
