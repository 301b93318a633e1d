//! What a program wants by a request that says too little. Not here: how the session finds out
//! (`session::system_call`).

use std::fmt;
use std::sync::OnceLock;

/// The purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Requester {
    /// Unknown, or none of the others.
    Unknown = 0,
    /// The ioctl FIBMAP.
    Fibmap = 1,
    /// A remount that makes the volume read-only.
    Remount = 2,
    /// A change of options, which may make the volume read-only.
    Reconfiguration = 3,
}

/// Finds the purpose of the request of a thread of the host, by its id.
#[derive(Default)]
pub struct Requesters(OnceLock<Box<dyn Fn(u32) -> Requester + Send + Sync>>);

impl fmt::Debug for Requesters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Requesters")
    }
}

impl Requesters {
    /// Sets the function. Only the first call has an effect.
    pub fn set(&self, find: impl Fn(u32) -> Requester + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(find));
    }

    /// Returns the purpose of the request that `thread` waits for. Zero is a thread that the host
    /// does not show.
    pub fn of(&self, thread: u32) -> Requester {
        match self.0.get() {
            Some(find) if thread != 0 => find(thread),
            _ => Requester::Unknown,
        }
    }
}
