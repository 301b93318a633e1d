//! The server, which turns requests into answers. Not here: the choice of the handler (`dispatch`),
//! the handlers (`operations`), and the reception of requests and sending of answers (`transport`).

use std::fmt;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::{FileOffset, Result};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use vfs::LostFiles;

use crate::deferred::DeferredLimit;
use crate::dispatch::Operation;
use crate::interrupts::Interrupts;
use crate::node_table::{KnownNode, NodeTable};
use crate::open_files::OpenFiles;
use crate::operations::{InitRefused, MAX_BACKGROUND, Negotiated};
use crate::owners::Owners;
use crate::protocol::{InHeader, InterruptIn};
use crate::reply::{Answer, Outcome, Reply};
use crate::request::Request;
use crate::requester::{Requester, Requesters};
use crate::upgrade::Opener;

/// A bit in the count of requests: new requests are not served.
const CLOSING: usize = 1 << (usize::BITS - 1);
/// A bit in the count of requests: requests in flight are answered with an error.
const GIVEN_UP: usize = CLOSING >> 1;
/// A bit in the count of requests: new requests wait.
pub(crate) const PAUSED: usize = GIVEN_UP >> 1;
/// The bits of the count of requests itself.
pub(crate) const COUNT: usize = PAUSED - 1;
/// The time for which [`Server::close`] waits for requests in flight. It is limited, since a device
/// may hang.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which [`Server::close`] checks whether requests are in flight, and a request
/// whether it has to wait.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(1);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The time for which the kernel may use names, absent names and attributes without another
    /// request.
    pub valid: Duration,
    /// Whether the kernel of a writable volume collects writes. Small writes get faster, large ones
    /// slower.
    pub writeback_cache: bool,
    /// Whether the kernel caches no file data, except for mappings.
    pub uncached: bool,
    /// The translation of the image's owners.
    pub owners: Owners,
    /// Whether idmapped mounts of the volume are allowed. Then only requests that create files name
    /// their caller.
    pub idmapped: bool,
    /// Whether the volume of a mount that begins read-only may become writable.
    pub may_become_writable: bool,
    /// The size of the host's pages, in bytes.
    pub page_bytes: usize,
    /// The maximum number of background requests (readahead, asynchronous direct I/O) in flight.
    /// The kernel may not grant more.
    pub max_background: u16,
}

impl Default for ServerOptions {
    fn default() -> Self {
        // A read-only volume does not change, and a writable one changes only through its server.
        Self {
            valid: Duration::from_secs(24 * 60 * 60),
            writeback_cache: false,
            uncached: false,
            owners: Owners::default(),
            idmapped: false,
            may_become_writable: false,
            page_bytes: 4096,
            max_background: MAX_BACKGROUND,
        }
    }
}

/// The server of one volume. All threads of a transport share it; it knows no transport.
#[derive(Debug)]
pub struct Server {
    /// The volume. Replaced once at most, while no request is served.
    pub(crate) volume: RwLock<Arc<vfs::Volume>>,
    /// How the volume gets open for writing, if it can.
    pub(crate) opener: OnceLock<Opener>,
    pub(crate) nodes: NodeTable,
    pub(crate) files: OpenFiles,
    pub(crate) options: ServerOptions,
    pub(crate) block_size: u32,
    pub(crate) name_bytes_max: usize,
    /// Whether empty directories can be set to ignore the case of names.
    pub(crate) has_casefolding: bool,
    pub(crate) negotiated: OnceLock<Result<Negotiated, InitRefused>>,
    /// Whether requests may come through io_uring.
    pub(crate) accepts_io_uring: AtomicBool,
    /// The number of requests in flight, with the bits [`CLOSING`], [`GIVEN_UP`] and [`PAUSED`].
    pub(crate) in_flight: AtomicUsize,
    /// The outcome of closing the volume.
    pub(crate) closed: Mutex<Option<Result<()>>>,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) requesters: Requesters,
    /// The limit of requests that wait for the kernel.
    pub(crate) deferred_limit: DeferredLimit,
    attribute_invalidator: OnceLock<AttributeInvalidator>,
    contents_invalidator: OnceLock<ContentsInvalidator>,
}

