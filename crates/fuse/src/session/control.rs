//! What guard and server tell each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::signals::Signals;
use crate::socket;

/// A message.
#[derive(Debug)]
pub enum Message {
    /// Server to guard: the image is open, and nothing has been read from it.
    Prepared,
    /// Guard to server: signals are handled now, and the host holds the device.
    Watching,
    /// Server to guard: the volume is open.
    Opened,
    /// Guard to server: the volume is mounted, and this is the connection.
    Mounted(OwnedFd),
    /// Server to guard: INIT is done; the mount can be used.
    Serving,
    /// Server to guard: I was asked to end.
    Asked,
    /// Guard to server: there is no mount, or it is out of the tree; end, whoever still uses it, once what
    /// the kernel has passed on is answered. The second time: at once.
    Quit,
}

/// What there is to react to.
#[derive(Debug)]
pub enum Event {
    /// A message.
    Message(Message),
    /// The other process has gone.
    Closed,
    /// A signal asks for an end.
    Signal,
    /// The third thing that was waited for.
    Other,
    /// The time is up.
    Timeout,
}

/// One end of the socket between them. It keeps messages apart.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
}

impl Control {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends a message; `descriptor` goes with `Mounted`.
    fn send_raw(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        socket::send(&self.socket, bytes, descriptor)
    }

    pub fn send(&self, message: &Message) -> Result<(), Errno> {
        match message {
            Message::Prepared => self.send_raw(b"p", None),
            Message::Watching => self.send_raw(b"w", None),
            Message::Opened => self.send_raw(b"o", None),
            Message::Mounted(connection) => self.send_raw(b"m", Some(connection.as_fd())),
            Message::Serving => self.send_raw(b"s", None),
            Message::Asked => self.send_raw(b"a", None),
            Message::Quit => self.send_raw(b"q", None),
        }
    }

    fn receive(&self) -> Result<Event, Errno> {
        let mut bytes = [0; 8];
        let (length, descriptor) = socket::receive(&self.socket, &mut bytes)?;
        let message = match (&bytes[..length], descriptor) {
            ([], _) => return Ok(Event::Closed),
            (b"o", _) => Message::Opened,
            (b"p", _) => Message::Prepared,
            (b"w", _) => Message::Watching,
            (b"m", Some(connection)) => Message::Mounted(connection),
            (b"s", _) => Message::Serving,
            (b"a", _) => Message::Asked,
            (b"q", _) => Message::Quit,
            // The server may have been taken over: whatever else it says is nothing to act on.
            _ => return Err(Errno::PROTO),
        };
        Ok(Event::Message(message))
    }
}

/// What comes next, from the other process, where there is one; at the end of `timeout`, where
/// there is one, `Timeout`.
pub fn wait(
    control: Option<&Control>,
    signals: &Signals,
    other: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> Result<Event, Errno> {
    let until = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let mut watched = vec![PollFd::new(signals, PollFlags::IN)];
        watched.extend(control.map(|control| PollFd::new(&control.socket, PollFlags::IN)));
        watched.extend(other.as_ref().map(|other| PollFd::new(other, PollFlags::IN)));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut watched, left.as_ref()) {
            Ok(0) => return Ok(Event::Timeout),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        let woken: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        return match control {
            // A message first: it may make the signal irrelevant.
            Some(control) if woken[1] => control.receive(),
            _ if woken[0] => {
                signals.clear();
                Ok(Event::Signal)
            }
            _ => Ok(Event::Other),
        };
    }
}
