//! The processors on which clients run, as answers of the guard. The confined server cannot look
//! them up.

use std::os::fd::OwnedFd;

use super::questions;

/// The answer for a thread that has ended, or that this process cannot see.
const NOWHERE: u32 = u32::MAX;
/// The index of the field with the processor in /proc/PID/stat, counted from the state of the
/// process on.
const PROCESSOR: usize = 36;

/// Starts a thread that answers until the other end of `socket` is closed.
pub fn start(socket: OwnedFd) {
    questions::start("fuse-locate", socket, answer);
}

fn answer(thread: u32) -> u32 {
    processor_of(thread).unwrap_or(NOWHERE)
}

/// Returns the number of the processor on which a thread runs, or ran last.
fn processor_of(thread: u32) -> Option<u32> {
    processor_in(&std::fs::read(format!("/proc/{thread}/stat")).ok()?)
}

/// Returns the processor in the contents of /proc/PID/stat: `1234 (name) S 1 …`. The name may
/// contain any byte.
fn processor_in(stat: &[u8]) -> Option<u32> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(PROCESSOR)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rustix::net::{RecvFlags, SendFlags};

    use super::*;
    use crate::socket;

    #[test]
    fn the_processor_is_a_field_after_the_name() {
        let fields = (0..60).map(|field| format!(" {field}")).collect::<String>();
        assert_eq!(processor_in(format!("12 (a ) 7 b){fields}\n").as_bytes()), Some(36));
        for other in ["", "12 (a", "12 (a)", "12 (a) S 1 2 3"] {
            assert_eq!(processor_in(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn questions_are_answered_until_the_server_closes_its_end() {
        let (guard, server) = socket::pair().unwrap();
        let ask = |thread: u32| {
            rustix::net::send(&server, &thread.to_ne_bytes(), SendFlags::empty()).unwrap();
            let mut answer = [0; 4];
            rustix::net::recv(&server, &mut answer, RecvFlags::empty()).unwrap();
            u32::from_ne_bytes(answer)
        };
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| questions::serve(&guard, answer));
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
