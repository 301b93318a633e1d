//! `bifolio fallocate`: gives ranges of files space, or takes it from them.

use base::attributes::FileType;
use base::{Error, FileOffset};
use clap::Args;
use vfs::{Creation, Credentials, Fallocate, Follow, OpenMode, Privileges, Volume};

use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::target::{ImageOptions, Target, parse_size};
use crate::writing::{Writing, change_targets};

/// The permissions of files that are made, before the umask.
const PERMISSIONS: u16 = 0o666;

const AFTER_HELP: &str = "\
Without an option that says otherwise the range has its space afterwards, reads as zeroes where it \
had no data, and the file ends behind it at the earliest; a file that is not there is made, and is \
root's. Ranges to collapse and insert are multiples of a block, or of a cluster. Files with block maps \
(ext2, ext3) can have holes punched only. K, M, G and T may follow numbers. (--offset, as in all \
commands, is where the file system begins in the image.)";

/// The arguments of `bifolio fallocate`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Where the range begins
    #[arg(short = 'o', long, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    from: u64,
    /// How long the range is
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    length: u64,
    /// Leave the size of the file as it is
    #[arg(short = 'n', long)]
    keep_size: bool,
    /// Take the range's space away: it is a hole
    #[arg(short, long, group = "mode")]
    punch_hole: bool,
    /// Have the range read as zeroes, with its space
    #[arg(short, long, group = "mode")]
    zero_range: bool,
    /// Take the range out: what lies behind it moves up
    #[arg(short, long, group = "mode", conflicts_with = "keep_size")]
    collapse_range: bool,
    /// Make a hole of the range: what lies there moves behind it
    #[arg(short, long, group = "mode", conflicts_with = "keep_size")]
    insert_range: bool,
    /// Give the range space that no other file shares
    #[arg(short, long, group = "mode")]
    unshare: bool,
    /// The files
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

impl Arguments {
    fn mode(&self) -> Fallocate {
        let keep_size = self.keep_size;
        match () {
            () if self.punch_hole => Fallocate::PunchHole,
            () if self.zero_range => Fallocate::ZeroRange { keep_size },
            () if self.collapse_range => Fallocate::CollapseRange,
            () if self.insert_range => Fallocate::InsertRange,
            () if self.unshare => Fallocate::Unshare { keep_size },
            () => Fallocate::Allocate { keep_size },
        }
    }
}

/// Changes every file.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, _| {
        change(&arguments, target, writing)
    })
}

fn change(arguments: &Arguments, target: &Target, writing: &mut Writing<'_>) -> Result<()> {
    let volume = writing.get(target)?;
    let failure = |error: &Error| match error {
        Error::Unsupported(_) => Failure::new(target, format!("cannot change its space: {error}")),
        error => Failure::action(target, "cannot change its space", error),
    };
    if arguments.length == 0 {
        return Err(Failure::new(target, "no range has a length of 0").usage());
    }
    let mode = arguments.mode();
    let node = match volume.resolve(&target.path, Follow::Yes) {
        Err(Error::NotFound) if matches!(mode, Fallocate::Allocate { .. }) => {
            make(target, &volume, writing.umask)?
        }
        node => node.map_err(|error| failure(&error))?,
    };
    let end = arguments.from.checked_add(arguments.length);
    let end = end.ok_or_else(|| failure(&Error::FileTooLarge))?;
    let range = FileOffset(arguments.from)..FileOffset(end);
    let file = node.open_for(OpenMode { write: true, append: false });
    let done = file.and_then(|file| file.fallocate(mode, range, Privileges::Keep));
    done.map_err(|error| failure(&error))
}

fn make(target: &Target, volume: &Volume, umask: u16) -> Result<std::sync::Arc<vfs::Node>> {
    let (directory, name) = target.place(volume)?;
    let what = Creation { umask, ..Creation::of(FileType::Regular, PERMISSIONS) };
    let made = volume.create(&directory, &name, &what, &Credentials::ROOT);
    made.map_err(|error| Failure::action(target, "cannot create", &error))
}
