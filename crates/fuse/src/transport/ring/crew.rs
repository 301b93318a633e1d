//! The threads that serve through rings: each has one, with one entry, and stays on the processor
//! that the entry's queue belongs to. Clients there are served without a change of processor, and a
//! thread that waits for the device leaves the queue's other entries to the others.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};

use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::delivery::{SPARE_BYTES, serve};
use super::entry::{Command, Ring};
use super::processors::{ENTRIES_MAX, Processors};
use crate::server::Server;
use crate::transport::busy_poll::BusyPoll;
use crate::transport::channel::{Channel, End};

/// Where the host says whether the kernel will offer rings to new connections.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Why requests cannot travel through io_uring.
#[derive(Debug, thiserror::Error)]
pub enum NoRings {
    /// The kernel does not have it, or it is switched off.
    #[error(
        "the kernel does not offer FUSE over io_uring: it takes Linux 6.14 and a Y in {SWITCH}"
    )]
    NotOffered,
    /// The rings cannot be made.
    #[error("cannot set io_uring up: {0}")]
    Host(#[from] io::Error),
}

/// Rings that no thread has yet.
pub struct Rings(Vec<Ring>);

impl Rings {
    /// Makes rings for about so many threads. This has to happen before the process is confined.
    pub fn new(threads: NonZeroUsize) -> Result<Self, NoRings> {
        if !std::fs::read(SWITCH).is_ok_and(|text| text.starts_with(b"Y")) {
            return Err(NoRings::NotOffered);
        }
        let queues = Processors::of_host()?.entries(threads).ok_or_else(|| {
            io::Error::other(format!("more than {ENTRIES_MAX} entries would be needed"))
        })?;
        Ok(Self(queues.into_iter().map(Ring::new).collect::<io::Result<_>>()?))
    }
}

/// Threads that wait to be told what to serve.
pub struct RingCrew {
    threads: Vec<mpsc::Sender<Work>>,
}

/// What to serve.
#[derive(Clone)]
struct Work {
    server: Arc<Server>,
    channel: Channel,
    poll: Arc<BusyPoll>,
    at_failure: Arc<dyn Fn(End) + Send + Sync>,
}

impl RingCrew {
    /// Starts the threads, each of which takes its ring into its possession. All of them or none:
    /// the kernel uses no queue before all have an entry.
    pub fn new(rings: Rings) -> Result<Self, NoRings> {
        let (ready, state) = mpsc::channel();
        let mut crew = Self { threads: Vec::new() };
        for (number, ring) in rings.0.into_iter().enumerate() {
            let (sender, work) = mpsc::channel();
            let ready = ready.clone();
            let thread = std::thread::Builder::new().name(format!("fuse-ring-{number}"));
            thread.spawn(move || {
                let enabled = ring.enable();
                let usable = enabled.is_ok();
                let _ = ready.send(enabled);
                // No work comes when not all of the threads are there.
                if let (true, Ok(work)) = (usable, work.recv()) {
                    run(ring, &work);
                }
            })?;
            crew.threads.push(sender);
        }
        for _ in &crew.threads {
            state.recv().unwrap_or_else(|_| Err(io::Error::other("a thread has gone")))?;
        }
        Ok(crew)
    }

    /// Serves `channel`, until it ends, once INIT has been answered. The requests that never come
    /// through a ring, and all of them should the kernel want no ring, come through the channel
    /// itself. `at_failure` is called when the connection cannot go on.
    pub fn start(
        self,
        server: &Arc<Server>,
        channel: &Channel,
        poll: BusyPoll,
        at_failure: impl Fn(End) + Send + Sync + 'static,
    ) {
        let (server, channel, poll) = (Arc::clone(server), channel.clone(), Arc::new(poll));
        let work = Work { server, channel, poll, at_failure: Arc::new(at_failure) };
        for thread in &self.threads {
            // It waits for this.
            let _ = thread.send(work.clone());
        }
    }
}

fn run(mut ring: Ring, work: &Work) {
    // Not where this process may not run there, or the processor is not there.
    let _ = stay_on(ring.queue().into());
    let lost = LostEntry(work);
    let mut spare = vec![0; SPARE_BYTES];
    let mut command = Command::Register;
    let errno = loop {
        match ring.exchange(work.channel.as_fd(), command, &work.poll) {
            Ok(entry) => command = Command::Commit(serve(&work.server, entry, &mut spare)),
            Err(errno) => break errno,
        }
    };
    std::mem::forget(lost);
    match (errno, command) {
        // Unmounted, or aborted: whoever reads the channel is told which.
        (Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED, _) => {}
        // The kernel goes on without rings.
        (errno, Command::Register) => tracing::warn!("the kernel wants no ring: {errno}"),
        // Requests would wait for this thread for ever.
        (errno, Command::Commit(_)) => (work.at_failure)(End::RingFailed(errno)),
    }
}

/// When a thread panics, its entry and what is asked there are lost: better no mount at all than one
/// that hangs.
struct LostEntry<'a>(&'a Work);

impl Drop for LostEntry<'_> {
    fn drop(&mut self) {
        (self.0.at_failure)(End::Panicked);
    }
}

fn stay_on(processor: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
    }
    rustix::thread::sched_setaffinity(None, &set)
}
