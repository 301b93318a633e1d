//! The worker threads of the rings. Each has one ring with one entry, and stays on the processor
//! that the entry's queue belongs to. So clients on that processor are served without a change of
//! processor. While a thread waits for the device, the threads of the queue's other entries go on.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, mpsc};

use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::delivery::{SPARE_BYTES, serve};
use super::entry::{Command, Ring};
use super::processors::{ENTRIES_MAX, Processors};
use crate::server::Server;
use crate::transport::busy_poll::BusyPoll;
use crate::transport::channel::EndReason;

/// The file that says whether the kernel offers rings to new connections.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The reason why requests cannot come through io_uring.
#[derive(Debug, thiserror::Error)]
pub enum NoRings {
    /// The kernel does not support it, or it is switched off.
    #[error(
        "the kernel does not offer FUSE over io_uring: this needs Linux 6.14, and `Y` in {SWITCH}"
    )]
    NotOffered,
    /// The rings cannot be created.
    #[error("cannot set up io_uring: {0}")]
    Host(#[from] io::Error),
}

/// Rings that belong to no thread yet.
pub struct Rings(Vec<Ring>);

impl Rings {
    /// Creates rings for at least `threads` threads, which know only `device`: see
    /// [`open_device`](super::open_device). Must be called before the process is confined.
    ///
    /// Errors: `NotOffered`, or `Host` if the host refuses a ring or there would be too many.
    pub fn new(threads: NonZeroUsize, device: BorrowedFd<'_>) -> Result<Self, NoRings> {
        if !std::fs::read(SWITCH).is_ok_and(|text| text.starts_with(b"Y")) {
            return Err(NoRings::NotOffered);
        }
        let queues = Processors::of_host()?.entries(threads).ok_or_else(|| {
            io::Error::other(format!("more than {ENTRIES_MAX} ring entries would be needed"))
        })?;
        let ring = |queue| Ring::new(queue, device);
        Ok(Self(queues.into_iter().map(ring).collect::<io::Result<_>>()?))
    }
}

/// Threads with rings. They wait for [`start`](Self::start).
pub struct RingWorkerPool {
    threads: Vec<mpsc::Sender<Work>>,
}

/// The connection that a thread is to serve.
#[derive(Clone)]
struct Work {
    server: Arc<Server>,
    poll: Arc<BusyPoll>,
    at_failure: Arc<dyn Fn(EndReason) + Send + Sync>,
}

impl RingWorkerPool {
    /// Creates the threads, each of which enables its ring. Fails if one of them fails, since the
    /// kernel uses no queue before all queues have an entry.
    pub fn new(rings: Rings) -> Result<Self, NoRings> {
        let (ready, results) = mpsc::channel();
        let mut pool = Self { threads: Vec::new() };
        for (number, ring) in rings.0.into_iter().enumerate() {
            let (sender, work) = mpsc::channel();
            let ready = ready.clone();
            let thread = std::thread::Builder::new().name(format!("fuse-ring-{number}"));
            thread.spawn(move || {
                let enabled = ring.enable();
                let is_usable = enabled.is_ok();
                let _ = ready.send(enabled);
                // No work comes if another thread has failed.
                if is_usable && let Ok(work) = work.recv() {
                    run(ring, &work);
                }
            })?;
            pool.threads.push(sender);
        }
        for _ in &pool.threads {
            results.recv().unwrap_or_else(|_| Err(io::Error::other("a thread has ended")))?;
        }
        Ok(pool)
    }

    /// Starts to serve the connection of the rings' device, after INIT was answered and until the
    /// connection ends. Some requests never come through a ring, and none do if the kernel accepts
    /// no ring. The caller receives those from /dev/fuse. Calls `at_failure` if the connection
    /// cannot go on.
    pub fn start(
        self,
        server: &Arc<Server>,
        poll: BusyPoll,
        at_failure: impl Fn(EndReason) + Send + Sync + 'static,
    ) {
        let work = Work {
            server: Arc::clone(server),
            poll: Arc::new(poll),
            at_failure: Arc::new(at_failure),
        };
        for thread in &self.threads {
            // The thread waits for it.
            let _ = thread.send(work.clone());
        }
    }
}

/// Serves requests through `ring` until the connection ends.
fn run(mut ring: Ring, work: &Work) {
    // Fails if the process may not run on the processor, or the processor is offline. The thread
    // serves anyway.
    let _ = bind_to(ring.queue().into());
    let lost_entry = LostEntry(work);
    let mut spare = vec![0; SPARE_BYTES];
    let mut command = Command::Register;
    let errno = loop {
        match ring.exchange(command, &work.poll) {
            Ok(entry) => command = Command::Commit(serve(&work.server, entry, &mut spare)),
            Err(errno) => break errno,
        }
    };
    std::mem::forget(lost_entry);
    match (errno, command) {
        // Unmounted, or aborted: the thread that reads from the channel learns which.
        (Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV | Errno::CANCELED, _) => {}
        // The kernel goes on without rings.
        (errno, Command::Register) => tracing::warn!("the kernel accepts no ring: {errno}"),
        // Requests would wait for this thread for ever.
        (errno, Command::Commit(_)) => (work.at_failure)(EndReason::RingFailed(errno)),
    }
}

/// A guard that reports a panic of the thread. Its entry and the request in it are lost then. No
/// mount is better than a mount that hangs.
struct LostEntry<'a>(&'a Work);

impl Drop for LostEntry<'_> {
    fn drop(&mut self) {
        (self.0.at_failure)(EndReason::Panicked);
    }
}

/// Binds the calling thread to a processor.
fn bind_to(processor: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
    }
    rustix::thread::sched_setaffinity(None, &set)
}
