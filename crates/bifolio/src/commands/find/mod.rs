//! `bifolio find`.

mod expression;
mod glob;
mod parse;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::Args;
use serde::Serialize;
use vfs::Follow;

use self::expression::{Action, Context, Outcome};
use self::parse::Query;
use crate::console::Console;
use crate::console::failure::Result;
use crate::format::json;
use crate::images::Images;
use crate::images::target::{ImageOptions, Target};
use crate::tree::listing::{self, Columns};
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

const EXPRESSION_HELP: &str = "\
Expressions work as in find(1). The default action is -print. N is exactly N, +N more than N, -N less than N.

Tests:
  -name GLOB, -iname GLOB      Name without directories; -iname ignores case
  -path GLOB, -ipath GLOB      Whole path; * and ? also match /
  -lname GLOB, -ilname GLOB    Target of a symbolic link
  -type LETTERS                Type: f, d, l, c, b, p or s; several with commas
  -size [+-]N[cwbkMG]          Size, rounded up to units of 1, 2, 512 (default), 2^10, 2^20 or 2^30
  -empty                       Empty file or directory
  -perm MODE, -MODE, /MODE     Exactly these permissions, all of them, or any of them
  -uid, -gid, -inum, -links    Owner, group, inode number, number of hard links: [+-]N
  -user NAME, -group NAME      Owner, group: a number, or a name of a user or group of the image
  -mtime, -atime, -ctime       Modified, accessed, inode changed [+-]N days ago
  -mmin, -amin, -cmin          Modified, accessed, inode changed [+-]N minutes ago
  -newer PATH                  Modified after PATH in the image; also -anewer, -cnewer
  -samefile PATH               Same inode as PATH in the image
  -xattr GLOB                  Name of an extended attribute
  -true, -false                Always true, always false

Actions:
  -print, -print0              Print the path and a line break, or a NUL byte
  -ls                          Print a line in the format of ls -dils
  -prune                       Do not descend into the directory
  -quit                        Exit

Other:
  -maxdepth N, -mindepth N     Search at most, at least N levels below the start
  ( EXPR ), ! EXPR, -not EXPR  Group, negate
  EXPR EXPR, EXPR -a EXPR      And; also -and
  EXPR -o EXPR                 Or; also -or";

/// The arguments of `bifolio find`.
#[derive(Args)]
#[command(after_help = EXPRESSION_HELP)]
pub struct Arguments {
    /// Print a JSON array with all attributes of each match, in place of what -print, -print0 and
    /// -ls print
    #[arg(long)]
    json: bool,
    /// Directory to search
    #[arg(value_name = "IMAGE[:/PATH]", value_parser = Target::parser())]
    target: Target,
    /// Tests and actions; options must precede IMAGE
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    expression: Vec<OsString>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Searches the target.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let Arguments { json, image, target, expression } = arguments;
    let words: Vec<_> = expression.into_iter().map(OsString::into_vec).collect();
    let volume = Images::open(&image, std::slice::from_ref(&target))?.volume(&target)?;
    let query = parse::parse(&words, &volume)?;
    let array = if json { Some(json::Array::begin(console)?) } else { None };
    let mut search = Search { query, target: &target, console, array };
    let start = search.console.tolerate(target.resolve(&volume, Follow::No))?;
    if let Some(start) = start {
        walk::walk(&volume, start, &target.path, Order::Inode, &mut search)?;
    }
    match search.array {
        Some(array) => array.end(search.console),
        None => Ok(()),
    }
}

struct Search<'a> {
    query: Query,
    target: &'a Target,
    console: &'a mut Console,
    array: Option<json::Array>,
}

#[derive(Serialize)]
struct JsonFound<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
    #[serde(flatten)]
    inode: json::Inode,
    #[serde(flatten)]
    target: Option<json::Bytes<'a>>,
}

impl Search<'_> {
    fn run_action(&mut self, action: Action, visit: &Visit<'_>) -> Result<()> {
        if matches!(action, Action::Print | Action::PrintNull) && self.array.is_none() {
            if action == Action::PrintNull {
                self.console.write(visit.path)?;
                return self.console.write(b"\0");
            }
            self.console.print_name(visit.path)?;
            return self.console.print('\n');
        }
        let failure = |error| self.target.failure(visit.path, &error);
        let link =
            self.console.tolerate(listing::link_target(visit.node).map_err(failure))?.flatten();
        let attributes = visit.node.attributes();
        if let Some(array) = &mut self.array {
            let found = JsonFound {
                path: json::bytes(json::PATH, visit.path),
                inode: (&attributes).into(),
                target: link.as_deref().map(|link| json::bytes(json::TARGET, link)),
            };
            return array.push(self.console, &found);
        }
        let has_acl = self.console.tolerate(listing::has_acl(visit.node).map_err(failure))?;
        let columns = Columns::for_stream();
        self.console.print(columns.inode(attributes.inode))?;
        self.console.print(format_args!("{:>8} ", attributes.blocks.div_ceil(2)))?;
        self.console.print(columns.long(&attributes, has_acl))?;
        self.console.print_name(visit.path)?;
        if let Some(link) = link {
            self.console.print(" -> ")?;
            self.console.print_name(&link)?;
        }
        self.console.print('\n')
    }
}

impl Visitor for Search<'_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        let mut outcome = Outcome::default();
        if visit.depth >= self.query.depth_min {
            let context = Context {
                path: visit.path,
                name: if visit.depth == 0 { expression::last_name(visit.path) } else { visit.name },
                node: visit.node,
                attributes: visit.node.attributes(),
                now: self.query.now,
            };
            if let Err(error) = self.query.expression.evaluate(&context, &mut outcome) {
                self.console.report(&self.target.failure(visit.path, &error));
            }
        }
        for action in std::mem::take(&mut outcome.actions) {
            self.run_action(action, visit)?;
        }
        Ok(match outcome {
            Outcome { quit: true, .. } => Flow::Quit,
            Outcome { prune: true, .. } => Flow::Skip,
            _ if self.query.depth_max.is_some_and(|max| visit.depth >= max) => Flow::Skip,
            _ => Flow::Enter,
        })
    }

    fn leave(&mut self, _visit: &Visit<'_>) -> Result<()> {
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &base::Error) -> Result<()> {
        self.console.report(&self.target.failure(path, error));
        Ok(())
    }
}
