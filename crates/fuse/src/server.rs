//! The server: turns requests into answers. Not here: which handler serves a request (`dispatch`), the operations
//! (`operations`), and receiving requests and sending answers (`transport`).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::{FileOffset, Result};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::dispatch::Operation;
use crate::interrupts::Interrupts;
use crate::node_table::{Known, NodeTable};
use crate::open_files::OpenFiles;
use crate::operations::{InitRefused, Negotiated};
use crate::owners::Owners;
use crate::protocol::{InHeader, InterruptIn};
use crate::reply::{Answer, Outcome, Reply};
use crate::request::Request;

/// A bit in the count of requests: no more requests are served.
const CLOSING: usize = 1 << (usize::BITS - 1);
/// A bit in the count of requests: requests that end from now on are too late.
const GIVEN_UP: usize = CLOSING >> 1;
/// How long the server waits at its end for requests that are being served, since a device may hang.
pub(crate) const PATIENCE_TO_CLOSE: Duration = Duration::from_secs(30);
/// The interval at which the server checks whether requests are left.
const LOOK: Duration = Duration::from_millis(1);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How long the kernel may use names, absent names and attributes without another request.
    pub valid: Duration,
    /// On a writable volume, the kernel collects writes: small writes get faster, large ones slower.
    pub writeback_cache: bool,
    /// The kernel caches no file data, except for mappings.
    pub uncached: bool,
    /// How owners of the image are shown.
    pub owners: Owners,
    /// The kernel may make idmapped mounts of the volume. Then only requests that create files name their
    /// caller.
    pub idmapped: bool,
    /// Requests may come through io_uring, since the transport is ready for that.
    pub over_io_uring: bool,
    /// The size of the host's pages, in bytes.
    pub page_bytes: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        // A volume that is open read-only does not change, any other one only through its server.
        Self {
            valid: Duration::from_secs(24 * 60 * 60),
            writeback_cache: false,
            uncached: false,
            owners: Owners::default(),
            idmapped: false,
            over_io_uring: false,
            page_bytes: 4096,
        }
    }
}

/// The server of one volume. All threads of a transport share it; it knows no transport.
#[derive(Debug)]
pub struct Server {
    pub(crate) volume: Arc<vfs::Volume>,
    pub(crate) nodes: NodeTable,
    pub(crate) files: OpenFiles,
    pub(crate) options: ServerOptions,
    pub(crate) block_size: u32,
    pub(crate) name_bytes_max: usize,
    pub(crate) negotiated: OnceLock<Result<Negotiated, InitRefused>>,
    /// The number of requests that are being served, with [`CLOSING`] and [`GIVEN_UP`].
    at_work: AtomicUsize,
    /// The outcome of closing the volume.
    closed: Mutex<Option<Result<()>>>,
    pub(crate) interrupts: Arc<Interrupts>,
    stale: OnceLock<Notice>,
    old_contents: OnceLock<ContentsNotice>,
}

/// Makes the kernel request attributes of a node again.
struct Notice(Box<dyn Fn(u64) + Send + Sync>);

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}

/// Makes the kernel write and invalidate a node's contents from a byte on. Returns whether it has done so.
struct ContentsNotice(Box<dyn Fn(u64, FileOffset, Duration) -> bool + Send + Sync>);

impl fmt::Debug for ContentsNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContentsNotice")
    }
}

/// A request that was received and is not answered yet.
pub(crate) struct AtWork<'a>(&'a Server);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::Release);
    }
}

impl Server {
    /// Returns a server for `volume`.
    pub fn new(volume: Arc<vfs::Volume>, options: ServerOptions) -> Result<Self> {
        let nodes = NodeTable::new(volume.root()?);
        let statfs = volume.statfs();
        Ok(Self {
            volume,
            nodes,
            files: OpenFiles::default(),
            options,
            block_size: statfs.block_size,
            name_bytes_max: statfs.name_bytes_max as usize,
            negotiated: OnceLock::new(),
            at_work: AtomicUsize::new(0),
            closed: Mutex::new(None),
            interrupts: Arc::default(),
            stale: OnceLock::new(),
            old_contents: OnceLock::new(),
        })
    }

    /// Sets the function that is called with each node whose attributes have changed unexpectedly for the kernel,
    /// before the change is answered. Only the first call of this method has an effect.
    pub fn tell_of_stale(&self, tell: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.stale.set(Notice(Box::new(tell)));
    }

