//! `bifolio tar`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use clap::Args;
use confine::Inherited;
use vfs::Follow;

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{HostFiles, change_images};
use crate::import::{UnpackOptions, Unpacker, check_uncompressed};

const AFTER_HELP: &str = "\
Owners (as numbers), permissions, times, extended attributes, access control lists, hard links, device files and holes are \
preserved; this does not need root. Names with .. are refused. Files in the archive replace existing files and empty \
directories, and directories replace existing files. Existing directories keep their other entries.

Directories do not replace symbolic links to directories, such as /lib in systems with a merged /usr: without \
--keep-directory-symlink, they and their contents are not unpacked, and the command fails. With it, such a link is followed as \
in a chroot to DIRECTORY, but not out of DIRECTORY, and the directory that it leads to keeps its attributes. Other symbolic links \
in the image are not followed.

Extended attributes and access control lists are taken in the forms of GNU tar, star and libarchive (--xattrs, --acls, --selinux). \
Names in access control lists are those of the image's /etc/passwd and /etc/group, if the archive has no numbers for them. The \
command prints a warning that counts what it could not unpack of other records, and what hard links have that differs from their \
files: as in GNU tar and bsdtar, only a hard link with data of its own sets them.

The names .wh.* in layers of container images (OCI) say which files of other layers are removed. They, and what is below such \
names, are not unpacked, and the command fails, unless --keep-whiteouts is given.

Supported formats are v7, ustar, GNU tar and pax. For a compressed archive, use a pipe: \
zstd -dc root.tar.zst | bifolio tar - disk.img:/";

/// The arguments of `bifolio tar`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Remove N leading components from each path
    #[arg(long, value_name = "N", default_value_t = 0)]
    strip_components: usize,
    /// Follow symbolic links to directories in the image where the archive has directories
    #[arg(long)]
    keep_directory_symlink: bool,
    /// Unpack whiteouts of layers (.wh.*) as files
    #[arg(long)]
    keep_whiteouts: bool,
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
    let Arguments { archive, destination, .. } = &arguments;
    let options = UnpackOptions {
        strip: arguments.strip_components,
        keep_directory_links: arguments.keep_directory_symlink,
        keep_whiteouts: arguments.keep_whiteouts,
    };
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
            Unpacker::new(&volume, root, options, writing, console).unpack(
                name,
                input,
                &destination.image,
            )
        },
    )
}
