//! The guard's side of the confined server's questions about threads of the host. A question is a thread's id,
//! as the kernel gives it in requests; the answer is a number. Not here: the answers (`locate`, `witness`).

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Answers on a thread `name` of its own, until the other end of `socket` is closed. Without it, the server does
/// without.
pub fn start(name: &str, socket: OwnedFd, answer: fn(u32) -> u32) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    if let Err(error) = thread.spawn(move || serve(&socket, answer)) {
        tracing::debug!("no thread {name}: {error}");
    }
}

/// Answers until the other end of `socket` is closed.
pub fn serve(socket: &OwnedFd, answer: fn(u32) -> u32) {
    let mut question = [0; size_of::<u32>()];
    loop {
        match rustix::net::recv(socket, &mut question, RecvFlags::empty()) {
            Ok((length, _)) if length == question.len() => {}
            Err(Errno::INTR) => continue,
            // Closed, or nothing to answer.
            _ => return,
        }
        let answer = answer(u32::from_ne_bytes(question));
        if rustix::net::send(socket, &answer.to_ne_bytes(), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}
