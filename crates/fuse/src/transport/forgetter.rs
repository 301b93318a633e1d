//! Has the kernel forget contents that it has cached, on behalf of handlers. Not here: when.
//!
//! The kernel waits for requests for those contents that are under way, and they may wait for the thread
//! that would ask it to. So a thread of its own asks, which serves nothing.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use base::FileOffset;

use super::channel::Channel;

/// The thread.
#[derive(Debug)]
pub struct Forgetter {
    wanted: mpsc::Sender<Wanted>,
}

/// A node whose contents are to be forgotten.
#[derive(Debug)]
struct Wanted {
    node: u64,
    from: FileOffset,
    done: mpsc::Sender<()>,
}

impl Forgetter {
    /// Starts it; it ends when this is dropped.
    pub fn start(channel: Channel) -> io::Result<Self> {
        let (wanted, all) = mpsc::channel::<Wanted>();
        std::thread::Builder::new().name("fuse-forget".to_owned()).spawn(move || {
            for Wanted { node, from, done } in all {
                channel.forget_contents(node, from);
                // Whoever does not wait any more was told so.
                let _ = done.send(());
            }
        })?;
        Ok(Self { wanted })
    }

    /// Has the kernel write and invalidate the contents of `node` from byte `from` on. Returns whether it has
    /// done so within `patience`.
    pub fn forget_contents(&self, node: u64, from: FileOffset, patience: Duration) -> bool {
        base::waiting::about_to_wait();
        let (done, is_done) = mpsc::channel();
        self.wanted.send(Wanted { node, from, done }).is_ok()
            && is_done.recv_timeout(patience).is_ok()
    }
}
