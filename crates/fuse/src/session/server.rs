//! The server's process: it opens the image, confines itself, opens the volume, and serves.

use std::fmt::Display;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::control::{Control, Event, Message, wait};
use super::kill_check::KillCheck;
use super::namespace;
use super::process;
use super::signals::Signals;
use super::system_call::SystemCalls;
use super::{Plan, SessionError, Sockets, upgrade};
use crate::mount::Preference;
use crate::operations::MAX_BACKGROUND;
use crate::protocol::InitFlags;
use crate::server::{Server, ServerOptions};
use crate::transport::{
    Affinity, BusyPoll, Channel, Contention, EndReason, Invalidator, KeepAwake, NoRings,
    RingWorkerPool, Rings, WorkerPool, shake_hands,
};
use crate::upgrade::Opener;

/// The time for which requests are still served after `Quit`.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which a server that is to end checks whether all requests are answered.
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// The number of checks in a row that must find no request, since a check misses a request that a
/// thread is just receiving.
const IDLE_CHECKS: u32 = 5;

/// Why a server opens no volume that the guard does not open files for.
const NO_FILES: &str = "its server cannot open it for writing";

/// Runs the server: see the parent module.
pub fn run<P, E: Display>(
    plan: &Plan,
    sockets: Sockets,
    prepare: impl FnOnce() -> Result<P, E>,
    open: impl FnOnce(P) -> Result<Arc<vfs::Volume>, E>,
) -> Result<(), SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    // Only the guard receives signals from the terminal.
    process::leave_terminal();
    let prepared = prepare().map_err(SessionError::Open)?;
    plan.inherited.close();
    if plan.confinement.is_any() {
        process::clear_environment();
    }
    process::leave_directory();
    let null = process::open_null().map_err(host("open /dev/null"))?;
    let left = confine::leave_input().and_then(|()| rustix::stdio::dup2_stdout(&null));
    left.map_err(host("leave standard input"))?;
    let signals = Signals::install().map_err(host("handle signals"))?;
    let control = Control::new(sockets.control);
    control.send(&Message::Prepared).map_err(host("send to the guard"))?;
    // Until the guard handles signals, a signal ends the guard, and this process would continue
    // without it. Until the host has claimed the device, other programs may change its contents.
    match wait(Some(&control), &signals, None, None).map_err(host("wait"))? {
        Event::Message(Message::Watching) => {}
        Event::Signal => return Err(SessionError::Interrupted),
        _ => return Err(SessionError::Reported(1)),
    }
    // Some properties of the host cannot be read after the confinement.
    let options = server_options(plan);
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let poll = busy_poll(plan, processors, sockets.locate).map_err(SessionError::LowLatency)?;
    let rings = try_io_uring(plan, || match &sockets.ring_device {
        Some(device) => Rings::new(plan.threads, device.as_fd()),
        None => Err(io::Error::other("cannot open /dev/fuse").into()),
    })?;
    drop(sockets.ring_device);
    let proof = confine::Proof::open();
    // Before mounting, since the namespace would contain the mount.
    if let Err(errno) = namespace::leave() {
        tracing::debug!("cannot move the server to its own mount namespace: {errno}");
    }
    if plan.confinement.is_any() {
        let resources =
            confine::Resources { memory_max: plan.memory_max, files_max: confine::FILES_MAX };
        let needs = confine::Needs {
            // Files for writing may come from the guard later.
            writable: plan.options.writable || plan.upgrade.is_possible(),
            output: false,
            rings: rings.is_some(),
            guard: true,
            resources,
            trees: confine::Trees::None,
        };
        namespace::leave_others();
        let weaker = confine::confine(plan.confinement, needs, &proof);
        let weaker = weaker.map_err(SessionError::Confine)?;
        if let Some(old) = weaker.old_landlock {
            tracing::warn!("{old}");
        }
        if let Some(missing) = weaker.without_rights {
            tracing::warn!("{missing}");
        }
    }
    drop(proof);
    let volume = open(prepared).map_err(SessionError::Open)?;
    let (server, rings) = match create_server(plan, &volume, rings, options) {
        Ok(created) => created,
        Err(error) => {
            volume.close().map_err(|error| SessionError::Close(error, volume.lost_files()))?;
            return Err(error);
        }
    };
    let kill_check = KillCheck::new(sockets.kill_check);
    server.set_kill_check(move |thread| kill_check.is_killed(thread));
    let system_calls = SystemCalls::new(sockets.system_call);
    server.set_requesters(move |thread| system_calls.of(thread));
    // Otherwise, the first volume would stay in memory after another one has replaced it.
    drop(volume);
    let files = Arc::new(upgrade::Asker::new(sockets.upgrade));
    let given_up = Arc::clone(&files);
    let open = plan.upgrade.take_volume();
    server.set_opener(Opener {
        reopen: Box::new(move |thread| files.files_for(thread)),
        open: open.unwrap_or_else(|| Box::new(|_| Err(NO_FILES.to_owned()))),
        give_up: Box::new(move || given_up.give_up()),
    });
    let streams = [&null, &sockets.messages];
    let served = mount_and_serve(plan, &server, rings, poll, &control, &signals, streams);
    // The kernel does not report the end of every mount, and there may have been no mount. So the
    // volume is closed here: all changes become durable, and the volume is marked as clean.
    let closed = match server.close() {
        Err(error) => Err(SessionError::Close(error, server.lost_files())),
        // A sync may have reported the error, but sync(2) does not pass it on to anyone.
        Ok(()) if server.has_lost_data() => Err(SessionError::Lost(server.lost_files())),
        Ok(()) => Ok(()),
    };
    if let Err(error) = closed {
        let _ = control.send(&Message::Failed(error.to_string()));
        return Err(error);
    }
    served
}

