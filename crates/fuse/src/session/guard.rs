//! The guard: mounts for the server, and sees to it that the mount goes when it should. It never
//! looks at the image.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::control::{Control, Event, Message, wait};
use super::peer::announce;
use super::process::{self, Child};
use super::signals::Signals;
use super::task::{self, Task};
use super::{Plan, SessionError, Sockets, locate, witness};
use crate::mount::{self, Claimed, Detached, MountError, MountId, MountRequest};

/// How long the kernel may take to have written what it has collected.
const PATIENCE_TO_SYNC: Duration = Duration::from_secs(30);
/// Who asks for an end often asks both processes: what comes so soon after the first is the same wish.
const SAME_WISH: Duration = Duration::from_secs(1);
/// How long the server may take to end once the mount has gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take once it was told to, whoever uses the mount, and once it has hung up.
const PATIENCE_AT_QUIT: Duration = Duration::from_secs(10);
/// The same when it may have much to write first.
pub(super) const PATIENCE_TO_WRITE: Duration = Duration::from_secs(600);

/// The guard's part: see the module above.
pub fn run<E>(
    plan: &Plan,
    sockets: Sockets,
    server: Child,
    ready: Option<OwnedFd>,
) -> Result<(), SessionError<E>> {
    process::leave_directory();
    let control = Control::new(sockets.control);
    let signals = match Signals::take() {
        Ok(signals) => signals,
        Err(errno) => {
            server.kill();
            let _ = server.wait::<E>();
            return Err(SessionError::Host("take signals", errno));
        }
    };
    // Their threads inherit that signals are blocked.
    locate::start(sockets.locate);
    witness::start(sockets.witness);
    let mut guard = Guard { plan, control, signals, server, mount: None, presence: None };
    match guard.wait() {
        Ok(Event::Message(Message::Prepared)) => {}
        Ok(Event::Signal) => return guard.abort(PATIENCE, SessionError::Interrupted),
        other => return Err(process::failure_of(guard.end(&other))),
    }
    let claimed = match claim(plan) {
        Ok(claimed) => claimed,
        Err(error) => return guard.abort(PATIENCE, error.into()),
    };
    // Should the server have gone, then the wait for its message will tell.
    let _ = guard.control.send(&Message::Watching);
    match guard.wait() {
        Ok(Event::Message(Message::Opened)) => {}
        // It is opening the volume, or waits until it may: what is written then outlives a kill.
        Ok(Event::Signal) => return guard.abort(PATIENCE, SessionError::Interrupted),
        other => return Err(process::failure_of(guard.end(&other))),
    }
    let (detached, _descriptor) = match claimed {
        Some(Claimed::ByMount(detached)) => (Some(detached), None),
        Some(Claimed::ByDescriptor(descriptor)) => (None, Some(descriptor)),
        None => (None, None),
    };
    match guard.attach(detached) {
        Ok(()) => guard.report_and_watch(ready),
        Err(error) => guard.abort(PATIENCE_TO_WRITE, error.into()),
    }
}

/// Claims the device or image before anything is read from it.
fn claim(plan: &Plan) -> Result<Option<Claimed>, MountError> {
    mount::check_free(&plan.directory)?;
    plan.claim.as_ref().map_or(Ok(None), |claim| claim.take(&plan.options))
}

struct Guard<'a> {
    plan: &'a Plan,
    control: Control,
    signals: Signals,
    server: Child,
    /// The mount.
    mount: Option<MountId>,
    /// A socket whose name exists while this process runs, so that `umount` can wait for its end.
    presence: Option<UnixListener>,
}

