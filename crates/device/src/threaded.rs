//! A device that works on threads of its own, so that submitting does not take as long as the work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use base::{DeviceOffset, Result};
use parking_lot::{Condvar, Mutex};

use crate::split::split;
use crate::worker::Worker;
use crate::{Bio, BlockDevice, SharedDevice};

/// Longer bios are shared by several threads. Long enough for a thread to be woken meanwhile.
const PART_BYTES: u64 = 512 * 1024;

/// `inner`, worked on by a few threads.
///
/// A bio whose submitter waits for it is done by the submitter: handing it over would only cost
/// time. So is one that finds the queue full, which is how a fast submitter is slowed down.
/// Dropping the device waits for everything in the queue.
#[derive(Debug)]
pub struct ThreadedDevice {
    inner: SharedDevice,
    shared: Arc<Shared>,
    threads: usize,
    queued_max: usize,
    /// Started when there is work for them, so that one who only looks at a volume has none.
    workers: OnceLock<Vec<Worker>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is work, or no more will come.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Bio>,
    stopping: bool,
}

impl ThreadedDevice {
    /// Has `threads` threads work on `inner`, with at most `queued_max` bios waiting for them.
    /// Where the host refuses threads, fewer or none do.
    pub fn new(inner: SharedDevice, threads: usize, queued_max: usize) -> Self {
        let (shared, workers) = (Arc::default(), OnceLock::new());
        Self { inner, shared, threads, queued_max, workers }
    }

    fn start_workers(&self) -> Vec<Worker> {
        let start = |_| {
            let (inner, shared) = (Arc::clone(&self.inner), Arc::clone(&self.shared));
            Worker::start("bifolio-io", move || shared.work(&*inner)).ok()
        };
        (0..self.threads).map_while(start).collect()
    }
}

impl Shared {
    /// Adds as much of the batch as there is room for, and gives back the rest.
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

    /// What a worker does: one bio after another, until there are none and none will come.
    fn work(&self, inner: &dyn BlockDevice) {
        let mut state = self.state.lock();
        loop {
            if let Some(bio) = state.queue.pop_front() {
                drop(state);
                // A panic was reported where it happened, and the bio ended by being dropped. What
                // else is queued needs this thread.
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
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for bio in batch {
            if bio.is_waited_for() { here.push(bio) } else { split(bio, PART_BYTES, &mut there) }
        }
        if !there.is_empty() {
            let workers = self.workers.get_or_init(|| self.start_workers());
            let queued_max = if workers.is_empty() { 0 } else { self.queued_max };
            here.extend(self.shared.queue(there, queued_max));
        }
        if !here.is_empty() {
            self.inner.submit(here);
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

    /// A bio that reads nothing and tells which thread it ended on.
    fn who(sender: &mpsc::Sender<ThreadId>) -> Bio {
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
    fn only_what_is_waited_for_is_done_by_the_submitter() {
        let (sender, receiver) = mpsc::channel();
        let device = device(2, 10);
        device.submit(vec![who(&sender).waited_for()]);
        assert_eq!(receiver.recv().unwrap(), thread::current().id());
        device.submit(vec![who(&sender)]);
        assert_ne!(receiver.recv().unwrap(), thread::current().id());
    }

    #[test]
    fn what_finds_no_room_is_done_by_the_submitter() {
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
        device.submit((0..5).map(|_| who(&sender)).collect());
        let here = receiver.try_iter().filter(|&one| one == thread::current().id()).count();
        assert_eq!(here, 2);
        release.send(()).unwrap();
        drop((device, sender));
        assert_eq!(receiver.iter().filter(|&one| one != thread::current().id()).count(), 3);
    }

    #[test]
    fn a_panic_fails_its_bio_and_leaves_the_thread_to_the_others() {
        let (sender, receiver) = mpsc::channel();
        let device = device(1, 10);
        for panics in [true, false] {
            let sender = sender.clone();
            device.submit(vec![Bio::new(BioOperation::Read, DeviceOffset(0), [], move |_| {
                sender.send(thread::current().id()).unwrap();
                assert!(!panics, "as the test has it");
            })]);
        }
        let threads: Vec<_> = receiver.iter().take(2).collect();
        assert_eq!(threads[0], threads[1]);
        assert_ne!(threads[0], thread::current().id());
    }

    #[test]
    fn without_threads_the_submitter_does_everything() {
        let (sender, receiver) = mpsc::channel();
        device(0, 10).submit(vec![who(&sender)]);
        assert_eq!(receiver.try_recv().unwrap(), thread::current().id());
    }
}
