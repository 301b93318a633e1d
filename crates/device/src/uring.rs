//! A file device that submits bios to the kernel through io_uring.
//!
//! One thread owns the ring: it submits all bios that other threads have queued in one batch, and
//! completes them. So a submitter never waits, the ring needs no lock, and requests survive the
//! thread that submitted them.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};

use base::{DeviceOffset, Result};
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::worker::Worker;
use crate::{Bio, BioOperation, BlockDevice, FileDevice};

/// The user data of the request that wakes the ring's thread.
const WAKE: u64 = u64::MAX;
/// The maximum number of segments in one request (IOV_MAX).
const SEGMENTS_PER_REQUEST_MAX: usize = 1024;

/// A [`FileDevice`] that uses io_uring.
///
/// At most `depth` requests are in flight in the kernel, and as many are queued. The submitter does
/// further requests itself, and also requests that it waits for. Dropping the device waits for all
/// submitted requests. If the host forbids `io_uring_enter` later, as a filter on system calls
/// does, submitters do all requests themselves from then on. If that happens while requests are in
/// flight in the kernel, the program is aborted.
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
    /// Written to wake the ring's thread.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Bio>,
    /// Whether the ring's thread sleeps, and must be woken for the queue.
    sleeping: bool,
    stopping: bool,
    /// Whether the ring has failed, so that no thread serves the queue.
    dead: bool,
}

impl UringDevice {
    /// Creates a ring for `depth` requests to `file`, from 1 to 4096. Errors: those of the host, if
    /// io_uring is missing or forbidden.
    pub fn new(file: Arc<FileDevice>, depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, 4096);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared { state: Mutex::default(), wake });
        let (of_worker, device) = (Arc::clone(&shared), Arc::clone(&file));
        // The thread that uses the ring also creates it. Then the kernel needs no locks for it.
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
    /// Queues as much of the batch as there is room for. Returns the rest.
    fn queue(&self, mut batch: Vec<Bio>, queued_max: usize) -> Vec<Bio> {
        let mut state = self.state.lock();
        let queued_max = if state.dead { 0 } else { queued_max };
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
        // The counter cannot overflow, since each write is followed by a read.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A request in flight.
struct InFlight {
    bio: Bio,
    /// The number of bytes that earlier requests for this bio have transferred.
    done: u64,
    /// The addresses of the memory, which the kernel reads.
    vectors: Vec<libc::iovec>,
}

/// The ring and all of its requests in flight. Only its own thread uses it.
struct Ring {
    ring: IoUring,
    shared: Arc<Shared>,
    file: Arc<FileDevice>,
    depth: usize,
    /// The requests, by the user data of their completions. Their vectors are on the heap and do
    /// not move.
    in_flight: Vec<Option<InFlight>>,
    /// The free indices of `in_flight`.
    free: Vec<usize>,
    /// The user data of the prepared entries that the kernel has not consumed yet, the oldest
    /// first.
    prepared: VecDeque<u64>,
    /// The buffer for reads of the wake-up counter.
    woken: Box<u64>,
    /// Whether a read of the wake-up counter is prepared or in flight.
    waking: bool,
    /// Whether the thread has warned that the kernel has no room.
    warned: bool,
}

/// Aborts the program if the ring's thread panics, since the kernel may still write to memory that
/// unwinding would free.
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
        Self {
            ring,
            shared,
            file,
            depth,
            in_flight: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            prepared: VecDeque::new(),
            woken: Box::new(0),
            waking: false,
            warned: false,
        }
    }

    /// Serves the queue until the device is dropped or the ring fails.
    fn run(&mut self) {
        let _guard = AbortOnPanic;
        loop {
            let stopping = self.start_queued();
            let idle = self.free.len() == self.depth;
            if stopping && idle && !self.waking {
                return;
            }
            if !self.waking && !stopping {
                self.arm_wake();
            }
            if let Err(error) = self.enter() {
                return self.shut_down(&error);
            }
            self.reap();
        }
    }

    /// Ends the use of the ring after a failed system call.
    fn shut_down(&mut self, error: &io::Error) {
        tracing::warn!(%error, "io_uring has failed: using threads");
        let queued = {
            let mut state = self.shared.state.lock();
            state.dead = true;
            Vec::from(std::mem::take(&mut state.queue))
        };
        self.reap();
        self.remove_consumed();
        let prepared = std::mem::take(&mut self.prepared);
        let unsubmitted: Vec<_> =
            prepared.into_iter().filter_map(|index| self.remove_prepared(index)).collect();
        if self.free.len() < self.depth {
            // The kernel may access the memory of the other requests at any time, and there will be
            // no completion.
            tracing::error!("io_uring has lost requests");
            std::process::abort();
        }
        if self.waking {
            // The kernel may still write to the buffer.
            Box::leak(std::mem::take(&mut self.woken));
        }
        for InFlight { mut bio, done, .. } in unsubmitted {
            let result = self.file.transfer(&mut bio, done);
            bio.end(result);
        }
        self.file.submit(queued);
    }

    /// Removes a request that the kernel has not consumed, and returns it.
    fn remove_prepared(&mut self, index: u64) -> Option<InFlight> {
        if index == WAKE {
            self.waking = false;
            return None;
        }
        let index = index as usize;
        self.free.push(index);
        self.in_flight[index].take()
    }

    /// Removes the entries that the kernel has consumed from `prepared`.
    fn remove_consumed(&mut self) {
        let left = self.ring.submission().len();
        self.prepared.drain(..self.prepared.len() - left);
    }

    /// Moves queued bios to the ring while it has room. Returns whether the device is being
    /// dropped.
    fn start_queued(&mut self) -> bool {
        loop {
            let mut state = self.shared.state.lock();
            let room = self.free.len().min(state.queue.len());
            let bios: Vec<Bio> = state.queue.drain(..room).collect();
            // If bios are left and there is no room, the next completion leads to the next call of
            // this function.
            state.sleeping = state.queue.is_empty() && bios.is_empty();
            let stopping = state.stopping;
            drop(state);
            if bios.is_empty() {
                return stopping;
            }
            for bio in bios {
                match self.file.check(&bio) {
                    Ok(()) if bio.length() == 0 => bio.end(Ok(())),
                    Ok(()) => self.start(bio, 0),
                    Err(errno) => bio.end(Err(errno)),
                }
            }
        }
    }

    /// Prepares a request for the rest of `bio` after its first `done` bytes.
    fn start(&mut self, bio: Bio, done: u64) {
        let vectors = vectors(&bio, done);
        let Some(index) = self.free.pop() else { unreachable!("the ring has room") };
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

    /// Prepares a read of the wake-up counter, which completes when the counter is written.
    fn arm_wake(&mut self) {
        let file = types::Fd(self.shared.wake.as_raw_fd());
        let target = std::ptr::from_mut(&mut *self.woken).cast();
        let entry = opcode::Read::new(file, target, size_of::<u64>() as u32).build();
        self.waking = true;
        self.push(entry.user_data(WAKE));
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the vectors of a bio, and `woken`, do not move until the completion has been
        // reaped. The bio has not ended until then, so its memory is valid.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // The queue has room for everything in flight.
        assert!(pushed.is_ok(), "the submission queue is full");
        self.prepared.push_back(entry.get_user_data());
    }

    /// Submits the prepared requests and waits for a completion. Fails if the ring cannot be
    /// entered any more.
    fn enter(&mut self) -> io::Result<()> {
        loop {
            let entered = self.ring.submit_and_wait(1);
            self.remove_consumed();
            let Err(error) = entered else { return Ok(()) };
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                // Completions must be reaped first.
                Some(Errno::BUSY | Errno::AGAIN) if !self.ring.completion().is_empty() => {
                    return Ok(());
                }
                // Temporarily out of memory. Requests in flight must not be abandoned, so try
                // again.
                Some(Errno::BUSY | Errno::AGAIN | Errno::NOMEM) => {
                    if !std::mem::replace(&mut self.warned, true) {
                        tracing::warn!(%error, "io_uring_enter failed, and is retried");
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                _ => return Err(error),
            }
        }
    }

    /// Completes all requests that the kernel has finished.
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
                unreachable!("each request has one completion")
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
                // The kernel could not do the request asynchronously.
                Errno::INTR | Errno::AGAIN | Errno::CANCELED => {
                    let result = self.file.transfer(&mut bio, done);
                    bio.end(result);
                }
                errno => bio.end(Err(errno.raw_os_error())),
            },
        }
    }
}

