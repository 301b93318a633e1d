//! The worker threads of a channel. At any time at most one of them, the leader, waits for
//! requests. The other threads serve requests or are idle.
//!
//! A leader that has received a request serves it itself and remains the leader: a request that
//! needs no device costs no hand-over and no change of processor. The leader passes its role to an
//! idle thread in two cases: if it is about to wait for the device (`base::waiting`) and such waits
//! were not brief of late (`wait_times`), or if it is about to copy so much data that this takes
//! longer than waking a thread.
//!
//! ```text
//! thread A   receive ─ serve ─ answer ─ receive ─ serve ──┬─ wait for device ── answer ─ idle
//! thread B   idle ────────────────────────────────────────┴─ receive ─ serve ─ answer ─ receive ─ ...
//! ```
//!
//! A leader may spend longer on a request than expected: the device hangs, or the owner of a lock
//! waits for the device. So an idle thread checks the leader at intervals, and takes the role over
//! if necessary.

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::request::Request;
use crate::server::Server;
use crate::transport::buffers::Buffers;
use crate::transport::busy_poll::BusyPoll;
use crate::transport::channel::{Channel, EndReason};
use crate::transport::leadership::Leadership;
use crate::transport::wait_times::WaitTimes;
use crate::transport::waiters::Waiters;

/// The default number of threads: as many as kept a device with 100 µs latency busy.
pub const THREADS_DEFAULT: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// The interval at which an idle thread checks whether the leader still serves the same request.
/// Other requests wait for a stuck leader for up to twice this time.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Threads that serve one channel.
#[derive(Debug)]
pub struct WorkerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    channel: Channel,
    state: Mutex<State>,
    wake: Condvar,
    wait_times: WaitTimes,
    poll: BusyPoll,
    leadership: Leadership,
    waiters: Waiters,
}

#[derive(Debug, Default)]
struct State {
    has_leader: bool,
    /// The number of idle threads.
    idle: usize,
    /// Whether one of the idle threads checks the leader at intervals.
    is_watching: bool,
    end: Option<EndReason>,
}