impl Guard<'_> {
    /// Waits for the next message of the server, or a signal.
    fn wait(&self) -> Result<Event, Errno> {
        wait(Some(&self.control), &self.signals, None, None)
    }

    /// Waits so long at most, however many messages come.
    fn wait_within(&self, wait_callback: Option<Duration>) -> Result<Event, Errno> {
        match wait_callback {
            Some(Duration::ZERO) => Ok(Event::Timeout),
            wait_callback => wait(Some(&self.control), &self.signals, None, wait_callback),
        }
    }

    /// Mounts and hands the connection over.
    fn attach(&mut self, detached: Option<Detached>) -> Result<(), MountError> {
        let plan = self.plan;
        let is_block_device = detached.is_some();
        let source = plan.options.fsname.as_ref().map_or_else(|| plan.source.clone(), Into::into);
        let connection = match detached {
            Some(detached) => {
                // Set before the mount can be unmounted.
                self.mount = detached.id();
                self.presence = self.mount.as_ref().and_then(|id| announce(&id.name(&source)));
                detached.attach(&plan.directory)?
            }
            None => {
                let (directory, options) = (&*plan.directory, &plan.options);
                let request = MountRequest { source: source.clone(), directory, options };
                let connection = mount::mount(&request)?;
                self.mount = MountId::find(directory).map(|(id, _)| id);
                self.presence = self.mount.as_ref().and_then(|id| announce(&id.name(&source)));
                connection
            }
        };
        if let (true, Some(mount)) = (plan.options.writeback, &self.mount) {
            mount::lift_limit_on_writeback(&mount.device, is_block_device);
        }
        // The guard keeps no connection: the server's must be the last one.
        let _ = self.control.send(&Message::Mounted(connection));
        Ok(())
    }

    /// From the mount on.
    fn report_and_watch<E>(self, ready: Option<OwnedFd>) -> Result<(), SessionError<E>> {
        match self.wait() {
            Ok(Event::Message(Message::Serving)) => {}
            Ok(Event::Signal) => {
                self.take_away();
                return self.abort(PATIENCE_TO_WRITE, SessionError::Interrupted);
            }
            other => {
                self.take_away();
                return self.end(&other);
            }
        }
        if let Some(ready) = ready {
            self.go_into_background(&ready);
        }
        let last = self.watch();
        // Whatever happened to the server, nothing of the mount must stay behind.
        self.take_away();
        self.end(&last)
    }

    /// Waits for the server after the `last` event of it. One that has hung up is about to end. Any other, which may
    /// have been taken over, is killed.
    fn end<E>(self, last: &Result<Event, Errno>) -> Result<(), SessionError<E>> {
        if !matches!(last, Ok(Event::Closed)) {
            self.server.kill();
        }
        self.server.wait_within(PATIENCE_AT_QUIT)
    }

    /// Ends a server whose start has failed for a reason that it does not know. The server has `wait_callback` to close its
    /// volume; another signal ends it sooner.
    fn abort<E>(
        self,
        wait_callback: Duration,
        error: SessionError<E>,
    ) -> Result<(), SessionError<E>> {
        let has_ended = self.plan.options.writable
            && self.control.send(&Message::Quit).is_ok()
            && self.await_end(wait_callback);
        let last = if has_ended { Event::Closed } else { Event::Timeout };
        let _ = self.end::<E>(&Ok(last));
        Err(error)
    }

    /// Waits until the server has let go of its end of the socket, which it does last.
    fn await_end(&self, wait_callback: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let left = wait_callback.saturating_sub(begun.elapsed());
            match self.wait_within(Some(left)) {
                Ok(Event::Closed) => return true,
                Ok(Event::Message(_)) => {}
                Ok(Event::Signal) if begun.elapsed() < SAME_WISH => {}
                _ => return false,
            }
        }
    }

    fn go_into_background(&self, ready: &OwnedFd) {
        process::leave_terminal();
        if let Ok(null) = process::open_null() {
            let _ = process::leave_streams(&null);
        }
        // The caller may have been killed: the mount is there all the same.
        let _ = rustix::io::write(ready, &[1]);
    }

    /// Watches the server until it has ended or must be killed. Returns the event that says so.
    fn watch(&self) -> Result<Event, Errno> {
        let mut until: Option<Instant> = None;
        let mut told = false;
        let mut asked: Option<Instant> = None;
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let event = self.wait_within(left);
            let is_wish = matches!(event, Ok(Event::Signal | Event::Message(Message::Asked)));
            if is_wish && asked.is_some_and(|first| first.elapsed() < SAME_WISH) {
                continue;
            }
            match event {
                Ok(Event::Signal | Event::Message(Message::Asked)) if until.is_none() => {
                    let first = *asked.get_or_insert_with(Instant::now);
                    if !self.sync(first) {
                        return Ok(Event::Closed);
                    }
                    let wait_callback = self.unmount();
                    until = Some(Instant::now() + wait_callback);
                }
                // The mount has gone from here, but is still in use, or is mounted elsewhere, too;
                // or somebody insists.
                Ok(Event::Timeout | Event::Signal | Event::Message(Message::Asked)) if !told => {
                    told = true;
                    let wait_callback = match self.plan.options.writable {
                        true => PATIENCE_TO_WRITE,
                        false => PATIENCE_AT_QUIT,
                    };
                    until = Some(Instant::now() + wait_callback);
                    let _ = self.control.send(&Message::Quit);
                }
                // Told again, it waits for nobody.
                Ok(Event::Signal | Event::Message(Message::Asked)) => {
                    let _ = self.control.send(&Message::Quit);
                }
                // It has ended, does not end, or talks nonsense.
                last => return last,
            }
        }
    }

    /// Has the kernel write what programs have written and it has not passed on yet: their mappings,
    /// and with `writeback` all that they write. False when the server has ended meanwhile.
    fn sync(&self, asked: Instant) -> bool {
        if !self.plan.options.writable || !self.is_mounted() {
            return true;
        }
        let syncing = match self.start_sync() {
            Ok(syncing) => syncing,
            Err(errno) => {
                tracing::warn!("cannot have the mount written: {errno}");
                return true;
            }
        };
        loop {
            let left = PATIENCE_TO_SYNC.saturating_sub(asked.elapsed());
            match wait(Some(&self.control), &self.signals, Some(syncing.as_fd()), Some(left)) {
                Ok(Event::Signal | Event::Message(Message::Asked))
                    if asked.elapsed() < SAME_WISH => {}
                Ok(Event::Closed) => return false,
                Ok(Event::Other) => {
                    if let Some(Err(errno)) = syncing.outcome() {
                        tracing::warn!("not all written data could be made durable: {errno}");
                    }
                    return true;
                }
                // Out of patience, or somebody insists.
                _ => {
                    tracing::warn!("what was written and not synced may be lost");
                    return true;
                }
            }
        }
    }

    fn start_sync(&self) -> Result<Task<Result<(), Errno>>, Errno> {
        let directory = self.plan.directory.clone();
        Task::start(move || task::sync(&directory))
    }

    /// Takes the mount out of the tree, in use or not. Gives the time that its users get to end.
    fn unmount(&self) -> Duration {
        if !self.is_mounted() {
            return PATIENCE;
        }
        let is_in_use = mount::is_in_use(&self.plan.directory);
        if is_in_use {
            tracing::warn!("the mount is in use: what is open on it will fail");
        }
        self.take_away();
        if is_in_use { Duration::ZERO } else { PATIENCE }
    }

    /// Detaches the mount, if it is still attached. Limits its wait, since the kernel may wait until the
    /// server has written everything.
    fn take_away(&self) {
        let Some(mount) = self.mount.clone() else { return };
        let directory = self.plan.directory.clone();
        let taking = Task::start(move || mount::take_away(&directory, &mount));
        let outcome = match taking {
            Ok(taking) => taking.outcome_within(PATIENCE).unwrap_or(Ok(())),
            Err(errno) => Err(MountError::Unmount(errno)),
        };
        if let Err(error) = outcome {
            tracing::error!("{}: {error}", self.plan.directory.display());
        }
    }

    /// Whether the topmost mount on the directory is still the one that was made.
    fn is_mounted(&self) -> bool {
        let found = MountId::find(&self.plan.directory).map(|(found, _)| found);
        found.is_some() && found == self.mount
    }
}
