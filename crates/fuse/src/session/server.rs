//! The server's process: opens the image, confines itself, opens the volume, serves.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::confine;
use super::control::{Control, Event, Message, wait};
use super::process;
use super::signals::Signals;
use super::{Plan, SessionError};
use crate::server::{Server, ServerOptions};
use crate::transport::{Channel, Crew, End, shake_hands};

/// The server's part: see the module above.
pub fn run<P, E>(
    plan: &Plan,
    socket: OwnedFd,
    prepare: impl FnOnce() -> Result<P, E>,
    open: impl FnOnce(P) -> Result<Arc<vfs::Volume>, E>,
) -> Result<(), SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    // The guard alone is the terminal's business.
    process::leave_terminal();
    let prepared = prepare().map_err(SessionError::Open)?;
    process::leave_directory();
    let null = process::open_null().map_err(host("open /dev/null"))?;
    let signals = Signals::take().map_err(host("take signals"))?;
    let control = Control::new(socket);
    if plan.confine {
        confine::confine(plan.options.writable);
    }
    let volume = open(prepared).map_err(SessionError::Open)?;
    let block_size = volume.statfs().block_size;
    let server = Server::new(volume, ServerOptions::default());
    let server = Arc::new(server.map_err(SessionError::Root)?);
    control.send(&Message::Opened { block_size }).map_err(host("talk to the guard"))?;
    let connection = match wait(Some(&control), &signals, None, None).map_err(host("wait"))? {
        Event::Message(Message::Mounted(connection)) => connection,
        Event::Signal => return Err(SessionError::Interrupted),
        // The guard knows why, and has said so.
        _ => return Err(SessionError::Reported(1)),
    };
    let channel = Channel::new(connection);
    shake_hands(&server, &channel).map_err(failure)?;
    if let Some(Err(refused)) = server.negotiated() {
        return Err(SessionError::Init(refused));
    }
    if !plan.foreground {
        process::leave_streams(&null).map_err(host("leave the terminal"))?;
    }
    let _ = control.send(&Message::Serving);
    let served = serve(plan, Arc::clone(&server), channel, &control, &signals);
    // The kernel does not say that it has gone: what is not durable yet becomes so here.
    server.close().map_err(SessionError::Close)?;
    served
}

/// Serves until the mount has gone, or the guard wants an end.
fn serve<E>(
    plan: &Plan,
    server: Arc<Server>,
    channel: Channel,
    control: &Control,
    signals: &Signals,
) -> Result<(), SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    let over = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(host("make an eventfd"))?;
    let over = Arc::new((over, Mutex::new(None)));
    let at_end = Arc::clone(&over);
    Crew::start(server, channel, plan.threads, move |end| {
        *at_end.1.lock() = Some(end);
        let _ = rustix::io::write(&at_end.0, &1_u64.to_ne_bytes());
    })
    .map_err(|error| {
        SessionError::Host("start a thread", Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
    })?;
    let mut guarded = true;
    loop {
        let guard = guarded.then_some(control);
        match wait(guard, signals, Some(over.0.as_fd()), None).map_err(host("wait"))? {
            // Only the guard can unmount.
            Event::Signal if guarded && ask(control).map_err(host("ask"))? => {}
            Event::Signal | Event::Message(Message::Quit) => return Ok(()),
            Event::Other => {
                let end = over.1.lock().take();
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

/// Asks the guard for an end. False if there is no guard any more.
fn ask(control: &Control) -> Result<bool, Errno> {
    match control.send(&Message::Asked) {
        Ok(()) => Ok(true),
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn failure<E>(end: End) -> SessionError<E> {
    match end {
        End::Unmounted => SessionError::Interrupted,
        End::Aborted => SessionError::Aborted,
        End::Failed(errno) => SessionError::Host("read /dev/fuse", errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_has_just_gone_is_not_asked() {
        let (guard, server) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let control = Control::new(server);
        assert_eq!(ask(&control), Ok(true));
        drop(guard);
        assert_eq!(ask(&control), Ok(false));
    }
}
