//! The thread that invalidates files' contents in the kernel's cache for the handlers of requests.
//! Not here: the decision to invalidate.
//!
//! The kernel waits for requests in flight that read or write the contents, and such a request may
//! wait for a handler. So this thread serves no requests.

use std::io;
use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;

use base::FileOffset;

use super::channel::Channel;

/// A handle to the thread.
#[derive(Debug)]
pub struct Invalidator {
    channel: Channel,
    queue: mpsc::Sender<Invalidation>,
}

/// A request to invalidate the contents of a node.
#[derive(Debug)]
struct Invalidation {
    node: u64,
    range: Range<FileOffset>,
    done: mpsc::Sender<bool>,
}

impl Invalidator {
    /// Starts the thread. It ends when the handle is dropped.
    pub fn start(channel: Channel) -> io::Result<Self> {
        let (queue, requests) = mpsc::channel::<Invalidation>();
        let own = channel.clone();
        std::thread::Builder::new().name("fuse-invalidate".to_owned()).spawn(move || {
            for Invalidation { node, range, done } in requests {
                let is_done = channel.invalidate_contents(node, range);
                // The handler may no longer wait.
                let _ = done.send(is_done);
            }
        })?;
        Ok(Self { channel: own, queue })
    }

    /// Makes the kernel write and invalidate a range of the contents of `node`. Returns whether it
    /// has done so within `timeout`. Otherwise it does so later, after what was requested earlier:
    /// no request is given up. Without a timeout, the calling thread waits for the kernel itself,
    /// and must not be one that serves requests.
    pub fn invalidate_contents(
        &self,
        node: u64,
        range: Range<FileOffset>,
        timeout: Option<Duration>,
    ) -> bool {
        base::waiting::about_to_wait();
        let Some(timeout) = timeout else {
            return self.channel.invalidate_contents(node, range);
        };
        let (done, is_done) = mpsc::channel();
        self.queue.send(Invalidation { node, range, done }).is_ok()
            && is_done.recv_timeout(timeout) == Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use rustix::net::{RecvFlags, SendFlags};

    use super::*;
    use crate::socket;

    #[test]
    fn contents_are_invalidated_after_the_handler_has_stopped_waiting() {
        let (kernel, ours) = socket::pair().unwrap();
        let full = ours.try_clone().unwrap();
        let mut sent = 0;
        while rustix::net::send(&full, &[0; 4096], SendFlags::DONTWAIT) != Err(Errno::AGAIN) {
            sent += 1;
        }
        let invalidator = Invalidator::start(Channel::new(ours).unwrap()).unwrap();
        let range = |start: u64| FileOffset(start)..FileOffset(start + 1);
        for start in [10, 20] {
            assert!(!invalidator.invalidate_contents(7, range(start), Some(Duration::ZERO)));
        }
        let mut message = [0; 4096];
        for _ in 0..sent {
            rustix::net::recv(&kernel, &mut message, RecvFlags::empty()).unwrap();
        }
        for start in [10, 20_i64] {
            let (length, _) = rustix::net::recv(&kernel, &mut message, RecvFlags::empty()).unwrap();
            // The header, and the node, the offset and the length.
            let message = &message[16..length];
            assert_eq!(message[..8], 7_u64.to_ne_bytes());
            assert_eq!(message[8..16], start.to_ne_bytes());
        }
    }
}
