//! `bifolio cp`: sources, destinations and options. Not here: the copies (`copy`, `import`).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use confine::{Inherited, Layer, Rights, Tree, Trees};
use rustix::fs::{FileType, Mode, OFlags};
use vfs::Follow;

use crate::cli::numbers::{parse_partition, parse_size, parse_threads};
use crate::console::failure::{Failure, Result, Status};
use crate::console::signals;
use crate::console::{self, Console};
use crate::copy::{Directory, Engine, IS_MADE, Links, Maximum, Options, suspicious_bytes};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{HostFiles, Ownership, change_images};
use crate::import::{self, Destination, Importer, InImage, Source};
use crate::tree::destination::refuse_several;

/// Minimum and maximum of the default number of threads. The minimum may exceed the number of
/// processors, because threads mostly wait for I/O.
const THREADS: std::ops::RangeInclusive<usize> = 4..=16;

const AFTER_HELP: &str = "\
Holes are preserved. A file gets its name only when its copy is complete. Symbolic links below DESTINATION \
are not followed, except as --keep-directory-symlink says. If DESTINATION itself is a symbolic link to a directory, the copies go \
into that directory, unless -T is given. Another symbolic link is replaced by the copy, but on the host without -r and -a, the file \
that it leads to is replaced. Names that are invalid on the host are refused.

Copying into an image: the process that parses the image can read no files but the sources. All \
attributes can be preserved without root; with -a, existing directories get the attributes of their sources. \
--owner and --group set the owner of the copies, also with -a. Directories do not replace symbolic links to directories, such as \
/lib in systems with a merged /usr: without --keep-directory-symlink, they are not copied, and the command fails. With it, such \
a link is followed as in a chroot to DESTINATION, but not out of it. Attributes of the sources that cannot be read are counted in a \
warning. The command does not see owners that fakeroot simulates: pipe `fakeroot tar` \
to `bifolio tar -` instead. Without -a, the copy of a file over an existing one keeps the owner, permissions and extended \
attributes of the existing file. Files are copied one at a time, and --jobs has no effect.

Copying from one image to another, or within one: --partition and --offset choose the file system in all images, unless \
--source-partition or --source-offset chooses that of the sources. --superblock, --incomplete and --no-recovery are for the \
sources. Another file system of the destination's own image cannot be the source, nor another device with \
bytes of it.

Copying out of an image: the process that parses the image can write to no directory but DESTINATION, or to its \
parent directory if DESTINATION is no directory. For the contents of a directory, a new DESTINATION is created \
before the image is read, and is left behind if reading fails. What gives rights on the host is not copied, unless \
--privileged is given: device files, set-user-ID and set-group-ID bits, capabilities, and the extended attributes \
security.*, trusted.*, system.* except POSIX access control lists, user.overlay.*, user.fuseoverlayfs.*, user.virtfs.*, \
user.virtiofs.*, user.containers.override_stat and user.rootlesscontainers. Only root can preserve owners, create \
device files, and set privileged attributes. \
Devices, pipes and sockets of the host are not replaced by files. \
The command prints a warning that counts what it left out, and succeeds. If anything else cannot be \
copied, such as a device file with --privileged, the command prints an error for it, copies the rest, and fails. It warns when the copies have more than 100 times the \
bytes of the image, or more files than the image has room for. Directories that exist keep their owners, permissions, times and other \
attributes; with -a, a warning counts those with other owners or permissions than in the image. \
A copy that was killed leaves directories with mode 0700, and files named .bifolio-*.partial.";

