//! Affinity of the leader to its client: while no processor is idle, the thread that receives
//! requests moves to the processor of the thread that sends them. Two threads on one processor
//! alternate by context switches. On two processors, each wakes the other by an interrupt, which
//! takes several times as long, especially on virtual machines.
//!
//! While processors are idle, the scheduler moves a woken client to one of them, and the affinity
//! gains nothing.
//!
//! /dev/fuse names the thread that sent a request, but not its processor. The confined server
//! cannot look that up, so it asks another process (the guard) through a socket. Not here: the
//! answers (`session::locate`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::CpuSet;

use super::interval::Interval;

/// The interval of questions. The scheduler usually leaves a thread on its processor for longer.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// The affinity of the threads that receive a connection's requests to their clients.
#[derive(Debug)]
pub struct Affinity {
    /// A socket that preserves message boundaries. A question is the id of a thread, the answer the
    /// number of its processor, both as `u32`.
    socket: OwnedFd,
    /// The processors on which this process may run.
    allowed: CpuSet,
    questions: Interval,
    /// Whether a question has not been answered yet.
    is_pending: AtomicBool,
}

impl Affinity {
    /// Creates an affinity that asks for the clients' processors through `socket`.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket,
            allowed: rustix::thread::sched_getaffinity(None)?,
            questions: Interval::new(ASK_EVERY),
            is_pending: AtomicBool::new(false),
        })
    }

    /// Moves the calling thread at intervals to the processor of `client`, a thread that has sent a
    /// request. Does not wait for answers, but uses the answer to an earlier question.
    pub fn follow(&self, client: u32) {
        let order = Ordering::Relaxed;
        if self.is_pending.load(order) {
            let mut answer = [0; size_of::<u32>()];
            match rustix::net::recv(&self.socket, &mut answer, RecvFlags::DONTWAIT) {
                Ok((length, _)) if length == answer.len() => {
                    self.is_pending.store(false, order);
                    self.move_to(u32::from_ne_bytes(answer));
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // The guard has ended. No further question is asked.
                _ => {
                    self.questions.stop();
                    self.is_pending.store(false, order);
                }
            }
            return;
        }
        if self.questions.has_ended() {
            let sent = rustix::net::send(
                &self.socket,
                &client.to_ne_bytes(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
            self.is_pending.store(sent.is_ok(), order);
        }
    }

    /// Moves the calling thread to `processor`, if it may run there. It is not bound to the
    /// processor: the scheduler, which knows all clients, may move it again.
    fn move_to(&self, processor: u32) {
        let processor = processor as usize;
        let is_allowed = processor < CpuSet::MAX_CPU && self.allowed.is_set(processor);
        if !is_allowed || rustix::thread::sched_getcpu() == processor {
            return;
        }
        let mut target = CpuSet::new();
        target.set(processor);
        if rustix::thread::sched_setaffinity(None, &target).is_ok() {
            let _ = rustix::thread::sched_setaffinity(None, &self.allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;

    fn pair() -> (Affinity, OwnedFd) {
        let (here, there) = socket::pair().unwrap();
        (Affinity::new(here).unwrap(), there)
    }

    /// Returns the next question. Panics if there is none.
    fn question(there: &OwnedFd) -> u32 {
        let mut bytes = [0; 4];
        assert_eq!(rustix::net::recv(there, &mut bytes, RecvFlags::DONTWAIT).unwrap().0, 4);
        u32::from_ne_bytes(bytes)
    }

    #[test]
    fn the_thread_moves_to_the_processor_in_the_answer() {
        let (affinity, there) = pair();
        let allowed: Vec<_> = (0..1024).filter(|&number| affinity.allowed.is_set(number)).collect();
        for &processor in allowed.iter().cycle().take(20) {
            // The scheduler may move the thread as well.
            while rustix::thread::sched_getcpu() != processor {
                affinity.questions.end();
                affinity.follow(77);
                assert_eq!(question(&there), 77);
                let answer = (processor as u32).to_ne_bytes();
                rustix::net::send(&there, &answer, SendFlags::empty()).unwrap();
                affinity.follow(77);
            }
        }
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), affinity.allowed);
    }

    #[test]
    fn only_one_question_is_pending_and_none_is_asked_after_the_guard_has_ended() {
        let (affinity, there) = pair();
        affinity.follow(1);
        affinity.questions.end();
        affinity.follow(2);
        assert_eq!(question(&there), 1);
        // Processors that do not exist.
        for processor in [u32::MAX, 1_000, 70_000] {
            rustix::net::send(&there, &processor.to_ne_bytes(), SendFlags::empty()).unwrap();
            affinity.follow(3);
            affinity.follow(4);
            assert_eq!(question(&there), 4);
            affinity.questions.end();
        }
        drop(there);
        for _ in 0..3 {
            affinity.follow(5);
        }
        assert!(!affinity.questions.has_ended() && !affinity.is_pending.load(Ordering::Relaxed));
    }
}
