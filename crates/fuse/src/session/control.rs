//! Messages between guard and server, and waits for them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use base::text;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::signals::Signals;
use crate::socket;

/// The maximum size of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// The beginning of a message with the text of an error.
const FAILED: &[u8] = b"f:";

/// A message.
#[derive(Debug)]
pub enum Message {
    /// Server to guard: the image is open, and nothing was read from it yet.
    Prepared,
    /// Guard to server: the guard handles signals, and the host has claimed the device.
    Watching,
    /// Server to guard: the volume is open.
    Opened {
        /// Whether it is open for writing. If the host has no space, it is not, although the
        /// options are for writing.
        writable: bool,
    },
    /// Guard to server: the volume is mounted.
    Mounted {
        /// The connection.
        connection: OwnedFd,
        /// Whether the device of the server's rings has this connection, too.
        has_rings: bool,
    },
    /// Server to guard: INIT is answered, and the mount can be used.
    Serving,
    /// Server to guard: the server was requested to end.
    EndRequested,
    /// Server to guard: the volume could not be closed without an error, which is this text. Sent
    /// once.
    Failed(String),
    /// Guard to server: there is no mount, or it is detached. The first time, the server ends after
    /// it has answered the requests that the kernel has sent, even if programs still use the mount.
    /// The second time, it ends at once.
    Quit,
}

/// An event that guard or server waits for.
#[derive(Debug)]
pub enum Event {
    /// A message.
    Message(Message),
    /// The other process has closed its end of the socket.
    Closed,
    /// A signal requests the end.
    Signal,
    /// The caller's own descriptor is ready.
    Other,
    /// The timeout has expired.
    Timeout,
}

/// One end of the socket between guard and server.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
}

impl Control {
    /// Creates an end over `socket`.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends the bytes of a message, and a descriptor with them if there is one.
    fn send_raw(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        socket::send(&self.socket, bytes, descriptor)
    }

    /// Sends a message.
    pub fn send(&self, message: &Message) -> Result<(), Errno> {
        match message {
            Message::Prepared => self.send_raw(b"p", None),
            Message::Watching => self.send_raw(b"w", None),
            Message::Opened { writable: true } => self.send_raw(b"o", None),
            Message::Opened { writable: false } => self.send_raw(b"O", None),
            Message::Mounted { connection, has_rings } => {
                self.send_raw(if *has_rings { b"r" } else { b"m" }, Some(connection.as_fd()))
            }
            Message::Serving => self.send_raw(b"s", None),
            Message::EndRequested => self.send_raw(b"a", None),
            Message::Failed(text) => {
                let text = text.as_bytes();
                let text = &text[..text.len().min(MESSAGE_BYTES_MAX - FAILED.len())];
                self.send_raw(&[FAILED, text].concat(), None)
            }
            Message::Quit => self.send_raw(b"q", None),
        }
    }

    /// Receives a message. Fails with EPROTO for unknown ones.
    fn receive(&self) -> Result<Event, Errno> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let (length, descriptor) = socket::receive(&self.socket, &mut bytes)?;
        let message = match (&bytes[..length], descriptor) {
            ([], _) => return Ok(Event::Closed),
            (b"o", _) => Message::Opened { writable: true },
            (b"O", _) => Message::Opened { writable: false },
            (b"p", _) => Message::Prepared,
            (b"w", _) => Message::Watching,
            (b"m", Some(connection)) => Message::Mounted { connection, has_rings: false },
            (b"r", Some(connection)) => Message::Mounted { connection, has_rings: true },
            (b"s", _) => Message::Serving,
            (b"a", _) => Message::EndRequested,
            (b"q", _) => Message::Quit,
            (failed, _) if failed.starts_with(FAILED) => {
                // A compromised server may send anything, also what controls a terminal.
                Message::Failed(text::printable(&failed[FAILED.len()..]).into_owned())
            }
            // A compromised server may send anything.
            _ => return Err(Errno::PROTO),
        };
        Ok(Event::Message(message))
    }
}

/// Waits for the next event: a message through `control`, a signal, or until `other` is ready for
/// reading. Returns `Timeout` if there is none within `timeout`.
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
            // The message first, since it may make the signal irrelevant.
            Some(control) if woken[1] => control.receive(),
            _ if woken[0] => {
                signals.clear();
                Ok(Event::Signal)
            }
            _ => Ok(Event::Other),
        };
    }
}
