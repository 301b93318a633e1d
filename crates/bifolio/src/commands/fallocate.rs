//! `bifolio fallocate`.

use std::sync::Arc;

use base::{Error, FileOffset};
use clap::Args;
use vfs::{Fallocate, Follow, OpenMode, Privileges};

use crate::cli::numbers::parse_size;
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};

const CANNOT_CHANGE: &str = "cannot change the allocated space";

const AFTER_HELP: &str = "\
By default, space is allocated for the whole range. Parts without data read as zeroes. A shorter file is \
extended to the end of the range. A missing file is created and belongs to root; it is removed again if there is no space.

Ranges to collapse or insert must be aligned to blocks, or to clusters on volumes with bigalloc. Files with \
block maps (ext2, ext3) support only --punch-hole.

Numbers accept the suffixes K, M, G and T. Note that --offset is the start of the file system in the image, \
as in all commands; --from is the start of the range.";

/// The arguments of `bifolio fallocate`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Set the start of the range in the file
    #[arg(short = 'o', long, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    from: u64,
    /// Set the length of the range
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    length: u64,
    /// Do not change the size of the file
    #[arg(short = 'n', long)]
    keep_size: bool,
    /// Free the space of the range, which becomes a hole
    #[arg(short, long, group = "mode")]
    punch_hole: bool,
    /// Allocate space for the range, and zero all of it
    #[arg(short, long, group = "mode")]
    zero_range: bool,
    /// Remove the range from the file, and move the data after it to its start
    #[arg(short, long, group = "mode", conflicts_with = "keep_size")]
    collapse_range: bool,
    /// Insert a hole, and move the data from the start of the range to its end
    #[arg(short, long, group = "mode", conflicts_with = "keep_size")]
    insert_range: bool,
    /// Allocate space for the range, and stop sharing its blocks with other files
    #[arg(short, long, group = "mode")]
    unshare: bool,
    /// Files to change
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

impl Arguments {
    fn mode(&self) -> Fallocate {
        let keep_size = self.keep_size;
        if self.punch_hole {
            Fallocate::PunchHole
        } else if self.zero_range {
            Fallocate::ZeroRange { keep_size }
        } else if self.collapse_range {
            Fallocate::CollapseRange
        } else if self.insert_range {
            Fallocate::InsertRange
        } else if self.unshare {
            Fallocate::Unshare { keep_size }
        } else {
            Fallocate::Allocate { keep_size }
        }
    }
}

/// Changes all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, _| {
        change(&arguments, target, writing)
    })
}

fn change(arguments: &Arguments, target: &Target, writing: &mut Writing) -> Result<()> {
    let volume = writing.get(target)?;
    let failure = |error: &Error| match error {
        Error::Unsupported(_) => Failure::new(target, format!("{CANNOT_CHANGE}: {error}")),
        error => Failure::action(target, CANNOT_CHANGE, error),
    };
    if arguments.length == 0 {
        return Err(Failure::new(target, "the length of the range is 0").usage());
    }
    let mode = arguments.mode();
    let end = arguments.from.checked_add(arguments.length);
    let end = end.ok_or_else(|| failure(&Error::FileTooLarge))?;
    let range = FileOffset(arguments.from)..FileOffset(end);
    let (node, new) = match volume.resolve(&target.path, Follow::Yes) {
        Err(Error::NotFound) if matches!(mode, Fallocate::Allocate { .. }) => {
            let new = target.create_file(&volume, writing.umask)?;
            (Arc::clone(&new.node), Some(new))
        }
        node => (node.map_err(|error| failure(&error))?, None),
    };
    let file = node.open_for(OpenMode { write: true, append: false });
    let done = file.and_then(|file| file.fallocate(mode, range, Privileges::Keep));
    if let (Err(_), Some(new)) = (&done, new) {
        new.remove(&volume);
    }
    done.map_err(|error| failure(&error))
}