/// The arguments of `bifolio cp`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Copy directories recursively, and preserve owners, permissions, times, extended attributes,
    /// access control lists and hard links
    #[arg(short, long)]
    archive: bool,
    /// Copy directories recursively
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Replace existing files, which is always done
    #[arg(short = 'f', long = "force", hide = true)]
    _force: bool,
    /// Treat DESTINATION as the name of the copy even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Into an image: follow symbolic links to directories below DESTINATION where there are
    /// directories to copy
    #[arg(long)]
    keep_directory_symlink: bool,
    /// Out of an image: also copy device files, and with -a, set-user-ID and set-group-ID bits,
    /// capabilities, and extended attributes such as security.* and trusted.*. Only for images that
    /// you trust
    #[arg(long)]
    privileged: bool,
    /// Out of an image: stop, and fail, when the copies have more than BYTES of data
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    max_bytes: Option<u64>,
    /// Out of an image: stop, and fail, if there are more than N files and directories
    #[arg(long, value_name = "N")]
    max_files: Option<u64>,
    /// Do not keep copied data in the cache; always the case for files larger than half of the
    /// cache
    #[arg(long)]
    uncached: bool,
    /// Out of an image: copy up to N files at the same time; by default, as many as there are
    /// processors, from 4 to 16
    #[arg(short, long, value_name = "N", value_parser = parse_threads)]
    jobs: Option<NonZeroUsize>,
    /// From an image to an image: use partition N of the sources' images instead of the one of
    /// --partition
    #[arg(long, value_name = "N", value_parser = parse_partition)]
    source_partition: Option<u32>,
    /// From an image to an image: use the file system at this offset in the sources' images; 0 is
    /// the whole image
    #[arg(long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "source_partition")]
    source_offset: Option<u64>,
    #[command(flatten)]
    ownership: Ownership,
    /// Files to copy: IMAGE:/PATH, or paths on the host. IMAGE:/ and paths that end in /. copy the
    /// contents of the directory
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Directory to copy to, or name of the copy: a path on the host, or IMAGE:/PATH
    #[arg(required = true, value_name = "DESTINATION")]
    destination: PathBuf,
    #[command(flatten)]
    image: ImageOptions,
}

impl Arguments {
    fn import_options(&self, volume: &vfs::Volume) -> Result<import::Options> {
        let [owner, group] = self.ownership.numbers(volume)?;
        Ok(import::Options {
            preserve: self.archive,
            recursive: self.archive || self.recursive,
            keep_directory_links: self.keep_directory_symlink,
            by: self.ownership.credentials(volume)?,
            owner,
            group,
            permissions: None,
        })
    }

    /// Errors: there are options for sources in an image.
    fn refuse_source_part(&self) -> Result<()> {
        match self.source_partition.is_some() || self.source_offset.is_some() {
            false => Ok(()),
            true => {
                let text = "apply only to copies from an image to an image";
                Err(Failure::new("--source-partition, --source-offset", text).usage())
            }
        }
    }
}

/// Copies all sources.
pub fn run(mut arguments: Arguments, console: &mut Console) -> Result<()> {
    // Before anything is opened.
    let inherited = Inherited::list();
    arguments.image.uncached = arguments.uncached;
    // One directory is open for each level of a tree.
    confine::raise_file_limit();
    match path_in_image(&arguments.destination) {
        Some(destination) => copy_in(&arguments, &destination, inherited, console),
        None => copy_out(&arguments, &inherited, console),
    }
}

fn copy_out(arguments: &Arguments, inherited: &Inherited, console: &mut Console) -> Result<()> {
    arguments.refuse_source_part()?;
    if arguments.ownership.is_given() {
        let failure = Failure::new("--owner, --group", "apply only to copies into an image");
        return Err(failure.usage());
    }
    if arguments.keep_directory_symlink {
        let text = "applies only to copies into an image";
        return Err(Failure::new("--keep-directory-symlink", text).usage());
    }
    let sources: Vec<Target> =
        arguments.sources.iter().map(|source| Target::parse(source, Path::exists)).collect();
    let destination = &*followed(arguments)?;
    refuse_image(arguments, &sources, destination)?;
    let mut is_directory = !arguments.no_target_directory && destination.is_dir();
    if sources.len() > 1 && !is_directory {
        return Err(refuse_several(
            destination,
            arguments.no_target_directory,
            destination.exists(),
        ));
    }
    let recursive = arguments.archive || arguments.recursive;
    if !is_directory && !recursive && destination.as_os_str().as_bytes().ends_with(b"/") {
        let error = io::Error::from(io::ErrorKind::NotADirectory);
        return Err(Failure::host(destination, "cannot create a file with this name", &error));
    }
    let options = Options {
        preserve: arguments.archive,
        is_root: rustix::process::geteuid().is_root(),
        recursive,
        privileged: arguments.privileged,
        maximum: Maximum { bytes: arguments.max_bytes, files: arguments.max_files },
        umask: take_umask(),
        threads: arguments.jobs.unwrap_or_else(default_threads),
    };
    // The contents of a directory go to a new one, which is created before, so that the process is
    // confined to it.
    let is_contents =
        options.recursive && sources.iter().all(|source| source.file_name().is_none());
    let new = if is_contents && !is_directory { create_start(destination)? } else { None };
    let is_new = new.is_some();
    is_directory |= is_new;
    let start = new.map_or_else(|| open_start(destination, is_directory), Ok)?;
    let start = if options.is_root { in_own_mount(start, arguments) } else { start.into() };
    let start = &start.directory;
    let copies = sources.iter().map(|source| Copy::new(source, destination, is_directory, is_new));
    let copies = copies.collect::<Result<Vec<_>>>()?;
    let interrupted = signals::catch()?;
    let trees = Trees::Create {
        tree: start.as_fd(),
        attributes: options.preserve,
        privileged: options.privileged,
    };
    let mut volumes = Volumes::with_trees(&arguments.image, &sources, inherited, trees)?;
    let engine = Engine::new(options, &interrupted, console);
    let mut done = Done::default();
    let outcome = copies.into_iter().try_for_each(|copy| {
        let outcome = copy.run(start, options, &mut volumes, &engine, &mut done);
        engine.tolerate(outcome)
    });
    engine.finish(destination.as_os_str().as_bytes());
    outcome
}

