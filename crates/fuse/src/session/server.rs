//! The server's process: opens the image, confines itself, opens the volume, serves.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::confine;
use super::control::{Control, Event, Message, wait};
use super::namespace;
use super::process;
use super::signals::Signals;
use super::witness::Witness;
use super::{Plan, SessionError, Sockets};
use crate::mount::Preference;
use crate::protocol::InitFlags;
use crate::server::{Server, ServerOptions};
use crate::transport::{
    Affinity, BusyPoll, Channel, Contention, Crew, End, Invalidator, NoRings, RingCrew, Rings,
    Wakeful, shake_hands,
};

/// How long requests are still served after the mount has gone.
const PATIENCE_TO_DRAIN: Duration = Duration::from_secs(30);
/// How often a server that is to end looks whether all is answered.
const LOOK: Duration = Duration::from_millis(10);
/// So often in a row it must be: a request can be between the kernel and the thread that takes it.
const IDLE_LOOKS: u32 = 5;

/// The server's part: see the module above.
pub fn run<P, E>(
    plan: &Plan,
    sockets: Sockets,
    prepare: impl FnOnce() -> Result<P, E>,
    open: impl FnOnce(P) -> Result<Arc<vfs::Volume>, E>,
) -> Result<(), SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    // The guard alone is the terminal's business.
    process::leave_terminal();
    let prepared = prepare().map_err(SessionError::Open)?;
    process::leave_directory();
    let null = process::open_null().map_err(host("open /dev/null"))?;
    process::leave_input(&null).map_err(host("leave standard input"))?;
    let signals = Signals::take().map_err(host("take signals"))?;
    let control = Control::new(sockets.control);
    control.send(&Message::Prepared).map_err(host("talk to the guard"))?;
    // Until the guard handles signals, a signal ends the guard, and this process would run on without it.
    // Until the host holds the device, other programs may change its contents.
    match wait(Some(&control), &signals, None, None).map_err(host("wait"))? {
        Event::Message(Message::Watching) => {}
        Event::Signal => return Err(SessionError::Interrupted),
        _ => return Err(SessionError::Reported(1)),
    }
    // Some facts of the host cannot be read after confinement.
    let options = server_options(plan);
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let poll = busy_poll(plan, processors, sockets.locate).map_err(SessionError::LowLatency)?;
    let rings = or_do_without(plan, || Rings::new(plan.threads))?;
    // Before there is a mount that the namespace could hold.
    if let Err(errno) = namespace::leave() {
        tracing::debug!("no mount namespace for the server alone: {errno}");
    }
    if plan.confine {
        let writable = plan.options.writable;
        confine::confine(confine::Needs { writable, rings: rings.is_some() });
    }
    let volume = open(prepared).map_err(SessionError::Open)?;
    let (server, rings) = match make_server(plan, &volume, rings, options) {
        Ok(made) => made,
        Err(error) => {
            volume.close().map_err(SessionError::Close)?;
            return Err(error);
        }
    };
    let witness = Witness::new(sockets.witness);
    server.ask_who_is_killed(move |thread| witness.is_killed(thread));
    let served = attend(plan, &server, rings, poll, &control, &signals, &null);
    // The kernel does not say that it has gone, and a mount may not have come about: what is not durable
    // yet becomes so here, and the volume says that it is sound.
    server.close().map_err(SessionError::Close)?;
    served
}

/// Returns the server's settings from the plan and the host.
fn server_options(plan: &Plan) -> ServerOptions {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    ServerOptions {
        writeback_cache: plan.options.writeback,
        uncached: plan.options.uncached,
        owners: plan.options.owners(uid.as_raw(), gid.as_raw()),
        idmapped: plan.options.idmapped,
        page_bytes: rustix::param::page_size(),
        ..ServerOptions::default()
    }
}

/// How the readers wait for requests. They need files of the host for it, which are opened here.
fn busy_poll(plan: &Plan, processors: usize, locate: OwnedFd) -> io::Result<BusyPoll> {
    // Without /proc, other programs' need for the processors is not known.
    let contention = Contention::open(processors).ok();
    let wakeful = match plan.options.low_latency {
        Preference::On => Some(Wakeful::open()?),
        Preference::Auto if contention.is_some() => Wakeful::open().ok(),
        Preference::Auto | Preference::Off => None,
    };
    let poll = BusyPoll::new(processors, wakeful);
    Ok(match contention {
        Some(contention) => poll.beside_others(contention, Affinity::new(locate).ok()),
        None => poll,
    })
}

