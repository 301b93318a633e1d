//! `bifolio mv`.

use base::Error;
use clap::Args;
use confine::Inherited;
use vfs::{Credentials, Follow, RenameFlags, Volume};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::text;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{HostFiles, Writing, change_images};
use crate::tree::destination::NO_NAME;

const CANNOT_MOVE: &str = "cannot move";

/// The arguments of `bifolio mv`.
#[derive(Args)]
pub struct Arguments {
    /// Treat DESTINATION as the new name even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Do not replace an existing file; fail instead
    #[arg(short, long)]
    no_clobber: bool,
    /// Replace existing files, which is always done
    #[arg(short = 'f', long = "force", hide = true, overrides_with = "no_clobber")]
    _force: bool,
    /// Exchange SOURCE and DESTINATION
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    /// Files and directories to move
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    sources: Vec<Target>,
    /// Directory in the same image to move them to, or new name
    #[arg(required = true, value_name = "IMAGE:/DESTINATION", value_parser = Target::parser())]
    destination: Target,
    #[command(flatten)]
    image: ImageOptions,
}

/// Moves all sources.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let destination = &arguments.destination;
    for source in &arguments.sources {
        source.require_same_image(destination)?;
    }
    let host_files = HostFiles::none(Inherited::list());
    let targets = arguments.sources.iter().chain([destination]);
    change_images(&arguments.image, targets, host_files, console, |writing, console| {
        let volume = writing.get(destination)?;
        let count = arguments.sources.len();
        let is_directory =
            destination.takes_sources(&volume, arguments.no_target_directory, count)?;
        for source in &arguments.sources {
            let outcome = rename(&arguments, source, is_directory, &volume, writing);
            console.tolerate(outcome)?;
        }
        Ok(())
    })
}

fn rename(
    arguments: &Arguments,
    source: &Target,
    is_directory: bool,
    volume: &Volume,
    writing: &Writing,
) -> Result<()> {
    writing.check_interrupted()?;
    let failure = |error: &Error| Failure::action(source, CANNOT_MOVE, error);
    let name = source.file_name().ok_or_else(|| Failure::new(source, NO_NAME))?;
    let to =
        if is_directory { arguments.destination.join(name) } else { arguments.destination.clone() };
    let flags = RenameFlags {
        no_replace: arguments.no_clobber,
        exchange: arguments.exchange,
        ..RenameFlags::default()
    };
    let moved = source.resolve(volume, Follow::No)?;
    // Renaming one name of a file to another would do nothing.
    let replaced = volume.resolve(&to.path, Follow::No);
    if !flags.exchange && replaced.is_ok_and(|replaced| replaced.number() == moved.number()) {
        let to = text::escape(&to.path).into_owned();
        return Err(Failure::new(source, format!("cannot move: {to} is the same file")));
    }
    volume
        .rename_at(&source.path, &to.path, flags, &Credentials::ROOT)
        .map_err(|error| failure(&error))
}
