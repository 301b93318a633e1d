//! Copies of single files: data, links, special files and preserved attributes. Regular files are
//! copied by several threads. Not here: the walk through the tree (`engine.rs`).

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use base::attributes::{Attributes, FileType};
use parking_lot::Mutex;
use rustix::fs::{Mode, makedev};
use vfs::Node;

use super::contents::{self, Missing};
use super::destination::{Directory, Identity, check_name};
use super::engine::{CANNOT_CREATE, CopyError, Engine};
use super::hard_links::{FirstCopy, Links};
use super::left_out::Full;
use super::limits;
use super::losses::{Loss, Reason};
use super::metadata::{self, Subject, Wanted};
use crate::console::failure::Failure;
use crate::images::target::Target;
use crate::tree::walk::Visit;

/// Regular file to copy.
pub struct Job {
    pub directory: Arc<Directory>,
    pub name: Vec<u8>,
    pub node: Arc<Node>,
    pub path: Vec<u8>,
    pub attributes: Attributes,
    /// Whether later names of the inode wait for this copy.
    pub is_first: bool,
}

/// State that all threads of a copy share.
pub struct Worker<'w, 'a> {
    pub engine: &'w Engine<'a>,
    pub target: &'w Target,
    pub links: &'w Links,
    /// The size above which files are read without the cache.
    pub cached_bytes_max: u64,
    /// The number of bytes above which the copy is suspicious.
    pub suspicious_bytes: u64,
}

impl Worker<'_, '_> {
    /// Copies files until the queue is closed. Resumes a panic only after the last job: without
    /// threads that receive jobs, the sender would block forever.
    pub fn run(&self, receiver: &Mutex<Receiver<Job>>) {
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
        let first = job.is_first.then(|| FirstCopy::new(self.links, job.attributes.inode));
        let outcome = self.copy_regular(&job);
        if let Some(first) = first {
            first.end(outcome.as_ref().ok().copied());
        }
        self.report_unless_full(&job.path, job.attributes.size, outcome.map(drop));
        self.release(job.directory);
    }

    /// Reports the failure of the copy of `path`.
    pub fn report(&self, path: &[u8], outcome: Result<(), CopyError>) {
        if let Some(failure) = self.failure(path, outcome) {
            self.engine.progress.report(&failure);
        }
    }

    /// Reports a failed copy of a file with `bytes` bytes. If the destination is full, counts the
    /// file for the report at the end instead.
    pub fn report_unless_full(&self, path: &[u8], bytes: u64, outcome: Result<(), CopyError>) {
        let is_full = matches!(&outcome, Err(CopyError::Host(_, error)) if is_full(error));
        match self.failure(path, outcome) {
            Some(failure) if is_full => {
                let subject = self.target.subject(path);
                self.engine.left_out.lock().add(&subject, bytes, failure, Full::Space);
            }
            Some(failure) => self.engine.progress.report(&failure),
            None => {}
        }
    }

    fn failure(&self, path: &[u8], outcome: Result<(), CopyError>) -> Option<Failure> {
        let subject = self.target.subject(path);
        Some(match outcome {
            Ok(()) | Err(CopyError::Interrupted) => return None,
            Err(CopyError::Library(error)) => self.target.failure(path, &error),
            Err(CopyError::Other(what)) => Failure::new(subject.as_slice(), what),
            Err(CopyError::Host(action, error)) => {
                let failure = Failure::host(subject.as_slice(), action, &error);
                match is_full(&error) {
                    true => failure.advise("free space at the destination, and copy it again"),
                    false => failure,
                }
            }
        })
    }

    fn check_interrupt(&self) -> Result<(), CopyError> {
        if self.engine.is_interrupted() { Err(CopyError::Interrupted) } else { Ok(()) }
    }