/// Returns the server's options, from the plan and the host.
fn server_options(plan: &Plan) -> ServerOptions {
    let uid = rustix::process::getuid();
    let gid = rustix::process::getgid();
    ServerOptions {
        writeback_cache: plan.options.writeback,
        uncached: plan.options.uncached,
        owners: plan.options.owners(uid.as_raw(), gid.as_raw()),
        idmapped: plan.options.idmapped,
        may_become_writable: plan.upgrade.is_possible(),
        page_bytes: rustix::param::page_size(),
        max_background: max_background(),
        ..ServerOptions::default()
    }
}

/// Returns the maximum number of background requests, of which the kernel grants fewer to servers
/// without CAP_SYS_ADMIN on hosts with little memory. The kernel's limit is zero before the first
/// mount, and then that of the memory.
fn max_background() -> u16 {
    /// The memory for each request on which the kernel counts.
    const REQUEST_BYTES: u64 = 392 << 13;
    let granted = std::fs::read_to_string("/sys/module/fuse/parameters/max_user_bgreq");
    let granted = granted.ok().and_then(|text| text.trim().parse::<u64>().ok());
    let memory = rustix::system::sysinfo();
    let by_memory = memory.totalram.saturating_mul(memory.mem_unit.into()) / REQUEST_BYTES;
    let granted = granted.filter(|&granted| granted > 0).unwrap_or(by_memory);
    MAX_BACKGROUND.min(u16::try_from(granted).unwrap_or(u16::MAX)).max(1)
}

/// Returns the policy of waiting for requests. Opens files of the host for it.
fn busy_poll(plan: &Plan, processors: usize, locate: OwnedFd) -> io::Result<BusyPoll> {
    // Without /proc, it is unknown whether other programs need the processors.
    let contention = Contention::open(processors).ok();
    let keep_awake = match plan.options.low_latency {
        Preference::On => Some(KeepAwake::open()?),
        Preference::Auto if contention.is_some() => KeepAwake::open().ok(),
        Preference::Auto | Preference::Off => None,
    };
    let poll = BusyPoll::new(processors, keep_awake);
    Ok(match contention {
        Some(contention) => poll.with_contention(contention, Affinity::new(locate).ok()),
        None => poll,
    })
}

/// Creates the server for the volume, and the worker threads for its rings, if there are any.
fn create_server<E>(
    plan: &Plan,
    volume: &Arc<vfs::Volume>,
    rings: Option<Rings>,
    options: ServerOptions,
) -> Result<(Arc<Server>, Option<RingWorkerPool>), SessionError<E>> {
    let rings = match rings {
        Some(rings) => try_io_uring(plan, || RingWorkerPool::new(rings))?,
        None => None,
    };
    let server = Server::new(Arc::clone(volume), options).map_err(SessionError::Root)?;
    Ok((Arc::new(server), rings))
}

