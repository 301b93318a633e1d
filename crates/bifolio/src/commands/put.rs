//! `bifolio put`.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use clap::Args;
use confine::Inherited;

use crate::cli::mode_change::{ModeChange, Subject};
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{HostFiles, Ownership, change_images};
use crate::import::{self, Destination, Importer, Options, Source};

/// Default permissions of new files, before the umask.
const PERMISSIONS: u16 = 0o666;

const AFTER_HELP: &str = "\
A new file takes the owner, permissions, access control list and extended attributes of the file that it replaces, \
but not its capabilities. Other hard links to the \
replaced file keep the old contents. To copy directories, or to preserve owners, times and attributes, use \
`bifolio cp -a`.";

/// The arguments of `bifolio put`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Set the mode of the files, as in chmod; ignores the umask
    #[arg(short, long, allow_hyphen_values = true)]
    mode: Option<ModeChange>,
    /// Treat DESTINATION as the name of the file even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    #[command(flatten)]
    ownership: Ownership,
    /// Files of the host to write; - is standard input
    #[arg(required = true, value_name = "FILE")]
    sources: Vec<OsString>,
    /// Directory in the image to write to, or name of the file
    #[arg(required = true, value_name = "IMAGE:/DESTINATION", value_parser = Target::parser())]
    destination: Target,
    #[command(flatten)]
    image: ImageOptions,
}

/// Writes all files.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let Arguments { sources, destination, ownership, .. } = &arguments;
    // Before anything is opened.
    let inherited = Inherited::list();
    confine::raise_file_limit();
    let opened: Vec<Option<Source>> = sources
        .iter()
        .map(|source| (source != "-").then(|| Source::open(Path::new(source))))
        .collect();
    change_images(
        &arguments.image,
        [destination],
        HostFiles::none(inherited).with_input(opened.iter().any(Option::is_none)),
        console,
        |writing, console| {
            let volume = writing.get(destination)?;
            let count = sources.len();
            let is_directory =
                destination.takes_sources(&volume, arguments.no_target_directory, count)?;
            destination.require_file_name(is_directory)?;
            let plain =
                Subject { permissions: PERMISSIONS, is_directory: false, umask: writing.umask };
            let options = Options {
                preserve: false,
                recursive: false,
                keep_directory_links: false,
                by: ownership.credentials(&volume)?,
                owner: None,
                group: None,
                permissions: arguments.mode.as_ref().map(|mode| mode.apply(plain)),
            };
            let image = destination.image.as_path();
            let mut importer = Importer::new(&options, &volume, destination, writing, console);
            let outcome = sources.iter().zip(opened).try_for_each(|(source, opened)| {
                let name = import::file_name(source).filter(|_| opened.is_some());
                let target = match (is_directory, name) {
                    (false, _) => destination.clone(),
                    (true, Some(name)) => destination.join(name),
                    (true, None) => {
                        let failure = Failure::new(destination, "is a directory");
                        return Err(failure.advise("add the name of the new file").usage());
                    }
                };
                let (directory, name) = target.parent_and_name(&volume)?;
                let Some(opened) = opened else {
                    let stream = io::stdin().as_fd().try_clone_to_owned();
                    let stream = stream
                        .map_err(|error| Failure::host("standard input", "cannot read", &error))?;
                    return importer.copy_stream(&stream.into(), &directory, &name);
                };
                importer.copy_opened(opened, &Destination::Name(directory, name))
            });
            importer.finish(image);
            outcome
        },
    )
}
