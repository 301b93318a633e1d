//! The threads that serve requests which wait for the kernel: to drop or write cached data, or to
//! release removed files. It does so by requests that other threads serve, so these threads receive
//! none. Not here: the decision to wait (`dispatch`, `operations`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::deferred::Deferred;
use crate::protocol::InHeader;
use crate::reply::{Answer, Reply};
use crate::server::{InFlight, Server};
use crate::transport::channel::Channel;

/// The number of threads: more than wait for removed files at a time, and enough for a device that
/// serves several writes at a time.
const THREADS: usize = 16;

/// The size of the largest answer: that of an ioctl.
const ANSWER_BYTES_MAX: usize = 32 << 10;

/// A request that waits for the kernel.
#[derive(Debug)]
pub struct Waiting {
    /// The header of the request.
    pub header: InHeader,
    /// The rest of its service.
    pub deferred: Deferred,
    /// Counts the request as in flight.
    pub in_flight: InFlight<Arc<Server>>,
}

/// The threads. They end when this is dropped, once all requests are answered.
#[derive(Debug)]
pub struct Waiters {
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Waiting>,
    is_closed: bool,
}

impl Waiters {
    /// Starts the threads, or as many as the host grants. They answer through `channel`.
    ///
    /// Errors: that of the host if it grants no thread.
    pub fn start(channel: &Channel) -> io::Result<Self> {
        let queue = Arc::<Queue>::default();
        let waiters = Self { queue: Arc::clone(&queue) };
        for number in 0..THREADS {
            let queue = Arc::clone(&queue);
            let channel = channel.clone();
            let thread = std::thread::Builder::new().name(format!("fuse-wait-{number}"));
            match thread.spawn(move || queue.serve(&channel)) {
                Ok(_) => {}
                Err(error) if number == 0 => return Err(error),
                Err(error) => {
                    tracing::warn!(
                        "started {number} of {THREADS} threads for waiting requests: {error}"
                    );
                    break;
                }
            }
        }
        Ok(waiters)
    }

    /// Makes one of the threads serve and answer the request.
    pub fn take(&self, request: Waiting) {
        self.queue.state.lock().requests.push_back(request);
        self.queue.wake.notify_one();
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.wake.notify_all();
    }
}

impl Queue {
    fn serve(&self, channel: &Channel) {
        let mut memory = vec![0; ANSWER_BYTES_MAX];
        while let Some(request) = self.next() {
            request.serve(channel, &mut memory);
        }
    }

    /// Waits for a request. Returns `None` if no more come.
    fn next(&self) -> Option<Waiting> {
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.requests.pop_front() {
                return Some(request);
            }
            if state.is_closed {
                return None;
            }
            self.wake.wait(&mut state);
        }
    }
}

impl Waiting {
    fn serve(self, channel: &Channel, memory: &mut [u8]) {
        let Self { header, deferred, in_flight } = self;
        let mut reply = Reply::new(memory);
        match in_flight.server().resume(&header, deferred, None, &mut reply) {
            Answer::Payload => channel.succeed(header.unique, &[reply.bytes()]),
            Answer::Error(errno) => channel.fail(header.unique, errno),
            // No read waits, and none waits twice.
            answer => {
                tracing::error!("a request that has waited has no answer: {answer:?}");
                channel.fail(header.unique, Errno::IO);
            }
        }
    }
}
