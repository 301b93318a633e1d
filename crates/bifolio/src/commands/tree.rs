//! `bifolio tree`: draws a directory and all that is in it.

use base::attributes::FileType;
use clap::Args;
use serde::Serialize;
use vfs::Follow;

use crate::console::Console;
use crate::failure::Result;
use crate::format::json;
use crate::listing;
use crate::target::{ImageOptions, Target, Volumes};
use crate::walk::{self, Order, Stop, Then, Visitor};

/// The arguments of `bifolio tree`.
#[derive(Args)]
pub struct Arguments {
    /// Also show names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// How many steps to go down
    #[arg(short = 'L', long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    level: Option<u64>,
    /// Write a JSON array, each directory with its "contents"
    #[arg(long)]
    json: bool,
    /// Where to start
    #[arg(required = true, value_name = "IMAGE[:/PATH]", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Draws every target.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets);
    let mut drawer = Drawer::new(&arguments, console);
    drawer.begin()?;
    for target in &arguments.targets {
        let outcome = volumes.get(target).and_then(|volume| {
            let start = target.resolve(&volume, Follow::Yes)?;
            let order = Order::Sorted { hidden: arguments.all };
            let title = volumes.display(target, &target.path);
            let mut visitor = OfTarget { drawer: &mut drawer, target, title };
            walk::walk(&volume, start, &target.path, order, &mut visitor)
        });
        drawer.console.tolerate(outcome)?;
    }
    drawer.end()
}

struct Drawer<'a> {
    arguments: &'a Arguments,
    console: &'a mut Console,
    directories: u64,
    others: u64,
    /// In JSON, for the outermost array and each directory on the way: how many elements it has.
    elements: Vec<u64>,
    /// For each directory on the way: whether more names follow beside it.
    more: Vec<bool>,
}

struct OfTarget<'a, 'b> {
    drawer: &'a mut Drawer<'b>,
    target: &'a Target,
    title: Vec<u8>,
}

/// One node for scripts.
#[derive(Serialize)]
struct JsonNode<'a> {
    #[serde(flatten)]
    name: json::Bytes<'a>,
    #[serde(flatten)]
    inode: json::Inode,
    #[serde(flatten)]
    target: Option<json::Bytes<'a>>,
}

impl<'a> Drawer<'a> {
    fn new(arguments: &'a Arguments, console: &'a mut Console) -> Self {
        let elements = vec![0];
        Self { arguments, console, directories: 0, others: 0, elements, more: Vec::new() }
    }

    fn begin(&mut self) -> Result<()> {
        if self.arguments.json { self.console.print('[') } else { Ok(()) }
    }

    fn end(self) -> Result<()> {
        if self.arguments.json {
            return self.console.print("\n]\n");
        }
        let ies = if self.directories == 1 { "y" } else { "ies" };
        let s = if self.others == 1 { "" } else { "s" };
        let (directories, others) = (self.directories, self.others);
        self.console.print(format_args!("\n{directories} director{ies}, {others} file{s}\n"))
    }

    fn line(&mut self, stop: &Stop<'_>, name: &[u8], link: Option<&[u8]>) -> Result<()> {
        if let Some((_, on_the_way)) = self.more.split_first() {
            for &more in on_the_way {
                self.console.print(if more { "│   " } else { "    " })?;
            }
            self.console.print(if stop.last { "└── " } else { "├── " })?;
        }
        self.console.name(name)?;
        if let Some(link) = link {
            self.console.print(" -> ")?;
            self.console.name(link)?;
        }
        self.console.print('\n')
    }

    /// Writes an element; that of a directory stays open for its contents.
    fn element(&mut self, node: &JsonNode<'_>, enters: bool) -> Result<()> {
        if let Some(elements) = self.elements.last_mut() {
            self.console.print(if *elements == 0 { "\n" } else { ",\n" })?;
            *elements += 1;
        }
        let text = json::text(node);
        if !enters {
            return self.console.print(text);
        }
        self.elements.push(0);
        self.console.print(text.strip_suffix('}').unwrap_or(&text))?;
        self.console.print(",\"contents\":[")
    }
}

impl Visitor for OfTarget<'_, '_> {
    fn arrive(&mut self, stop: &Stop<'_>) -> Result<Then> {
        let drawer = &mut *self.drawer;
        let name = match stop.depth {
            0 => &self.title,
            _ => stop.name,
        };
        let link =
            listing::link_target(stop.node).map_err(|error| self.target.failure(stop.path, &error));
        let link = drawer.console.tolerate(link)?.flatten();
        let is_directory = stop.node.kind() == FileType::Directory;
        let deep_enough = drawer.arguments.level.is_some_and(|level| stop.depth as u64 >= level);
        let enters = is_directory && !deep_enough;
        if stop.depth > 0 {
            *(if is_directory { &mut drawer.directories } else { &mut drawer.others }) += 1;
        }
        if drawer.arguments.json {
            let node = JsonNode {
                name: json::bytes(json::NAME, name),
                inode: (&stop.node.attributes()).into(),
                target: link.as_deref().map(|link| json::bytes(json::TARGET, link)),
            };
            drawer.element(&node, enters)?;
        } else {
            drawer.line(stop, name, link.as_deref())?;
        }
        if enters {
            drawer.more.push(!stop.last);
        }
        Ok(if enters { Then::Enter } else { Then::Skip })
    }

    fn leave(&mut self, _stop: &Stop<'_>) -> Result<()> {
        self.drawer.more.pop();
        if self.drawer.arguments.json {
            let elements = self.drawer.elements.pop();
            self.drawer.console.print(if elements == Some(0) { "]}" } else { "\n]}" })?;
        }
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &base::Error) -> Result<()> {
        self.drawer.console.report(&self.target.failure(path, error));
        Ok(())
    }
}
