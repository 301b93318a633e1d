//! Walks the image and makes the copies: directories, links and special files at once, the data of
//! regular files by several threads.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use base::InodeNumber;
use base::attributes::{Attributes, FileType};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, makedev};
use vfs::{Node, Volume};

use super::contents;
use super::destination::{Directory, check_name};
use super::left_out::LeftOut;
use super::losses::{Losses, is_privilege};
use super::metadata::{self, Subject, Wanted};
use super::progress::Progress;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::format::mode;
use crate::target::Target;
use crate::walk::{self, Order, Stop, Then, Visitor};

/// What to copy, and how.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether owners, permissions, times, attributes and hard links are kept.
    pub preserve: bool,
    /// Whether directories are entered.
    pub recursive: bool,
    /// The permissions that copies do not get when they are not kept.
    pub umask: u16,
    /// How many threads copy data.
    pub threads: NonZeroUsize,
}

/// Why one copy could not be made.
#[derive(Debug)]
pub enum Trouble {
    /// The image could not be read.
    Library(base::Error),
    /// What could not be done on the host, in words, and why.
    Host(&'static str, io::Error),
    /// Another reason, in words.
    Other(&'static str),
    /// The copy was interrupted; this needs no further word.
    Interrupted,
}

impl From<base::Error> for Trouble {
    fn from(error: base::Error) -> Self {
        Self::Library(error)
    }
}

const CANNOT_CREATE: &str = "cannot create its copy";

/// Copies from one image.
pub struct Engine<'a> {
    options: Options,
    interrupted: &'a AtomicBool,
    progress: Progress<'a>,
    losses: Losses,
    left_out: Mutex<LeftOut>,
}

impl<'a> Engine<'a> {
    /// An engine that stops when `interrupted` is set.
    pub fn new(options: Options, interrupted: &'a AtomicBool, console: &'a mut Console) -> Self {
        let (progress, losses) = (Progress::new(console), Losses::default());
        Self { options, interrupted, progress, losses, left_out: Mutex::default() }
    }

    /// Copies `node`, which is at the target's path, to the name `name` in `into`; or, without a
    /// name, what is in it to `into` itself. Everything that fails is reported.
    pub fn copy(
        &self,
        volume: &Volume,
        target: &Target,
        node: Arc<Node>,
        into: Directory,
        name: Option<&[u8]>,
    ) -> Result<()> {
        let start = Arc::new(into);
        // A few waiting jobs keep the threads busy; each holds directories open.
        let (sender, receiver) = sync_channel(self.options.threads.get() * 4);
        let receiver = Mutex::new(receiver);
        let links = Links::default();
        let worker = Worker {
            engine: self,
            target,
            links: &links,
            kept_bytes_max: super::kept_bytes_max(volume),
        };
        let outcome = std::thread::scope(|scope| {
            for _ in 0..self.options.threads.get() {
                scope.spawn(|| worker.run(&receiver));
            }
            let (name, stack) = (name.map(<[u8]>::to_vec), Vec::new());
            let mut feeder = Feeder { worker: &worker, start: &start, name, stack, sender };
            walk::walk(volume, node, &target.path, Order::Stored, &mut feeder)
        });
        worker.release(start);
        outcome?;
        if self.is_interrupted() { Err(Failure::interrupted()) } else { Ok(()) }
    }

