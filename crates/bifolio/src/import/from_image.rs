//! Copies of files and trees from one image to another, or within one. The bytes of both are
//! untrusted, and the process has access to nothing else. Not here: copies of the host's files
//! (`mod.rs`).

use std::sync::Arc;

use base::Error;
use base::attributes::{Attributes, FileType};
use vfs::{Creation, Credentials, Node, Volume};

use super::losses::Lost;
use super::metadata::{self, Preserved};
use super::{CopyError, Destination, IS_DIRECTORY, Importer, contents, create_complete};
use super::{report, set_permissions};
use crate::console::failure::{Failure, Result};
use crate::copy::{Full, cached_bytes_max};
use crate::images::target::Target;
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

const IS_OWN_COPY: &str = "is the destination, or a copy in it, and was not copied into itself";
const IS_SPECIAL: &str = "is a special file and was not copied; `cp -r` and `cp -a` copy it";
const IS_SAME: &str = "is the same file as its copy would be";

/// A source of a copy.
#[derive(Clone, Copy, Debug)]
pub struct InImage<'a> {
    /// The image and the path.
    pub target: &'a Target,
    /// The volume of the image.
    pub volume: &'a Volume,
    /// A number of the volume, for hard links.
    pub number: u64,
    /// Whether it is the volume that is written to.
    pub is_destination: bool,
}

impl Importer<'_> {
    /// Copies the file or directory `node`, which is at the path of `from`. Reports failures.
    pub fn copy_from_image(
        &mut self,
        from: InImage<'_>,
        node: Arc<Node>,
        destination: &Destination,
    ) -> Result<()> {
        self.directories.clear();
        if from.is_destination
            && let Destination::Into(directory) | Destination::Name(directory, _) = destination
        {
            self.made.insert(directory.number());
        }
        let mut walk = Walk { importer: self, from, destination, levels: Vec::new() };
        let ended = walk::walk(from.volume, node, &from.target.path, Order::Inode, &mut walk);
        // After a signal: directories are not left with the permissions that they have until they
        // are complete.
        while let Some(level) = walk.levels.pop() {
            let path = level.path.clone();
            let outcome = walk.complete(&level);
            walk.report(&path, &level.original, outcome)?;
        }
        ended
    }
}

/// Visitor of the tree that is copied.
struct Walk<'w, 'i> {
    importer: &'w mut Importer<'i>,
    from: InImage<'w>,
    destination: &'w Destination,
    levels: Vec<Level>,
}

/// A directory that is copied.
struct Level {
    original: Arc<Node>,
    path: Vec<u8>,
    copy: Arc<Node>,
    is_new: bool,
    /// The directories of the destination above it.
    above: Vec<Arc<Node>>,
}

impl Visitor for Walk<'_, '_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        self.importer.writing.check_interrupted()?;
        let destination = match self.levels.last() {
            Some(level) => Destination::Name(Arc::clone(&level.copy), visit.name.to_vec()),
            None => self.destination.clone(),
        };
        let is_directory = visit.node.kind() == FileType::Directory;
        let outcome = match is_directory {
            true => self.enter(visit, &destination),
            false => self.copy(visit, &destination),
        };
        let flow = if is_directory && outcome.is_ok() { Flow::Enter } else { Flow::Skip };
        self.report(visit.path, visit.node, outcome)?;
        Ok(flow)
    }

    fn leave(&mut self, visit: &Visit<'_>) -> Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let outcome = self.complete(&level);
        self.importer.directories = level.above;
        self.report(visit.path, visit.node, outcome)
    }

    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()> {
        self.importer.console.report(&self.from.target.failure(path, error));
        Ok(())
    }
}

impl Walk<'_, '_> {
    /// Sets the attributes of the copy of a directory.
    fn complete(&self, level: &Level) -> Result<(), CopyError> {
        let subject = self.from.target.subject(&level.path);
        let lost = Lost { losses: &self.importer.losses, path: &subject };
        let attributes = level.original.attributes();
        match (self.importer.options.preserve, level.is_new) {
            (true, _) => self.preserve(&level.original, &attributes, &level.copy, lost),
            (false, true) => set_permissions(&level.copy, self.plain_permissions(&attributes)),
            (false, false) => Ok(()),
        }
    }

    /// Reports a failed copy. If the image is full, counts the file for the report at the end
    /// instead.
    fn report(&mut self, path: &[u8], node: &Node, outcome: Result<(), CopyError>) -> Result<()> {
        let subject = self.from.target.subject(path);
        let Err(CopyError::Image(action, error @ (Error::NoSpace | Error::NoInodes))) = &outcome
        else {
            return report(self.importer.console, subject.as_slice(), outcome);
        };
        let failure = Failure::action(subject.as_slice(), action, error);
        let full = Full::of(error);
        self.importer.left_out.add(&subject, node.attributes().size, failure, full);
        Ok(())
    }

