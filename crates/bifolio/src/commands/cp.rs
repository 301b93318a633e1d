//! `bifolio cp`: sources, destinations and options. Not here: the copies (`copy`, `import`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use rustix::fs::Mode;
use vfs::{Follow, Node};

use crate::console::Console;
use crate::copy::{Directory, Engine, Maximum, Options};
use crate::failure::{Failure, Result, Status};
use crate::import::{self, Destination, Importer};
use crate::signals;
use crate::target::{ImageOptions, Target, Volumes, parse_size};
use crate::writing::{HostFiles, Ownership, change_images};

/// Minimum and maximum of the default number of threads. The minimum may exceed the number of processors, because
/// threads mostly wait for I/O.
const THREADS: std::ops::RangeInclusive<usize> = 4..=16;

const AFTER_HELP: &str = "\
Holes are preserved. A file gets its name only when its copy is complete. Symbolic links below DESTINATION \
are not followed. Names that are invalid on the host are refused.

Copying into an image: all attributes can be preserved without root. Without -a, --owner and --group set the \
owner of the copies. Files are copied one at a time, and --jobs has no effect.

Copying out of an image: what gives rights on the host is left out, unless --privileged is given: device \
files, set-user-ID and set-group-ID bits, and capabilities. Only root can preserve owners, device files and \
privileged attributes. The command prints a warning that counts what it left out, and succeeds. If anything \
else cannot be copied, the command prints an error for it, copies the rest, and fails. It warns when the \
copies have more than 100 times the bytes of the image.";

/// The arguments of `bifolio cp`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Copy directories recursively, and preserve owners, permissions, times, extended attributes, access
    /// control lists and hard links
    #[arg(short, long)]
    archive: bool,
    /// Copy directories recursively
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Treat DESTINATION as the name of the copy even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Out of an image: also copy device files, and with -a, set-user-ID and set-group-ID bits and capabilities.
    /// Only for images that you trust
    #[arg(long)]
    privileged: bool,
    /// Out of an image: stop when the copies have more than BYTES of data
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    max_bytes: Option<u64>,
    /// Out of an image: stop after N files and directories
    #[arg(long, value_name = "N")]
    max_files: Option<u64>,
    /// Do not keep copied data in the cache; always the case for files larger than half of the cache
    #[arg(long)]
    uncached: bool,
    /// Copy up to N files at the same time
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    ownership: Ownership,
    /// Files to copy: IMAGE:/PATH, or paths on the host. IMAGE:/ and paths that end in /. copy the contents
    /// of the directory
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Directory to copy to, or name of the copy: a path on the host, or IMAGE:/PATH
    #[arg(required = true, value_name = "DESTINATION")]
    destination: PathBuf,
    #[command(flatten)]
    image: ImageOptions,
}

/// Copies all sources.
pub fn run(mut arguments: Arguments, console: &mut Console) -> Result<()> {
    arguments.image.uncached = arguments.uncached;
    match path_in_image(&arguments.destination) {
        Some(destination) => copy_in(&arguments, &destination, console),
        None => copy_out(&arguments, console),
    }
}

fn copy_out(arguments: &Arguments, console: &mut Console) -> Result<()> {
    let sources: Vec<Target> =
        arguments.sources.iter().map(|source| Target::parse(source, Path::exists)).collect();
    let destination = arguments.destination.as_path();
    let is_directory = !arguments.no_target_directory && destination.is_dir();
    if sources.len() > 1 && !is_directory {
        let failure = Failure::new(
            destination,
            "is not a directory; several sources need a directory as the destination",
        );
        return Err(failure.with_status(Status::Usage));
    }
    let interrupted = signals::catch()?;
    // One directory is open for each level of a tree.
    confine::raise_file_limit();
    let options = Options {
        preserve: arguments.archive,
        recursive: arguments.archive || arguments.recursive,
        privileged: arguments.privileged,
        maximum: Maximum { bytes: arguments.max_bytes, files: arguments.max_files },
        umask: take_umask(),
        threads: arguments.jobs.unwrap_or_else(default_threads),
    };
    let mut volumes = Volumes::unconfined(&arguments.image, &sources)?;
    let engine = Engine::new(options, &interrupted, console);
    let outcome = sources.iter().try_for_each(|source| {
        let outcome = copy(source, destination, is_directory, options, &mut volumes, &engine);
        engine.tolerate(outcome)
    });
    engine.finish(destination.as_os_str().as_bytes());
    outcome
}