    /// Reports a failure, unless the command must stop because of it.
    pub fn tolerate(&self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(failure) if !failure.is_fatal() => {
                self.progress.report(&failure);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Says what was lost, and ends the show.
    pub fn finish(self, destination: &[u8]) {
        self.progress.finish();
        if let Some(failure) = self.left_out.into_inner().failure(destination) {
            self.progress.report(&failure);
        }
        for (line, is_failure) in self.losses.lines() {
            let line = Failure::new(destination, line);
            match is_failure {
                true => self.progress.report(&line),
                false => self.progress.warn(&line.to_string()),
            }
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// The data of one regular file, to be copied by any thread.
struct Job {
    directory: Arc<Directory>,
    name: Vec<u8>,
    node: Arc<Node>,
    path: Vec<u8>,
    attributes: Attributes,
    /// Whether other names of its inode wait for it.
    is_first: bool,
}

/// What makes copies; shared by all threads.
struct Worker<'w, 'a> {
    engine: &'w Engine<'a>,
    target: &'w Target,
    links: &'w Links,
    kept_bytes_max: u64,
}

impl Worker<'_, '_> {
    /// Takes jobs until there are no more. A panic goes on after the last one: with no thread to
    /// take jobs, handing one out would never end.
    fn run(&self, receiver: &Mutex<Receiver<Job>>) {
        let mut panicked = None;
        loop {
            let job = receiver.lock().recv();
            let Ok(job) = job else { break };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.copy(job))) {
                panicked = Some(panic);
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }

    fn copy(&self, job: Job) {
        let unsettled = job.is_first.then(|| Unsettled::new(self.links, job.attributes.inode));
        let outcome = self.regular(&job);
        if let Some(unsettled) = unsettled {
            unsettled.settle(outcome.is_ok());
        }
        self.tell_unless_full(&job.path, job.attributes.size, outcome);
        self.release(job.directory);
    }

    fn tell(&self, path: &[u8], outcome: Result<(), Trouble>) {
        if let Some(failure) = self.failure(path, outcome) {
            self.engine.progress.report(&failure);
        }
    }

    /// Reports a file of `bytes` bytes that was not copied, like [`tell`](Self::tell). If the destination is
    /// full, counts the file for the report at the end.
    fn tell_unless_full(&self, path: &[u8], bytes: u64, outcome: Result<(), Trouble>) {
        let is_full = matches!(&outcome, Err(Trouble::Host(_, error)) if is_full(error));
        match self.failure(path, outcome) {
            Some(failure) if is_full => {
                let subject = self.target.subject(path);
                self.engine.left_out.lock().add(&subject, bytes, failure);
            }
            Some(failure) => self.engine.progress.report(&failure),
            None => {}
        }
    }

    fn failure(&self, path: &[u8], outcome: Result<(), Trouble>) -> Option<Failure> {
        let subject = self.target.subject(path);
        Some(match outcome {
            Ok(()) | Err(Trouble::Interrupted) => return None,
            Err(Trouble::Library(error)) => self.target.failure(path, &error),
            Err(Trouble::Other(what)) => Failure::new(subject.as_slice(), what),
            Err(Trouble::Host(action, error)) => {
                let failure = Failure::host(subject.as_slice(), action, &error);
                match is_full(&error) {
                    true => failure.advise("make room at the destination and copy it again"),
                    false => failure,
                }
            }
        })
    }

    fn check_interrupt(&self) -> Result<(), Trouble> {
        if self.engine.is_interrupted() { Err(Trouble::Interrupted) } else { Ok(()) }
    }

    fn regular(&self, job: &Job) -> Result<(), Trouble> {
        self.check_interrupt()?;
        let create = |error| Trouble::Host(CANNOT_CREATE, error);
        check_name(&job.name).map_err(create)?;
        let mut source = job.node.open()?;
        if job.attributes.size > self.kept_bytes_max {
            source = source.uncached();
        }
        let (temporary, file) = job.directory.temporary_file().map_err(create)?;
        contents::copy(&source, job.attributes.size, &file, |bytes| {
            self.engine.progress.bytes(bytes);
            self.check_interrupt()
        })?;
        self.describe(&job.node, &job.path, &job.attributes, Subject::Open(file.as_fd()));
        temporary.place(&job.name).map_err(|error| Trouble::Host("cannot name its copy", error))
    }

    /// Gives a copy what its original has besides its data. What cannot be given is reported, and
    /// the copy stays: its data matters more.
    fn describe(&self, node: &Node, path: &[u8], attributes: &Attributes, subject: Subject<'_>) {
        let engine = self.engine;
        let mut tell = |trouble| self.tell(path, Err(trouble));
        if engine.options.preserve {
            let wanted = Wanted { node, path, attributes, losses: &engine.losses };
            metadata::preserve(&wanted, subject, &mut tell);
        } else if let Err(trouble) = metadata::set_permissions(subject, self.reduced(attributes)) {
            tell(trouble);
        }
    }

    /// The permissions of a copy that does not keep those of its original.
    fn reduced(&self, attributes: &Attributes) -> u16 {
        attributes.permissions & 0o777 & !self.engine.options.umask
    }

    /// Lets go of a directory. The last one to do so completes it, and then the one around it.
    fn release(&self, mut directory: Arc<Directory>) {
        while let Some(mut inner) = Arc::into_inner(directory) {
            if let Some((node, path)) = inner.source.take() {
                if self.engine.options.preserve || inner.is_new {
                    let subject = Subject::Open(inner.as_fd());
                    self.describe(&node, &path, &node.attributes(), subject);
                }
            }
            match inner.parent.take() {
                Some(parent) => directory = parent,
                None => return,
            }
        }
    }

    /// Makes a symbolic link or a special file.
    fn special(&self, directory: &Directory, name: &[u8], stop: &Stop<'_>) -> Result<(), Trouble> {
        let create = |error| Trouble::Host(CANNOT_CREATE, error);
        check_name(name).map_err(create)?;
        let of = stop.node.attributes();
        let preserve = self.engine.options.preserve;
        let permissions = if preserve { of.permissions } else { self.reduced(&of) };
        let made = match special_type(of.kind) {
            None => {
                let target = stop.node.read_link()?;
                directory.temporary(|fd, name| rustix::fs::symlinkat(target.as_slice(), fd, name))
            }
            Some(kind) => {
                let device = makedev(of.device.major, of.device.minor);
                let mode = Mode::from_raw_mode(permissions.into());
                directory.temporary(|fd, name| rustix::fs::mknodat(fd, name, kind, mode, device))
            }
        };
        let temporary = made.map_err(create)?;
        if preserve {
            let (fd, name) = temporary.place_of();
            self.describe(stop.node, stop.path, &of, Subject::Entry(fd, name));
        }
        temporary.place(name).map_err(|error| Trouble::Host("cannot name its copy", error))
    }
}

fn special_type(kind: FileType) -> Option<rustix::fs::FileType> {
    match kind {
        FileType::CharacterDevice => Some(rustix::fs::FileType::CharacterDevice),
        FileType::BlockDevice => Some(rustix::fs::FileType::BlockDevice),
        FileType::Fifo => Some(rustix::fs::FileType::Fifo),
        FileType::Socket => Some(rustix::fs::FileType::Socket),
        FileType::Regular | FileType::Directory | FileType::Symlink => None,
    }
}

/// Walks the tree, makes what is made at once, and hands out the rest.
struct Feeder<'w, 'a> {
    worker: &'w Worker<'w, 'a>,
    /// Where copies go.
    start: &'w Arc<Directory>,
    /// The name of the outermost copy there; without one, the outermost directory is `start`.
    name: Option<Vec<u8>>,
    /// The directories on the way.
    stack: Vec<Arc<Directory>>,
    sender: SyncSender<Job>,
}

impl Feeder<'_, '_> {
    fn directory(&mut self, parent: &Arc<Directory>, name: &[u8], stop: &Stop<'_>) -> Then {
        if !self.worker.engine.options.recursive {
            let trouble =
                Trouble::Other("is a directory and was left out; add -r or -a to copy it");
            self.worker.tell(stop.path, Err(trouble));
            return Then::Skip;
        }
        match Directory::make(parent, name, (Arc::clone(stop.node), stop.path.to_vec())) {
            Ok(directory) => {
                self.stack.push(directory);
                Then::Enter
            }
            Err(error) => {
                let trouble = Trouble::Host(CANNOT_CREATE, error);
                self.worker.tell_unless_full(stop.path, 0, Err(trouble));
                Then::Skip
            }
        }
    }

    /// Makes or hands out anything but a directory.
    fn file(&self, directory: &Arc<Directory>, name: &[u8], stop: &Stop<'_>) {
        let worker = self.worker;
        let attributes = stop.node.attributes();
        // A copy on its own, for want of a link, is not what later names are linked to.
        let mut is_first = false;
        if worker.engine.options.preserve && attributes.links > 1 {
            match worker.links.first(&attributes, directory, name) {
                First::Yes => is_first = true,
                First::No(names, first_name) => {
                    let linked = directory.link(self.start, &names, &first_name, name);
                    match linked {
                        Ok(()) => return,
                        Err(error) => {
                            // The data still matters more than the link.
                            let trouble = Trouble::Host(
                                "is copied on its own, since it cannot be linked",
                                error,
                            );
                            worker.tell(stop.path, Err(trouble));
                        }
                    }
                }
            }
        }
        if attributes.kind == FileType::Regular {
            let (directory, name) = (Arc::clone(directory), name.to_vec());
            let (node, path) = (Arc::clone(stop.node), stop.path.to_vec());
            // The receivers live as long as the sender.
            let _ = self.sender.send(Job { directory, name, node, path, attributes, is_first });
            return;
        }
        let outcome = worker.special(directory, name, stop);
        if is_first {
            worker.links.settle(attributes.inode, outcome.is_ok());
        }
        match outcome {
            Err(Trouble::Host(CANNOT_CREATE, error))
                if is_device(attributes.kind)
                    && rustix::io::Errno::from_io_error(&error).is_some_and(is_privilege) =>
            {
                let failure = Failure::host(
                    worker.target.subject(stop.path).as_slice(),
                    &format!("{} left out", mode::type_words(attributes.kind)),
                    &error,
                );
                worker.engine.progress.warn(&failure.advise("run as root to copy it").to_string());
            }
            outcome => worker.tell_unless_full(stop.path, 0, outcome),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn is_device(kind: FileType) -> bool {
    matches!(kind, FileType::CharacterDevice | FileType::BlockDevice)
}

impl Visitor for Feeder<'_, '_> {
    fn arrive(&mut self, stop: &Stop<'_>) -> Result<Then> {
        if self.worker.engine.is_interrupted() {
            return Ok(Then::Quit);
        }
        self.worker.engine.progress.file(stop.path);
        if stop.depth == 0 && self.name.is_none() {
            self.stack.push(Arc::clone(self.start));
            return Ok(Then::Enter);
        }
        let parent = Arc::clone(self.stack.last().unwrap_or(self.start));
        let name = match (stop.depth, self.name.take()) {
            (0, Some(name)) => name,
            _ => stop.name.to_vec(),
        };
        let then = match stop.node.kind() {
            FileType::Directory => self.directory(&parent, &name, stop),
            _ => {
                self.file(&parent, &name, stop);
                Then::Skip
            }
        };
        self.worker.release(parent);
        Ok(then)
    }

    fn leave(&mut self, _stop: &Stop<'_>) -> Result<()> {
        if let Some(directory) = self.stack.pop() {
            self.worker.release(directory);
        }
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &base::Error) -> Result<()> {
        self.worker.tell(path, Err(error.clone().into()));
        Ok(())
    }
}

impl Drop for Feeder<'_, '_> {
    fn drop(&mut self) {
        // After an early end; innermost first.
        while let Some(directory) = self.stack.pop() {
            self.worker.release(directory);
        }
    }
}

/// The first copies of inodes with several names.
#[derive(Default)]
struct Links {
    known: Mutex<HashMap<InodeNumber, Link>>,
    settled: Condvar,
}

struct Link {
    state: LinkState,
    /// The names that are still to come.
    expected: u32,
    /// Where the first copy is: the names that lead to its directory, and its own.
    place: (Vec<Vec<u8>>, Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Pending,
    Made,
    Failed,
}

/// Whether a name is the first of its inode to be copied.
enum First {
    Yes,
    No(Vec<Vec<u8>>, Vec<u8>),
}

impl Links {
    /// Tells whether this name is the first of its inode, which must then be settled. Waits while
    /// the first is still being copied.
    fn first(&self, of: &Attributes, directory: &Directory, name: &[u8]) -> First {
        let mut known = self.known.lock();
        while let Some(link) = known.get_mut(&of.inode) {
            match link.state {
                LinkState::Pending => self.settled.wait(&mut known),
                LinkState::Failed => break,
                LinkState::Made => {
                    let (names, first_name) = link.place.clone();
                    link.expected = link.expected.saturating_sub(1);
                    if link.expected == 0 {
                        known.remove(&of.inode);
                    }
                    return First::No(names, first_name);
                }
            }
        }
        let place = (directory.names(), name.to_vec());
        let expected = of.links.saturating_sub(1);
        known.insert(of.inode, Link { state: LinkState::Pending, expected, place });
        First::Yes
    }

    /// Records how the first copy went.
    fn settle(&self, inode: InodeNumber, is_made: bool) {
        if let Some(link) = self.known.lock().get_mut(&inode) {
            link.state = if is_made { LinkState::Made } else { LinkState::Failed };
        }
        self.settled.notify_all();
    }
}

/// A first copy that is being made. It has failed unless it is said to have been made.
struct Unsettled<'a> {
    links: &'a Links,
    inode: InodeNumber,
    is_made: bool,
}

impl<'a> Unsettled<'a> {
    fn new(links: &'a Links, inode: InodeNumber) -> Self {
        Self { links, inode, is_made: false }
    }

    fn settle(mut self, is_made: bool) {
        self.is_made = is_made;
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        self.links.settle(self.inode, self.is_made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_copy_that_panics_has_failed() {
        let (links, inode) = (Links::default(), InodeNumber(12));
        let state = || links.known.lock()[&inode].state;
        for is_made in [None, Some(true), Some(false)] {
            let place = (Vec::new(), b"first".to_vec());
            let link = Link { state: LinkState::Pending, expected: 1, place };
            links.known.lock().insert(inode, link);
            let unsettled = Unsettled::new(&links, inode);
            let outcome = catch_unwind(AssertUnwindSafe(|| match is_made {
                Some(is_made) => unsettled.settle(is_made),
                None => {
                    let _unsettled = unsettled;
                    panic!("as the test has it");
                }
            }));
            assert_eq!(outcome.is_ok(), is_made.is_some());
            assert!(
                state() == if is_made == Some(true) { LinkState::Made } else { LinkState::Failed }
            );
        }
    }
}
