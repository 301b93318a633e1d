//! `bifolio ls`.

use std::collections::HashSet;
use std::sync::Arc;

use base::InodeNumber;
use base::attributes::{Attributes, FileType};
use clap::Args;
use serde::Serialize;
use vfs::{Follow, Node, Volume};

use crate::console::Console;
use crate::directory::{self, Entry};
use crate::failure::{Failure, Result};
use crate::format::{json, mode};
use crate::listing::{self, Columns};
use crate::target::{ImageOptions, Target, Volumes};

/// The arguments of `bifolio ls`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Also list names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// List directories instead of their contents
    #[arg(short, long)]
    directory: bool,
    /// With -l, print sizes such as 1.5K and 20M
    #[arg(short, long)]
    human_readable: bool,
    /// Print the inode number of each file
    #[arg(short, long)]
    inode: bool,
    /// Print type, permissions (+ for an access control list), links, owner, group, size and modification
    /// time; owners are numbers, times are UTC
    #[arg(short)]
    long: bool,
    /// List directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// End each name with a NUL byte, and do not escape names
    #[arg(short = '0', long, conflicts_with_all = ["long", "json"])]
    null: bool,
    /// Print a JSON array with all attributes of each entry
    #[arg(long)]
    json: bool,
    /// Directories and files to list
    #[arg(required = true, value_name = "IMAGE[:/PATH]", value_parser = Target::parser())]
    targets: Vec<Target>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Lists all targets. Reports failures, and continues with the next target.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut array = if arguments.json { Some(json::Array::begin(console)?) } else { None };
    let volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let has_titles = arguments.recursive || arguments.targets.len() > 1;
    let mut lister = Lister {
        arguments: &arguments,
        volumes,
        array: array.as_mut(),
        has_titles,
        is_first: true,
    };
    for target in &arguments.targets {
        let outcome = lister.list_target(target, console);
        console.tolerate(outcome)?;
    }
    match array {
        Some(array) => array.end(console),
        None => Ok(()),
    }
}

struct Lister<'a> {
    arguments: &'a Arguments,
    volumes: Volumes<'a>,
    array: Option<&'a mut json::Array>,
    /// Whether the path of a directory is printed before its entries.
    has_titles: bool,
    is_first: bool,
}

/// A tree that is listed.
struct Tree<'a> {
    target: &'a Target,
    volume: &'a Volume,
    /// The directories that were listed.
    seen: HashSet<InodeNumber>,
}

/// A directory whose subdirectories are being listed.
struct Level {
    /// The length of the directory's path.
    path_bytes: usize,
    /// The subdirectories that were not listed yet. Names, since their paths would take memory of the square of the depth.
    below: std::vec::IntoIter<(Vec<u8>, InodeNumber)>,
}

/// One line of a listing.
struct Row {
    name: Vec<u8>,
    inode: InodeNumber,
    kind: Option<FileType>,
    /// `None` if the options do not need them, or if they cannot be read.
    details: Option<Details>,
}

struct Details {
    attributes: Attributes,
    has_acl: bool,
    link_target: Option<Vec<u8>>,
}