/// Returns the addresses of the rest of the bio's memory after its first `done` bytes.
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
        let (mut own, queued): (Vec<_>, Vec<_>) = batch.into_iter().partition(Bio::is_waited_for);
        own.extend(self.shared.queue(queued, self.depth));
        self.file.submit(own);
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

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        self.file.refresh(offset, length);
    }

    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        self.file.next_data(offset)
    }
}

impl Drop for UringDevice {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.wake();
        self.worker = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;
    use std::ptr::NonNull;
    use std::time::Duration;

    /// Forbids a system call to this thread and to the threads that it starts.
    fn forbid(call: libc::c_long) {
        let code = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
        let mut codes = [
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
            code(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
            code(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        ];
        let program = libc::sock_fprog { len: codes.len() as u16, filter: codes.as_mut_ptr() };
        // SAFETY: the program is complete, and read before the call returns.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }

    #[test]
    fn requests_succeed_after_the_host_has_forbidden_io_uring() {
        let contents: Vec<u8> = (0..64 << 10).map(|at| (at >> 9) as u8).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &contents).unwrap();
        let (sender, receiver) = mpsc::channel();
        let test = std::thread::spawn(move || {
            forbid(libc::SYS_io_uring_enter);
            let file = Arc::new(FileDevice::open(file.path(), true).unwrap());
            let device = UringDevice::new(file, 4).unwrap();
            let mut memory = vec![0; 64 << 10];
            for half in memory.chunks_mut(32 << 10).zip([0, 32 << 10]) {
                let (memory, start) = half;
                let bios = (start..).step_by(512).zip(memory.chunks_mut(512)).map(|(at, part)| {
                    // SAFETY: `memory` is not accessed before all bios have ended.
                    let segment = unsafe { Segment::new(NonNull::from(part).cast(), 512) };
                    let sender = sender.clone();
                    Bio::new(BioOperation::Read, DeviceOffset(at), [segment], move |result| {
                        sender.send(result).unwrap();
                    })
                });
                device.submit(bios.collect());
                for _ in 0..64 {
                    let result = receiver.recv_timeout(Duration::from_secs(30));
                    assert_eq!(result, Ok(Ok(())));
                }
            }
            assert!(device.shared.state.lock().dead);
            drop(device);
            memory
        });
        assert!(test.join().unwrap() == contents);
    }
}
