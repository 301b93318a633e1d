//! The walk of a copy through the image. It copies directories, links and special files itself; other threads
//! (`worker.rs`) copy the data of regular files.

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
use super::losses::{Losses, is_privilege};
use super::progress::Progress;
use super::worker::{Job, Worker};
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::format::mode;
use crate::target::Target;
use crate::walk::{self, Order, Stop, Then, Visitor};

/// Options of a copy out of an image.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether owners, permissions, times, attributes and hard links are kept.
    pub preserve: bool,
    /// Whether directories are entered.
    pub recursive: bool,
    /// The umask of copies whose permissions are not preserved.
    pub umask: u16,
    /// The number of threads that copy data.
    pub threads: NonZeroUsize,
}

/// An error of one copy.
#[derive(Debug)]
pub enum Trouble {
    /// The image could not be read.
    Library(base::Error),
    /// An action that failed on the host, and its error.
    Host(&'static str, io::Error),
    /// Another reason, as text.
    Other(&'static str),
    /// The copy was interrupted, which is not reported.
    Interrupted,
}

impl From<base::Error> for Trouble {
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
}

impl<'a> Engine<'a> {
    /// Returns an engine that stops when `interrupted` is set.
    pub fn new(options: Options, interrupted: &'a AtomicBool, console: &'a mut Console) -> Self {
        let (progress, losses) = (Progress::new(console), Losses::default());
        Self { options, interrupted, progress, losses, left_out: Mutex::default() }
    }

    /// Copies `node`, which is at the target's path, to the name `name` in `into`; or, without a name, the contents
    /// of `node` to `into`. Failures are reported.
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
            walk::walk(volume, node, &target.path, Order::Inode, &mut feeder)
        });
        worker.release(start);
        outcome?;
        if self.is_interrupted() { Err(Failure::interrupted()) } else { Ok(()) }
    }

    /// Reports a failure, unless it is fatal.
    pub fn tolerate(&self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(failure) if !failure.is_fatal() => {
                self.progress.report(&failure);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Reports the files and attributes that were left out, and ends the progress bar.
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

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// The walk through the tree. It creates directories, links and special files, and queues other files.
struct Feeder<'w, 'a> {
    worker: &'w Worker<'w, 'a>,
    /// The destination directory.
    start: &'w Arc<Directory>,
    /// The name of the outermost copy in it. Without a name, the outermost directory is `start`.
    name: Option<Vec<u8>>,
    /// The directories from `start` down to the current one.
    stack: Vec<Arc<Directory>>,
    sender: SyncSender<Job>,
}

impl Feeder<'_, '_> {
    fn directory(&mut self, parent: &Arc<Directory>, name: &[u8], stop: &Stop<'_>) -> Then {
        if !self.worker.engine.options.recursive {
            let trouble =
                Trouble::Other("is a directory and was not copied; use -r or -a to copy it");
            self.worker.report(stop.path, Err(trouble));
            return Then::Skip;
        }
        match Directory::make(parent, name, (Arc::clone(stop.node), stop.path.to_vec())) {
            Ok(directory) => {
                self.stack.push(directory);
                Then::Enter
            }
            Err(error) => {
                let trouble = Trouble::Host(CANNOT_CREATE, error);
                self.worker.report_unless_full(stop.path, 0, Err(trouble));
                Then::Skip
            }
        }
    }

    /// Copies or queues a file that is no directory.
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
                                "was copied as a separate file instead of a hard link",
                                error,
                            );
                            worker.report(stop.path, Err(trouble));
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
            worker.links.end(attributes.inode, outcome.is_ok());
        }
        match outcome {
            Err(Trouble::Host(CANNOT_CREATE, error))
                if is_device(attributes.kind)
                    && rustix::io::Errno::from_io_error(&error).is_some_and(is_privilege) =>
            {
                let failure = Failure::host(
                    worker.target.subject(stop.path).as_slice(),
                    &format!("{} was not copied", mode::type_words(attributes.kind)),
                    &error,
                );
                worker.engine.progress.warn(&failure.advise("run as root to copy it").to_string());
            }
            outcome => worker.report_unless_full(stop.path, 0, outcome),
        }
    }
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
        self.worker.report(path, Err(error.clone().into()));
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