impl Lister<'_> {
    fn list_target(&mut self, target: &Target, console: &mut Console) -> Result<()> {
        let volume = self.volumes.get(target)?;
        let lists_links = self.arguments.directory || self.arguments.long || self.arguments.json;
        let follow = if lists_links { Follow::No } else { Follow::Yes };
        let node = target.resolve(&volume, follow)?;
        if node.kind() == FileType::Directory && !self.arguments.directory {
            return self.list_tree(target, &volume, node, console);
        }
        let entry = Entry {
            name: target.path.clone(),
            inode: node.number(),
            directory: node.number(),
            kind: Some(node.kind()),
        };
        let failure = |error| target.failure(&target.path, &error);
        let row = self.row(&volume, entry, failure, console)?;
        self.write(vec![row], None, console)
    }

    /// Lists a directory and, with -R, its subdirectories.
    fn list_tree(
        &mut self,
        target: &Target,
        volume: &Volume,
        start: Arc<Node>,
        console: &mut Console,
    ) -> Result<()> {
        let mut tree = Tree { target, volume, seen: HashSet::new() };
        let mut path = target.path.clone();
        let below = self.list_level(&mut tree, start.number(), &path, console)?;
        let mut levels = vec![Level { path_bytes: path.len(), below: below.into_iter() }];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_bytes);
            let Some((name, number)) = level.below.next() else {
                levels.pop();
                continue;
            };
            directory::push(&mut path, &name);
            let below = self.list_level(&mut tree, number, &path, console)?;
            levels.push(Level { path_bytes: path.len(), below: below.into_iter() });
        }
        Ok(())
    }

    /// Lists the directory `number`, unless it was listed before. Returns its subdirectories if they are to be listed.
    fn list_level(
        &mut self,
        tree: &mut Tree<'_>,
        number: InodeNumber,
        path: &[u8],
        console: &mut Console,
    ) -> Result<Vec<(Vec<u8>, InodeNumber)>> {
        let failure = |error| tree.target.failure(path, &error);
        if path.len() > crate::walk::PATH_BYTES_MAX {
            console.report(&failure(base::Error::NameTooLong));
            return Ok(Vec::new());
        }
        if !tree.seen.insert(number) {
            let location = base::Location::inode(number);
            let error = base::Error::corrupt("directory", location, base::Problem::Cycle);
            console.report(&failure(error));
            return Ok(Vec::new());
        }
        let Some(node) = console.tolerate(tree.volume.node(number).map_err(failure))? else {
            return Ok(Vec::new());
        };
        let entries = self.list_directory(tree.target, tree.volume, &node, path, console)?;
        if !self.arguments.recursive {
            return Ok(Vec::new());
        }
        let below = entries.into_iter().filter(|entry| {
            let is_directory = match entry.kind {
                Some(kind) => kind == FileType::Directory,
                // Some directories do not record types. Errors were reported above.
                None => {
                    let node = tree.volume.node(entry.inode);
                    node.is_ok_and(|node| node.kind() == FileType::Directory)
                }
            };
            is_directory && !entry.is_dot()
        });
        Ok(below.map(|entry| (entry.name, entry.inode)).collect())
    }

    /// Lists one directory, and returns its entries.
    fn list_directory(
        &mut self,
        target: &Target,
        volume: &Volume,
        node: &Node,
        path: &[u8],
        console: &mut Console,
    ) -> Result<Vec<Entry>> {
        if self.has_titles && !self.arguments.json && !self.arguments.null {
            if !std::mem::take(&mut self.is_first) {
                console.print('\n')?;
            }
            console.print_name(&self.volumes.display(target, path))?;
            console.print(":\n")?;
        }
        let (mut entries, outcome) = directory::read_sorted(node);
        entries.retain(|entry| self.arguments.all || !entry.is_hidden());
        let mut rows = Vec::with_capacity(entries.len());
        for entry in &entries {
            let failure = |error| target.failure(&directory::join(path, &entry.name), &error);
            rows.push(self.row(volume, entry.clone(), failure, console)?);
        }
        self.write(rows, Some(path), console)?;
        if let Err(error) = outcome {
            console.report(&target.failure(path, &error));
        }
        Ok(entries)
    }

    /// Returns the row of an entry. Attributes that cannot be read are reported and omitted.
    fn row(
        &self,
        volume: &Volume,
        entry: Entry,
        failure: impl FnOnce(base::Error) -> Failure,
        console: &mut Console,
    ) -> Result<Row> {
        let details = if self.arguments.long || self.arguments.json {
            console.tolerate(details(volume, &entry).map_err(failure))?
        } else {
            None
        };
        Ok(Row { name: entry.name, inode: entry.inode, kind: entry.kind, details })
    }

    /// Writes rows. Their names are those of entries of `directory`, or paths.
    fn write(
        &mut self,
        rows: Vec<Row>,
        directory: Option<&[u8]>,
        console: &mut Console,
    ) -> Result<()> {
        if let Some(array) = &mut self.array {
            return rows.iter().try_for_each(|row| {
                let path = directory.map(|directory| directory::join(directory, &row.name));
                array.push(console, &JsonRow::new(row, path.as_deref().unwrap_or(&row.name)))
            });
        }
        let mut columns = Columns::default();
        for row in &rows {
            columns.fit(row.inode, row.details.as_ref().map(|details| &details.attributes));
        }
        columns.human = self.arguments.human_readable;
        for row in &rows {
            if self.arguments.inode {
                console.print(columns.inode(row.inode))?;
            }
            match &row.details {
                Some(details) => {
                    console.print(columns.long(&details.attributes, details.has_acl))?;
                }
                None if self.arguments.long => console.print(columns.unknown(row.kind))?,
                None => {}
            }
            match self.arguments.null {
                true => console.write(&row.name)?,
                false => console.print_name(&row.name)?,
            }
            if let Some(target) = row.details.as_ref().and_then(|of| of.link_target.as_ref()) {
                console.print(" -> ")?;
                console.print_name(target)?;
            }
            console.write(if self.arguments.null { b"\0" } else { b"\n" })?;
        }
        Ok(())
    }
}

fn details(volume: &Volume, entry: &Entry) -> base::Result<Details> {
    let node = directory::node(volume, entry)?;
    Ok(Details {
        attributes: node.attributes(),
        has_acl: listing::has_acl(&node)?,
        link_target: listing::link_target(&node)?,
    })
}

/// A row as JSON.
#[derive(Serialize)]
struct JsonRow<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
    #[serde(flatten)]
    name: json::Bytes<'a>,
    #[serde(flatten)]
    inode: JsonInode,
    #[serde(flatten)]
    target: Option<json::Bytes<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    has_acl: Option<bool>,
}

/// Attributes of the inode, or only those in the directory.
#[derive(Serialize)]
#[serde(untagged)]
enum JsonInode {
    Known(Box<json::Inode>),
    Named { inode: u64, r#type: Option<&'static str>, unreadable: bool },
}

impl<'a> JsonRow<'a> {
    fn new(row: &'a Row, path: &'a [u8]) -> Self {
        let inode = match &row.details {
            Some(details) => JsonInode::Known(Box::new((&details.attributes).into())),
            None => JsonInode::Named {
                inode: row.inode.0,
                r#type: row.kind.map(mode::type_key),
                unreadable: true,
            },
        };
        let target = row.details.as_ref().and_then(|details| details.link_target.as_deref());
        Self {
            path: json::bytes(json::PATH, path),
            name: json::bytes(json::NAME, &row.name),
            inode,
            target: target.map(|target| json::bytes(json::TARGET, target)),
            has_acl: row.details.as_ref().map(|details| details.has_acl),
        }
    }
}
