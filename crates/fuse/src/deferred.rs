//! Requests that have to wait for the kernel before they are answered.
//!
//! The kernel may drop cached data only after requests that are still to be served. If all threads
//! that receive requests waited for it, none would be left to serve these. So the thread that has
//! received a request returns a [`Deferred`], which owns what it needs, and another thread runs it
//! and answers. Not here: these threads (`transport`).
//!
//! Rings cannot give a request away, as its entry belongs to a thread. They run it themselves, and
//! limit the wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::reply::{Outcome, Reply};
use crate::server::Server;

/// The maximum number of bytes of data that these requests own.
const BYTES_MAX: usize = 64 << 20;

/// A function that waits for the kernel, up to the given time if there is one, and ends the service
/// of a request.
type Serve = dyn FnOnce(&Server, Option<Duration>, &mut Reply<'_>) -> Outcome + Send;

/// The rest of the service of a request.
pub struct Deferred {
    serve: Box<Serve>,
    _permit: Permit,
}

impl Deferred {
    /// Creates the rest of a service.
    pub fn new(
        permit: Permit,
        serve: impl FnOnce(&Server, Option<Duration>, &mut Reply<'_>) -> Outcome + Send + 'static,
    ) -> Self {
        Self { serve: Box::new(serve), _permit: permit }
    }

    /// Waits for the kernel, up to `timeout` if there is one, and ends the service.
    pub fn run(self, server: &Server, timeout: Option<Duration>, reply: &mut Reply<'_>) -> Outcome {
        (self.serve)(server, timeout, reply)
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deferred")
    }
}

/// The number and size of the deferred requests, which are limited.
#[derive(Clone, Debug)]
pub struct DeferredLimit {
    counts: Arc<Mutex<Counts>>,
    requests_max: usize,
}

#[derive(Debug, Default)]
struct Counts {
    requests: usize,
    bytes: usize,
}

impl DeferredLimit {
    /// Creates the limit. The kernel sends `background` background requests at a time. Readahead,
    /// for which deferred requests may wait, is one of them, so that a quarter of them is left to
    /// it.
    pub fn new(background: u16) -> Self {
        Self { counts: Arc::default(), requests_max: usize::from(background) * 3 / 4 }
    }

    /// Returns a permit for a request that owns `bytes` of data. Returns `None` if there are too
    /// many.
    pub fn admit(&self, bytes: usize) -> Option<Permit> {
        let mut counts = self.counts.lock();
        if counts.requests >= self.requests_max || counts.bytes.saturating_add(bytes) > BYTES_MAX {
            return None;
        }
        counts.requests += 1;
        counts.bytes += bytes;
        drop(counts);
        Some(Permit { limit: self.clone(), bytes })
    }
}

/// A deferred request's part of the limit.
#[derive(Debug)]
pub struct Permit {
    limit: DeferredLimit,
    bytes: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.limit.counts.lock();
        counts.requests -= 1;
        counts.bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_and_size_of_deferred_requests_is_limited() {
        let limit = DeferredLimit::new(40);
        let large = limit.admit(BYTES_MAX).unwrap();
        assert!(limit.admit(1).is_none());
        drop(large);
        let small: Vec<_> = (0..30).map(|_| limit.admit(1).unwrap()).collect();
        assert!(limit.admit(1).is_none());
        drop(small);
        assert!(limit.admit(BYTES_MAX).is_some());
    }
}
