//! The confined server's questions about threads of the host, which it does not see. A question is
//! the id of a thread, as in the header of a request; the answer is a number of the guard's. Not
//! here: the answers (`locate`, `kill_check`, `system_call`).

use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::status;
use crate::retry::retry;
use crate::socket;

/// The server's side.
#[derive(Debug)]
pub struct Asker {
    state: Mutex<State>,
    /// The timeout of an answer.
    timeout: Timespec,
}

#[derive(Debug)]
struct State {
    /// The server's end of the socket, as long as there is a guard.
    socket: Option<OwnedFd>,
    /// Whether an answer did not come in time. Until it has come, the guard is not asked again: it
    /// answers one question after the other, and an answer does not say to which one.
    is_late: bool,
}

impl Asker {
    /// Creates an asker that asks through `socket`.
    pub fn new(socket: OwnedFd, timeout: Timespec) -> Self {
        Self { state: Mutex::new(State { socket: Some(socket), is_late: false }), timeout }
    }

    /// Asks the guard. Returns `None` if it does not answer in time, or an earlier answer is still
    /// missing.
    pub fn ask(&self, thread: u32) -> Option<u32> {
        let mut state = self.state.lock();
        let socket = state.socket.as_ref()?;
        let asked = self.ask_through(socket, state.is_late, thread);
        if asked.is_err() {
            state.socket = None;
        }
        let asked = asked.ok()?;
        state.is_late = asked.is_none();
        asked
    }

    /// Asks through `socket`, after the answer to an earlier question if that is late. Returns
    /// `None` if there is no answer yet. Fails if there will not be any.
    fn ask_through(
        &self,
        socket: &OwnedFd,
        is_late: bool,
        thread: u32,
    ) -> Result<Option<u32>, Errno> {
        if is_late && receive(socket, &Timespec::default())?.is_none() {
            return Ok(None);
        }
        socket::send(socket, &thread.to_ne_bytes(), None)?;
        receive(socket, &self.timeout)
    }
}

/// Receives an answer within `timeout`.
fn receive(socket: &OwnedFd, timeout: &Timespec) -> Result<Option<u32>, Errno> {
    let mut ready = [PollFd::new(socket, PollFlags::IN)];
    if retry(|| rustix::event::poll(&mut ready, Some(timeout)))? == 0 {
        return Ok(None);
    }
    let mut answer = [0; size_of::<u32>()];
    match socket::receive(socket, &mut answer)? {
        (length, None) if length == answer.len() => Ok(Some(u32::from_ne_bytes(answer))),
        _ => Err(Errno::PIPE),
    }
}

/// Starts a thread `name` that answers until the other end of `socket` is closed. If that fails, or
/// this process [does not see threads](sees_threads), the server works without answers.
pub fn start(name: &str, socket: OwnedFd, answer: fn(u32) -> u32) {
    if !sees_threads() {
        return;
    }
    let thread = std::thread::Builder::new().name(name.to_owned());
    if let Err(error) = thread.spawn(move || serve(&socket, answer)) {
        tracing::debug!("cannot start the thread {name}: {error}");
    }
}

/// Returns whether this process sees the threads of questions in /proc. It does not if /proc is of
/// another PID namespace, as after `unshare --pid` without `--mount-proc`: the kernel numbers
/// threads as in the namespace of this process, and /proc has others by these numbers.
pub fn sees_threads() -> bool {
    status::read("self").is_some_and(|status| is_of_own_namespace(&status))
}

/// Returns whether /proc is of the PID namespace of this process, whose status there
/// (/proc/self/status) this is. It has the numbers of the process in all namespaces from that of
/// /proc to its own.
fn is_of_own_namespace(status: &str) -> bool {
    let numbers = status::field(status, "NSpid");
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

/// Answers questions until the other end of `socket` is closed.
pub fn serve(socket: &OwnedFd, answer: fn(u32) -> u32) {
    while let Some(thread) = next(socket) {
        let answer = answer(thread);
        if rustix::net::send(socket, &answer.to_ne_bytes(), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

/// Waits for the next question, and returns its thread. Returns `None` if the other end is closed,
/// or the message is not a question.
pub fn next(socket: &OwnedFd) -> Option<u32> {
    let mut question = [0; size_of::<u32>()];
    let received =
        retry(|| rustix::net::recv(socket, &mut question, RecvFlags::empty()).map(|it| it.0));
    (received == Ok(question.len())).then(|| u32::from_ne_bytes(question))
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
        assert!(asker.state.lock().socket.is_none());
    }

    #[test]
    fn a_late_answer_is_not_taken_for_the_next_one() {
        let (ours, theirs) = socket::pair().unwrap();
        let asker = Asker::new(ours, Timespec::default());
        let question = || {
            let mut question = [0; 4];
            rustix::net::recv(&theirs, &mut question, RecvFlags::DONTWAIT)
                .map(|_| u32::from_ne_bytes(question))
        };
        assert_eq!(asker.ask(1), None);
        assert_eq!(question(), Ok(1));
        assert_eq!(asker.ask(2), None);
        assert_eq!(question(), Err(Errno::AGAIN), "the guard is still busy");
        socket::send(&theirs, &10_u32.to_ne_bytes(), None).unwrap();
        // Asked, and not answered yet.
        assert_eq!(asker.ask(3), None);
        assert_eq!(question(), Ok(3));
        socket::send(&theirs, &30_u32.to_ne_bytes(), None).unwrap();
        let asker = Asker { timeout: Timespec { tv_sec: 60, tv_nsec: 0 }, ..asker };
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&theirs, |thread| thread * 10));
            assert_eq!(asker.ask(4), Some(40));
            assert_eq!(asker.ask(5), Some(50));
            asker.state.lock().socket = None;
        });
    }

    #[test]
    fn proc_is_of_another_namespace_if_it_has_several_numbers_of_a_process() {
        assert!(is_of_own_namespace("Name:\tx\nNSpid:\t123\nNSpgid:\t1 2\n"));
        assert!(!is_of_own_namespace("Name:\tx\nNSpid:\t123\t1\n"));
        assert!(!is_of_own_namespace("Name:\tx\n"));
    }
}