    /// Reports that the kernel's attributes of this node are stale.
    pub(crate) fn note_stale(&self, node: u64) {
        if let Some(Notice(tell)) = self.stale.get() {
            tell(node);
        }
    }

    /// Sets the function that makes the kernel write and invalidate a node's contents, from a byte on. It is called
    /// before a request is answered, waits for the kernel up to the given time, and returns whether the kernel has
    /// done so. Only the first call of this method has an effect.
    pub fn tell_of_old_contents(
        &self,
        tell: impl Fn(u64, FileOffset, Duration) -> bool + Send + Sync + 'static,
    ) {
        let _ = self.old_contents.set(ContentsNotice(Box::new(tell)));
    }

    /// Makes the kernel write and invalidate this node's contents from byte `from` on. Returns whether it has done so
    /// in time.
    pub(crate) fn write_and_invalidate(
        &self,
        node: u64,
        from: FileOffset,
        timeout: Duration,
    ) -> bool {
        self.old_contents.get().is_none_or(|ContentsNotice(tell)| tell(node, from, timeout))
    }

    /// Sets the function that returns whether a thread of the host, by its id, is being killed. Without it, INTERRUPT
    /// has no effect. Only the first call of this method has an effect.
    pub fn ask_who_is_killed(&self, is_killed: impl Fn(u32) -> bool + Send + Sync + 'static) {
        self.interrupts.ask(is_killed);
    }

