//! A device that does I/O on threads of its own, so that submitters need not wait for it.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use base::{DeviceOffset, Result};
use parking_lot::{Condvar, Mutex};

use crate::split::split;
use crate::worker::Worker;
use crate::{Bio, BlockDevice, SharedDevice};

/// The size of the parts into which longer bios are split, so that several threads share them.
/// Copying a part takes longer than waking a thread.
const PART_BYTES: u64 = 512 * 1024;

/// A device with a few threads for I/O.
///
/// If the submitter waits for a bio, it does the bio itself, which is faster than waking another
/// thread. If the queue is full, the submitter also does the bio itself. This limits fast
/// submitters. Dropping the device waits for all queued bios.
#[derive(Debug)]
pub struct ThreadedDevice {
    inner: SharedDevice,
    shared: Arc<Shared>,
    threads: usize,
    queued_max: usize,
    /// The threads. The first bio for them starts them, so that a short use of a volume needs none.
    workers: OnceLock<Vec<Worker>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the queue or `stopping` changes.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Bio>,
    stopping: bool,
}

impl ThreadedDevice {
    /// Returns `inner` with `threads` threads, for which at most `queued_max` bios wait.
    /// If the host refuses threads, there are fewer or none.
    pub fn new(inner: SharedDevice, threads: usize, queued_max: usize) -> Self {
        Self { inner, shared: Arc::default(), threads, queued_max, workers: OnceLock::new() }
    }

    /// Starts the threads. Stops at the first one that the host refuses.
    fn start_workers(&self) -> Vec<Worker> {
        let start = |_| {
            let (inner, shared) = (Arc::clone(&self.inner), Arc::clone(&self.shared));
            Worker::start("bifolio-io", move || shared.work(&*inner)).ok()
        };
        (0..self.threads).map_while(start).collect()
    }
}

impl Shared {
    /// Queues as much of the batch as there is room for. Returns the rest.
    fn queue(&self, mut batch: Vec<Bio>, queued_max: usize) -> Vec<Bio> {
        let mut state = self.state.lock();
        let room = queued_max.saturating_sub(state.queue.len()).min(batch.len());
        let rest = batch.split_off(room);
        state.queue.extend(batch);
        drop(state);
        for _ in 0..room {
            self.changed.notify_one();
        }
        rest
    }

    /// Does queued bios, until the queue is empty and the device is being dropped.
    fn work(&self, inner: &dyn BlockDevice) {
        let mut state = self.state.lock();
        loop {
            if let Some(bio) = state.queue.pop_front() {
                drop(state);
                // After a panic, which the panic hook has reported, the bio has ended by being
                // dropped. The thread goes on, since other bios need it.
                let _ = catch_unwind(AssertUnwindSafe(|| inner.submit(vec![bio])));
                state = self.state.lock();
            } else if state.stopping {
                return;
            } else {
                self.changed.wait(&mut state);
            }
        }
    }
}

impl BlockDevice for ThreadedDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        let mut own = Vec::new();
        let mut queued = Vec::new();
        for bio in batch {
            if bio.is_waited_for() {
                own.push(bio);
            } else {
                split(bio, PART_BYTES, &mut queued);
            }
        }
        if !queued.is_empty() {
            let workers = self.workers.get_or_init(|| self.start_workers());
            let queued_max = if workers.is_empty() { 0 } else { self.queued_max };
            own.extend(self.shared.queue(queued, queued_max));
        }
        if !own.is_empty() {
            self.inner.submit(own);
        }
    }

    fn flush(&self) -> Result<()> {
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

    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        self.inner.next_data(offset)
    }
}

impl Drop for ThreadedDevice {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.changed.notify_all();
        drop(self.workers.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BioOperation, MemoryDevice};
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    /// Returns a bio without memory that sends the id of the thread on which it ends.
    fn reporting_bio(sender: &mpsc::Sender<ThreadId>) -> Bio {
        let sender = sender.clone();
        Bio::new(BioOperation::Read, DeviceOffset(0), [], move |result| {
            result.unwrap();
            sender.send(thread::current().id()).unwrap();
        })
    }

    fn device(threads: usize, queued_max: usize) -> ThreadedDevice {
        ThreadedDevice::new(Arc::new(MemoryDevice::new(Vec::new())), threads, queued_max)
    }

    #[test]
    fn submitters_do_only_bios_that_they_wait_for() {
        let (sender, receiver) = mpsc::channel();
        let device = device(2, 10);
        device.submit(vec![reporting_bio(&sender).waited_for()]);
        assert_eq!(receiver.recv().unwrap(), thread::current().id());
        device.submit(vec![reporting_bio(&sender)]);
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
    }

    #[test]
    fn submitters_do_bios_for_which_the_queue_has_no_room() {
        let (sender, receiver) = mpsc::channel();
        let device = device(1, 3);
        let (release, released) = mpsc::channel::<()>();
        let (started, start) = mpsc::channel();
        device.submit(vec![Bio::new(BioOperation::Read, DeviceOffset(0), [], move |_| {
            started.send(()).unwrap();
            released.recv().unwrap();
        })]);
        start.recv().unwrap();
        // The only thread is busy: three fit into the queue.
        device.submit((0..5).map(|_| reporting_bio(&sender)).collect());
        let own = receiver.try_iter().filter(|&one| one == thread::current().id()).count();
        assert_eq!(own, 2);
        release.send(()).unwrap();
        drop((device, sender));
        assert_eq!(receiver.iter().filter(|&one| one != thread::current().id()).count(), 3);
    }

    #[test]
    fn a_panic_fails_its_bio_and_the_thread_goes_on() {
        let (sender, receiver) = mpsc::channel();
        let device = device(1, 10);
        for panics in [true, false] {
            let sender = sender.clone();
            device.submit(vec![Bio::new(BioOperation::Read, DeviceOffset(0), [], move |_| {
                sender.send(thread::current().id()).unwrap();
                assert!(!panics, "a planted panic");
            })]);
        }
        let threads: Vec<_> = receiver.iter().take(2).collect();
        assert_eq!(threads[0], threads[1]);
        assert_ne!(threads[0], thread::current().id());
    }

    #[test]
    fn without_threads_submitters_do_all_bios() {
        let (sender, receiver) = mpsc::channel();
        device(0, 10).submit(vec![reporting_bio(&sender)]);
        assert_eq!(receiver.try_recv().unwrap(), thread::current().id());
    }
}