    /// Begins the copy of a directory.
    fn enter(&mut self, visit: &Visit<'_>, destination: &Destination) -> Result<(), CopyError> {
        if !self.importer.options.recursive {
            return Err(CopyError::Other(IS_DIRECTORY.into()));
        }
        let by = self.owner_of(&visit.node.attributes());
        let (directories, is_new) = match destination {
            Destination::Into(directory) => (vec![Arc::clone(directory)], false),
            Destination::Name(directory, name) => {
                self.check_not_own(visit)?;
                if self.importer.directories.is_empty() {
                    self.importer.directories.push(Arc::clone(directory));
                }
                self.importer.create_directory(&by, directory, name)?
            }
        };
        let Some(copy) = directories.last().map(Arc::clone) else { return Ok(()) };
        if self.from.is_destination {
            self.importer.made.insert(copy.number());
        }
        let above = std::mem::replace(&mut self.importer.directories, directories);
        let (original, path) = (Arc::clone(visit.node), visit.path.to_vec());
        self.levels.push(Level { original, path, copy, is_new, above });
        Ok(())
    }

    /// Copies a file that is no directory.
    fn copy(&mut self, visit: &Visit<'_>, destination: &Destination) -> Result<(), CopyError> {
        let Destination::Name(directory, name) = destination else {
            return Err(Error::NotDirectory.into());
        };
        self.check_not_own(visit)?;
        let importer = &*self.importer;
        importer.check_not_made(directory, name)?;
        let node = visit.node;
        if self.from.is_destination
            && importer
                .volume
                .lookup(directory, name)
                .is_ok_and(|found| found.number() == node.number())
        {
            return Err(CopyError::Other(IS_SAME.into()));
        }
        let attributes = node.attributes();
        let key = (self.from.number, node.number().0);
        let is_linked = importer.options.preserve && attributes.links > 1;
        if let Some(&copy) = importer.links.get(&key).filter(|_| is_linked) {
            let copy = importer.volume.node(copy)?;
            return create_complete(importer.volume, directory, name, |_, name| {
                Ok(importer.volume.link(directory, name, &copy)?)
            });
        }
        let subject = self.from.target.subject(visit.path);
        let lost = Lost { losses: &importer.losses, path: &subject };
        create_complete(importer.volume, directory, name, |replaced, name| {
            self.copy_node((node, &attributes), replaced, (directory, name), lost)
        })?;
        let copy = self.importer.note_made(directory, name)?;
        if is_linked {
            self.importer.links.insert(key, copy);
        }
        Ok(())
    }

    fn copy_node(
        &self,
        (node, attributes): (&Arc<Node>, &Attributes),
        replaced: Option<&Node>,
        (directory, name): (&Arc<Node>, &[u8]),
        lost: Lost<'_>,
    ) -> Result<(), CopyError> {
        let importer = &*self.importer;
        let kind = attributes.kind;
        let is_plain = matches!(kind, FileType::Regular | FileType::Symlink);
        if !is_plain && !importer.options.recursive {
            return Err(CopyError::Other(IS_SPECIAL.into()));
        }
        let target = match kind {
            FileType::Symlink => node.read_link().map_err(cannot_read)?,
            _ => Vec::new(),
        };
        let permissions = match kind {
            // Only the owner can read the copy until it is complete.
            FileType::Regular => 0o600,
            FileType::Symlink => 0o777,
            _ => self.plain_permissions(attributes),
        };
        let creation = Creation {
            device: attributes.device,
            target: &target,
            ..Creation::of(kind, permissions)
        };
        let by = self.owner_of(attributes);
        let copy = importer.volume.create_in(directory, name, &creation, &by)?;
        if kind == FileType::Regular {
            let check = || importer.writing.check_interrupted().map_err(CopyError::Fatal);
            contents::copy_node(node, &copy, cached_bytes_max(importer.volume), check)?;
        }
        match replaced {
            _ if importer.options.preserve => self.preserve(node, attributes, &copy, lost),
            _ if kind != FileType::Regular => Ok(()),
            Some(replaced) if replaced.kind() == FileType::Regular => {
                metadata::take_over(replaced, None, &copy, lost)
            }
            _ => set_permissions(&copy, self.plain_permissions(attributes)),
        }
    }

    /// Sets all metadata of the original on its copy.
    fn preserve(
        &self,
        node: &Node,
        attributes: &Attributes,
        copy: &Node,
        lost: Lost<'_>,
    ) -> Result<(), CopyError> {
        let Credentials { uid, gid, .. } = self.owner_of(attributes);
        let preserved = Preserved {
            uid,
            gid,
            permissions: attributes.permissions,
            accessed: Some(attributes.accessed),
            modified: attributes.modified,
        };
        metadata::apply(copy, &preserved, lost, |copy, permissions| {
            metadata::copy_xattrs(node, copy, |_| true, permissions, lost).map(|()| false)
        })
    }

    /// Errors: the file is a copy of this command, or the destination.
    fn check_not_own(&self, visit: &Visit<'_>) -> Result<(), CopyError> {
        let is_own = self.from.is_destination && self.importer.made.contains(&visit.node.number());
        if is_own { Err(CopyError::Other(IS_OWN_COPY.into())) } else { Ok(()) }
    }

    fn owner_of(&self, original: &Attributes) -> Credentials {
        self.importer.owner_of_ids(original.uid, original.gid)
    }

    fn plain_permissions(&self, original: &Attributes) -> u16 {
        original.permissions & 0o777 & !self.importer.writing.umask
    }
}

fn cannot_read(error: Error) -> CopyError {
    CopyError::Image("cannot read", error)
}