/// Errors: no source is a path in an image, and the destination is a file, which cannot get the
/// contents of a root directory.
fn refuse_image(arguments: &Arguments, sources: &[Target], destination: &Path) -> Result<()> {
    let mut named = arguments.sources.iter().zip(sources);
    if !is_image(destination) || named.any(|(name, source)| source.image.as_os_str() != name) {
        return Ok(());
    }
    let failure = Failure::new(destination, "is not a directory");
    Err(failure.advise("for the root directory of an image, add `:/` to its name").usage())
}

/// Returns the destination on the host. Without -r and -a, a symbolic link to a file is followed.
fn followed(arguments: &Arguments) -> Result<Cow<'_, Path>> {
    let destination = arguments.destination.as_path();
    let is_kept = arguments.archive || arguments.recursive || destination.is_dir();
    if is_kept || !destination.is_symlink() {
        return Ok(destination.into());
    }
    let found = destination.canonicalize();
    let found = found.map_err(|error| {
        let failure = Failure::host(destination, "cannot follow the symbolic link", &error);
        failure.advise("`bifolio cat` writes to standard output")
    });
    found.map(Cow::from)
}

/// What the copies of a command share.
#[derive(Default)]
struct Done<'a> {
    /// The names that files other than directories have got.
    names: HashSet<Vec<u8>>,
    /// The copies of files with several names, by the image.
    links: HashMap<&'a Path, Links>,
}

/// Returns the directory `start` in a mount of its own. Without that, the process could change
/// files outside of it by way of directories that other users move out of it. Returns it as it is,
/// with a warning, if the host refuses the mount.
fn in_own_mount(start: OwnedFd, arguments: &Arguments) -> Tree {
    let (start, errno) = match Tree::in_own_mount(start) {
        Ok(tree) => return tree,
        Err(failed) => failed,
    };
    // Without the right to it, the confinement says so.
    let may_mount = Rights::of_process().may_mount();
    if may_mount && arguments.image.confinement.layers().has(Layer::Chroot) {
        let text =
            "directories that other users move out of it are not protected: no mount of its own";
        console::warn(Failure::host(&*arguments.destination, text, &errno.into()));
    }
    start.into()
}

/// Creates the directory `destination` on the host, and opens it. Returns `None` if that fails, or
/// if the directory exists.
fn create_start(destination: &Path) -> Result<Option<OwnedFd>> {
    let Some(name) = destination.file_name() else { return Ok(None) };
    let parent = Directory::at_start(open_start(destination, false)?, None, false, None);
    match parent.create_directory(name.as_bytes()) {
        Ok((new, true)) => Ok(Some(new)),
        Ok((_, false)) | Err(_) => Ok(None),
    }
}

/// Opens the directory on the host in which the copies get their names.
fn open_start(destination: &Path, is_directory: bool) -> Result<OwnedFd> {
    let path = match destination.parent() {
        _ if is_directory => destination,
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Failure::host(path, "cannot open", &error.into()))
}

/// A copy out of an image. Everything about the host is found before the process is confined.
struct Copy<'a> {
    source: &'a Target,
    /// The name of the copy. Without a name, the contents of the source are copied to the
    /// directory.
    name: Option<Vec<u8>>,
    /// Whether the directory that gets the copies was created for them.
    is_new: bool,
    /// The device and inode number of the image. `None` if they could not be found.
    image: Option<(u64, u64)>,
    /// Why the copy is refused.
    refused: Option<Failure>,
    /// The number of bytes above which the copy is suspicious.
    suspicious_bytes: u64,
}