/// Makes the guard mount, and serves the mount to its end. Returns the error if there is no mount.
fn mount_and_serve<E>(
    plan: &Plan,
    server: &Arc<Server>,
    rings: Option<RingWorkerPool>,
    poll: BusyPoll,
    control: &Control,
    signals: &Signals,
    [null, messages]: [&OwnedFd; 2],
) -> Result<(), SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    let opened = Message::Opened { writable: server.is_writable() };
    control.send(&opened).map_err(host("send to the guard"))?;
    let (connection, has_rings) =
        match wait(Some(control), signals, None, None).map_err(host("wait"))? {
            Event::Message(Message::Mounted { connection, has_rings }) => (connection, has_rings),
            Event::Signal => return Err(SessionError::Interrupted),
            // The guard has sent `Quit` or ended, and has reported the reason.
            _ => return Err(SessionError::Reported(1)),
        };
    let channel = Channel::new(connection).map_err(host("set up /dev/fuse"))?;
    let notifications = channel.clone();
    server.set_attribute_invalidator(move |node| notifications.invalidate_attributes(node));
    let invalidator = Invalidator::start(channel.clone()).map_err(|error| no_thread(&error))?;
    server.set_contents_invalidator(move |node, range, timeout| {
        invalidator.invalidate_contents(node, range, timeout)
    });
    // Otherwise the kernel would wait for rings that never get a request.
    let rings = rings.filter(|_| has_rings);
    if rings.is_some() {
        server.accept_io_uring();
    }
    shake_hands(server, &channel).map_err(failure)?;
    match server.negotiated() {
        Some(Ok(_)) => {}
        Some(Err(refused)) => return Err(SessionError::Init(refused)),
        None => return Err(SessionError::NoInit),
    }
    let rings = rings.filter(|_| server.agreed_on(InitFlags::OVER_IO_URING));
    if plan.options.io_uring == Preference::On && rings.is_none() {
        let refused = NoRings::Host(io::Error::other("the host refuses it a connection"));
        return Err(SessionError::IoUring(if has_rings { NoRings::NotOffered } else { refused }));
    }
    if !plan.foreground {
        process::leave_streams(null, messages).map_err(host("leave the terminal"))?;
    }
    let connection_end = ConnectionEnd::new().map_err(host("create an eventfd"))?;
    // Before the first request is answered. A program that has used the mount may end it by a
    // signal, which the guard must not treat like a signal during the start.
    let _ = control.send(&Message::Serving);
    let poll = match rings {
        Some(rings) => {
            let failure = connection_end.clone();
            let poll = poll.without_keep_awake();
            rings.start(server, poll, move |end| failure.set(end));
            // The requests that still come over /dev/fuse are not urgent.
            BusyPoll::default()
        }
        None => poll,
    };
    serve(plan, server, &channel, poll, &connection_end, control, signals)
}

/// Calls `create` for a part of the transport over io_uring, unless the options exclude io_uring.
/// Fails only if the options require it.
fn try_io_uring<T, E>(
    plan: &Plan,
    create: impl FnOnce() -> Result<T, NoRings>,
) -> Result<Option<T>, SessionError<E>> {
    if plan.options.io_uring == Preference::Off {
        return Ok(None);
    }
    match create() {
        Ok(created) => Ok(Some(created)),
        Err(error) if plan.options.io_uring == Preference::On => Err(SessionError::IoUring(error)),
        Err(error) => {
            tracing::debug!("{error}");
            Ok(None)
        }
    }
}

/// The end of the connection, with a descriptor that can be polled for it.
#[derive(Clone, Debug)]
struct ConnectionEnd {
    reason: Arc<Mutex<Option<EndReason>>>,
    event: Arc<OwnedFd>,
}

impl ConnectionEnd {
    fn new() -> Result<Self, Errno> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { reason: Arc::default(), event: Arc::new(event) })
    }

    /// Records the end. Later calls do not change the reason.
    fn set(&self, reason: EndReason) {
        self.reason.lock().get_or_insert(reason);
        let _ = rustix::io::write(&*self.event, &1_u64.to_ne_bytes());
    }
}

