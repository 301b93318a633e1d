//! A file device whose bios go to the kernel through io_uring.
//!
//! One thread owns the ring: it submits what others put into its queue, in batches as large as have
//! gathered, and ends what has completed. So a submitter never waits, no lock is taken around the
//! ring, and requests do not die with the thread that had them submitted.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};

use base::{DeviceOffset, Result};
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::worker::Worker;
use crate::{Bio, BioOperation, BlockDevice, FileDevice};

/// The completion that says that there is something in the queue.
const WAKE: u64 = u64::MAX;
/// As many runs of memory as one request takes (IOV_MAX).
const SEGMENTS_PER_REQUEST_MAX: usize = 1024;

/// A [`FileDevice`] driven through io_uring.
///
/// At most `depth` requests are with the kernel at a time and as many wait; what finds no room is
/// done by its submitter, and so is what its submitter waits for. Dropping the device waits for
/// everything that was submitted. A program that filters its own system calls later must leave it
/// `io_uring_enter`.
#[derive(Debug)]
pub struct UringDevice {
    file: Arc<FileDevice>,
    depth: usize,
    shared: Arc<Shared>,
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Written to make the ring's thread look at the queue.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Bio>,
    /// Whether the ring's thread will not look at the queue before it is woken.
    sleeping: bool,
    stopping: bool,
}

impl UringDevice {
    /// Drives `file` through a new ring for `depth` requests, from 1 to 4096. Fails, with the
    /// host's reason, where io_uring is missing or forbidden.
    pub fn new(file: Arc<FileDevice>, depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, 4096);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared { state: Mutex::default(), wake });
        let (of_worker, device) = (Arc::clone(&shared), Arc::clone(&file));
        // The ring is made by the thread that will use it: the kernel then needs no locking.
        let (sender, started) = mpsc::channel();
        let worker = Worker::start("bifolio-uring", move || match make_ring(depth) {
            Ok(ring) => {
                let mut ring = Ring::new(ring, of_worker, device, depth);
                let _ = sender.send(Ok(()));
                ring.run();
            }
            Err(error) => {
                let _ = sender.send(Err(error));
            }
        })?;
        match started.recv() {
            Ok(Ok(())) => Ok(Self { file, depth, shared, worker: Some(worker) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the ring's thread did not start")),
        }
    }
}

fn make_ring(depth: usize) -> io::Result<IoUring> {
    // One entry more, for the wake-up.
    let entries = (depth as u32 + 1).next_power_of_two();
    let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    // Kernels before 6.1 do not know these flags.
    modern.or_else(|_| IoUring::new(entries))
}

impl Shared {
    /// Adds as much of the batch as there is room for, and gives back the rest.
    fn queue(&self, mut batch: Vec<Bio>, queued_max: usize) -> Vec<Bio> {
        let mut state = self.state.lock();
        let room = queued_max.saturating_sub(state.queue.len()).min(batch.len());
        let rest = batch.split_off(room);
        state.queue.extend(batch);
        let wake = room > 0 && std::mem::take(&mut state.sleeping);
        drop(state);
        if wake {
            self.wake();
        }
        rest
    }

