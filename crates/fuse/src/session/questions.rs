//! The confined server's questions about threads of the host, which it does not see. A question is the id of a thread, as
//! in the header of a request; the answer is a number of the guard's. Not here: the answers (`locate`, `kill_check`,
//! `system_call`).

use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::socket;

/// The server's side: its end of the socket, as long as a guard answers.
#[derive(Debug)]
pub struct Asker {
    socket: Mutex<Option<OwnedFd>>,
    /// The timeout of an answer. After a timeout, the guard is not asked again.
    timeout: Timespec,
}

impl Asker {
    /// Creates an asker that asks through `socket`.
    pub fn new(socket: OwnedFd, timeout: Timespec) -> Self {
        Self { socket: Mutex::new(Some(socket)), timeout }
    }

    /// Asks the guard. Returns `None` if it does not answer.
    pub fn ask(&self, thread: u32) -> Option<u32> {
        let mut socket = self.socket.lock();
        let answer = socket.as_ref().and_then(|socket| self.ask_through(socket, thread));
        if answer.is_none() {
            *socket = None;
        }
        answer
    }

    fn ask_through(&self, socket: &OwnedFd, thread: u32) -> Option<u32> {
        socket::send(socket, &thread.to_ne_bytes(), None).ok()?;
        let mut ready = [PollFd::new(socket, PollFlags::IN)];
        super::retry(|| rustix::event::poll(&mut ready, Some(&self.timeout)))
            .ok()
            .filter(|&n| n > 0)?;
        let mut answer = [0; size_of::<u32>()];
        match socket::receive(socket, &mut answer) {
            Ok((length, None)) if length == answer.len() => Some(u32::from_ne_bytes(answer)),
            _ => None,
        }
    }
}

/// Starts a thread `name` that answers until the other end of `socket` is closed. If that fails, the server works
/// without answers.
pub fn start(name: &str, socket: OwnedFd, answer: fn(u32) -> u32) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    if let Err(error) = thread.spawn(move || serve(&socket, answer)) {
        tracing::debug!("cannot start the thread {name}: {error}");
    }
}

/// Answers questions until the other end of `socket` is closed.
pub fn serve(socket: &OwnedFd, answer: fn(u32) -> u32) {
    let mut question = [0; size_of::<u32>()];
    loop {
        match rustix::net::recv(socket, &mut question, RecvFlags::empty()) {
            Ok((length, _)) if length == question.len() => {}
            Err(Errno::INTR) => continue,
            // The other end is closed, or the message is not a question.
            _ => return,
        }
        let answer = answer(u32::from_ne_bytes(question));
        if rustix::net::send(socket, &answer.to_ne_bytes(), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_has_ended_is_not_asked_again() {
        let (ours, theirs) = socket::pair().unwrap();
        drop(theirs);
        let asker = Asker::new(ours, Timespec { tv_sec: 1, tv_nsec: 0 });
        assert_eq!(asker.ask(1), None);
        assert!(asker.socket.lock().is_none());
    }
}