fn copy(
    source: &Target,
    destination: &Path,
    is_directory: bool,
    options: Options,
    volumes: &mut Volumes<'_>,
    engine: &Engine<'_>,
) -> Result<()> {
    let volume = volumes.get(source)?;
    let follow = if options.recursive { Follow::No } else { Follow::Yes };
    let node = source.resolve(&volume, follow)?;
    let (directory, name) = resolve_destination(source, &node, destination, is_directory)?;
    if let Some(name) = &name {
        let copy =
            if is_directory { &destination.join(OsStr::from_bytes(name)) } else { destination };
        refuse_source(&source.image, copy)?;
    }
    engine.copy(&volume, source, node, directory, name.as_deref())
}

/// Returns the destination directory on the host, and the name of the copy in it. Without a name, the contents of the
/// source are copied to the directory.
fn resolve_destination(
    source: &Target,
    node: &Arc<Node>,
    destination: &Path,
    is_directory: bool,
) -> Result<(Directory, Option<Vec<u8>>)> {
    let open = |path: &Path, node| {
        Directory::existing(path, node, &source.image)
            .map_err(|error| Failure::host(path, "cannot open", &error))
    };
    if is_directory {
        return match source.file_name() {
            Some(name) => Ok((open(destination, None)?, Some(name.to_vec()))),
            None => {
                let original = Some((Arc::clone(node), source.path.clone()));
                Ok((open(destination, original)?, None))
            }
        };
    }
    let Some(name) = destination.file_name() else {
        let error = io::Error::from(io::ErrorKind::NotADirectory);
        return Err(Failure::host(destination, "cannot create a file with this name", &error));
    };
    let parent = match destination.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((open(parent, None)?, Some(name.as_bytes().to_vec())))
}

fn copy_in(arguments: &Arguments, destination: &Target, console: &mut Console) -> Result<()> {
    for source in &arguments.sources {
        let path = Path::new(source);
        if path_in_image(path).is_some() && path.symlink_metadata().is_err() {
            let failure = Failure::new(path, "cannot copy from one image to another");
            return Err(failure.advise("copy it to the host first").usage());
        }
    }
    let options = import::Options {
        preserve: arguments.archive,
        recursive: arguments.archive || arguments.recursive,
        follow: !arguments.archive && !arguments.recursive,
        by: arguments.ownership.credentials(),
        permissions: None,
    };
    change_images(
        &arguments.image,
        [destination],
        HostFiles::ByPath,
        console,
        |writing, console| {
            let volume = writing.get(destination)?;
            let count = arguments.sources.len();
            let is_directory =
                destination.takes_sources(&volume, arguments.no_target_directory, count)?;
            let image = destination.image.as_path();
            let mut importer = Importer::new(&options, &volume, destination, writing, console);
            let outcome = arguments.sources.iter().try_for_each(|source| {
                let copy = match import::file_name(source) {
                    Some(name) if is_directory => {
                        let directory = destination.resolve(&volume, Follow::Yes)?;
                        Destination::Name(directory, name.to_vec())
                    }
                    _ if is_directory || destination.file_name().is_none() => {
                        Destination::Into(destination.resolve(&volume, Follow::Yes)?)
                    }
                    _ => {
                        let (directory, name) = destination.parent_and_name(&volume)?;
                        Destination::Name(directory, name)
                    }
                };
                importer.copy(Path::new(source), &copy)
            });
            importer.finish(image);
            outcome
        },
    )
}

/// Parses `path` as a path in an image. Returns `None` for a path of the host.
fn path_in_image(path: &Path) -> Option<Target> {
    let is_image = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() || file.file_type().is_block_device())
    };
    let target = Target::parse(path.as_os_str(), is_image);
    (target.image != path && is_image(&target.image)).then_some(target)
}

/// Errors: the copy would replace the source image.
fn refuse_source(image: &Path, copy: &Path) -> Result<()> {
    let identity = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    match identity(copy) {
        Some(replaced) if identity(image) == Some(replaced) => {
            let failure = Failure::new(copy, "is the source image");
            Err(failure.advise("choose another destination").with_status(Status::Usage))
        }
        _ => Ok(()),
    }
}

/// Returns the umask of the process, and clears it, because the copy sets the permissions of each file itself.
fn take_umask() -> u16 {
    (rustix::process::umask(Mode::empty()).as_raw_mode() & 0o777) as u16
}

fn default_threads() -> NonZeroUsize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = processors.clamp(*THREADS.start(), *THREADS.end());
    NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
}
