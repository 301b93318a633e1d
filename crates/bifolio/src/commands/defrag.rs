//! `bifolio defrag`.

use std::sync::Arc;

use base::Error;
use base::attributes::FileType;
use clap::Args;
use vfs::{Defragmented, Follow, Layout, Node, Volume};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

const AFTER_HELP: &str = "\
A file is moved if it fits into fewer pieces elsewhere in the image. Its contents do not change. On f2fs, a file in \
several pieces is written again if there are enough free segments.

These files are skipped: immutable and append-only files; swap files; files with inline data, fs-verity, data \
journaling or block maps; encrypted files of ext4; compressed and pinned files of f2fs; on volumes with bigalloc, \
all files. Use -v to print the reasons.

The score of a file is the percentage of its reading time that is lost to seeks between its pieces, if a \
seek takes as long as reading 256 KiB.

The image must not be mounted. Files on a mount cannot be moved, not even with e4defrag. \
To make scattered free space of f2fs contiguous, use `bifolio gc`.";

/// The arguments of `bifolio defrag`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Change nothing, and count the fragmented files; with -v, print the pieces of each file
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print every file, and the reason if it is skipped
    #[arg(short, long)]
    verbose: bool,
    /// Files to defragment; directories are searched recursively
    #[arg(required = true, value_name = "IMAGE[:/PATH]", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Defragments all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut sums = Sums::default();
    if arguments.dry_run {
        let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
        for target in &arguments.targets {
            let outcome = volumes.get(target).and_then(|volume| {
                Walk {
                    arguments: &arguments,
                    target,
                    volume: &volume,
                    writing: None,
                    console,
                    sums: &mut sums,
                }
                .run()
            });
            console.tolerate(outcome)?;
        }
    } else {
        change_targets(
            &arguments.image,
            &arguments.targets,
            console,
            |target, writing, console| {
                let volume = writing.get(target)?;
                let writing = Some(&*writing);
                Walk {
                    arguments: &arguments,
                    target,
                    volume: &volume,
                    writing,
                    console,
                    sums: &mut sums,
                }
                .run()
            },
        )?;
    }
    let Sums { files, moved, skipped, before, after } = sums;
    let verb = if arguments.dry_run { "could move" } else { "moved" };
    console.print(format_args!(
        "{files} files examined, {moved} {verb}, {skipped} skipped: {before} pieces"
    ))?;
    match arguments.dry_run {
        true => console.print('\n'),
        false => console.print(format_args!(" before, {after} after\n")),
    }
}

/// Totals of all files.
#[derive(Default)]
struct Sums {
    files: u64,
    /// Moved files. In a dry run, files with more than one piece.
    moved: u64,
    skipped: u64,
    /// The number of pieces before moving.
    before: u64,
    /// The number of pieces after moving.
    after: u64,
}

struct Walk<'a> {
    arguments: &'a Arguments,
    target: &'a Target,
    volume: &'a Volume,
    /// `None` in a dry run.
    writing: Option<&'a Writing>,
    console: &'a mut Console,
    sums: &'a mut Sums,
}

impl Walk<'_> {
    fn run(mut self) -> Result<()> {
        let start = self.target.resolve(self.volume, Follow::Yes)?;
        walk::walk(self.volume, start, &self.target.path, Order::Inode, &mut self)
    }

    fn defragment(&mut self, path: &[u8], node: &Arc<Node>) -> Result<()> {
        self.sums.files += 1;
        let outcome = match self.arguments.dry_run {
            true => examine(node),
            false => self.volume.defragment(node),
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                let subject = self.target.subject(path);
                let failure = Failure::action(subject.as_slice(), "cannot defragment", &error);
                self.console.report(&failure);
                return Ok(());
            }
        };
        let text = match &outcome {
            Defragmented::Moved { before, after } => {
                self.sums.moved += 1;
                self.sums.before += before.pieces;
                self.sums.after += after.pieces;
                format!("{} -> {}", describe(before), describe(after))
            }
            Defragmented::Kept(layout) => {
                self.sums.moved += u64::from(self.arguments.dry_run && layout.pieces > 1);
                self.sums.before += layout.pieces;
                self.sums.after += layout.pieces;
                describe(layout)
            }
            Defragmented::Skipped(reason) => {
                self.sums.skipped += 1;
                format!("skipped: {reason}")
            }
        };
        if self.arguments.verbose || matches!(outcome, Defragmented::Moved { .. }) {
            self.console.print_name(&self.target.subject(path))?;
            self.console.print(format_args!(": {text}\n"))?;
        }
        Ok(())
    }
}

impl Visitor for Walk<'_> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        if let Some(writing) = self.writing {
            writing.check_interrupted()?;
        }
        match visit.node.kind() {
            FileType::Directory => return Ok(Flow::Enter),
            FileType::Regular => self.defragment(visit.path, visit.node)?,
            // Named on the command line.
            _ if visit.depth == 0 => {
                let failure =
                    Failure::new(self.target, "is neither a regular file nor a directory");
                self.console.report(&failure);
            }
            _ => {}
        }
        Ok(Flow::Skip)
    }

    fn leave(&mut self, _visit: &Visit<'_>) -> Result<()> {
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()> {
        self.console.report(&self.target.failure(path, error));
        Ok(())
    }
}

/// Returns the layout of a file, or the reason why it cannot be moved.
fn examine(node: &Arc<Node>) -> base::Result<Defragmented> {
    Ok(match node.obstacle_to_moving()? {
        Some(obstacle) => Defragmented::Skipped(obstacle),
        None => Defragmented::Kept(node.layout()?),
    })
}

fn describe(layout: &Layout) -> String {
    let s = if layout.pieces == 1 { "" } else { "s" };
    format!("{} piece{s}, score {}", layout.pieces, layout.score())
}
