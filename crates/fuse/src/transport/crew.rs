//! The threads that serve a channel. At any time at most one of them, the reader, waits for
//! requests; the others are at work or idle.
//!
//! A reader that has taken a request serves it itself and stays the reader: no hand-over, no change
//! of processor, for everything that is in memory. Only when the work is about to wait for the
//! device (`base::waiting`), or is long enough to be worth it, does the reader first pass its part
//! to an idle thread.
//!
//! ```text
//! thread A   read ─ serve ─ answer ─ read ─ serve ──┬─ wait for device ── answer ─ idle
//! thread B   idle ──────────────────────────────────┴─ read ─ serve ─ answer ─ read ─ ...
//! ```

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::request::Request;
use crate::server::Server;
use crate::transport::busy_poll::BusyPoll;
use crate::transport::channel::{Channel, End};
use crate::transport::desk::Desk;
use crate::transport::waits::Waits;

/// As many threads as kept a device with 100 µs latency busy.
pub const THREADS_DEFAULT: NonZeroUsize = NonZeroUsize::new(16).unwrap();

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
}

#[derive(Debug, Default)]
struct State {
    reading: bool,
    idle: usize,
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
        let shared = Arc::new(Shared { server, channel, state, wake, waits, poll });
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
            self.wake.wait(&mut state);
        }
        state.idle -= 1;
        match state.end {
            Some(end) => Err(end),
            None => {
                state.reading = true;
                Ok(())
            }
        }
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
    /// Since when the request has waited, if it has.
    waiting: Rc<Cell<Option<Instant>>>,
    /// What kind of request it is.
    opcode: Rc<Cell<u32>>,
    desk: Desk,
}

impl Worker {
    fn new(shared: Arc<Shared>) -> Self {
        let (waiting, opcode) = (Rc::default(), Rc::default());
        Self { shared, reading: Rc::default(), waiting, opcode, desk: Desk::new() }
    }

    fn run(mut self) -> End {
        let (shared, reading) = (Arc::clone(&self.shared), Rc::clone(&self.reading));
        let (waiting, opcode) = (Rc::clone(&self.waiting), Rc::clone(&self.opcode));
        let _listening = base::waiting::listen(move || {
            waiting.set(waiting.get().or_else(|| Some(Instant::now())));
            if !shared.waits.are_brief(opcode.get()) {
                pass(&shared, &reading);
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
        let opcode =
            Request::parse(&self.desk.request[..length]).map_or(0, |one| one.header.opcode);
        self.opcode.set(opcode);
        let before_long = || pass(shared, &self.reading);
        // The client has been told of an error.
        let _ = self.desk.serve(&shared.server, &shared.channel, length, before_long);
        if let Some(begun) = self.waiting.take() {
            shared.waits.note(opcode, begun.elapsed());
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // After a panic: the others must not wait for a reader that has gone.
        pass(&self.shared, &self.reading);
    }
}

/// Passes reading on, where this thread has it.
fn pass(shared: &Shared, reading: &Cell<bool>) {
    if reading.replace(false) {
        shared.pass_reading();
    }
}
