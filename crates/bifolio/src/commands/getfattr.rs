//! `bifolio getfattr`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use base::Error;
use base::attributes::FileType;
use clap::Args;
use serde::Serialize;
use vfs::{Follow, Node, Volume};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::json;
use crate::format::pattern::Pattern;
use crate::format::text;
use crate::format::xattr_dump::{self, Encoding};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

const AFTER_HELP: &str = "\
Without -n, shows the attributes with the prefix user. only; -m - shows all, also access control lists, which are \
system.posix_acl_access and system.posix_acl_default. `bifolio stat` shows them in words. Paths are printed without the first /, \
so that setfattr --restore finds the files below another directory.";

/// The arguments of `bifolio getfattr`.
#[derive(Args)]
#[command(after_help = AFTER_HELP, disable_help_flag = true)]
pub struct Arguments {
    /// Show the value of the attribute NAME
    #[arg(short, long, value_name = "NAME")]
    name: Option<OsString>,
    /// Show values, as `setfattr --restore` takes them
    #[arg(short, long)]
    dump: bool,
    /// Encode values as text, hex or base64 [default: text if all of it can be printed, otherwise
    /// base64]
    #[arg(short, long, value_name = "ENCODING")]
    encoding: Option<Encoding>,
    /// Show attributes whose name contains PATTERN, where . is any character, * repeats the one
    /// before, and ^ and $ are the ends; - shows all
    #[arg(
        short = 'm',
        long = "match",
        value_name = "PATTERN",
        allow_hyphen_values = true,
        default_value = "^user\\."
    )]
    pattern: Pattern,
    /// Write only the values, as they are
    #[arg(long, conflicts_with_all = ["encoding", "json"])]
    only_values: bool,
    /// Show directories and their contents; does not enter what symbolic links below them lead to
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show the attributes of symbolic links instead of those of their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print paths with the first /
    #[arg(long)]
    absolute_names: bool,
    /// Print a JSON array with the names and values of each file
    #[arg(long)]
    json: bool,
    /// Files to show
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Shows all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let mut array = arguments.json.then(|| json::Array::begin(console)).transpose()?;
    let follow = if arguments.no_dereference { Follow::No } else { Follow::Yes };
    for target in &arguments.targets {
        let outcome = volumes.get(target).and_then(|volume| {
            let node = target.resolve(&volume, follow)?;
            let mut shown = Shown {
                arguments: &arguments,
                target,
                volume: &volume,
                array: &mut array,
                console,
            };
            walk::walk(&volume, node, &target.path, Order::Sorted { hidden: true }, &mut shown)
        });
        console.tolerate(outcome)?;
    }
    array.map_or(Ok(()), |array| array.end(console))
}

struct Shown<'a> {
    arguments: &'a Arguments,
    target: &'a Target,
    volume: &'a Volume,
    array: &'a mut Option<json::Array>,
    console: &'a mut Console,
}

impl Visitor for Shown<'_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        let target = self.target_of(visit);
        let Some(target) = self.console.tolerate(target)? else { return Ok(Flow::Skip) };
        let node = target.as_deref().unwrap_or(visit.node);
        let names = self.names(node, visit.path)?;
        if let Some(array) = self.array {
            let head = JsonFile { path: json::bytes(json::PATH, visit.path) };
            let mut list = array.begin_object(self.console, &head, "xattrs")?;
            for name in names {
                let failure = |error| self.target.failure(visit.path, &error);
                let value = node.get_xattr(&name).map_err(failure);
                let Some(value) = self.console.tolerate(value)? else { continue };
                let name = json::bytes(json::NAME, &name);
                let value = json::bytes(json::VALUE, &value);
                list.push(self.console, &JsonXattr { name, value })?;
            }
            list.end(self.console, &JsonEnd {})?;
        } else if !names.is_empty() {
            self.print(node, visit.path, &names)?;
        }
        Ok(if self.arguments.recursive { Flow::Enter } else { Flow::Skip })
    }

    fn leave(&mut self, _visit: &Visit<'_>) -> Result<()> {
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()> {
        self.console.report(&self.target.failure(path, error));
        Ok(())
    }
}

impl Shown<'_> {
    /// Returns the target of a symbolic link below a directory, if the attributes of targets are to
    /// be shown: setfattr --restore sets them on the target, too. Paths below an inode number are
    /// none of the image, so that such links are not followed.
    fn target_of(&self, visit: &Visit<'_>) -> Result<Option<Arc<Node>>> {
        let is_link = visit.node.kind() == FileType::Symlink;
        if !is_link || self.arguments.no_dereference || self.target.inode_number().is_some() {
            return Ok(None);
        }
        let target = self.volume.resolve(visit.path, Follow::Yes);
        target.map(Some).map_err(|error| self.target.failure(visit.path, &error))
    }

    /// Returns the names to show, sorted. Reports an error, also if the attribute that was asked
    /// for is missing.
    fn names(&mut self, node: &Node, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        if let Some(name) = &self.arguments.name {
            let name = name.as_bytes().to_vec();
            let outcome = node.get_xattr(&name).map_err(|error| {
                let subject = self.target.subject(path);
                let name = text::escape(&name).into_owned();
                Failure::action(subject.as_slice(), &name, &error)
            });
            return Ok(self.console.tolerate(outcome)?.map(|_| name).into_iter().collect());
        }
        let listed = node.list_xattrs().map_err(|error| self.target.failure(path, &error));
        let mut names = self.console.tolerate(listed)?.unwrap_or_default();
        names.retain(|name| self.arguments.pattern.is_in(name));
        names.sort();
        Ok(names)
    }

    fn print(&mut self, node: &Node, path: &[u8], names: &[Vec<u8>]) -> Result<()> {
        let Arguments { only_values, dump, name, encoding, absolute_names, .. } = self.arguments;
        let shown = match path.iter().position(|&byte| byte != b'/') {
            _ if *absolute_names => path,
            Some(start) => &path[start..],
            None => b".",
        };
        if !only_values {
            self.console.print("# file: ")?;
            self.console.print(xattr_dump::escape_name(shown))?;
            self.console.print("\n")?;
        }
        for xattr in names {
            if !only_values {
                self.console.print(xattr_dump::escape_name(xattr))?;
            }
            if *only_values || *dump || name.is_some() {
                let value = node.get_xattr(xattr);
                let value = value.map_err(|error| self.target.failure(path, &error));
                if let Some(value) = self.console.tolerate(value)? {
                    if *only_values {
                        self.console.write(&value)?;
                    } else {
                        let value = xattr_dump::encode(&value, *encoding);
                        self.console.print(format_args!("={value}"))?;
                    }
                }
            }
            if !only_values {
                self.console.print("\n")?;
            }
        }
        if *only_values { Ok(()) } else { self.console.print("\n") }
    }
}

#[derive(Serialize)]
struct JsonFile<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
}

#[derive(Serialize)]
struct JsonEnd {}

#[derive(Serialize)]
struct JsonXattr<'a> {
    #[serde(flatten)]
    name: json::Bytes<'a>,
    #[serde(flatten)]
    value: json::Bytes<'a>,
}
