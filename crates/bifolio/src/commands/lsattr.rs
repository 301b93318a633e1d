//! `bifolio lsattr`.

use base::Error;
use base::attributes::FileType;
use clap::Args;
use serde::Serialize;
use vfs::Follow;

use crate::console::Console;
use crate::console::failure::Result;
use crate::format::{json, mode};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

/// The arguments of `bifolio lsattr`.
#[derive(Args)]
pub struct Arguments {
    /// Also show names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Show directories instead of their contents
    #[arg(short, long)]
    directory: bool,
    /// Show the names of the flags
    #[arg(short, long)]
    long: bool,
    /// Show project ids
    #[arg(short, long)]
    project: bool,
    /// Show generation numbers
    #[arg(short = 'v', long)]
    generation: bool,
    /// Show directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print a JSON array with all attributes of each file
    #[arg(long)]
    json: bool,
    /// Directories and files to show
    #[arg(required = true, value_name = "IMAGE[:/PATH]", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Shows all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let mut array = arguments.json.then(|| json::Array::begin(console)).transpose()?;
    for target in &arguments.targets {
        let outcome = volumes.get(target).and_then(|volume| {
            let node = target.resolve(&volume, Follow::No)?;
            let order = Order::Sorted { hidden: arguments.all };
            let display = |path: &[u8]| volumes.display(target, path);
            let mut shown = Shown {
                arguments: &arguments,
                target,
                display: &display,
                array: &mut array,
                console,
            };
            walk::walk(&volume, node, &target.path, order, &mut shown)
        });
        console.tolerate(outcome)?;
    }
    array.map_or(Ok(()), |array| array.end(console))
}

struct Shown<'a> {
    arguments: &'a Arguments,
    target: &'a Target,
    display: &'a dyn Fn(&[u8]) -> Vec<u8>,
    array: &'a mut Option<json::Array>,
    console: &'a mut Console,
}

impl Visitor for Shown<'_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        let Arguments { directory, recursive, .. } = self.arguments;
        let is_listed = visit.depth == 0 && visit.node.kind() == FileType::Directory && !directory;
        if !is_listed {
            self.print(visit)?;
        }
        let enters = *recursive && !directory || is_listed;
        Ok(if enters { Flow::Enter } else { Flow::Skip })
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
    fn print(&mut self, visit: &Visit<'_>) -> Result<()> {
        let attributes = visit.node.attributes();
        if let Some(array) = self.array {
            let path = json::bytes(json::PATH, visit.path);
            return array.push(self.console, &JsonFile { path, inode: (&attributes).into() });
        }
        let path = (self.display)(visit.path);
        if self.arguments.project {
            let project = attributes.project.unwrap_or_default();
            self.console.print(format_args!("{project:5} "))?;
        }
        if self.arguments.generation {
            self.console.print(format_args!("{:<10} ", attributes.generation))?;
        }
        if self.arguments.long {
            self.console.print_name(&path)?;
            let names = mode::flag_names(attributes.flags);
            let names = if names.is_empty() { "---".to_owned() } else { names.join(", ") };
            return self.console.print(format_args!(" {names}\n"));
        }
        self.console.print(format_args!("{} ", mode::flag_letters(attributes.flags)))?;
        self.console.print_name(&path)?;
        self.console.print("\n")
    }
}

#[derive(Serialize)]
struct JsonFile<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
    #[serde(flatten)]
    inode: json::Inode,
}
