//! Affinity of the reader to its client: where no processor is idle, the thread that reads requests moves to the
//! processor of the process that sends them. Two threads on one processor hand over to each other by a switch of
//! context. On two, each wakes the other by an interrupt, which takes several times as long, on virtual machines above
//! all.
//!
//! Where processors are idle, the scheduler moves a client that is woken to one of them, and this gains nothing.
//!
//! /dev/fuse says which process sent a request, but not where it runs. The confined server cannot look that up, so it
//! asks another process (the guard), through a socket. Not here: the answers (`session::locate`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::CpuSet;

use super::interval::Interval;

/// The time between two questions. The scheduler leaves threads where they are for longer, mostly.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// What the readers of a channel know of their clients' processors.
#[derive(Debug)]
pub struct Affinity {
    /// A socket that keeps messages apart: the id of a thread goes out, the number of a processor comes back, both as
    /// `u32`.
    socket: OwnedFd,
    /// The processors on which this process may run.
    allowed: CpuSet,
    questions: Interval,
    /// A question has not been answered yet.
    is_asked: AtomicBool,
}

impl Affinity {
    /// Creates an affinity for clients whose processors are asked for through `socket`.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            socket,
            allowed: rustix::thread::sched_getaffinity(None)?,
            questions: Interval::new(ASK_EVERY),
            is_asked: AtomicBool::new(false),
        })
    }

    /// Moves the calling thread to the processor of the client, a thread that has sent a request, now and then. Does
    /// not wait: the processor is that of the last answer.
    pub fn follow(&self, client: u32) {
        let order = Ordering::Relaxed;
        if self.is_asked.load(order) {
            let mut answer = [0; size_of::<u32>()];
            match rustix::net::recv(&self.socket, &mut answer, RecvFlags::DONTWAIT) {
                Ok((length, _)) if length == answer.len() => {
                    self.is_asked.store(false, order);
                    self.move_to(u32::from_ne_bytes(answer));
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // The guard has gone, and is not asked again.
                _ => {
                    self.questions.stop();
                    self.is_asked.store(false, order);
                }
            }
            return;
        }
        if self.questions.has_ended() {
            let asked = rustix::net::send(
                &self.socket,
                &client.to_ne_bytes(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
            self.is_asked.store(asked.is_ok(), order);
        }
    }

    /// Moves the calling thread, if it is elsewhere and may run on `processor`. It may leave again: the scheduler sees
    /// more than one client.
    fn move_to(&self, processor: u32) {
        let processor = processor as usize;
        let is_allowed = processor < CpuSet::MAX_CPU && self.allowed.is_set(processor);
        if !is_allowed || rustix::thread::sched_getcpu() == processor {
            return;
        }
        let mut there = CpuSet::new();
        there.set(processor);
        if rustix::thread::sched_setaffinity(None, &there).is_ok() {
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

    /// Returns the next question, of which there must be one.
    fn question(there: &OwnedFd) -> u32 {
        let mut bytes = [0; 4];
        assert_eq!(rustix::net::recv(there, &mut bytes, RecvFlags::DONTWAIT).unwrap().0, 4);
        u32::from_ne_bytes(bytes)
    }

    #[test]
    fn the_reader_moves_to_the_processor_that_it_is_told() {
        let (affinity, there) = pair();
        let allowed: Vec<_> = (0..1024).filter(|&number| affinity.allowed.is_set(number)).collect();
        for &processor in allowed.iter().cycle().take(20) {
            // The scheduler, too, moves a thread now and then.
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
    fn one_question_is_asked_at_a_time_and_none_of_a_guard_that_has_gone() {
        let (affinity, there) = pair();
        affinity.follow(1);
        affinity.questions.end();
        affinity.follow(2);
        assert_eq!(question(&there), 1);
        // Processors that there are not.
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
        assert!(!affinity.questions.has_ended() && !affinity.is_asked.load(Ordering::Relaxed));
    }
}
