//! The change of a server's volume from one that is open for reading to one that is open for
//! writing, while the kernel uses it. Not here: opening the image (`session::upgrade`).
//!
//! What the kernel knows stays valid: a volume that is open for reading does not change, and the
//! other one has the same inodes. Open files have no state on the first volume; their requests name
//! the node. So each node of the table gets the new volume's node, while no request is served.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use vfs::Volume;

use crate::server::{CHECK_EVERY, CLOSE_TIMEOUT, COUNT, PAUSED, Server};

/// Opens a volume for writing on files that are open for that. Fails with a reason for users.
pub(crate) type OpenVolume = Box<dyn Fn(Vec<OwnedFd>) -> Result<Arc<Volume>, String> + Send + Sync>;

/// How a server gets a volume that is open for writing.
pub(crate) struct Opener {
    /// Has the image opened for writing, for the request of this thread of the host.
    pub reopen: Box<dyn Fn(u32) -> Result<Vec<OwnedFd>, String> + Send + Sync>,
    /// Opens the volume on these files.
    pub open: OpenVolume,
    /// Has the image given up, after its files were closed: others may use it again as before it
    /// was opened.
    pub give_up: Box<dyn Fn() + Send + Sync>,
}

/// The files that are open for writing, until the server has the volume on them. If it does not get
/// it, closes them and gives them up.
struct Attempt<'a> {
    opener: &'a Opener,
    files: Vec<OwnedFd>,
    has_succeeded: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.files.clear();
            (self.opener.give_up)();
        }
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}

/// A pause, in which no request is served but that of the calling thread.
struct Pause<'a>(&'a Server);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_and(!PAUSED, Ordering::AcqRel);
    }
}

impl Server {
    /// Sets how the server gets a volume that is open for writing. Only the first call has an
    /// effect.
    pub(crate) fn set_opener(&self, opener: Opener) {
        let _ = self.opener.set(opener);
    }

    /// Has the volume opened for writing, for the request of a thread of the host. Afterwards, the
    /// server changes it like one that was writable from the beginning. Returns why it cannot; the
    /// volume then stays as it is.
    ///
    /// The caller serves a request, and uses no node.
    pub(crate) fn become_writable(&self, thread: u32) -> Result<(), String> {
        // Also keeps out a close. A request that waited here would be one that the other one waits
        // for.
        let closed = self.closed.try_lock().ok_or("another remount, or the end, is under way")?;
        if closed.is_some() {
            return Err("the server ends".to_owned());
        }
        if self.is_writable() {
            return Ok(());
        }
        let opener = self.opener.get().ok_or("its server cannot open it for writing")?;
        // Before the pause, since the process that opens the image may look at mounts.
        let files = (opener.reopen)(thread)?;
        let mut attempt = Attempt { opener, files, has_succeeded: false };
        let _pause = self.pause()?;
        // Closed before the attempt ends, if it fails.
        let volume = (opener.open)(std::mem::take(&mut attempt.files))?;
        if let Err(error) = self.nodes.replace(|number| volume.node(number)) {
            let closed = volume.close();
            let closed =
                closed.map_or_else(|error| format!("; closing it: {error}"), |()| String::new());
            return Err(format!("a file in use cannot be read: {error}{closed}"));
        }
        attempt.has_succeeded = true;
        // Its last reference, so that its memory becomes free.
        drop(std::mem::replace(&mut *self.volume.write(), volume));
        Ok(())
    }

    /// Waits until no request is served but that of the calling thread, and keeps new ones waiting
    /// until the result is dropped.
    fn pause(&self) -> Result<Pause<'_>, String> {
        self.in_flight.fetch_or(PAUSED, Ordering::AcqRel);
        let pause = Pause(self);
        let until = Instant::now() + CLOSE_TIMEOUT;
        while self.in_flight.load(Ordering::Acquire) & COUNT > 1 {
            if Instant::now() >= until {
                return Err("other requests take too long".to_owned());
            }
            std::thread::sleep(CHECK_EVERY);
        }
        Ok(pause)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use testkit::memory::MemoryFileSystem;
    use vfs::VolumeOptions;

    use super::*;
    use crate::server::ServerOptions;

    #[test]
    fn files_are_given_up_after_they_were_closed_unless_the_volume_is_open() {
        for has_succeeded in [false, true] {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let is_given_up = Arc::new(AtomicBool::new(false));
            let given_up = Arc::clone(&is_given_up);
            let opener = Opener {
                reopen: Box::new(|_| unreachable!()),
                open: Box::new(|_| unreachable!()),
                // The end of a pipe without writers.
                give_up: Box::new(move || {
                    assert_eq!(rustix::io::read(&reader, &mut [0]), Ok(0));
                    given_up.store(true, Ordering::Release);
                }),
            };
            drop(Attempt { opener: &opener, files: vec![writer], has_succeeded });
            assert_eq!(is_given_up.load(Ordering::Acquire), !has_succeeded);
        }
    }

    #[test]
    fn requests_wait_while_the_volume_changes() {
        let mut options = VolumeOptions::default();
        options.cache.bytes_max = 1 << 20;
        let cache = iomap::PageCache::new(options.cache).unwrap();
        let file_system = MemoryFileSystem::new();
        let volume = Volume::with_file_system(file_system as _, cache, &options).unwrap();
        let server = Server::new(Arc::new(volume), ServerOptions::default()).unwrap();
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let own = server.begin_request();
            let pause = server.pause().unwrap();
            let other = scope.spawn(|| {
                let _request = server.begin_request();
                assert!(has_ended.load(Ordering::Acquire), "served during the pause");
            });
            std::thread::sleep(CHECK_EVERY * 20);
            assert!(server.in_flight.load(Ordering::Acquire) & COUNT <= 2);
            has_ended.store(true, Ordering::Release);
            drop(pause);
            other.join().unwrap();
            drop(own);
        });
        assert!(server.is_idle());
    }
}
