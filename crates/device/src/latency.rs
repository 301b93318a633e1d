//! A device with the latency of a fast disk, for tests and benchmarks in memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{DeviceOffset, Result};
use parking_lot::{Condvar, Mutex};

use crate::worker::Worker;
use crate::{Bio, BlockDevice, SharedDevice};

/// The time before a request is due at which the thread stops sleeping and polls the clock. The
/// host wakes threads some tens of microseconds late.
const POLLED: Duration = Duration::from_micros(80);

/// A device with a queue that serves `depth` requests at once, each in `latency`, like an NVMe disk
/// of that queue depth. A thread of this device passes each request on to `inner` when it is due:
/// in the order of their submission, except for [stragglers](Self::with_stragglers). Dropping the
/// device waits for all requests.
///
/// `inner` should be a device in memory, since its own latency is added.
#[derive(Debug)]
pub struct LatencyDevice {
    inner: SharedDevice,
    latency: Duration,
    shared: Arc<Shared>,
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the queue or `stopping` changes.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The times at which the `depth` servers become idle, in ascending order.
    servers: VecDeque<Instant>,
    /// The requests and the times at which they are due, in ascending order.
    queue: VecDeque<(Instant, Bio)>,
    stragglers: Option<Stragglers>,
    stopping: bool,
}

/// Requests that take longer than others.
#[derive(Debug)]
struct Stragglers {
    /// Each request whose number is a multiple of this is a straggler.
    every: u64,
    latency: Duration,
    /// The number of requests so far.
    requests: u64,
}

impl LatencyDevice {
    /// Returns `inner` with a `latency` for each request, of which `depth` are served at a time.
    ///
    /// # Panics
    /// If `depth` is zero, or the host refuses a thread.
    pub fn new(inner: SharedDevice, latency: Duration, depth: usize) -> Self {
        assert!(depth > 0, "the depth is zero");
        let servers = vec![Instant::now(); depth].into();
        let state = State { servers, queue: VecDeque::new(), stragglers: None, stopping: false };
        let state = Mutex::new(state);
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let (of_worker, device) = (Arc::clone(&shared), Arc::clone(&inner));
        let worker = Worker::start("bifolio-latency", move || of_worker.work(&*device));
        let worker = Some(worker.expect("the host starts a thread"));
        Self { inner, latency, shared, worker }
    }

    /// Makes every `every`-th request or flush a straggler that takes `latency`. With a depth above
    /// 1, later requests overtake it, as on a disk.
    ///
    /// # Panics
    /// If `every` is zero.
    pub fn with_stragglers(self, every: u64, latency: Duration) -> Self {
        assert!(every > 0, "the interval of stragglers is zero");
        let stragglers = Stragglers { every, latency, requests: 0 };
        self.shared.state.lock().stragglers = Some(stragglers);
        self
    }
}

impl State {
    /// Assigns a request that is submitted now to a server. Returns the time at which it is due.
    fn schedule(&mut self, mut latency: Duration) -> Instant {
        if let Some(stragglers) = &mut self.stragglers {
            stragglers.requests += 1;
            if stragglers.requests % stragglers.every == 0 {
                latency = stragglers.latency;
            }
        }
        let idle = self.servers.pop_front().unwrap_or_else(Instant::now);
        let due = idle.max(Instant::now()) + latency;
        self.servers.insert(self.servers.partition_point(|idle| *idle <= due), due);
        due
    }

    fn push(&mut self, due: Instant, bio: Bio) {
        self.queue.insert(self.queue.partition_point(|(other, _)| *other <= due), (due, bio));
    }

    fn take_due(&mut self, now: Instant) -> Vec<Bio> {
        let count = self.queue.iter().take_while(|(due, _)| *due <= now).count();
        self.queue.drain(..count).map(|(_, bio)| bio).collect()
    }
}

