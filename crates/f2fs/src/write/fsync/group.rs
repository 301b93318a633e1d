//! Group fsync: callers that sync at the same time share flushes. The first one leads: it syncs the
//! inodes of all callers that wait, while later callers wait for the next group. Not here: what a
//! group writes (`sync`).
//!
//! A group's I/O is done without the lock of changes. While its nodes are in flight, no checkpoint
//! is written:
//!
//! ```text
//! leader                                        another thread
//! under the lock: takes the nodes of all
//!   inodes, allocates blocks of the chain
//!   for them, begins the flight
//! flush: all data that the nodes refer to       a change of a node: to a copy, since the leader has the old
//!                                                 contents. It stays unsynced, and a later group writes it
//! writes the nodes                              a checkpoint would make the chain's blocks free, and allocate
//!                                                 them anew: so it waits for the end of the flight
//! flush
//! the nodes that are still the same are synced
//! ends the flight                               the checkpoint is written
//! ```
//!
//! The nodes are taken before the first flush. A node that was taken later could have the address
//! of data that was written after that flush, and would be found without its data.

use std::sync::{Arc, OnceLock};

use base::cancellation::CHECK_EVERY;
use base::locks::RankedMutex;
use base::{Error, InodeNumber, Result};
use parking_lot::Condvar;

use crate::ranks;

/// A call of fsync(2).
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) inode: InodeNumber,
    result: OnceLock<Result<()>>,
}

impl Request {
    /// Ends the call. Only the first result counts.
    pub(crate) fn end(&self, result: Result<()>) {
        let _ = self.result.set(result);
    }
}

/// The callers of fsync(2).
#[derive(Debug)]
pub(crate) struct Syncs {
    queue: RankedMutex<Queue>,
    /// Notified when a group has ended.
    group_ended: Condvar,
    /// Notified when no nodes are in flight any more.
    flight_ended: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The callers that no group has.
    waiting: Vec<Arc<Request>>,
    has_leader: bool,
    /// Whether nodes of a chain are on their way to the device.
    is_in_flight: bool,
}

impl Syncs {
    pub(crate) fn new() -> Self {
        Self {
            queue: RankedMutex::new(ranks::SYNCS, Queue::default()),
            group_ended: Condvar::new(),
            flight_ended: Condvar::new(),
        }
    }

    /// Syncs an inode, whose data is on the device, together with those of other callers. `lead`
    /// syncs a group, and ends all of its requests. Errors: also `Interrupted` if this thread's
    /// request is cancelled while another one leads.
    pub(crate) fn sync(
        &self,
        inode: InodeNumber,
        lead: impl FnOnce(&[Arc<Request>]),
    ) -> Result<()> {
        let own = Arc::new(Request { inode, result: OnceLock::new() });
        // Before the lock: a listener may take others.
        base::waiting::about_to_wait();
        let mut queue = self.queue.lock();
        queue.waiting.push(Arc::clone(&own));
        while queue.has_leader {
            queue.wait_for(&self.group_ended, CHECK_EVERY);
            drop(queue);
            let checked = base::cancellation::check();
            queue = self.queue.lock();
            if let Some(result) = own.result.get() {
                return result.clone();
            }
            if let Err(interrupted) = checked {
                queue.waiting.retain(|request| !Arc::ptr_eq(request, &own));
                return Err(interrupted);
            }
        }
        // No group has this caller's request, since a group ends all of its requests before another
        // one begins.
        queue.has_leader = true;
        let requests = std::mem::take(&mut queue.waiting);
        drop(queue);
        let group = Group { syncs: self, requests };
        lead(&group.requests);
        drop(group);
        own.result.get().cloned().unwrap_or(Err(Error::Panicked("an fsync")))
    }

    /// Marks nodes as on their way to the device, until the returned value is dropped. The caller
    /// holds the lock of changes.
    pub(crate) fn begin_flight(&self) -> Flight<'_> {
        self.queue.lock().is_in_flight = true;
        Flight(self)
    }

    /// Waits until no nodes are on their way to the device. The caller holds the lock of changes,
    /// so none will be.
    pub(crate) fn wait_for_flight(&self) {
        let mut queue = self.queue.lock();
        while queue.is_in_flight {
            queue.wait(&self.flight_ended);
        }
    }
}

/// A group that is synced. Dropping it ends the requests without a result, after a panic, and lets
/// the next group begin.
struct Group<'s> {
    syncs: &'s Syncs,
    requests: Vec<Arc<Request>>,
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        for request in &self.requests {
            request.end(Err(Error::Panicked("an fsync")));
        }
        self.syncs.queue.lock().has_leader = false;
        self.syncs.group_ended.notify_all();
    }
}

