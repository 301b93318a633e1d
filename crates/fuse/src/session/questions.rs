//! The confined server's questions about threads of the host, on the guard's side. A question is the id of a thread, as
//! in the header of a request; the answer is a number. Not here: the answers (`locate`, `kill_check`).

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

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