/// Makes the kernel request a node's attributes again.
struct AttributeInvalidator(Box<dyn Fn(u64) + Send + Sync>);

impl fmt::Debug for AttributeInvalidator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttributeInvalidator")
    }
}

/// Makes the kernel write and invalidate a range of a node's contents. Returns whether it has done
/// so in time.
type Invalidate = dyn Fn(u64, Range<FileOffset>, Option<Duration>) -> bool + Send + Sync;

struct ContentsInvalidator(Box<Invalidate>);

impl fmt::Debug for ContentsInvalidator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContentsInvalidator")
    }
}

/// A guard that counts a request until it is answered.
#[derive(Debug)]
pub(crate) struct InFlight<S: Deref<Target = Server>>(S);

impl InFlight<&Server> {
    /// Returns a guard for another thread, which owns the server.
    pub(crate) fn own(self, server: &Arc<Server>) -> InFlight<Arc<Server>> {
        // `self` still counts the request.
        server.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(server))
    }
}

impl<S: Deref<Target = Server>> InFlight<S> {
    /// Returns the server.
    pub(crate) fn server(&self) -> &Server {
        &self.0
    }
}

impl<S: Deref<Target = Server>> Drop for InFlight<S> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Release);
    }
}

impl Server {
    /// Creates a server for `volume`. Fails if the root directory cannot be loaded.
    pub fn new(volume: Arc<vfs::Volume>, options: ServerOptions) -> Result<Self> {
        let nodes = NodeTable::new(volume.root()?);
        let statfs = volume.statfs();
        let has_casefolding = (volume.is_writable() || options.may_become_writable)
            && volume.info().features.iter().any(|feature| feature == "casefold");
        Ok(Self {
            volume: RwLock::new(volume),
            opener: OnceLock::new(),
            nodes,
            files: OpenFiles::default(),
            block_size: statfs.block_size,
            name_bytes_max: statfs.name_bytes_max as usize,
            has_casefolding,
            negotiated: OnceLock::new(),
            accepts_io_uring: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            closed: Mutex::new(None),
            interrupts: Arc::default(),
            requesters: Requesters::default(),
            deferred_limit: DeferredLimit::new(options.max_background),
            attribute_invalidator: OnceLock::new(),
            contents_invalidator: OnceLock::new(),
            options,
        })
    }

    /// Accepts requests through io_uring, for which the transport is ready. Must be called before
    /// INIT is answered.
    pub fn accept_io_uring(&self) {
        self.accepts_io_uring.store(true, Ordering::Relaxed);
    }

    /// Sets the function that makes the kernel request a node's attributes again. The server calls
    /// it, before it answers a request, for a node whose attributes have changed without the
    /// kernel's knowledge. Only the first call of this method has an effect.
    pub fn set_attribute_invalidator(&self, invalidate: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.attribute_invalidator.set(AttributeInvalidator(Box::new(invalidate)));
    }

    /// Makes the kernel request this node's attributes again.
    pub(crate) fn invalidate_attributes(&self, node: u64) {
        if let Some(AttributeInvalidator(invalidate)) = self.attribute_invalidator.get() {
            invalidate(node);
        }
    }

    /// Sets the function that makes the kernel write and invalidate a range of a node's contents.
    /// The server calls it before it answers a request. It waits for the kernel up to the given
    /// time, if there is one, and returns whether the kernel has done so. Only the first call of
    /// this method has an effect.
    pub fn set_contents_invalidator(
        &self,
        invalidate: impl Fn(u64, Range<FileOffset>, Option<Duration>) -> bool + Send + Sync + 'static,
    ) {
        let _ = self.contents_invalidator.set(ContentsInvalidator(Box::new(invalidate)));
    }

    /// Makes the kernel write and invalidate this node's contents from byte `from` on. Returns
    /// whether it has done so in time.
    pub(crate) fn write_and_invalidate(
        &self,
        node: u64,
        from: FileOffset,
        timeout: Duration,
    ) -> bool {
        self.write_and_invalidate_range(node, from..FileOffset(u64::MAX), Some(timeout))
    }