/// Nodes on their way to the device. Dropping this ends the flight.
pub(crate) struct Flight<'s>(&'s Syncs);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().is_in_flight = false;
        self.0.flight_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Leads a group: records its inodes, and ends its requests with success.
    fn lead(groups: &Mutex<Vec<Vec<u64>>>, requests: &[Arc<Request>]) {
        let mut inodes: Vec<u64> = requests.iter().map(|request| request.inode.0).collect();
        inodes.sort_unstable();
        groups.lock().unwrap().push(inodes);
        requests.iter().for_each(|request| request.end(Ok(())));
    }

    /// Waits until so many callers are in the queue.
    fn wait_for_callers(syncs: &Syncs, count: usize) {
        while syncs.queue.lock().waiting.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn callers_that_come_during_a_group_are_the_next_group() {
        let (syncs, groups) = (Syncs::new(), Mutex::new(Vec::new()));
        let (release, released) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (syncs, groups) = (&syncs, &groups);
            let (begun, has_begun) = mpsc::channel();
            scope.spawn(move || {
                let first = syncs.sync(InodeNumber(1), |requests| {
                    begun.send(()).unwrap();
                    released.recv().unwrap();
                    lead(groups, requests);
                });
                assert_eq!(first, Ok(()));
            });
            has_begun.recv().unwrap();
            for inode in 2..6 {
                let sync =
                    move || syncs.sync(InodeNumber(inode), |requests| lead(groups, requests));
                scope.spawn(move || assert_eq!(sync(), Ok(())));
            }
            wait_for_callers(syncs, 4);
            release.send(()).unwrap();
        });
        assert_eq!(*groups.lock().unwrap(), [vec![1], vec![2, 3, 4, 5]]);
    }

    #[test]
    fn a_cancelled_caller_leaves_and_no_group_has_its_inode() {
        let (syncs, groups) = (Syncs::new(), Mutex::new(Vec::new()));
        let (release, released) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (syncs, groups) = (&syncs, &groups);
            let (begun, has_begun) = mpsc::channel();
            let leader = scope.spawn(move || {
                syncs.sync(InodeNumber(1), |requests| {
                    begun.send(()).unwrap();
                    released.recv().unwrap();
                    lead(groups, requests);
                })
            });
            has_begun.recv().unwrap();
            let cancelled = scope.spawn(|| {
                let _cancellable = base::cancellation::cancel_when(|| true);
                syncs.sync(InodeNumber(2), |requests| lead(groups, requests))
            });
            assert_eq!(cancelled.join().unwrap(), Err(Error::Interrupted));
            release.send(()).unwrap();
            assert_eq!(leader.join().unwrap(), Ok(()));
            assert_eq!(syncs.sync(InodeNumber(3), |requests| lead(groups, requests)), Ok(()));
        });
        assert_eq!(*groups.lock().unwrap(), [vec![1], vec![3]]);
    }

    #[test]
    fn each_caller_gets_the_result_of_its_own_inode() {
        let syncs = Syncs::new();
        let result = syncs.sync(InodeNumber(1), |requests| {
            requests.iter().for_each(|request| request.end(Err(Error::NoSpace)));
        });
        assert_eq!(result, Err(Error::NoSpace));
        assert_eq!(syncs.sync(InodeNumber(1), |requests| requests[0].end(Ok(()))), Ok(()));
    }

    #[test]
    fn callers_of_a_group_that_panics_fail_and_the_next_group_begins() {
        let syncs = Syncs::new();
        let (release, released) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let syncs = &syncs;
            let (begun, has_begun) = mpsc::channel();
            let leader = scope.spawn(move || {
                syncs.sync(InodeNumber(1), |_| {
                    begun.send(()).unwrap();
                    released.recv().unwrap();
                    panic!("planted");
                })
            });
            has_begun.recv().unwrap();
            let follower =
                scope.spawn(move || syncs.sync(InodeNumber(2), |requests| requests[0].end(Ok(()))));
            wait_for_callers(syncs, 1);
            release.send(()).unwrap();
            assert!(leader.join().is_err());
            assert_eq!(follower.join().unwrap(), Ok(()));
        });
        // A group whose leader forgets a request fails it, too.
        let forgotten = syncs.sync(InodeNumber(3), |_| ());
        assert_eq!(forgotten, Err(Error::Panicked("an fsync")));
    }

    #[test]
    fn a_checkpoint_waits_for_the_end_of_the_flight() {
        let syncs = Syncs::new();
        let flight = syncs.begin_flight();
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let syncs = &syncs;
            scope.spawn(move || {
                syncs.wait_for_flight();
                sender.send(syncs.queue.lock().is_in_flight).unwrap();
            });
            // Long enough for a thread that does not wait.
            assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err());
            drop(flight);
            assert!(!receiver.recv().unwrap());
        });
    }
}
