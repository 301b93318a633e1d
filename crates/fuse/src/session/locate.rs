//! The guard's answers to the confined server, which cannot look up on which processor a client runs.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// The answer for a thread that has ended, or that this process cannot see.
const NOWHERE: u32 = u32::MAX;
/// The number of the field of /proc/PID/stat that holds the processor, from the state of the process on.
const PROCESSOR: usize = 36;

/// Answers, on a thread of its own, until the other end of `socket` is closed. Without it, the server does without.
pub fn start(socket: OwnedFd) {
    let thread = std::thread::Builder::new().name("fuse-locate".into());
    if let Err(error) = thread.spawn(move || answer(&socket)) {
        tracing::debug!("no thread to locate clients: {error}");
    }
}

fn answer(socket: &OwnedFd) {
    let mut question = [0; size_of::<u32>()];
    loop {
        match rustix::net::recv(socket, &mut question, RecvFlags::empty()) {
            Ok((length, _)) if length == question.len() => {}
            Err(Errno::INTR) => continue,
            // Closed, or nothing to answer.
            _ => return,
        }
        let processor = processor_of(u32::from_ne_bytes(question)).unwrap_or(NOWHERE);
        if rustix::net::send(socket, &processor.to_ne_bytes(), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

/// Returns the number of the processor on which a thread runs, or ran last.
fn processor_of(thread: u32) -> Option<u32> {
    processor_in(&std::fs::read(format!("/proc/{thread}/stat")).ok()?)
}

/// `1234 (name) S 1 …`: the name may contain anything.
fn processor_in(stat: &[u8]) -> Option<u32> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(PROCESSOR)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn the_processor_is_a_field_behind_the_name() {
        let fields = (0..60).map(|field| format!(" {field}")).collect::<String>();
        assert_eq!(processor_in(format!("12 (a ) 7 b){fields}\n").as_bytes()), Some(36));
        for other in ["", "12 (a", "12 (a)", "12 (a) S 1 2 3"] {
            assert_eq!(processor_in(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn threads_are_located_until_the_server_hangs_up() {
        let (guard, server) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let ask = |thread: u32| {
            rustix::net::send(&server, &thread.to_ne_bytes(), SendFlags::empty()).unwrap();
            let mut answer = [0; 4];
            rustix::net::recv(&server, &mut answer, RecvFlags::empty()).unwrap();
            u32::from_ne_bytes(answer)
        };
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| answer(&guard));
            let here = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let mut allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let last = (0..1024).rev().find(|&processor| allowed.is_set(processor)).unwrap();
            allowed.clear();
            allowed.set(last);
            rustix::thread::sched_setaffinity(None, &allowed).unwrap();
            assert_eq!(ask(here), last as u32);
            assert_eq!(ask(u32::MAX), NOWHERE);
            rustix::net::shutdown(&server, rustix::net::Shutdown::Both).unwrap();
            answering.join().unwrap();
        });
    }
}
