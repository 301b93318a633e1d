//! `bifolio ln`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base::Error;
use base::attributes::FileType;
use clap::Args;
use confine::Inherited;
use vfs::{Creation, Credentials, Follow, RenameFlags, Volume};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{HostFiles, Ownership, Writing, change_images};

const CANNOT_LINK: &str = "cannot create link";

/// The arguments of `bifolio ln`.
#[derive(Args)]
pub struct Arguments {
    /// Create symbolic links with SOURCE as their target
    #[arg(short, long)]
    symbolic: bool,
    /// Replace existing files, but not directories
    #[arg(short, long)]
    force: bool,
    /// Treat DESTINATION as the name of the link even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    #[command(flatten)]
    ownership: Ownership,
    /// Files to link to: IMAGE:/PATH, or any text with -s
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Directory in the image to create the links in, or name of the link
    #[arg(required = true, value_name = "IMAGE:/DESTINATION", value_parser = Target::parser())]
    destination: Target,
    #[command(flatten)]
    image: ImageOptions,
}

/// Source of a link.
enum Source {
    /// A file, for a hard link.
    File(Target),
    /// A text, for a symbolic link.
    Text(Vec<u8>),
}

impl Source {
    fn name(&self) -> Option<Vec<u8>> {
        match self {
            Self::File(target) => target.file_name().map(<[u8]>::to_vec),
            Self::Text(text) => {
                let name = text.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty())?;
                (name != b"." && name != b"..").then(|| name.to_vec())
            }
        }
    }
}

/// Creates all links.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let destination = &arguments.destination;
    let mut sources = Vec::new();
    for source in &arguments.sources {
        if arguments.symbolic {
            sources.push(Source::Text(source.as_bytes().to_vec()));
            continue;
        }
        let source = Target::parse(source, Path::exists);
        source.require_same_image(destination)?;
        sources.push(Source::File(source));
    }
    let host_files = HostFiles::none(Inherited::list());
    change_images(&arguments.image, [destination], host_files, console, |writing, console| {
        let volume = writing.get(destination)?;
        let count = sources.len();
        let is_directory =
            destination.takes_sources(&volume, arguments.no_target_directory, count)?;
        for source in &sources {
            let outcome = link(&arguments, source, is_directory, &volume, writing);
            console.tolerate(outcome)?;
        }
        Ok(())
    })
}

fn link(
    arguments: &Arguments,
    source: &Source,
    is_directory: bool,
    volume: &Volume,
    writing: &Writing,
) -> Result<()> {
    writing.check_interrupted()?;
    let destination = &arguments.destination;
    let to = match (is_directory, source.name()) {
        (false, _) => destination.clone(),
        (true, Some(name)) => destination.join(&name),
        (true, None) => {
            return Err(
                Failure::new(destination, "is a directory: add the name of the link").usage()
            );
        }
    };
    if let Source::File(source) = source {
        if source.resolve(volume, Follow::No)?.kind() == FileType::Directory {
            let failure = Failure::new(source, "is a directory, which cannot have hard links");
            return Err(failure.advise("use -s for a symbolic link"));
        }
    }
    let by = arguments.ownership.credentials(volume)?;
    let created = match create(&by, source, volume, &to.path) {
        Err(Error::Exists) if arguments.force => replace(&by, source, volume, &to),
        created => created,
    };
    created.map_err(|error| Failure::action(&to, CANNOT_LINK, &error))
}

fn create(by: &Credentials, source: &Source, volume: &Volume, path: &[u8]) -> Result<(), Error> {
    match source {
        Source::File(target) => volume.link_at(&target.path, path),
        Source::Text(text) => volume.create_at(path, &Creation::symlink(text), by).map(drop),
    }
}

/// Creates the link with a temporary name, and renames it over the existing file.
fn replace(
    owner: &Credentials,
    source: &Source,
    volume: &Volume,
    to: &Target,
) -> Result<(), Error> {
    let existing = volume.resolve(&to.path, Follow::No)?;
    if existing.kind() == FileType::Directory {
        return Err(Error::IsDirectory);
    }
    if let Source::File(source) = source {
        // Both are names of one file already.
        if volume.resolve(&source.path, Follow::No)?.number() == existing.number() {
            return Ok(());
        }
    }
    drop(existing);
    let by = &Credentials::ROOT;
    let temporary = to.temporary_sibling(|path| create(owner, source, volume, path))?;
    volume.rename_at(&temporary, &to.path, RenameFlags::default(), by).inspect_err(|_| {
        // If this fails, too, the name shows that the file is temporary.
        let _ = volume.remove(&temporary, by);
    })
}