impl<'a> Copy<'a> {
    fn new(
        source: &'a Target,
        destination: &Path,
        is_directory: bool,
        is_new: bool,
    ) -> Result<Self> {
        let name = match is_directory {
            true => source.file_name(),
            false => Some(destination.file_name().map(OsStr::as_bytes).ok_or_else(|| {
                let error = io::Error::from(io::ErrorKind::NotADirectory);
                Failure::host(destination, "cannot create a file with this name", &error)
            })?),
        };
        let image = identity(&source.image);
        let refused = name.and_then(|name| {
            let inside = destination.join(OsStr::from_bytes(name));
            let copy = if is_directory { inside.as_path() } else { destination };
            let failure = Failure::new(copy, "is the source image");
            (image.is_some() && identity(copy) == image)
                .then(|| failure.advise("choose another destination").with_status(Status::Usage))
        });
        let name = name.map(<[u8]>::to_vec);
        let suspicious_bytes = suspicious_bytes(&source.image);
        Ok(Self { source, name, is_new, image, refused, suspicious_bytes })
    }

    /// Copies to the directory `start`, which the process is confined to.
    fn run(
        self,
        start: &OwnedFd,
        options: Options,
        volumes: &mut Volumes<'_>,
        engine: &Engine<'_>,
        done: &mut Done<'a>,
    ) -> Result<()> {
        let Self { source, name, is_new, image, refused, suspicious_bytes } = self;
        let volume = volumes.get(source)?;
        let follow = if options.recursive { Follow::No } else { Follow::Yes };
        let node = source.resolve(&volume, follow)?;
        if let Some(refused) = refused {
            return Err(refused);
        }
        if let Some(name) =
            name.as_ref().filter(|_| node.kind() != base::attributes::FileType::Directory)
            && !done.names.insert(name.clone())
        {
            return Err(Failure::new(source, IS_MADE));
        }
        let original = name.is_none().then(|| Arc::clone(&node));
        let start = start.try_clone();
        let start = start.map_err(|error| Failure::host(source, "cannot be copied", &error))?;
        let directory = Directory::at_start(start, original, is_new, image);
        let links = done.links.entry(&source.image).or_default();
        let to = (directory, name.as_deref());
        engine.copy(&volume, source, node, to, suspicious_bytes, links)
    }
}

/// Returns the device and inode number of a file of the host. `None` if they cannot be found.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|file| (file.dev(), file.ino()))
}

fn copy_in(
    arguments: &Arguments,
    destination: &Target,
    inherited: Inherited,
    console: &mut Console,
) -> Result<()> {
    let only_out = [
        ("--max-bytes", arguments.max_bytes.is_some()),
        ("--max-files", arguments.max_files.is_some()),
        ("--privileged", arguments.privileged),
    ];
    if let Some((option, _)) = only_out.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::new(option, "applies only to copies out of an image").usage());
    }
    let in_images: Vec<Target> =
        arguments.sources.iter().filter_map(|source| source_in_image(Path::new(source))).collect();
    if in_images.len() == arguments.sources.len() {
        return copy_between(arguments, &in_images, destination, inherited, console);
    }
    if let Some(source) = in_images.first() {
        let failure =
            Failure::new(source, "is in an image, but other sources are files of the host");
        return Err(failure.advise("copy them with two commands").usage());
    }
    arguments.refuse_source_part()?;
    let preserve = arguments.archive;
    let recursive = arguments.archive || arguments.recursive;
    let sources = arguments.sources.iter().map(Path::new);
    // Trees are walked while the image is written. Single files are open before.
    let (opened, host_files): (Vec<_>, _) = if recursive {
        let trees = sources.clone().filter_map(open_tree).collect();
        (sources.map(|_| None).collect(), HostFiles::trees(inherited, trees, preserve))
    } else {
        (sources.map(|path| Some(Source::open(path))).collect(), HostFiles::none(inherited))
    };
    change_images(&arguments.image, [destination], host_files, console, |writing, console| {
        let volume = writing.get(destination)?;
        let count = arguments.sources.len();
        let is_directory =
            destination.takes_sources(&volume, arguments.no_target_directory, count)?;
        destination.require_file_name(is_directory || recursive)?;
        let options = arguments.import_options(&volume)?;
        let mut importer = Importer::new(&options, &volume, destination, writing, console);
        let outcome = arguments.sources.iter().zip(opened).try_for_each(|(source, opened)| {
            let copy = place(destination, &volume, is_directory, import::file_name(source))?;
            match opened {
                Some(opened) => importer.copy_opened(opened, &copy),
                None => importer.copy(Path::new(source), &copy),
            }
        });
        importer.finish(&destination.image);
        outcome
    })
}