impl WorkerPool {
    /// Starts `threads` threads, or as many as the host grants. Calls `at_end` once, when no more
    /// requests come.
    ///
    /// Errors: that of the host if it grants no thread.
    pub fn start(
        server: Arc<Server>,
        channel: Channel,
        threads: NonZeroUsize,
        poll: BusyPoll,
        at_end: impl FnOnce(EndReason) + Send + 'static,
    ) -> io::Result<Self> {
        let waiters = Waiters::start(&channel)?;
        let shared = Arc::new(Shared {
            server,
            channel,
            state: Mutex::default(),
            wake: Condvar::new(),
            wait_times: WaitTimes::default(),
            poll,
            leadership: Leadership::default(),
            waiters,
        });
        let at_end = Arc::new(Mutex::new(Some(at_end)));
        let mut started = Vec::new();
        for number in 0..threads.get() {
            let shared = Arc::clone(&shared);
            let at_end = Arc::clone(&at_end);
            let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
            let thread = thread.spawn(move || {
                let end = Worker::new(shared).run();
                if let Some(at_end) = at_end.lock().take() {
                    at_end(end);
                }
            });
            match thread {
                Ok(thread) => started.push(thread),
                Err(error) if started.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!("started {number} of {threads} worker threads: {error}");
                    break;
                }
            }
        }
        Ok(Self { shared, threads: started })
    }

    /// Returns the server behind the threads.
    pub fn server(&self) -> &Arc<Server> {
        &self.shared.server
    }

    /// Waits for the threads, which end when no more requests come.
    pub fn join(self) {
        for thread in self.threads {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Waits until the calling thread is the leader.
    fn wait_to_lead(&self) -> Result<(), EndReason> {
        let mut state = self.state.lock();
        state.idle += 1;
        while state.has_leader && state.end.is_none() {
            if state.is_watching || !self.leadership.is_watched() {
                self.wake.wait(&mut state);
                continue;
            }
            state.is_watching = true;
            let timeout = self.wake.wait_for(&mut state, CHECK_EVERY).timed_out();
            state.is_watching = false;
            if timeout && state.has_leader && self.leadership.take_over() {
                break;
            }
        }
        state.idle -= 1;
        if state.idle > 0 && !state.is_watching && self.leadership.is_watched() {
            // Another idle thread has to watch the leader from now on.
            self.wake.notify_one();
        }
        match state.end {
            Some(end) => Err(end),
            None => {
                state.has_leader = true;
                Ok(())
            }
        }
    }

    /// Records that the leader begins to serve a request, and returns the request's number.
    fn begin_request(&self) -> u64 {
        let (number, is_watched) = self.leadership.begin_request();
        if !is_watched {
            // Under the lock, so that a thread that is about to sleep without watching is woken,
            // too.
            let state = self.state.lock();
            if state.idle > 0 {
                self.wake.notify_one();
            }
        }
        number
    }

    /// Lets another thread become the leader.
    fn pass_leadership(&self) {
        let mut state = self.state.lock();
        state.has_leader = false;
        let wake = state.idle > 0;
        drop(state);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Ends all threads.
    fn finish(&self, end: EndReason) {
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        drop(state);
        self.wake.notify_all();
    }
}

/// One of the threads.
struct Worker {
    shared: Arc<Shared>,
    is_leader: Rc<Cell<bool>>,
    /// The number of the request that this thread serves as the leader.
    request: Rc<Cell<Option<u64>>>,
    /// The time at which the request began to wait, if it has waited.
    waiting: Rc<Cell<Option<Instant>>>,
    /// The operation code of the request.
    opcode: Rc<Cell<u32>>,
    buffers: Buffers,
}

impl Worker {
    fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            is_leader: Rc::default(),
            request: Rc::default(),
            waiting: Rc::default(),
            opcode: Rc::default(),
            buffers: Buffers::new(),
        }
    }

    fn run(mut self) -> EndReason {
        let shared = Arc::clone(&self.shared);
        let is_leader = Rc::clone(&self.is_leader);
        let request = Rc::clone(&self.request);
        let waiting = Rc::clone(&self.waiting);
        let opcode = Rc::clone(&self.opcode);
        let _listening = base::waiting::listen(move || {
            waiting.set(waiting.get().or_else(|| Some(Instant::now())));
            if !shared.wait_times.are_brief(opcode.get()) {
                pass_leadership(&shared, &is_leader, &request);
            }
        });
        loop {
            if !self.is_leader.get() {
                if let Err(end) = self.shared.wait_to_lead() {
                    return end;
                }
                self.is_leader.set(true);
            }
            match self.shared.channel.receive(&mut self.buffers.request, &self.shared.poll) {
                Ok(length) => self.serve(length),
                Err(end) => {
                    self.shared.finish(end);
                    return end;
                }
            }
        }
    }

    /// Serves the request of `length` bytes in the buffers.
    fn serve(&mut self, length: usize) {
        let shared = &*self.shared;
        let header = Request::parse(&self.buffers.request[..length]).map(|request| request.header);
        let (opcode, client) = header.map_or((0, 0), |header| (header.opcode, header.pid));
        self.opcode.set(opcode);
        shared.poll.follow_client(client);
        self.request.set(Some(shared.begin_request()));
        let before_copy = || pass_leadership(shared, &self.is_leader, &self.request);
        // The client has received the error, if any.
        if let Ok(Some(waiting)) =
            self.buffers.serve(&shared.server, &shared.channel, length, before_copy)
        {
            shared.waiters.take(waiting);
        }
        if let Some(begun) = self.waiting.take() {
            shared.wait_times.record(opcode, begun.elapsed());
        }
        if self.request.take().is_some_and(|request| !shared.leadership.end_request(request)) {
            self.is_leader.set(false);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // After a panic, the other threads must not wait for a leader that no longer exists.
        pass_leadership(&self.shared, &self.is_leader, &self.request);
    }
}

/// Passes the leader's role on, unless the calling thread is not the leader, or another thread has
/// taken the role over.
fn pass_leadership(shared: &Shared, is_leader: &Cell<bool>, request: &Cell<Option<u64>>) {
    if is_leader.replace(false)
        && request.take().is_none_or(|request| shared.leadership.end_request(request))
    {
        shared.pass_leadership();
    }
}
