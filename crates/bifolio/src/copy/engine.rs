//! Copies of trees out of an image: the walk through the tree, which copies directories, links and
//! special files. Not here: the threads that copy regular files (`worker.rs`).

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use base::attributes::FileType;
use parking_lot::Mutex;
use vfs::{Node, Volume};

use super::destination::Directory;
use super::hard_links::{First, Links};
use super::left_out::LeftOut;
use super::levels::{Levels, NAMES_MAX, Name};
use super::limits::{self, Limits, Maximum};
use super::losses::{Loss, Losses, Reason, is_privilege};
use super::progress::Progress;
use super::worker::{Job, Worker};
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::mode;
use crate::images::target::Target;
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

/// Options of a copy out of an image.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether owners, permissions, times, extended attributes and hard links are preserved.
    pub preserve: bool,
    /// Whether the process is root, who can set owners.
    pub is_root: bool,
    /// Whether directories are copied.
    pub recursive: bool,
    /// Whether what gives rights on the host is copied: device files, and of what is preserved,
    /// set-ID bits, capabilities, and the extended attributes that give rights (`metadata.rs`).
    pub privileged: bool,
    /// The maximum size of the copy.
    pub maximum: Maximum,
    /// The umask for copies without preserved permissions.
    pub umask: u16,
    /// The number of threads that copy data.
    pub threads: NonZeroUsize,
}

/// Error of the copy of one file.
#[derive(Debug)]
pub enum CopyError {
    /// An error of the image.
    Library(base::Error),
    /// An action on the host that failed, and its error.
    Host(&'static str, io::Error),
    /// Another error, as text.
    Other(&'static str),
    /// The copy was interrupted. Not reported.
    Interrupted,
}

impl From<base::Error> for CopyError {
    fn from(error: base::Error) -> Self {
        Self::Library(error)
    }
}

pub(super) const CANNOT_CREATE: &str = "cannot create the copy";

/// A copy out of one image.
pub struct Engine<'a> {
    pub(super) options: Options,
    interrupted: &'a AtomicBool,
    pub(super) progress: Progress<'a>,
    pub(super) losses: Losses,
    pub(super) left_out: Mutex<LeftOut>,
    pub(super) limits: Limits,
}

impl<'a> Engine<'a> {
    /// Creates an engine. It stops when `interrupted` is set.
    pub fn new(options: Options, interrupted: &'a AtomicBool, console: &'a mut Console) -> Self {
        let progress = Progress::new(console);
        let (losses, left_out) = Default::default();
        let limits = Limits::new(options.maximum);
        Self { options, interrupted, progress, losses, left_out, limits }
    }

