//! `bifolio du`.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use base::InodeNumber;
use base::attributes::{Attributes, FileType};
use clap::Args;
use serde::Serialize;
use vfs::Follow;

use crate::console::Console;
use crate::console::failure::Result;
use crate::format::{json, size};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

/// The arguments of `bifolio du`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Print a line for each file, not only for directories
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// Count the sizes of files instead of their allocated space
    #[arg(long)]
    apparent_size: bool,
    /// Like --apparent-size, but print sizes in bytes
    #[arg(short, long, conflicts_with = "human_readable")]
    bytes: bool,
    /// Print the total at the end
    #[arg(short = 'c', long)]
    total: bool,
    /// Print lines only for entries at most N levels below each target
    #[arg(short = 'd', long, value_name = "N", conflicts_with = "summarize")]
    max_depth: Option<usize>,
    /// Print sizes such as 1.5K and 20M; the default unit is 1024 bytes
    #[arg(short, long)]
    human_readable: bool,
    /// Print only the total of each target
    #[arg(short, long)]
    summarize: bool,
    /// End each line with a NUL byte, and do not escape names
    #[arg(short = '0', long, conflicts_with = "json")]
    null: bool,
    /// Print a JSON array; sizes are in bytes
    #[arg(long)]
    json: bool,
    /// Directories and files to show
    #[arg(required = true, value_name = "IMAGE[:/PATH]", value_parser = Target::parser())]
    targets: Vec<Target>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Shows the space of all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let array = if arguments.json { Some(json::Array::begin(console)?) } else { None };
    let mut output = Output { arguments: &arguments, console, array };
    let mut total = 0u64;
    let mut counted: HashMap<&Path, HashSet<InodeNumber>> = HashMap::new();
    for target in &arguments.targets {
        let outcome = volumes.get(target).and_then(|volume| {
            let start = target.resolve(&volume, Follow::No)?;
            let mut sum = Sum {
                output: &mut output,
                target,
                volumes: &volumes,
                earlier: counted.get(&*target.image),
                counted: HashSet::new(),
                has_others: arguments.targets.len() > 1,
                sums: Vec::new(),
                all: 0,
            };
            walk::walk(&volume, start, &target.path, Order::Inode, &mut sum)?;
            let (all, own) = (sum.all, sum.counted);
            counted.entry(&target.image).or_default().extend(own);
            Ok(all)
        });
        total = total.saturating_add(output.console.tolerate(outcome)?.unwrap_or(0));
    }
    if arguments.total {
        output.line(b"total", total)?;
    }
    let Output { array, console, .. } = output;
    match array {
        Some(array) => array.end(console),
        None => Ok(()),
    }
}

struct Output<'a> {
    arguments: &'a Arguments,
    console: &'a mut Console,
    array: Option<json::Array>,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
    bytes: u64,
}

impl Output<'_> {
    fn line(&mut self, path: &[u8], bytes: u64) -> Result<()> {
        if let Some(array) = &mut self.array {
            let line = JsonLine { path: json::bytes(json::PATH, path), bytes };
            return array.push(self.console, &line);
        }
        let text = match self.arguments {
            Arguments { bytes: true, .. } => bytes.to_string(),
            Arguments { human_readable: true, .. } => size::human(bytes),
            _ => bytes.div_ceil(1024).to_string(),
        };
        self.console.print(format_args!("{text}\t"))?;
        if self.arguments.null {
            self.console.write(path)?;
            return self.console.write(b"\0");
        }
        self.console.print_name(path)?;
        self.console.print('\n')
    }
}

struct Sum<'a, 'o> {
    output: &'a mut Output<'o>,
    target: &'a Target,
    volumes: &'a Volumes<'a>,
    /// Inodes of the image that earlier targets have counted.
    earlier: Option<&'a HashSet<InodeNumber>>,
    /// Inodes that this target has counted: files with several names, or all inodes if
    /// `has_others`.
    counted: HashSet<InodeNumber>,
    /// Whether there are other targets, which may be in this one.
    has_others: bool,
    /// The sums of the directories that the walk is in, including the directories themselves.
    sums: Vec<u64>,
    /// The sum of the target.
    all: u64,
}

impl Sum<'_, '_> {
    fn bytes_of(&self, attributes: &Attributes) -> u64 {
        let arguments = self.output.arguments;
        if arguments.apparent_size || arguments.bytes {
            attributes.size
        } else {
            attributes.blocks.saturating_mul(512)
        }
    }

    fn add(&mut self, bytes: u64) {
        let sum = self.sums.last_mut().unwrap_or(&mut self.all);
        *sum = sum.saturating_add(bytes);
    }

    fn line(&mut self, visit: &Visit<'_>, bytes: u64) -> Result<()> {
        let arguments = self.output.arguments;
        let is_shown = match visit.depth {
            0 => true,
            _ if arguments.summarize => false,
            depth => {
                arguments.max_depth.is_none_or(|max| depth <= max)
                    && (arguments.all || visit.node.kind() == FileType::Directory)
            }
        };
        if !is_shown {
            return Ok(());
        }
        self.output.line(&self.volumes.display(self.target, visit.path), bytes)
    }
}

impl Visitor for Sum<'_, '_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        let attributes = visit.node.attributes();
        let bytes = self.bytes_of(&attributes);
        let is_directory = attributes.kind == FileType::Directory;
        // As in du, an inode is counted and printed once, for the first of its names and targets.
        // The walk reports a directory that it meets twice.
        if self.earlier.is_some_and(|earlier| earlier.contains(&attributes.inode)) {
            return Ok(Flow::Skip);
        }
        let may_repeat = self.has_others || (!is_directory && attributes.links > 1);
        let is_new = !may_repeat || self.counted.insert(attributes.inode);
        if !is_new && !is_directory {
            return Ok(Flow::Skip);
        }
        if is_directory {
            self.sums.push(bytes);
            return Ok(Flow::Enter);
        }
        self.add(bytes);
        self.line(visit, bytes)?;
        Ok(Flow::Skip)
    }

    fn leave(&mut self, visit: &Visit<'_>) -> Result<()> {
        let bytes = self.sums.pop().unwrap_or(0);
        self.add(bytes);
        self.line(visit, bytes)
    }

    fn failed(&mut self, path: &[u8], error: &base::Error) -> Result<()> {
        self.output.console.report(&self.target.failure(path, error));
        Ok(())
    }
}