    fn wake(&self) {
        // The counter cannot be full: it is read whenever it was written.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A request that the kernel has.
struct InFlight {
    bio: Bio,
    /// Bytes moved by earlier requests for this bio.
    done: u64,
    /// What the kernel reads the memory's addresses from.
    vectors: Vec<libc::iovec>,
}

/// The ring and everything it has in flight; only its own thread uses it.
struct Ring {
    ring: IoUring,
    shared: Arc<Shared>,
    file: Arc<FileDevice>,
    depth: usize,
    /// The requests by their index, which is what a completion names. Boxed vectors do not move
    /// when this grows.
    in_flight: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// Where the kernel puts what it reads from the wake-up counter.
    woken: Box<u64>,
    waking: bool,
}

/// Ends the program when its thread panics: the kernel may be writing to memory that unwinding
/// would free.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Ring {
    fn new(ring: IoUring, shared: Arc<Shared>, file: Arc<FileDevice>, depth: usize) -> Self {
        let in_flight = (0..depth).map(|_| None).collect();
        let free = (0..depth).rev().collect();
        Self { ring, shared, file, depth, in_flight, free, woken: Box::new(0), waking: false }
    }

    fn run(&mut self) {
        let _guard = AbortOnPanic;
        loop {
            let stopping = self.take_work();
            let idle = self.free.len() == self.depth;
            if stopping && idle && !self.waking {
                return;
            }
            if !self.waking && !stopping {
                self.arm_wake();
            }
            self.enter();
            self.reap();
        }
    }

    /// Hands queued bios to the ring as far as there is room, and says whether the device is being
    /// dropped.
    fn take_work(&mut self) -> bool {
        loop {
            let mut state = self.shared.state.lock();
            let room = self.free.len().min(state.queue.len());
            let bios: Vec<Bio> = state.queue.drain(..room).collect();
            // With bios left but no room, the next completion brings us back here.
            state.sleeping = state.queue.is_empty() && bios.is_empty();
            let stopping = state.stopping;
            drop(state);
            if bios.is_empty() {
                return stopping;
            }
            for bio in bios {
                match self.file.admit(&bio) {
                    Ok(()) if bio.length() == 0 => bio.end(Ok(())),
                    Ok(()) => self.start(bio, 0),
                    Err(errno) => bio.end(Err(errno)),
                }
            }
        }
    }

    /// Prepares a request for what is left of `bio` after its first `done` bytes.
    fn start(&mut self, bio: Bio, done: u64) {
        let vectors = vectors(&bio, done);
        let Some(index) = self.free.pop() else { unreachable!("taken only when there is room") };
        let slot = self.in_flight[index].insert(InFlight { bio, done, vectors });
        let file = types::Fd(self.file.as_raw_fd());
        let at = slot.bio.offset().0 + done;
        let (start, count) = (slot.vectors.as_ptr(), slot.vectors.len() as u32);
        let entry = match slot.bio.operation() {
            BioOperation::Read => opcode::Readv::new(file, start, count).offset(at).build(),
            BioOperation::Write => opcode::Writev::new(file, start, count).offset(at).build(),
        };
        self.push(entry.user_data(index as u64));
    }

    /// Asks the kernel to complete a request when the queue's counter is written.
    fn arm_wake(&mut self) {
        let file = types::Fd(self.shared.wake.as_raw_fd());
        let target = std::ptr::from_mut(&mut *self.woken).cast();
        let entry = opcode::Read::new(file, target, size_of::<u64>() as u32).build();
        self.waking = true;
        self.push(entry.user_data(WAKE));
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the vectors of a bio, and `woken`, stay where they are until the completion has
        // been reaped, and so does the memory that the bio's maker promised until its end.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // The queue has room for everything in flight.
        assert!(pushed.is_ok(), "the submission queue is full");
    }

    /// Submits what was prepared and waits for a completion.
    fn enter(&mut self) {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => return,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR) => {}
                    // Completions to be reaped first.
                    Some(Errno::BUSY | Errno::AGAIN) if !self.ring.completion().is_empty() => {
                        return;
                    }
                    // Out of memory for now. Nothing in flight may be given up.
                    _ => {
                        tracing::warn!(%error, "io_uring_enter failed; trying again");
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                },
            }
        }
    }

    fn reap(&mut self) {
        let completions: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (index, result) in completions {
            if index == WAKE {
                self.waking = false;
                continue;
            }
            let index = index as usize;
            let Some(request) = self.in_flight[index].take() else {
                unreachable!("one completion for one request")
            };
            self.free.push(index);
            self.complete(request, result);
        }
    }

    fn complete(&mut self, request: InFlight, result: i32) {
        let InFlight { mut bio, done, .. } = request;
        match u64::try_from(result) {
            Ok(moved) if moved > 0 && done + moved < bio.length() => self.start(bio, done + moved),
            Ok(moved) if moved > 0 => bio.end(Ok(())),
            Ok(_) => bio.end(Err(crate::bio::EIO)),
            Err(_) => match Errno::from_raw_os_error(-result) {
                // The kernel could not do it asynchronously.
                Errno::INTR | Errno::AGAIN | Errno::CANCELED => {
                    let result = self.file.transfer(&mut bio, done);
                    bio.end(result);
                }
                errno => bio.end(Err(errno.raw_os_error())),
            },
        }
    }
}

/// The addresses of what is left of the bio's memory after its first `done` bytes.
fn vectors(bio: &Bio, done: u64) -> Vec<libc::iovec> {
    let mut skip = done;
    let parts = bio.segments().iter().filter_map(|segment| {
        let skipped = skip.min(segment.len() as u64);
        skip -= skipped;
        let left = segment.len() - skipped as usize;
        let start = segment.as_ptr().wrapping_add(skipped as usize);
        (left > 0).then_some(libc::iovec { iov_base: start.cast(), iov_len: left })
    });
    parts.take(SEGMENTS_PER_REQUEST_MAX).collect()
}

impl BlockDevice for UringDevice {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        let (mut here, there): (Vec<_>, Vec<_>) = batch.into_iter().partition(Bio::is_waited_for);
        here.extend(self.shared.queue(there, self.depth));
        self.file.submit(here);
    }

    fn flush(&self) -> Result<()> {
        self.file.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.file.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.file.write_zeroes(offset, length)
    }
}

impl Drop for UringDevice {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.wake();
        self.worker = None;
    }
}
