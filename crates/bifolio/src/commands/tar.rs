//! `bifolio tar`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use clap::Args;
use confine::Inherited;
use vfs::Follow;

use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::import::{Unpacker, check_uncompressed};
use crate::target::{ImageOptions, Target};
use crate::writing::{HostFiles, change_images};

const AFTER_HELP: &str = "\
Owners (as numbers), permissions, times, extended attributes, hard links, device files and holes are \
preserved; this does not need root. Symbolic links in the image are not followed. Names with .. are refused. \
Files in the archive replace existing files and empty directories, and directories replace existing files. \
Existing directories keep their other entries.

Supported formats are ustar, GNU tar and pax. For a compressed archive, use a pipe: \
zstd -dc root.tar.zst | bifolio tar - disk.img:/";

/// The arguments of `bifolio tar`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Remove N leading components from each path
    #[arg(long, value_name = "N", default_value_t = 0)]
    strip_components: usize,
    /// Archive to unpack; - is standard input
    #[arg(value_name = "ARCHIVE")]
    archive: OsString,
    /// Directory in the image to unpack to
    #[arg(value_name = "IMAGE:/DIRECTORY", value_parser = Target::parser())]
    destination: Target,
    #[command(flatten)]
    image: ImageOptions,
}

/// Unpacks the archive.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let Arguments { strip_components, archive, destination, .. } = &arguments;
    // Before the archive is opened.
    let inherited = Inherited::list();
    let (name, input): (_, Box<dyn Read>) = if archive == "-" {
        (Path::new("standard input"), Box::new(io::stdin().lock()))
    } else {
        let name = Path::new(archive);
        let file = File::open(name);
        let file = file.map_err(|error| Failure::host(name, "cannot open", &error))?;
        (name, Box::new(io::BufReader::with_capacity(1 << 20, file)))
    };
    let input =
        check_uncompressed(input).map_err(|error| Failure::host(name, "cannot read", &error))?;
    let input = input.map_err(|compression| {
        let failure = Failure::new(name, format!("is compressed ({compression})"));
        failure.advise("decompress it, and pipe it to `bifolio tar -`")
    })?;
    change_images(
        &arguments.image,
        [destination],
        HostFiles::none(inherited).with_input(archive == "-"),
        console,
        |writing, console| {
            let volume = writing.get(destination)?;
            let root = destination.resolve(&volume, Follow::Yes)?;
            if root.kind() != base::attributes::FileType::Directory {
                return Err(Failure::library(destination, &base::Error::NotDirectory));
            }
            Unpacker::new(&volume, root, *strip_components, writing, console).unpack(
                name,
                input,
                &destination.image,
            )
        },
    )
}
