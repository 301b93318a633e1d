//! Has the kernel forget contents that it has cached, on behalf of handlers. Not here: when.
//!
//! The kernel waits for requests for those contents that are under way, and they may wait for the thread
//! that would ask it to. So a thread of its own asks, which serves nothing.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use super::channel::Channel;

/// How long a handler waits until the contents are forgotten. They are brought by other threads, unless
/// every one of them waits here: then somebody has to go on.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thread.
#[derive(Debug)]
pub struct Forgetter {
    wanted: mpsc::Sender<Wanted>,
}

/// A node whose contents are to be forgotten.
#[derive(Debug)]
struct Wanted {
    node: u64,
    done: mpsc::Sender<()>,
}

impl Forgetter {
    /// Starts it; it ends when this is dropped.
    pub fn start(channel: Channel) -> io::Result<Self> {
        let (wanted, all) = mpsc::channel::<Wanted>();
        std::thread::Builder::new().name("fuse-forget".to_owned()).spawn(move || {
            for Wanted { node, done } in all {
                channel.forget_contents(node);
                // Whoever does not wait any more was told so.
                let _ = done.send(());
            }
        })?;
        Ok(Self { wanted })
    }

    /// Has the kernel forget what it has cached of `node`, and waits for that.
    pub fn forget_contents(&self, node: u64) {
        base::waiting::about_to_wait();
        let (done, is_done) = mpsc::channel();
        let asked = self.wanted.send(Wanted { node, done });
        if asked.is_err() || is_done.recv_timeout(PATIENCE).is_err() {
            tracing::warn!("what is cached of node {node} was not forgotten in time");
        }
    }
}
