//! Thread that invalidates contents in the kernel's cache on behalf of handlers. Not here: when.
//!
//! The kernel waits for requests in flight for those contents, and such a request may wait for a handler. So this
//! thread serves no requests.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use base::FileOffset;

use super::channel::Channel;

/// A handle of the thread.
#[derive(Debug)]
pub struct Invalidator {
    queue: mpsc::Sender<Invalidation>,
}

/// A node whose contents are to be invalidated.
#[derive(Debug)]
struct Invalidation {
    node: u64,
    from: FileOffset,
    done: mpsc::Sender<()>,
}

impl Invalidator {
    /// Starts the thread. It ends when the handle is dropped.
    pub fn start(channel: Channel) -> io::Result<Self> {
        let (queue, all) = mpsc::channel::<Invalidation>();
        std::thread::Builder::new().name("fuse-invalidate".to_owned()).spawn(move || {
            for Invalidation { node, from, done } in all {
                channel.invalidate_contents(node, from);
                // The handler may have stopped waiting.
                let _ = done.send(());
            }
        })?;
        Ok(Self { queue })
    }

    /// Has the kernel write and invalidate the contents of `node` from byte `from` on. Returns whether it has
    /// done so within `wait_callback`.
    pub fn invalidate_contents(
        &self,
        node: u64,
        from: FileOffset,
        wait_callback: Duration,
    ) -> bool {
        base::waiting::about_to_wait();
        let (done, is_done) = mpsc::channel();
        self.queue.send(Invalidation { node, from, done }).is_ok()
            && is_done.recv_timeout(wait_callback).is_ok()
    }
}
