//! `bifolio tree`.

use base::attributes::FileType;
use clap::Args;
use serde::Serialize;
use vfs::Follow;

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::json;
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};
use crate::tree::directory;
use crate::tree::listing;
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

/// The maximum number of levels that are drawn in a line. Without it, the lines of a deep tree
/// would have the square of its depth.
const LEVELS_MAX: usize = 64;

const AFTER_HELP: &str = "\
Below 64 levels, a line shows only the innermost levels. It begins with + and the number of hidden levels.";

/// The arguments of `bifolio tree`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Also show names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Descend at most N levels
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    level: Option<u64>,
    /// Print a flat JSON array of entries with their paths and depths; directories precede their
    /// contents
    #[arg(long)]
    json: bool,
    /// Directories to show
    #[arg(required = true, value_name = "IMAGE[:/PATH]", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Draws the trees of all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let mut drawer = Drawer::new(&arguments, console)?;
    for target in &arguments.targets {
        let outcome = volumes.get(target).and_then(|volume| {
            let start = target.resolve(&volume, Follow::Yes)?;
            let order = Order::Sorted { hidden: arguments.all };
            let title = volumes.display(target, &target.path);
            let mut visitor = TargetVisitor { drawer: &mut drawer, target, title };
            walk::walk(&volume, start, &target.path, order, &mut visitor)
        });
        drawer.console.tolerate(outcome)?;
    }
    drawer.end()
}

struct Drawer<'a> {
    arguments: &'a Arguments,
    console: &'a mut Console,
    array: Option<json::Array>,
    directories: u64,
    others: u64,
    /// For each directory that the walk is in: whether more entries follow it in its parent.
    has_more: Vec<bool>,
}

struct TargetVisitor<'a, 'b> {
    drawer: &'a mut Drawer<'b>,
    target: &'a Target,
    title: Vec<u8>,
}

/// A node as JSON.
#[derive(Serialize)]
struct JsonNode<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
    depth: usize,
    #[serde(flatten)]
    inode: json::Inode,
    #[serde(flatten)]
    target: Option<json::Bytes<'a>>,
}

impl<'a> Drawer<'a> {
    fn new(arguments: &'a Arguments, console: &'a mut Console) -> Result<Self> {
        let array = if arguments.json { Some(json::Array::begin(console)?) } else { None };
        Ok(Self { arguments, console, array, directories: 0, others: 0, has_more: Vec::new() })
    }

    fn end(self) -> Result<()> {
        if let Some(array) = self.array {
            return array.end(self.console);
        }
        let ies = if self.directories == 1 { "y" } else { "ies" };
        let s = if self.others == 1 { "" } else { "s" };
        let (directories, others) = (self.directories, self.others);
        self.console.print(format_args!("\n{directories} director{ies}, {others} file{s}\n"))
    }

    fn draw_line(&mut self, visit: &Visit<'_>, name: &[u8], link: Option<&[u8]>) -> Result<()> {
        if let Some((_, directories)) = self.has_more.split_first() {
            let left_out = directories.len().saturating_sub(LEVELS_MAX);
            if left_out > 0 {
                self.console.print(format_args!("+{left_out} "))?;
            }
            for &has_more in directories.get(left_out..).unwrap_or_default() {
                self.console.print(if has_more { "│   " } else { "    " })?;
            }
            self.console.print(if visit.is_last { "└── " } else { "├── " })?;
        }
        self.console.print_name(name)?;
        if let Some(link) = link {
            self.console.print(" -> ")?;
            self.console.print_name(link)?;
        }
        self.console.print('\n')
    }
}

impl Visitor for TargetVisitor<'_, '_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        let drawer = &mut *self.drawer;
        let link = listing::link_target(visit.node)
            .map_err(|error| self.target.failure(visit.path, &error));
        let link = drawer.console.tolerate(link)?.flatten();
        let is_directory = visit.node.kind() == FileType::Directory;
        let is_at_limit = drawer.arguments.level.is_some_and(|level| visit.depth as u64 >= level);
        let enters = is_directory && !is_at_limit;
        if visit.depth > 0 {
            *(if is_directory { &mut drawer.directories } else { &mut drawer.others }) += 1;
        }
        if let Some(array) = &mut drawer.array {
            let node = JsonNode {
                path: json::bytes(json::PATH, visit.path),
                depth: visit.depth,
                inode: (&visit.node.attributes()).into(),
                target: link.as_deref().map(|link| json::bytes(json::TARGET, link)),
            };
            array.push(drawer.console, &node)?;
        } else {
            let name = if visit.depth == 0 { &self.title } else { visit.name };
            drawer.draw_line(visit, name, link.as_deref())?;
        }
        if enters {
            drawer.has_more.push(!visit.is_last);
        }
        Ok(if enters { Flow::Enter } else { Flow::Skip })
    }

    fn leave(&mut self, _visit: &Visit<'_>) -> Result<()> {
        self.drawer.has_more.pop();
        Ok(())
    }

    fn sorted_in_parts(&mut self, path: &[u8]) {
        let warning =
            Failure::new(self.target.subject(path).as_slice(), directory::SORTED_IN_PARTS);
        self.drawer.console.warn(warning);
    }

    fn failed(&mut self, path: &[u8], error: &base::Error) -> Result<()> {
        self.drawer.console.report(&self.target.failure(path, error));
        Ok(())
    }
}