    /// Copies `node`, which is at the path of `target`, to the name `name` in `directory`. Without
    /// a name, copies the contents of `node` to `directory`. Warns when the copy has more than
    /// `suspicious_bytes`, or as many files. `links` is shared by all copies out of the image to
    /// the same directory. Reports failures.
    pub fn copy(
        &self,
        volume: &Volume,
        target: &Target,
        node: Arc<Node>,
        (directory, name): (Directory, Option<&[u8]>),
        suspicious_bytes: u64,
        links: &Links,
    ) -> Result<()> {
        let start = Arc::new(directory);
        // A few queued jobs keep the threads busy. Each queued job keeps directories open.
        let (sender, receiver) = sync_channel(self.options.threads.get() * 4);
        let receiver = Mutex::new(receiver);
        let worker = Worker {
            engine: self,
            target,
            links,
            cached_bytes_max: super::cached_bytes_max(volume),
            suspicious_bytes,
        };
        let outcome = std::thread::scope(|scope| {
            for number in 0..self.options.threads.get() {
                let thread = std::thread::Builder::new();
                match thread.spawn_scoped(scope, || worker.run(&receiver)) {
                    Ok(_) => {}
                    // Fewer threads do it, too.
                    Err(_) if number > 0 => break,
                    Err(error) => {
                        let error = base::Error::thread_spawn(&error);
                        return Err(target.failure(&target.path, &error));
                    }
                }
            }
            let (name, levels) = (name.map(<[u8]>::to_vec), Levels::new(NAMES_MAX));
            let mut feeder = Feeder { worker: &worker, start: &start, name, levels, sender };
            walk::walk(volume, node, &target.path, Order::Inode, &mut feeder)
        });
        worker.release(start);
        outcome?;
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Failure::interrupted()),
            false => Ok(()),
        }
    }

    /// Reports a failure that is not fatal. Errors: a fatal failure.
    pub fn tolerate(&self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(failure) if !failure.is_fatal() => {
                self.progress.report(&failure);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Removes the progress bar, and reports what was not copied.
    pub fn finish(self, destination: &[u8]) {
        self.progress.finish();
        if let Some(failure) = self.limits.failure(destination) {
            self.progress.report(&failure);
        }
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

    /// Returns whether the copy ends early: by a signal, or since it has reached a limit.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed) || self.limits.is_exceeded()
    }
}

/// Visitor that creates directories, links and special files, and queues regular files.
struct Feeder<'w, 'a> {
    worker: &'w Worker<'w, 'a>,
    /// The destination directory.
    start: &'w Arc<Directory>,
    /// The name of the copy in `start`. Without a name, `start` itself is the copy.
    name: Option<Vec<u8>>,
    /// The directories from `start` down to the current one.
    levels: Levels,
    sender: SyncSender<Job>,
}

impl Feeder<'_, '_> {
    fn copy_directory(&mut self, parent: &Arc<Directory>, name: &[u8], visit: &Visit<'_>) -> Flow {
        if !self.worker.engine.options.recursive {
            let error =
                CopyError::Other("is a directory and was not copied; `cp -r` and `cp -a` copy it");
            self.worker.report(visit.path, Err(error));
            return Flow::Skip;
        }
        match Directory::create(parent, name, Arc::clone(visit.node)) {
            Ok(directory) => {
                self.levels.push(directory);
                Flow::Enter
            }
            Err(error) => {
                let error = CopyError::Host(CANNOT_CREATE, error);
                self.worker.report_unless_full(visit.path, 0, Err(error));
                Flow::Skip
            }
        }
    }

    /// Copies or queues a file that is not a directory.
    fn copy_file(&self, directory: &Arc<Directory>, name: &[u8], visit: &Visit<'_>) {
        let worker = self.worker;
        let attributes = visit.node.attributes();
        // Whether later names are linked to this copy. False for a separate copy after a failed
        // link.
        let mut is_first = false;
        if worker.engine.options.preserve && attributes.links > 1 {
            match worker.links.first(&attributes, directory, name) {
                First::Yes => is_first = true,
                First::No(first) => {
                    match directory.link(self.start, &first, name) {
                        Ok(()) => return,
                        Err(error) => {
                            // The data matters more than the link, so the file is copied.
                            let error = CopyError::Host(
                                "was copied as a separate file instead of a hard link",
                                error,
                            );
                            worker.report(visit.path, Err(error));
                        }
                    }
                }
            }
        }
        if attributes.kind == FileType::Regular {
            let directory = Arc::clone(directory);
            let name = name.to_vec();
            let node = Arc::clone(visit.node);
            let path = visit.path.to_vec();
            // Sending cannot fail: the receiver outlives the sender.
            let _ = self.sender.send(Job { directory, name, node, path, attributes, is_first });
            return;
        }
        let outcome = worker.copy_special(directory, name, visit);
        if is_first {
            worker.links.end(attributes.inode, outcome.as_ref().ok().copied());
        }
        match outcome {
            Err(CopyError::Host(CANNOT_CREATE, error))
                if is_device(attributes.kind)
                    && rustix::io::Errno::from_io_error(&error).is_some_and(is_privilege) =>
            {
                let failure = Failure::host(
                    worker.target.subject(visit.path).as_slice(),
                    &format!("{} was not copied", mode::type_words(attributes.kind)),
                    &error,
                );
                let advice = "only root with CAP_MKNOD outside of user namespaces can copy it";
                worker.engine.progress.report(&failure.advise(advice));
            }
            outcome => worker.report_unless_full(visit.path, 0, outcome.map(drop)),
        }
    }
}

fn is_device(kind: FileType) -> bool {
    matches!(kind, FileType::CharacterDevice | FileType::BlockDevice)
}

impl Visitor for Feeder<'_, '_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        let files = self.worker.engine.limits.add_file();
        if self.worker.engine.is_interrupted() {
            return Ok(Flow::Quit);
        }
        if self.worker.engine.limits.is_suspicious(files, self.worker.suspicious_bytes) {
            let image = &self.worker.target.image;
            self.worker.engine.progress.warn(&limits::files_warning(image));
        }
        self.worker.engine.progress.begin_file(visit.path, files);
        if visit.depth == 0 && self.name.is_none() {
            self.levels.push(Arc::clone(self.start));
            return Ok(Flow::Enter);
        }
        let attributes = visit.node.attributes();
        if is_device(attributes.kind) && !self.worker.engine.options.privileged {
            self.worker.engine.losses.add(Loss::Devices, Reason::GivesRights, visit.path);
            return Ok(Flow::Skip);
        }
        let refused = match self.levels.add_name(visit.name) {
            Name::New => None,
            Name::Twice => {
                Some("is a name that its directory has twice; only the first file was copied")
            }
            Name::TooMany => Some(
                "was not copied: its directory and those above it have more than 16,777,216 names",
            ),
        };
        if let Some(error) = refused {
            self.worker.report(visit.path, Err(CopyError::Other(error)));
            return Ok(Flow::Skip);
        }
        let parent = Arc::clone(self.levels.current().unwrap_or(self.start));
        let name = match (visit.depth, self.name.take()) {
            (0, Some(name)) => name,
            _ => visit.name.to_vec(),
        };
        let flow = match visit.node.kind() {
            FileType::Directory => self.copy_directory(&parent, &name, visit),
            _ => {
                self.copy_file(&parent, &name, visit);
                Flow::Skip
            }
        };
        self.worker.release(parent);
        Ok(flow)
    }

    fn leave(&mut self, _visit: &Visit<'_>) -> Result<()> {
        if let Some(directory) = self.levels.pop() {
            self.worker.release(directory);
        }
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &base::Error) -> Result<()> {
        self.worker.report(path, Err(error.clone().into()));
        Ok(())
    }
}

impl Drop for Feeder<'_, '_> {
    fn drop(&mut self) {
        // For a walk that was interrupted. Innermost directories first.
        while let Some(directory) = self.levels.pop() {
            self.worker.release(directory);
        }
    }
}
