//! The threads that serve a channel. At any time at most one of them, the reader, waits for
//! requests; the others are at work or idle.
//!
//! A reader that has taken a request serves it itself and stays the reader: no hand-over, no change
//! of processor, for everything that is in memory. Only when the work is about to wait for the
//! device (`base::waiting`) and such waits were not brief of late (`waits`), or is long enough to be
//! worth it, does the reader first pass its part to an idle thread.
//!
//! ```text
//! thread A   read ─ serve ─ answer ─ read ─ serve ──┬─ wait for device ── answer ─ idle
//! thread B   idle ──────────────────────────────────┴─ read ─ serve ─ answer ─ read ─ ...
//! ```
//!
//! A reader that stays with one request for longer than expected, on a device that hangs or at a lock
//! whose owner waits for one, has its part taken away by an idle thread that looks now and then.

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
use crate::transport::busy_poll::BusyPoll;
use crate::transport::channel::{Channel, End};
use crate::transport::desk::Desk;
use crate::transport::post::Post;
use crate::transport::waits::Waits;

/// As many threads as kept a device with 100 µs latency busy.
pub const THREADS_DEFAULT: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// How often an idle thread looks whether the reader is still at the request that it was at: that many
/// milliseconds, or twice as many, others wait for it at most.
const LOOK: Duration = Duration::from_millis(10);

/// Threads that serve one channel.
#[derive(Debug)]
pub struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    channel: Channel,
    state: Mutex<State>,
    wake: Condvar,
    waits: Waits,
    poll: BusyPoll,
    post: Post,
}

#[derive(Debug, Default)]
struct State {
    reading: bool,
    idle: usize,
    /// One of the idle threads looks at the reader now and then.
    watching: bool,
    end: Option<End>,
}

impl Crew {
    /// Starts `threads` threads, or as many as the host grants. Fails when it grants none. `at_end`
    /// is called once, when no more requests come.
    pub fn start(
        server: Arc<Server>,
        channel: Channel,
        threads: NonZeroUsize,
        poll: BusyPoll,
        at_end: impl FnOnce(End) + Send + 'static,
    ) -> io::Result<Self> {
        let (state, wake, waits) = (Mutex::default(), Condvar::new(), Waits::default());
        let post = Post::default();
        let shared = Arc::new(Shared { server, channel, state, wake, waits, poll, post });
        let at_end = Arc::new(Mutex::new(Some(at_end)));
        let mut started = Vec::new();
        for number in 0..threads.get() {
            let (shared, at_end) = (Arc::clone(&shared), Arc::clone(&at_end));
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
                    tracing::warn!("{number} of {threads} threads serve: {error}");
                    break;
                }
            }
        }
        Ok(Self { shared, threads: started })
    }

    /// The server behind the threads.
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
    /// Waits until this thread is the reader.
    fn take_reading(&self) -> Result<(), End> {
        let mut state = self.state.lock();
        state.idle += 1;
        while state.reading && state.end.is_none() {
            if state.watching || !self.post.is_watched() {
                self.wake.wait(&mut state);
                continue;
            }
            state.watching = true;
            let timeout = self.wake.wait_for(&mut state, LOOK).timed_out();
            state.watching = false;
            if timeout && state.reading && self.post.take_over() {
                break;
            }
        }
        state.idle -= 1;
        if state.idle > 0 && !state.watching && self.post.is_watched() {
            // It looks in this one's place.
            self.wake.notify_one();
        }
        match state.end {
            Some(end) => Err(end),
            None => {
                state.reading = true;
                Ok(())
            }
        }
    }

    /// The reader begins to serve.
    fn enter(&self) -> u64 {
        let (entered, is_watched) = self.post.enter();
        if !is_watched {
            // Under the lock, so that whoever is about to sleep without looking is woken.
            let state = self.state.lock();
            if state.idle > 0 {
                self.wake.notify_one();
            }
        }
        entered
    }

    /// Lets another thread read.
    fn pass_reading(&self) {
        let mut state = self.state.lock();
        state.reading = false;
        let wake = state.idle > 0;
        drop(state);
        if wake {
            self.wake.notify_one();
        }
    }

    fn finish(&self, end: End) {
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        drop(state);
        self.wake.notify_all();
    }
}

/// One thread's part.
struct Worker {
    shared: Arc<Shared>,
    reading: Rc<Cell<bool>>,
    /// The request that this thread is at as the reader, if it is.
    entered: Rc<Cell<Option<u64>>>,
    /// Since when the request has waited, if it has.
    waiting: Rc<Cell<Option<Instant>>>,
    /// What kind of request it is.
    opcode: Rc<Cell<u32>>,
    desk: Desk,
}

impl Worker {
    fn new(shared: Arc<Shared>) -> Self {
        let (reading, entered) = (Rc::default(), Rc::default());
        let (waiting, opcode) = (Rc::default(), Rc::default());
        Self { shared, reading, entered, waiting, opcode, desk: Desk::new() }
    }

    fn run(mut self) -> End {
        let (shared, reading) = (Arc::clone(&self.shared), Rc::clone(&self.reading));
        let (entered, waiting) = (Rc::clone(&self.entered), Rc::clone(&self.waiting));
        let opcode = Rc::clone(&self.opcode);
        let _listening = base::waiting::listen(move || {
            waiting.set(waiting.get().or_else(|| Some(Instant::now())));
            if !shared.waits.are_brief(opcode.get()) {
                pass(&shared, &reading, &entered);
            }
        });
        loop {
            if !self.reading.get() {
                if let Err(end) = self.shared.take_reading() {
                    return end;
                }
                self.reading.set(true);
            }
            match self.shared.channel.receive(&mut self.desk.request, &self.shared.poll) {
                Ok(length) => self.serve(length),
                Err(end) => {
                    self.shared.finish(end);
                    return end;
                }
            }
        }
    }

    fn serve(&mut self, length: usize) {
        let shared = &*self.shared;
        let header = Request::parse(&self.desk.request[..length]).map(|request| request.header);
        let (opcode, client) = header.map_or((0, 0), |header| (header.opcode, header.pid));
        self.opcode.set(opcode);
        shared.poll.taken(client);
        self.entered.set(Some(shared.enter()));
        let before_long = || pass(shared, &self.reading, &self.entered);
        // The client has been told of an error.
        let _ = self.desk.serve(&shared.server, &shared.channel, length, before_long);
        if let Some(begun) = self.waiting.take() {
            shared.waits.note(opcode, begun.elapsed());
        }
        if self.entered.take().is_some_and(|entered| !shared.post.leave(entered)) {
            self.reading.set(false);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // After a panic: the others must not wait for a reader that has gone.
        pass(&self.shared, &self.reading, &self.entered);
    }
}

/// Passes reading on, where this thread has it and nobody has taken it away.
fn pass(shared: &Shared, reading: &Cell<bool>, entered: &Cell<Option<u64>>) {
    if reading.replace(false) && entered.take().is_none_or(|entered| shared.post.leave(entered)) {
        shared.pass_reading();
    }
}