/// A server for the volume, and the threads for its rings, if it is to have some.
fn make_server<E>(
    plan: &Plan,
    volume: &Arc<vfs::Volume>,
    rings: Option<Rings>,
    options: ServerOptions,
) -> Result<(Arc<Server>, Option<RingCrew>), SessionError<E>> {
    let rings = match rings {
        Some(rings) => or_do_without(plan, || RingCrew::new(rings))?,
        None => None,
    };
    let options = ServerOptions { over_io_uring: rings.is_some(), ..options };
    let server = Server::new(Arc::clone(volume), options).map_err(SessionError::Root)?;
    Ok((Arc::new(server), rings))
}

/// From the volume to the end of the mount, or to what keeps it from coming about.
fn attend<E>(
    plan: &Plan,
    server: &Arc<Server>,
    rings: Option<RingCrew>,
    poll: BusyPoll,
    control: &Control,
    signals: &Signals,
    null: &OwnedFd,
) -> Result<(), SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    control.send(&Message::Opened).map_err(host("talk to the guard"))?;
    let connection = match wait(Some(control), signals, None, None).map_err(host("wait"))? {
        Event::Message(Message::Mounted(connection)) => connection,
        Event::Signal => return Err(SessionError::Interrupted),
        // It is told to quit, or alone: the guard knows why, and has said so.
        _ => return Err(SessionError::Reported(1)),
    };
    let channel = Channel::new(connection).map_err(host("set /dev/fuse up"))?;
    let notices = channel.clone();
    server.tell_of_stale(move |node| notices.invalidate_attributes(node));
    let invalidator = Invalidator::start(channel.clone()).map_err(|error| no_thread(&error))?;
    server.tell_of_old_contents(move |node, from, timeout| {
        invalidator.invalidate_contents(node, from, timeout)
    });
    shake_hands(server, &channel).map_err(failure)?;
    match server.negotiated() {
        Some(Ok(_)) => {}
        Some(Err(refused)) => return Err(SessionError::Init(refused)),
        None => return Err(SessionError::NoInit),
    }
    let rings = rings.filter(|_| server.agreed_on(InitFlags::OVER_IO_URING));
    if plan.options.io_uring == Preference::On && rings.is_none() {
        return Err(SessionError::IoUring(NoRings::NotOffered));
    }
    if !plan.foreground {
        process::leave_streams(null).map_err(host("leave the terminal"))?;
    }
    let over = Over::new().map_err(host("make an eventfd"))?;
    // Before the first request is answered: whoever has seen the mount at work may end it by a signal, which
    // the guard must not take for one that came before there was a mount.
    let _ = control.send(&Message::Serving);
    let poll = match rings {
        Some(rings) => {
            let over = over.clone();
            rings.start(server, &channel, poll.letting_sleep(), move |end| over.set(end));
            // What still comes over /dev/fuse is not urgent.
            BusyPoll::default()
        }
        None => poll,
    };
    serve(plan, server, &channel, poll, &over, control, signals)
}

/// What goes before a mount without io_uring may be made, where one is wanted only with it.
fn or_do_without<T, E>(
    plan: &Plan,
    make: impl FnOnce() -> Result<T, NoRings>,
) -> Result<Option<T>, SessionError<E>> {
    if plan.options.io_uring == Preference::Off {
        return Ok(None);
    }
    match make() {
        Ok(made) => Ok(Some(made)),
        Err(error) if plan.options.io_uring == Preference::On => Err(SessionError::IoUring(error)),
        Err(error) => {
            tracing::debug!("{error}");
            Ok(None)
        }
    }
}

/// How the connection ended, once it has, as something that can be polled.
#[derive(Clone, Debug)]
struct Over {
    end: Arc<Mutex<Option<End>>>,
    event: Arc<OwnedFd>,
}

impl Over {
    fn new() -> Result<Self, Errno> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { end: Arc::default(), event: Arc::new(event) })
    }

    /// The first end counts.
    fn set(&self, end: End) {
        self.end.lock().get_or_insert(end);
        let _ = rustix::io::write(&*self.event, &1_u64.to_ne_bytes());
    }
}

