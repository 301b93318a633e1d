//! Messages to the host's system log (syslog or the journal), which listens at /dev/log. Not here:
//! which messages there are.
#![allow(unsafe_code)]

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use base::text;
use parking_lot::Mutex;

/// The socket of the system log.
const SOCKET: &str = "/dev/log";
/// The maximum size of a line, in bytes.
const LINE_BYTES_MAX: usize = 1024;
/// The maximum number of lines of a message.
const LINES_MAX: usize = 64;
/// The facility `daemon` (syslog(3)).
const FACILITY: u8 = 3;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The severity of a message (syslog(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Severity {
    /// Something has failed.
    Error = 3,
    /// Something may fail later.
    Warning = 4,
    /// Nothing has failed.
    Info = 6,
}

/// The system log, from the time on at which the process has left the terminal.
#[derive(Debug, Default)]
pub struct SystemLog {
    is_open: AtomicBool,
    socket: Mutex<Option<UnixDatagram>>,
}

impl SystemLog {
    /// Passes on messages from now on.
    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// Sends a message, unless the process has a terminal. Never waits: without a reader, the
    /// message is lost.
    pub fn send(&self, severity: Severity, text: &str) {
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        for line in text.lines().filter(|line| !line.trim().is_empty()).take(LINES_MAX) {
            let priority = FACILITY << 3 | severity as u8;
            let (time, process) = (timestamp().unwrap_or_default(), std::process::id());
            let line = start_of(line);
            self.send_raw(format!("<{priority}>{time}bifolio[{process}]: {line}").as_bytes());
        }
    }

    fn send_raw(&self, message: &[u8]) {
        let mut socket = self.socket.lock();
        // The log may have been started again since the last message.
        for _ in 0..2 {
            if socket.is_none() {
                *socket = connect().ok();
            }
            let Some(connected) = &*socket else { return };
            match connected.send(message) {
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => *socket = None,
                _ => return,
            }
        }
    }
}

fn connect() -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(SOCKET)?;
    Ok(socket)
}

/// Returns the start of a line, with escapes.
fn start_of(line: &str) -> String {
    let end_of = |text: &str| {
        let mut ends = (0..=LINE_BYTES_MAX.min(text.len())).rev();
        ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0)
    };
    let mut start = text::printable(&line.as_bytes()[..end_of(line)]).into_owned();
    // Escapes take more bytes.
    start.truncate(end_of(&start));
    start
}

/// Returns the local time as in `Nov  3 07:08:09 `, which is the form of syslog(3).
fn timestamp() -> Option<String> {
    // SAFETY: the functions only store to these variables, which live until they return.
    let time = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts = std::mem::zeroed::<libc::tm>();
        if libc::localtime_r(&raw const now, &raw mut parts).is_null() {
            return None;
        }
        parts
    };
    let month = MONTHS.get(usize::try_from(time.tm_mon).ok()?)?;
    let (day, hour, minute, second) = (time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec);
    Some(format!("{month} {day:2} {hour:02}:{minute:02}:{second:02} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_no_control_characters_and_a_maximum_length() {
        assert_eq!(start_of("a b/c ä"), "a b/c ä");
        assert_eq!(start_of("a\x1b[2Jb\u{9b}\tc"), r"a\033[2Jb\302\233\tc");
        assert_eq!(start_of(&"ä".repeat(9000)).len(), LINE_BYTES_MAX);
        assert!(start_of(&"\x1b".repeat(9000)).len() <= LINE_BYTES_MAX);
    }

    #[test]
    fn the_time_has_the_width_of_syslog() {
        let time = timestamp().unwrap();
        assert_eq!(time.len(), "Nov  3 07:08:09 ".len(), "{time}");
    }
}