    /// Makes the kernel write and invalidate a range of this node's contents. Returns whether it
    /// has done so in time.
    pub(crate) fn write_and_invalidate_range(
        &self,
        node: u64,
        range: Range<FileOffset>,
        timeout: Option<Duration>,
    ) -> bool {
        let invalidator = self.contents_invalidator.get();
        invalidator.is_none_or(|ContentsInvalidator(invalidate)| invalidate(node, range, timeout))
    }

    /// Sets the function that returns whether a thread of the host, by its id, is being killed.
    /// Without it, INTERRUPT has no effect. Only the first call of this method has an effect.
    pub fn set_kill_check(&self, is_killed: impl Fn(u32) -> bool + Send + Sync + 'static) {
        self.interrupts.set_kill_check(is_killed);
    }

    /// Sets the function that returns the purpose of the request that a thread of the host waits
    /// for, by its id. Without it, BMAP fails. Only the first call of this method has an effect.
    pub(crate) fn set_requesters(&self, find: impl Fn(u32) -> Requester + Send + Sync + 'static) {
        self.requesters.set(find);
    }

    /// Returns the current volume.
    pub(crate) fn volume(&self) -> Arc<vfs::Volume> {
        Arc::clone(&self.volume.read())
    }

    /// Counts a request as in flight until the result is dropped. Waits during a pause.
    pub(crate) fn begin_request(&self) -> InFlight<&Self> {
        while self.in_flight.fetch_add(1, Ordering::Acquire) & PAUSED != 0 {
            self.in_flight.fetch_sub(1, Ordering::Release);
            // Another thread receives the next request.
            base::waiting::about_to_wait();
            while self.in_flight.load(Ordering::Relaxed) & PAUSED != 0 {
                std::thread::sleep(CHECK_EVERY);
            }
        }
        InFlight(self)
    }