/// Serves until the mount has gone, or the guard wants an end.
fn serve<E>(
    plan: &Plan,
    server: &Arc<Server>,
    channel: &Channel,
    poll: BusyPoll,
    over: &Over,
    control: &Control,
    signals: &Signals,
) -> Result<(), SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    let at_end = over.clone();
    let (requests, client) = (Arc::clone(server), channel.clone());
    Crew::start(requests, client, plan.threads, poll, move |end| at_end.set(end))
        .map_err(|error| no_thread(&error))?;
    let mut guarded = true;
    loop {
        let guard = guarded.then_some(control);
        match wait(guard, signals, Some(over.event.as_fd()), None).map_err(host("wait"))? {
            // Only the guard can unmount.
            Event::Signal if guarded && ask(control).map_err(host("ask"))? => {}
            Event::Signal => return Ok(()),
            // Nothing that is under way can be lost.
            Event::Message(Message::Quit) if !plan.options.writable => return Ok(()),
            Event::Message(Message::Quit) => {
                return drain(server, channel, over, control, signals).map_err(host("wait"));
            }
            Event::Other => {
                let end = over.end.lock().take();
                return end.map_or(Ok(()), |end| match end {
                    End::Unmounted => Ok(()),
                    end => Err(failure(end)),
                });
            }
            // The guard was killed. The mount is in use, and can still be unmounted.
            Event::Closed => guarded = false,
            Event::Message(_) | Event::Timeout => {}
        }
    }
}

/// Waits until everything that the kernel has passed on is answered: writes from its cache, for which
/// nobody waits any more. While others keep the mount busy this cannot be told, and has an end.
fn drain(
    server: &Server,
    channel: &Channel,
    over: &Over,
    control: &Control,
    signals: &Signals,
) -> Result<(), Errno> {
    let until = Instant::now() + PATIENCE_TO_DRAIN;
    let mut guard = Some(control);
    let mut idle = 0;
    while idle < IDLE_LOOKS && Instant::now() < until {
        match wait(guard, signals, Some(over.event.as_fd()), Some(LOOK))? {
            Event::Timeout if server.is_idle() && !is_pending(channel)? => idle += 1,
            Event::Timeout => idle = 0,
            Event::Closed => guard = None,
            // This may be the first one still, which the guard has heard of, too.
            Event::Signal => {}
            // Somebody insists, or there is nothing left to wait for.
            Event::Message(_) | Event::Other => break,
        }
    }
    Ok(())
}

/// Whether a request has not been taken yet.
fn is_pending(channel: &Channel) -> Result<bool, Errno> {
    let mut watched = [PollFd::new(channel, PollFlags::IN)];
    match rustix::event::poll(&mut watched, Some(&Timespec::default())) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Asks the guard for an end. False if there is no guard any more.
fn ask(control: &Control) -> Result<bool, Errno> {
    match control.send(&Message::Asked) {
        Ok(()) => Ok(true),
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn no_thread<E>(error: &std::io::Error) -> SessionError<E> {
    SessionError::Host("start a thread", Errno::from_io_error(error).unwrap_or(Errno::AGAIN))
}

fn failure<E>(end: End) -> SessionError<E> {
    match end {
        End::Unmounted => SessionError::Interrupted,
        End::Aborted => SessionError::Aborted,
        End::Panicked => SessionError::Panicked,
        End::Failed(errno) => SessionError::Host("read /dev/fuse", errno),
        End::RingFailed(errno) => SessionError::Host("answer through io_uring", errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_the_connection_is_said() {
        let said = |end| failure::<base::Error>(end).to_string();
        assert!(said(End::Failed(Errno::IO)).contains("read /dev/fuse"));
        assert!(said(End::RingFailed(Errno::IO)).contains("io_uring"));
        assert!(said(End::Panicked).contains("panicked"));
    }

    #[test]
    fn a_guard_that_has_just_gone_is_not_asked() {
        let (guard, server) = crate::socket::pair().unwrap();
        let control = Control::new(server);
        assert_eq!(ask(&control), Ok(true));
        drop(guard);
        assert_eq!(ask(&control), Ok(false));
    }
}