impl Shared {
    fn work(&self, inner: &dyn BlockDevice) {
        let mut state = self.state.lock();
        loop {
            let due = match state.queue.front() {
                Some(&(due, _)) => due,
                None if state.stopping => return,
                None => {
                    self.changed.wait(&mut state);
                    continue;
                }
            };
            if due > Instant::now() + POLLED {
                self.changed.wait_until(&mut state, due - POLLED);
                continue;
            }
            drop(state);
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            let ready = self.state.lock().take_due(Instant::now());
            inner.submit(ready);
            state = self.state.lock();
        }
    }
}

impl BlockDevice for LatencyDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        let mut state = self.shared.state.lock();
        for bio in batch {
            let due = state.schedule(self.latency);
            state.push(due, bio);
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    fn flush(&self) -> Result<()> {
        let due = self.shared.state.lock().schedule(self.latency);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        self.inner.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.write_zeroes(offset, length)
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        self.inner.refresh(offset, length);
    }
}

impl Drop for LatencyDevice {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_all();
        self.worker = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BioOperation, MemoryDevice, Segment};
    use std::ptr::NonNull;
    use std::sync::mpsc;

    const LATENCY: Duration = Duration::from_millis(2);

    /// Returns the time of `count` reads that are submitted at once.
    fn read(depth: usize, count: usize) -> Duration {
        let inner = Arc::new(MemoryDevice::new(vec![7; 4096]));
        let device = LatencyDevice::new(inner, LATENCY, depth);
        let mut memory = vec![0u8; count];
        let (sender, receiver) = mpsc::channel();
        let bios = memory.iter_mut().map(|byte| {
            // SAFETY: `memory` outlives the wait below, and is not accessed before.
            let segment = unsafe { Segment::new(NonNull::from(byte), 1) };
            let sender = sender.clone();
            Bio::new(BioOperation::Read, DeviceOffset(0), [segment], move |result| {
                sender.send(result).unwrap();
            })
        });
        let begin = Instant::now();
        device.submit(bios.collect());
        for _ in 0..count {
            receiver.recv().unwrap().unwrap();
        }
        let elapsed = begin.elapsed();
        assert!(memory == vec![7; count]);
        elapsed
    }

    // Most upper bounds would fail on a busy machine. So this checks lower bounds, and that
    // parallel requests are faster than serial requests.
    #[test]
    fn requests_beyond_the_depth_wait_for_a_server() {
        assert!(read(1, 1) >= LATENCY);
        assert!(read(1, 10) >= 10 * LATENCY);
        assert!(read(4, 9) >= 3 * LATENCY);
        let parallel = (0..10).map(|_| read(16, 16)).min().unwrap();
        assert!((LATENCY..8 * LATENCY).contains(&parallel), "{parallel:?}");
    }

    #[test]
    fn later_requests_overtake_stragglers() {
        let inner = Arc::new(MemoryDevice::new(vec![0]));
        let device =
            LatencyDevice::new(inner, LATENCY, 4).with_stragglers(2, Duration::from_secs(1));
        let (sender, receiver) = mpsc::channel();
        let bio = |number| {
            let sender = sender.clone();
            let done = move |_| sender.send(number).unwrap();
            Bio::new(BioOperation::Read, DeviceOffset(0), [], done)
        };
        device.submit((1..=4).map(bio).collect());
        drop((device, sender));
        assert_eq!(receiver.iter().collect::<Vec<u32>>(), [1, 3, 2, 4]);
    }

    #[test]
    fn dropping_a_device_waits_for_queued_requests() {
        let device = LatencyDevice::new(Arc::new(MemoryDevice::new(vec![0])), LATENCY, 1);
        let (sender, receiver) = mpsc::channel();
        let bio = |sender: mpsc::Sender<_>| {
            Bio::new(BioOperation::Read, DeviceOffset(0), [], move |end| sender.send(end).unwrap())
        };
        device.submit((0..5).map(|_| bio(sender.clone())).collect());
        drop((device, sender));
        assert_eq!(receiver.iter().filter(Result::is_ok).count(), 5);
    }
}
