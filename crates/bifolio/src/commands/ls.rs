//! `bifolio ls`.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use base::InodeNumber;
use base::attributes::{Attributes, DirCursor, FileType};
use clap::Args;
use serde::Serialize;
use vfs::{Follow, Node, Volume};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::{json, mode};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};
use crate::tree::directory::{self, Entry};
use crate::tree::listing::{self, Columns};

/// The maximum memory of the lines of a directory, in bytes. Those of a larger directory are
/// written in parts, of which each has columns of its own width: names and targets of links can be
/// repeated by small images.
const ROWS_BYTES_MAX: usize = 128 << 20;

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
    /// Print type, permissions (+ for an access control list), links, owner, group, size and
    /// modification time; owners are numbers, times are UTC
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

impl Arguments {
    fn shows(&self, entry: &Entry) -> bool {
        self.all || !entry.is_hidden()
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
    /// The number of subdirectories in memory that were not listed yet.
    kept: usize,
}

/// A directory whose subdirectories are being listed.
struct Level {
    /// The length of the directory's path.
    path_bytes: usize,
    below: Below,
}

/// Subdirectories that were not listed yet.
#[derive(Default)]
struct Below {
    /// Names, since their paths would take memory of the square of the depth.
    found: VecDeque<(Vec<u8>, InodeNumber)>,
    /// The directory and the cursor of the entries after them, if it has too many to keep all in
    /// memory.
    rest: Option<(Arc<Node>, DirCursor)>,
}

/// Lines that are written together, in columns of equal width.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    /// The memory that they take, in bytes.
    bytes: usize,
}

impl Rows {
    fn push(&mut self, row: Row) {
        let target = row.details.as_ref().and_then(|details| details.link_target.as_ref());
        self.bytes += size_of::<Row>() + row.name.len() + target.map_or(0, Vec::len);
        self.rows.push(row);
    }
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
    /// `None` if it cannot be read.
    has_acl: Option<bool>,
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
        let failure = |error, path: &[u8]| target.failure(path, &error);
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
        let mut tree = Tree { target, volume, seen: HashSet::new(), kept: 0 };
        let mut path = target.path.clone();
        let below = self.list_level(&mut tree, start.number(), &path, console)?;
        let mut levels = vec![Level { path_bytes: path.len(), below }];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_bytes);
            let Some((name, number)) = self.next_below(&mut tree, &mut level.below) else {
                levels.pop();
                continue;
            };
            directory::push(&mut path, &name);
            let below = self.list_level(&mut tree, number, &path, console)?;
            levels.push(Level { path_bytes: path.len(), below });
        }
        Ok(())
    }

    /// Lists the directory `number`, unless it was listed before. Returns its subdirectories if
    /// they are to be listed.
    fn list_level(
        &mut self,
        tree: &mut Tree<'_>,
        number: InodeNumber,
        path: &[u8],
        console: &mut Console,
    ) -> Result<Below> {
        let failure = |error| tree.target.failure(path, &error);
        if path.len() > crate::tree::walk::PATH_BYTES_MAX {
            console.report(&failure(base::Error::NameTooLong));
            return Ok(Below::default());
        }
        if !tree.seen.insert(number) {
            let location = base::Location::inode(number);
            let error = base::Error::corrupt("directory", location, base::Problem::Cycle);
            console.report(&failure(error));
            return Ok(Below::default());
        }
        let Some(node) = console.tolerate(tree.volume.node(number).map_err(failure))? else {
            return Ok(Below::default());
        };
        self.list_directory(tree, node, path, console)
    }

    /// Lists one directory. With -R, returns its subdirectories.
    fn list_directory(
        &mut self,
        tree: &mut Tree<'_>,
        node: Arc<Node>,
        path: &[u8],
        console: &mut Console,
    ) -> Result<Below> {
        let Tree { target, volume, .. } = *tree;
        if self.has_titles && !self.arguments.json && !self.arguments.null {
            if !std::mem::take(&mut self.is_first) {
                console.print('\n')?;
            }
            console.print_name(&self.volumes.display(target, path))?;
            console.print(":\n")?;
        }
        let arguments = self.arguments;
        let mut below = Below::default();
        let mut batch = directory::read_sorted(&node, DirCursor::default(), tree.kept);
        let is_in_parts = batch.has_more();
        if is_in_parts {
            let subject = target.subject(path);
            console.warn(Failure::new(subject.as_slice(), directory::SORTED_IN_PARTS));
        }
        loop {
            let next = batch.next;
            let mut rows = Rows::default();
            for entry in batch.entries.into_iter().filter(|entry| arguments.shows(entry)) {
                if arguments.recursive && !is_in_parts && entry.is_subdirectory(volume) {
                    below.found.push_back((entry.name.clone(), entry.inode));
                }
                let failure =
                    |error, name: &[u8]| target.failure(&directory::join(path, name), &error);
                rows.push(self.row(volume, entry, failure, console)?);
                if rows.bytes >= ROWS_BYTES_MAX {
                    self.write(std::mem::take(&mut rows).rows, Some(path), console)?;
                }
            }
            self.write(rows.rows, Some(path), console)?;
            match next {
                Ok(None) => break,
                Ok(Some(next)) => batch = directory::read_sorted(&node, next, tree.kept),
                Err(error) => {
                    console.report(&target.failure(path, &error));
                    break;
                }
            }
        }
        tree.kept += below.found.len();
        if self.arguments.recursive && is_in_parts {
            below.rest = Some((node, DirCursor::default()));
        }
        Ok(below)
    }

    /// Returns the next subdirectory. `None` after the last one.
    fn next_below(&self, tree: &mut Tree<'_>, below: &mut Below) -> Option<(Vec<u8>, InodeNumber)> {
        while below.found.is_empty() {
            let (node, from) = below.rest.take()?;
            let batch = directory::read_sorted(&node, from, tree.kept);
            // An error was reported when the directory was listed.
            below.rest = batch.next.ok().flatten().map(|next| (node, next));
            let entries = batch.entries.into_iter();
            let entries = entries
                .filter(|entry| self.arguments.shows(entry) && entry.is_subdirectory(tree.volume));
            below.found = entries.map(|entry| (entry.name, entry.inode)).collect();
            tree.kept += below.found.len();
        }
        tree.kept -= 1;
        below.found.pop_front()
    }

    /// Returns the row of an entry. Attributes that cannot be read are reported and omitted.
    fn row(
        &self,
        volume: &Volume,
        entry: Entry,
        failure: impl Fn(base::Error, &[u8]) -> Failure,
        console: &mut Console,
    ) -> Result<Row> {
        let failure = |error| failure(error, &entry.name);
        let is_detailed = self.arguments.long || self.arguments.json;
        let node = is_detailed.then(|| directory::node(volume, &entry).map_err(failure));
        let details = match node.map(|node| console.tolerate(node)).transpose()?.flatten() {
            Some(node) => Some(Details {
                attributes: node.attributes(),
                has_acl: console.tolerate(listing::has_acl(&node).map_err(failure))?,
                link_target: console
                    .tolerate(listing::link_target(&node).map_err(failure))?
                    .flatten(),
            }),
            None => None,
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
            has_acl: row.details.as_ref().and_then(|details| details.has_acl),
        }
    }
}