    /// Returns whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) & COUNT == 0
    }

    /// Returns whether the server has begun to close the volume.
    pub(crate) fn is_closing(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) & CLOSING != 0
    }

    /// Returns whether requests in flight are answered with an error.
    fn has_given_up(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) & GIVEN_UP != 0
    }

    /// Answers a request. A panic is logged by the panic hook and answered with EIO.
    pub fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Answer {
        self.answer(request, reply, |request, reply| self.dispatch(request, reply))
    }

    /// Answers a request like [`handle`](Self::handle), with `serve` as the handler.
    pub(crate) fn answer<'r>(
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
                tracing::error!("panic while serving {:?}", request.header);
                Answer::Error(Errno::IO)
            }
        };
        let answer = match answer {
            // The change may have come after the volume was closed. If this thread does not see the
            // flag, the close includes the change: the closing thread sets the flag first, and both
            // threads take the locks of changed inodes.
            Answer::Payload | Answer::Contents(_) if self.has_given_up() => {
                Answer::Error(Errno::IO)
            }
            answer => answer,
        };
        let is_answered = |opcode| Operation::of(opcode).is_answered;
        if request.opcode().is_none_or(is_answered) { answer } else { Answer::Silent }
    }

    /// DESTROY. The kernel and the program that unmounts wait for the answer, and ignore errors.
    pub(crate) fn destroy(
        &self,
        _header: &InHeader,
        (): &(),
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        let _ = self.close_once(CLOSE_TIMEOUT, 1);
        Ok(Answer::Payload)
    }

    /// INTERRUPT. Its own id is that of the interrupted request, plus one.
    pub(crate) fn interrupt(
        &self,
        _header: &InHeader,
        operation: &InterruptIn,
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        // On a read-only volume, requests wait only for the device, and such waits cannot be
        // cancelled.
        if self.may_write() && self.interrupts.record(operation.unique) {
            Ok(Answer::Silent)
        } else {
            // After ENOSYS, the kernel sends no more INTERRUPT.
            Err(Errno::NOSYS.into())
        }
    }

    /// Returns whether the volume is open for writing.
    pub fn is_writable(&self) -> bool {
        self.volume.read().is_writable()
    }

    /// Returns whether the volume is open for writing, or may be later. What the kernel is told
    /// once depends on this.
    pub(crate) fn may_write(&self) -> bool {
        self.options.may_become_writable || self.is_writable()
    }

    /// Closes a writable volume. All changes that were answered without an error are durable
    /// afterwards. Waits for requests in flight, which are answered with EIO if they take too long.
    /// Later requests are answered with EIO. Deletes files without a name.
    pub fn close(&self) -> Result<()> {
        self.close_once(CLOSE_TIMEOUT, 0)
    }

    /// Returns whether data of any file could not be written back, although [`close`](Self::close)
    /// may have succeeded.
    pub fn has_lost_data(&self) -> bool {
        self.volume().has_lost_data()
    }

    /// Returns the files with data that may be lost after [`close`](Self::close) has failed.
    pub fn lost_files(&self) -> LostFiles {
        self.volume().lost_files()
    }

    /// Closes the volume in the first call; later calls return the outcome of the first. `own`
    /// requests in flight belong to the caller, which does not wait for them.
    fn close_once(&self, timeout: Duration, own: usize) -> Result<()> {
        let mut closed = self.closed.lock();
        closed.get_or_insert_with(|| self.close_within(timeout, own)).clone()
    }

    fn close_within(&self, timeout: Duration, own: usize) -> Result<()> {
        if !self.is_writable() {
            return Ok(());
        }
        self.in_flight.fetch_or(CLOSING, Ordering::AcqRel);
        let until = Instant::now() + timeout;
        while self.in_flight.load(Ordering::Acquire) & COUNT > own {
            if Instant::now() >= until {
                let count = (self.in_flight.load(Ordering::Relaxed) & COUNT).saturating_sub(own);
                tracing::error!(
                    "{count} requests took too long and are answered with an error: what they write may be lost"
                );
                self.in_flight.fetch_or(GIVEN_UP, Ordering::AcqRel);
                break;
            }
            std::thread::sleep(CHECK_EVERY);
        }
        self.files.clear();
        self.nodes.clear();
        self.volume().close()
    }

    /// Returns the outcome of INIT, if it was answered.
    pub fn negotiated(&self) -> Option<Result<Negotiated, InitRefused>> {
        self.negotiated.get().copied()
    }

    /// Returns the node of an id that the kernel sent. Fails with ESTALE if the kernel should not
    /// know it.
    pub(crate) fn known(&self, id: u64) -> Result<Arc<KnownNode>, Errno> {
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
    fn a_request_that_outlasts_the_timeout_of_close_is_answered_with_an_error() {
        let file_system = MemoryFileSystem::new();
        let server = server(&file_system);
        let reached = Barrier::new(2);
        let closed = Barrier::new(2);
        let name = b"name\0";
        let operation = MkDirIn { mode: 0o755, umask: 0 };
        let length = size_of::<InHeader>() + size_of::<MkDirIn>() + name.len();
        let header = header(Opcode::MkDir, length);
        let bytes = [header.as_bytes(), operation.as_bytes(), name].concat();
        let request = Request::parse(&bytes).unwrap();
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| {
                let _in_flight = server.begin_request();
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
            assert!(
                answer.join().unwrap(),
                "success was reported for a change that may not be durable"
            );
        });
    }

    #[test]
    fn close_waits_for_requests_in_flight_and_refuses_new_ones() {
        let file_system = MemoryFileSystem::new();
        let server = server(&file_system);
        let header = header(Opcode::StatFs, size_of::<InHeader>());
        let request = Request::parse(header.as_bytes()).unwrap();
        let in_flight = server.begin_request();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| server.close());
            let refused = loop {
                match server.handle(&request, &mut Reply::new(&mut [0; 4096])) {
                    Answer::Error(errno) => break errno,
                    _ => assert!(!file_system.is_closed(), "a request was still in flight"),
                }
            };
            assert_eq!(refused, Errno::IO);
            assert!(!file_system.is_closed(), "a request was still in flight");
            drop(in_flight);
            closing.join().unwrap().unwrap();
        });
        assert!(file_system.is_closed());
    }
}