/// Serves until the mount has ended, or the guard ends the service.
fn serve<E>(
    plan: &Plan,
    server: &Arc<Server>,
    channel: &Channel,
    poll: BusyPoll,
    connection_end: &ConnectionEnd,
    control: &Control,
    signals: &Signals,
) -> Result<(), SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    let at_end = connection_end.clone();
    let pool =
        WorkerPool::start(Arc::clone(server), channel.clone(), plan.threads, poll, move |reason| {
            at_end.set(reason)
        });
    pool.map_err(|error| no_thread(&error))?;
    let mut has_guard = true;
    loop {
        let guard = has_guard.then_some(control);
        match wait(guard, signals, Some(connection_end.event.as_fd()), None)
            .map_err(host("wait"))?
        {
            // Only the guard can unmount.
            Event::Signal
                if has_guard && request_end(control).map_err(host("send to the guard"))? => {}
            Event::Signal => return Ok(()),
            // Requests in flight change nothing, so nothing can be lost.
            Event::Message(Message::Quit) if !server.is_writable() => return Ok(()),
            Event::Message(Message::Quit) => {
                return drain(server, channel, connection_end, control, signals)
                    .map_err(host("wait"));
            }
            Event::Other => {
                return match connection_end.reason.lock().take() {
                    None | Some(EndReason::Unmounted) => Ok(()),
                    Some(reason) => Err(failure(reason)),
                };
            }
            // The guard was killed. The mount is still served, and other programs can unmount it.
            Event::Closed => has_guard = false,
            Event::Message(_) | Event::Timeout => {}
        }
    }
}

/// Waits until all requests that the kernel has sent are answered. Among them are writes from its
/// cache, for which no program waits. The wait has a timeout, since other programs may keep the
/// mount busy.
fn drain(
    server: &Server,
    channel: &Channel,
    connection_end: &ConnectionEnd,
    control: &Control,
    signals: &Signals,
) -> Result<(), Errno> {
    let until = Instant::now() + DRAIN_TIMEOUT;
    let mut guard = Some(control);
    let mut idle = 0;
    while idle < IDLE_CHECKS && Instant::now() < until {
        match wait(guard, signals, Some(connection_end.event.as_fd()), Some(CHECK_EVERY))? {
            Event::Timeout if server.is_idle() && !is_pending(channel)? => idle += 1,
            Event::Timeout => idle = 0,
            Event::Closed => guard = None,
            // This may still be the first signal, which the guard has received, too.
            Event::Signal => {}
            // A second `Quit`, or the end of the connection.
            Event::Message(_) | Event::Other => break,
        }
    }
    Ok(())
}

/// Returns whether there are requests that no thread has received yet.
fn is_pending(channel: &Channel) -> Result<bool, Errno> {
    let mut watched = [PollFd::new(channel, PollFlags::IN)];
    match rustix::event::poll(&mut watched, Some(&Timespec::default())) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Requests the end of the session from the guard. Returns false if the guard has ended.
fn request_end(control: &Control) -> Result<bool, Errno> {
    match control.send(&Message::EndRequested) {
        Ok(()) => Ok(true),
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the error for a thread that cannot be started.
fn no_thread<E>(error: &std::io::Error) -> SessionError<E> {
    SessionError::Host("start a thread", Errno::from_io_error(error).unwrap_or(Errno::AGAIN))
}

/// Returns the error for the end of the connection.
fn failure<E>(reason: EndReason) -> SessionError<E> {
    match reason {
        EndReason::Unmounted => SessionError::Interrupted,
        EndReason::Aborted => SessionError::Aborted,
        EndReason::Panicked => SessionError::Panicked,
        EndReason::Failed(errno) => SessionError::Host("read /dev/fuse", errno),
        EndReason::RingFailed(errno) => SessionError::Host("answer through io_uring", errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_reason_for_the_end_of_the_connection() {
        let text = |reason| failure::<base::Error>(reason).to_string();
        assert!(text(EndReason::Failed(Errno::IO)).contains("read /dev/fuse"));
        assert!(text(EndReason::RingFailed(Errno::IO)).contains("io_uring"));
        assert!(text(EndReason::Panicked).contains("panicked"));
    }

    #[test]
    fn an_ended_guard_is_detected() {
        let (guard, server) = crate::socket::pair().unwrap();
        let control = Control::new(server);
        assert_eq!(request_end(&control), Ok(true));
        drop(guard);
        assert_eq!(request_end(&control), Ok(false));
    }
}