    fn copy_regular(&self, job: &Job) -> Result<Identity, CopyError> {
        self.check_interrupt()?;
        let create = |error| CopyError::Host(CANNOT_CREATE, error);
        check_name(&job.name).map_err(create)?;
        let mut source = job.node.open()?;
        if job.attributes.size > self.cached_bytes_max {
            source = source.uncached();
        }
        let (temporary, file) = job.directory.temporary_file().map_err(create)?;
        let missing = contents::copy(&source, job.attributes.size, &file, |bytes| {
            self.engine.progress.add_bytes(bytes);
            if self.engine.limits.add_bytes(bytes, self.suspicious_bytes) {
                self.engine.progress.warn(&limits::warning(&self.target.image));
            }
            self.check_interrupt()
        })?;
        self.set_attributes(&job.node, &job.path, &job.attributes, Subject::Open(file.as_fd()));
        let stat = rustix::fs::fstat(&file).map_err(|error| create(error.into()))?;
        let renamed = temporary.rename(&job.name);
        renamed.map_err(|error| CopyError::Host("cannot rename the complete copy", error))?;
        if let Some(missing) = missing {
            let Missing { at, bytes, error } = missing;
            let text = format!("the copy lacks {bytes} bytes from byte {at} on: {error}");
            let subject = self.target.subject(&job.path);
            self.engine.progress.report(&Failure::new(subject.as_slice(), text));
        }
        Ok(Identity::of(&stat))
    }

    /// Sets the attributes of a copy. Reports failures and keeps the copy, because its data matters
    /// more.
    fn set_attributes(
        &self,
        node: &Node,
        path: &[u8],
        attributes: &Attributes,
        subject: Subject<'_>,
    ) {
        let engine = self.engine;
        let mut report = |error| self.report(path, Err(error));
        if engine.options.preserve {
            let (privileged, losses) = (engine.options.privileged, &engine.losses);
            let wanted = Wanted { node, path, attributes, privileged, losses };
            metadata::preserve(&wanted, subject, &mut report);
        } else if let Err(error) =
            metadata::set_permissions(subject, self.masked_permissions(attributes))
        {
            report(error);
        }
    }

    /// Returns the permissions of a copy if they are not preserved.
    fn masked_permissions(&self, attributes: &Attributes) -> u16 {
        attributes.permissions & 0o777 & !self.engine.options.umask
    }

    /// Releases a reference to a directory. The last release sets the attributes of the directory
    /// if the copy created it, and then releases its parent.
    pub fn release(&self, mut directory: Arc<Directory>) {
        let options = &self.engine.options;
        while let Some(mut inner) = Arc::into_inner(directory) {
            if let Some(node) = inner.source.take() {
                let path = inner.path_in_image(&self.target.path);
                let attributes = node.attributes();
                // Others may rely on the owner and permissions of a directory that existed.
                if inner.is_new {
                    let subject = Subject::Open(inner.as_fd());
                    self.set_attributes(&node, &path, &attributes, subject);
                } else if options.preserve && metadata::differ(&inner, &attributes, options.is_root)
                {
                    self.engine.losses.add(Loss::Existing, Reason::Existed, &path);
                }
            }
            match inner.parent.take() {
                Some(parent) => directory = parent,
                None => return,
            }
        }
    }

    /// Copies a symbolic link or a special file.
    pub fn copy_special(
        &self,
        directory: &Directory,
        name: &[u8],
        visit: &Visit<'_>,
    ) -> Result<Identity, CopyError> {
        let create = |error| CopyError::Host(CANNOT_CREATE, error);
        check_name(name).map_err(create)?;
        let attributes = visit.node.attributes();
        let preserve = self.engine.options.preserve;
        let permissions = match preserve {
            true if self.engine.options.privileged => attributes.permissions,
            // Set-ID bits give rights, and the filter on system calls refuses them.
            true => attributes.permissions & !metadata::SET_ID,
            false => self.masked_permissions(&attributes),
        };
        let made = match special_type(attributes.kind) {
            None => {
                let target = visit.node.read_link()?;
                directory.temporary(|fd, name| rustix::fs::symlinkat(target.as_slice(), fd, name))
            }
            Some(kind) => {
                let device = makedev(attributes.device.major, attributes.device.minor);
                let mode = Mode::from_raw_mode(permissions.into());
                directory.temporary(|fd, name| rustix::fs::mknodat(fd, name, kind, mode, device))
            }
        };
        let temporary = made.map_err(create)?;
        if preserve {
            let (fd, name) = temporary.location();
            self.set_attributes(visit.node, visit.path, &attributes, Subject::Entry(fd, name));
        }
        let identity = temporary.identity().map_err(create)?;
        let renamed = temporary.rename(name);
        renamed.map_err(|error| CopyError::Host("cannot rename the complete copy", error))?;
        Ok(identity)
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

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
