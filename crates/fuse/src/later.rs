//! The rest of the service of a request that has to wait for the kernel.
//!
//! The kernel may drop cached data only after requests that are still to be served. If all threads that receive requests waited
//! for it, none would be left to serve these. So the thread that has received a request returns a [`Later`], which owns what it needs,
//! and another thread runs it and answers. Not here: these threads (`transport`).
//!
//! Rings cannot give a request away, as its entry belongs to a thread. They run it themselves, and limit the wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::operations::MAX_BACKGROUND;
use crate::reply::{Outcome, Reply};
use crate::server::Server;

/// The maximum number of requests that wait in this way. It is lower than the number of background requests that the kernel
/// sends at a time: readahead, for which they may wait, is one of them.
const REQUESTS_MAX: usize = MAX_BACKGROUND as usize / 4 * 3;

/// The maximum number of bytes of data that these requests own.
const BYTES_MAX: usize = 64 << 20;

/// The time for which the kernel may take to drop cached data. `None` stands for any.
pub type Patience = Option<Duration>;

/// A function that waits for the kernel and ends the service of a request.
type Serve = dyn FnMut(&Server, Patience, &mut Reply<'_>) -> Outcome + Send;

/// The rest of the service of a request.
pub struct Later {
    run: Box<Serve>,
    _place: Place,
}

impl Later {
    /// Creates the rest of a service. `run` is called again if the volume was full and no longer is.
    pub fn new(
        place: Place,
        run: impl FnMut(&Server, Patience, &mut Reply<'_>) -> Outcome + Send + 'static,
    ) -> Self {
        Self { run: Box::new(run), _place: place }
    }

    /// Waits for the kernel, and ends the service.
    pub fn run(&mut self, server: &Server, patience: Patience, reply: &mut Reply<'_>) -> Outcome {
        (self.run)(server, patience, reply)
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

/// The number and size of the requests that wait.
#[derive(Clone, Debug, Default)]
pub struct WaitingRoom(Arc<Mutex<Occupied>>);

#[derive(Debug, Default)]
struct Occupied {
    requests: usize,
    bytes: usize,
}

impl WaitingRoom {
    /// Returns a place for a request that owns `bytes` of data. Returns `None` if there is no room.
    pub fn enter(&self, bytes: usize) -> Option<Place> {
        let mut occupied = self.0.lock();
        if occupied.requests >= REQUESTS_MAX || occupied.bytes.saturating_add(bytes) > BYTES_MAX {
            return None;
        }
        occupied.requests += 1;
        occupied.bytes += bytes;
        drop(occupied);
        Some(Place { room: self.clone(), bytes })
    }
}

/// The place of a request that waits.
#[derive(Debug)]
pub struct Place {
    room: WaitingRoom,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut occupied = self.room.0.lock();
        occupied.requests -= 1;
        occupied.bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_and_size_of_waiting_requests_is_limited() {
        let room = WaitingRoom::default();
        let large = room.enter(BYTES_MAX).unwrap();
        assert!(room.enter(1).is_none());
        drop(large);
        let small: Vec<_> = (0..REQUESTS_MAX).map(|_| room.enter(1).unwrap()).collect();
        assert!(room.enter(1).is_none());
        drop(small);
        assert!(room.enter(BYTES_MAX).is_some());
    }
}
