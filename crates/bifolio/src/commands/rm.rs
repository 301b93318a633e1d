//! `bifolio rm`: removes files and trees.

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, Location, Problem};
use clap::Args;
use vfs::{Credentials, Follow, Node, Volume};

use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::place::NO_NAME;
use crate::target::{ImageOptions, Target};
use crate::walk::{self, Order, Stop, Then, Visitor};
use crate::writing::{Writing, change_targets};

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

/// Removes every target.
pub fn run(mut arguments: Arguments, console: &mut Console) -> Result<()> {
    for target in &arguments.targets {
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
    writing: &mut Writing<'_>,
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
    let (parent, name) = target.place(&volume)?;
    let mut remover =
        Remover { volume: &volume, target, writing, console, name, directories: vec![parent] };
    walk::walk(&volume, node, &target.path, Order::Inode, &mut remover)
}

/// A walk that removes the contents of a directory before the directory.
struct Remover<'a> {
    volume: &'a Volume,
    target: &'a Target,
    writing: &'a Writing<'a>,
    console: &'a mut Console,
    /// The name of the directory that the walk starts from.
    name: Vec<u8>,
    /// The directories from the parent of this name down to the one that the walk is in.
    directories: Vec<Arc<Node>>,
}

impl Visitor for Remover<'_> {
    fn arrive(&mut self, stop: &Stop<'_>) -> Result<Then> {
        self.writing.check_interrupted()?;
        if stop.node.kind() == FileType::Directory {
            if let Err(error) = self.check_parent(stop.node) {
                self.report(stop.path, Err(error));
                return Ok(Then::Skip);
            }
            self.directories.push(Arc::clone(stop.node));
            return Ok(Then::Enter);
        }
        if let Some(directory) = self.directories.last() {
            let removed = self.volume.unlink(directory, stop.name, &Credentials::ROOT);
            self.report(stop.path, removed);
        }
        Ok(Then::Skip)
    }

    fn leave(&mut self, stop: &Stop<'_>) -> Result<()> {
        self.directories.pop();
        if let Some(directory) = self.directories.last() {
            let name = if stop.depth == 0 { &self.name } else { stop.name };
            let removed = self.volume.rmdir(directory, name, &Credentials::ROOT);
            self.report(stop.path, removed);
        }
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()> {
        self.console.report(&self.target.failure(path, error));
        Ok(())
    }
}

impl Remover<'_> {
    /// Refuses a directory whose ".." is not the directory that the walk came from: on a damaged volume, a directory
    /// with a second name may be outside of the tree, and its contents must not be removed.
    fn check_parent(&self, node: &Node) -> Result<(), Error> {
        let Some(parent) = self.directories.last() else { return Ok(()) };
        if node.lookup(b"..")? == parent.number() {
            return Ok(());
        }
        let location = Location::inode(node.number());
        let problem = Problem::Missing("a directory whose parent is this one");
        Err(Error::corrupt("directory", location, problem))
    }

    fn report(&mut self, path: &[u8], removed: Result<(), Error>) {
        if let Err(error) = removed {
            let subject = self.target.subject(path);
            self.console.report(&Failure::action(subject.as_slice(), CANNOT_REMOVE, &error));
        }
    }
}