/// Copies from images to an image.
fn copy_between(
    arguments: &Arguments,
    sources: &[Target],
    destination: &Target,
    inherited: Inherited,
    console: &mut Console,
) -> Result<()> {
    let mut read = arguments.image.clone();
    if arguments.source_partition.is_some() || arguments.source_offset.is_some() {
        read.partition = arguments.source_partition;
        // An offset of 0 is the whole image.
        read.offset = arguments.source_offset.filter(|offset| *offset > 0);
    }
    let recursive = arguments.archive || arguments.recursive;
    let host_files = HostFiles::none(inherited).with_sources(&read, sources);
    let mut written = arguments.image.clone();
    let is_source = sources.iter().any(|source| source.image == destination.image);
    if !is_source {
        // These are for the sources. The destination must be complete, and is recovered.
        (written.incomplete, written.no_recovery) = (false, false);
        (written.superblock, written.block_size) = (None, None);
    }
    change_images(&written, [destination], host_files, console, |writing, console| {
        let volume = writing.get(destination)?;
        let is_directory =
            destination.takes_sources(&volume, arguments.no_target_directory, sources.len())?;
        destination.require_file_name(is_directory || recursive)?;
        let options = arguments.import_options(&volume)?;
        let mut opened = Vec::new();
        for source in sources {
            let found = writing.source(source).and_then(|(volume, number)| {
                let follow = if recursive { Follow::No } else { Follow::Yes };
                Ok((source.resolve(&volume, follow)?, volume, number))
            });
            opened.extend(console.tolerate(found)?.map(|found| (source, found)));
        }
        let mut importer = Importer::new(&options, &volume, destination, writing, console);
        let outcome = opened.into_iter().try_for_each(|(source, (node, from, number))| {
            let copy = place(destination, &volume, is_directory, source.file_name())?;
            let is_destination = Arc::ptr_eq(&from, &volume);
            let from = InImage { target: source, volume: &from, number, is_destination };
            importer.copy_from_image(from, node, &copy)
        });
        importer.finish(&destination.image);
        outcome
    })
}

/// Returns the place of the copy of a source with this name. Without a name, the contents of the
/// source are copied.
fn place(
    destination: &Target,
    volume: &vfs::Volume,
    is_directory: bool,
    name: Option<&[u8]>,
) -> Result<Destination> {
    Ok(match name {
        Some(name) if is_directory => {
            Destination::Name(destination.resolve(volume, Follow::Yes)?, name.to_vec())
        }
        _ if is_directory || destination.file_name().is_none() => {
            Destination::Into(destination.resolve(volume, Follow::Yes)?)
        }
        _ => {
            let (directory, name) = destination.parent_and_name(volume)?;
            Destination::Name(directory, name)
        }
    })
}

/// Parses a source as a path in an image. Returns `None` for a path of the host.
fn source_in_image(path: &Path) -> Option<Target> {
    path_in_image(path).filter(|_| path.symlink_metadata().is_err())
}

/// Opens a directory or a regular file of the host for a rule that allows to read it. Returns
/// `None` for other files, which are not opened, and for missing ones, which are reported when they
/// are copied.
fn open_tree(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&opened).ok()?.st_mode);
    matches!(kind, FileType::Directory | FileType::RegularFile).then_some(opened)
}

/// Returns whether a file of the host can be an image.
fn is_image(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() || file.file_type().is_block_device())
}

/// Parses `path` as a path in an image. Returns `None` for a path of the host.
fn path_in_image(path: &Path) -> Option<Target> {
    let target = Target::parse(path.as_os_str(), is_image);
    (target.image != path && is_image(&target.image)).then_some(target)
}

/// Returns the umask of the process, and clears it, because the copy sets the permissions of each
/// file itself.
fn take_umask() -> u16 {
    (rustix::process::umask(Mode::empty()).as_raw_mode() & 0o777) as u16
}

fn default_threads() -> NonZeroUsize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = processors.clamp(*THREADS.start(), *THREADS.end());
    NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
}