    /// Counts a request until it is answered.
    pub(crate) fn begin(&self) -> AtWork<'_> {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        AtWork(self)
    }

    /// Returns whether no request is being served.
    pub(crate) fn is_idle(&self) -> bool {
        self.at_work.load(Ordering::Acquire) & !(CLOSING | GIVEN_UP) == 0
    }

    /// Returns whether the server has begun to close the volume.
    pub(crate) fn is_closing(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) & CLOSING != 0
    }

    fn has_given_up(&self) -> bool {
        self.at_work.load(Ordering::Acquire) & GIVEN_UP != 0
    }

    /// Answers a request. A panic on the way is logged by the panic hook and answered with EIO.
    pub fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer {
        self.answer(request, reply, |request, reply| self.dispatch(request, reply))
    }

    /// [`handle`](Self::handle) with `serve` as the operation.
    fn answer<'r>(
        &self,
        request: &Request<'_>,
        reply: &mut Reply<'r>,
        serve: impl FnOnce(&Request<'_>, &mut Reply<'r>) -> Outcome,
    ) -> Answer {
        let outcome = catch_unwind(AssertUnwindSafe(|| serve(request, reply)));
        let answer = match outcome {
            Ok(Ok(answer)) => answer,
            Ok(Err(failure)) => Answer::Error(failure.0),
            Err(_) => {
                tracing::error!("a panic while serving {:?}", request.header);
                Answer::Error(Errno::IO)
            }
        };
        let answer = match answer {
            // The volume may have been closed before the change. A change before that is seen by the thread that
            // closes the volume: it sets the flag first, and both threads take the locks of changed inodes.
            Answer::Payload | Answer::Contents(_) if self.has_given_up() => {
                Answer::Error(Errno::IO)
            }
            answer => answer,
        };
        let is_answered = |opcode| Operation::of(opcode).is_answered;
        if request.opcode().is_none_or(is_answered) { answer } else { Answer::Silent }
    }

    /// DESTROY. The kernel, and the program that unmounts, wait for the answer and ignore errors.
    pub(crate) fn destroy(
        &self,
        _header: &InHeader,
        (): &(),
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        let _ = self.close_once(PATIENCE_TO_CLOSE, 1);
        Ok(Answer::Payload)
    }

    /// INTERRUPT. Its id is that of the interrupted request, plus one.
    pub(crate) fn interrupt(
        &self,
        _header: &InHeader,
        operation: &InterruptIn,
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        // Requests that change nothing wait for the device alone.
        match self.volume.is_writable() && self.interrupts.note(operation.unique) {
            true => Ok(Answer::Silent),
            // The kernel sends no more of them.
            false => Err(Errno::NOSYS.into()),
        }
    }

    /// Ends the service of a writable volume: everything that was answered without an error is durable afterwards.
    /// Later requests are answered with EIO. Requests that are being served are waited for, or answered with EIO if
    /// they take too long. Files without a name are deleted.
    pub fn close(&self) -> Result<()> {
        self.close_once(PATIENCE_TO_CLOSE, 0)
    }

    /// Calls [`close`](Self::close) the first time; later calls return its outcome. `own` requests in flight are the
    /// caller's.
    fn close_once(&self, timeout: Duration, own: usize) -> Result<()> {
        let mut closed = self.closed.lock();
        closed.get_or_insert_with(|| self.close_within(timeout, own)).clone()
    }

    fn close_within(&self, timeout: Duration, own: usize) -> Result<()> {
        if !self.volume.is_writable() {
            return Ok(());
        }
        self.at_work.fetch_or(CLOSING, Ordering::AcqRel);
        let until = Instant::now() + timeout;
        while self.at_work.load(Ordering::Acquire) & !(CLOSING | GIVEN_UP) > own {
            if Instant::now() >= until {
                tracing::error!("requests took too long: they are answered with an error");
                self.at_work.fetch_or(GIVEN_UP, Ordering::AcqRel);
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.files.clear();
        self.nodes.clear();
        self.volume.close()
    }

    /// Returns the outcome of INIT, if it was answered.
    pub fn negotiated(&self) -> Option<Result<Negotiated, InitRefused>> {
        self.negotiated.get().copied()
    }

    /// Returns the node of an id that the kernel sent.
    pub(crate) fn known(&self, id: u64) -> Result<Arc<Known>, Errno> {
        self.nodes.get(id).ok_or(Errno::STALE)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use testkit::memory::MemoryFileSystem;
    use vfs::{Volume, VolumeOptions};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::protocol::{MkDirIn, Opcode, ROOT_NODE};

    fn server(file_system: &Arc<MemoryFileSystem>) -> Server {
        let mut options = VolumeOptions::default();
        options.cache.bytes_max = 1 << 20;
        let cache = iomap::PageCache::new(options.cache).unwrap();
        let volume = Volume::with_file_system(Arc::clone(file_system) as _, cache, &options);
        Server::new(Arc::new(volume.unwrap()), ServerOptions::default()).unwrap()
    }

    /// Returns the header of a request of `length` bytes.
    fn header(opcode: Opcode, length: usize) -> InHeader {
        InHeader {
            length: length as u32,
            opcode: opcode as u32,
            unique: 1,
            node: ROOT_NODE,
            uid: 0,
            gid: 0,
            pid: 1,
            extension_length: 0,
            padding: 0,
        }
    }

    #[test]
    fn what_is_done_after_nobody_has_waited_for_it_any_more_is_answered_with_an_error() {
        let file_system = MemoryFileSystem::new();
        let server = server(&file_system);
        let (reached, closed) = (Barrier::new(2), Barrier::new(2));
        let name = b"name\0";
        let operation = MkDirIn { mode: 0o755, umask: 0 };
        let length = size_of::<InHeader>() + size_of::<MkDirIn>() + name.len();
        let header = header(Opcode::MkDir, length);
        let bytes = [header.as_bytes(), operation.as_bytes(), name].concat();
        let request = Request::parse(&bytes).unwrap();
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| {
                let _at_work = server.begin();
                let mut memory = [0; 4096];
                let mut reply = Reply::new(&mut memory);
                let answer = server.answer(&request, &mut reply, |request, reply| {
                    let made = server.dispatch(request, reply);
                    reached.wait();
                    closed.wait();
                    made
                });
                matches!(answer, Answer::Error(Errno::IO))
            });
            reached.wait();
            server.close_within(Duration::ZERO, 0).unwrap();
            closed.wait();
            assert!(answer.join().unwrap(), "a success that nobody knows to be durable");
        });
    }

    #[test]
    fn the_end_waits_for_what_is_being_served_and_refuses_the_rest() {
        let file_system = MemoryFileSystem::new();
        let server = server(&file_system);
        let header = header(Opcode::StatFs, size_of::<InHeader>());
        let request = Request::parse(header.as_bytes()).unwrap();
        let at_work = server.begin();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| server.close());
            let refused = loop {
                match server.handle(&request, &mut Reply::new(&mut [0; 4096])) {
                    Answer::Error(errno) => break errno,
                    _ => assert!(!file_system.is_closed(), "a request was still at work"),
                }
            };
            assert_eq!(refused, Errno::IO);
            assert!(!file_system.is_closed(), "a request was still at work");
            drop(at_work);
            closing.join().unwrap().unwrap();
        });
        assert!(file_system.is_closed());
    }
}
