//! `bifolio rm`.

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, Location, Problem};
use clap::Args;
use vfs::{Credentials, Follow, Node, Volume};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};
use crate::tree::destination::NO_NAME;
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

const CANNOT_REMOVE: &str = "cannot remove";

/// The arguments of `bifolio rm`.
#[derive(Args)]
pub struct Arguments {
    /// Remove directories and their contents
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Remove empty directories
    #[arg(short, long)]
    dir: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
    /// Discard the freed blocks; an image file becomes sparse
    #[arg(long)]
    discard: bool,
    /// Files and directories to remove; symbolic links are not followed
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Removes all targets.
pub fn run(mut arguments: Arguments, console: &mut Console) -> Result<()> {
    for target in &arguments.targets {
        if target.path.iter().all(|byte| *byte == b'/') {
            let text = "the root directory of an image cannot be removed";
            return Err(Failure::new(target, text)
                .advise("name what to remove, such as IMAGE:/name")
                .usage());
        }
        if target.file_name().is_none() {
            let failure = Failure::new(target, NO_NAME);
            return Err(failure.advise("expected a path such as IMAGE:/name").usage());
        }
    }
    arguments.image.discard = arguments.discard;
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, console| {
        remove(&arguments, target, writing, console)
    })
}

fn remove(
    arguments: &Arguments,
    target: &Target,
    writing: &mut Writing,
    console: &mut Console,
) -> Result<()> {
    let volume = writing.get(target)?;
    let failure = |error: &Error| Failure::action(target, CANNOT_REMOVE, error);
    let node = match volume.resolve(&target.path, Follow::No) {
        Err(Error::NotFound | Error::NotDirectory) if arguments.force => return Ok(()),
        node => node.map_err(|error| failure(&error))?,
    };
    if node.kind() != FileType::Directory || arguments.dir && !arguments.recursive {
        drop(node);
        return volume.remove(&target.path, &Credentials::ROOT).map_err(|error| failure(&error));
    }
    if !arguments.recursive {
        return Err(failure(&Error::IsDirectory).advise("use -r to remove it with its contents"));
    }
    let (parent, name) = target.parent_and_name(&volume)?;
    let mut remover =
        Remover { volume: &volume, target, writing, console, name, directories: vec![parent] };
    walk::walk(&volume, node, &target.path, Order::Inode, &mut remover)
}

/// Visitor that removes the contents of a directory before the directory.
struct Remover<'a> {
    volume: &'a Volume,
    target: &'a Target,
    writing: &'a Writing,
    console: &'a mut Console,
    /// The name of the directory that the walk starts from.
    name: Vec<u8>,
    /// The directories from the parent of this name down to the innermost directory.
    directories: Vec<Arc<Node>>,
}

impl Visitor for Remover<'_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        self.writing.check_interrupted()?;
        if visit.node.kind() == FileType::Directory {
            if let Err(error) = self.check_parent(visit.node) {
                self.report(visit.path, Err(error));
                return Ok(Flow::Skip);
            }
            self.directories.push(Arc::clone(visit.node));
            return Ok(Flow::Enter);
        }
        if let Some(directory) = self.directories.last() {
            let removed = self.volume.unlink(directory, visit.name, &Credentials::ROOT);
            self.report(visit.path, removed);
        }
        Ok(Flow::Skip)
    }

    fn leave(&mut self, visit: &Visit<'_>) -> Result<()> {
        self.directories.pop();
        if let Some(directory) = self.directories.last() {
            let name = if visit.depth == 0 { &self.name } else { visit.name };
            let removed = self.volume.rmdir(directory, name, &Credentials::ROOT);
            self.report(visit.path, removed);
        }
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()> {
        self.console.report(&self.target.failure(path, error));
        Ok(())
    }
}

impl Remover<'_> {
    /// Refuses a directory whose ".." is not the innermost directory. On a damaged volume, a
    /// directory can have a second name and belong to another tree. Its contents must not be
    /// removed.
    fn check_parent(&self, node: &Node) -> Result<(), Error> {
        let Some(parent) = self.directories.last() else { return Ok(()) };
        if node.lookup(b"..")? == parent.number() {
            return Ok(());
        }
        let location = Location::inode(node.number());
        let problem = Problem::Missing("the entry \"..\" with the parent's inode");
        Err(Error::corrupt("directory", location, problem))
    }

    fn report(&mut self, path: &[u8], removed: Result<(), Error>) {
        if let Err(error) = removed {
            let subject = self.target.subject(path);
            self.console.report(&Failure::action(subject.as_slice(), CANNOT_REMOVE, &error));
        }
    }
}
