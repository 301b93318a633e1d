//! Images that a command changes. Each image is opened for writing once, and closed at the end even
//! if the command fails. Not here: the changes.
//!
//! A command succeeds only if all images were closed without errors, because only then are its
//! changes durable. After a panic the images are left as after a crash: the journal is replayed
//! when an image is next opened.

use std::fs::Metadata;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use base::{Corrupt, Error, Unsupported, WaitCallback};
use clap::Args;
use confine::{Inherited, Trees};
use device::{Image, SharedDevice};
use rustix::fs::Mode;
use rustix::io::Errno;
use vfs::{Credentials, Volume, VolumeOptions};

use crate::console::failure::{Failure, LATER_CHECKPOINT, Result};
use crate::console::signals;
use crate::console::{self, Console};
use crate::format::text;
use crate::images::confinement::{CommandNeeds, confine_command};
use crate::images::related;
use crate::images::target::{ImageOptions, Target};
use crate::images::users;
use crate::mount_options::defaults;
use crate::tree::accounts::Account;

/// Options for the owner of new files.
#[derive(Args, Clone, Debug)]
pub struct Ownership {
    /// Set the owner of new files: a number, or the name of a user in the image's /etc/passwd
    /// [default: 0]
    #[arg(long, value_name = "USER")]
    owner: Option<Account>,
    /// Set the group of new files: a number, or the name of a group in the image's /etc/group; a
    /// set-group-ID directory passes on its own group instead [default: 0]
    #[arg(long, value_name = "GROUP")]
    group: Option<Account>,
}

impl Ownership {
    /// Returns privileged credentials with the owner of new files in `volume`. As in debugfs, a
    /// user who can write to an image acts as its root, and may allocate the blocks that are
    /// reserved for root.
    pub fn credentials(&self, volume: &Volume) -> Result<Credentials> {
        let [uid, gid] = self.numbers(volume)?.map(Option::unwrap_or_default);
        Ok(Credentials { uid, gid, groups: Vec::new(), privileged: true })
    }

    /// Returns the numbers of the owner and the group that were chosen.
    pub fn numbers(&self, volume: &Volume) -> Result<[Option<u32>; 2]> {
        let owner = self.owner.as_ref().map(|owner| owner.user(volume)).transpose()?;
        let group = self.group.as_ref().map(|group| group.group(volume)).transpose()?;
        Ok([owner, group])
    }

    /// Returns whether the owner or the group was chosen.
    pub fn is_given(&self) -> bool {
        self.owner.is_some() || self.group.is_some()
    }
}

/// What a command accesses while it changes images, beside them and files that it has opened. The
/// process is confined to that before it reads an image.
#[derive(Debug)]
pub struct HostFiles<'a> {
    /// The files that it has inherited, which are closed.
    inherited: Inherited,
    /// Trees of the host, if it reads any, and whether it reads their attributes.
    trees: Option<(Vec<OwnedFd>, bool)>,
    /// Whether it reads standard input.
    input: bool,
    /// The paths in images that it only reads, and the options for these.
    sources: Option<(&'a ImageOptions, &'a [Target])>,
}

impl<'a> HostFiles<'a> {
    /// Returns no further files.
    pub fn none(inherited: Inherited) -> Self {
        Self { inherited, trees: None, input: false, sources: None }
    }

    /// Returns files in `trees`, with all their `attributes` or without.
    pub fn trees(inherited: Inherited, trees: Vec<OwnedFd>, attributes: bool) -> Self {
        Self { inherited, trees: Some((trees, attributes)), input: false, sources: None }
    }

    /// Adds images that the command only reads.
    pub fn with_sources(self, options: &'a ImageOptions, sources: &'a [Target]) -> Self {
        Self { sources: Some((options, sources)), ..self }
    }

    /// Adds standard input, if the command reads it.
    pub fn with_input(self, input: bool) -> Self {
        Self { input, ..self }
    }
}

/// The images that a command changes.
pub struct Writing {
    volume_options: VolumeOptions,
    images: Vec<OpenImage>,
    /// The options for the images that are only read, and these images.
    source_options: VolumeOptions,
    sources: Vec<OpenImage>,
    interrupted: Arc<AtomicBool>,
    /// The umask of the command.
    pub umask: u16,
}

struct OpenImage {
    /// Its paths on the command line. An image can have several.
    paths: Vec<PathBuf>,
    /// Device and inode number. `None` if they could not be found.
    identity: Option<(u64, u64)>,
    state: State,
}

enum State {
    /// It was not read yet.
    Unread(Image),
    Volume(Arc<Volume>),
    Failed(Failure),
}

/// Opens the images of `targets`, calls `work`, which changes them, and then closes them. A failure
/// to close an image fails the command.
pub fn change_images<'t>(
    options: &ImageOptions,
    targets: impl IntoIterator<Item = &'t Target>,
    host_files: HostFiles<'_>,
    console: &mut Console,
    work: impl FnOnce(&mut Writing, &mut Console) -> Result<()>,
) -> Result<()> {
    let interrupted = signals::catch()?;
    let umask = (rustix::process::umask(Mode::empty()).as_raw_mode() & 0o777) as u16;
    let mut volume_options = options.volume_options(true)?;
    let journal = options.open_journal(true)?;
    let mut images = Vec::new();
    for target in targets {
        open_image(options, target, &mut images);
    }
    let HostFiles { inherited, trees, input, sources: read } = host_files;
    let mut sources = Vec::new();
    let mut source_options = VolumeOptions::default();
    if let Some((read_options, targets)) = read {
        source_options = read_options.volume_options(false)?;
        for target in targets {
            // What is also written to is opened once.
            let is_part = read_options.has_part_of(options);
            if !(is_part && find_same(&mut images, target)) {
                refuse_same_bytes((read_options, target), (options, &images))?;
                open_source(read_options, target, &mut sources);
            }
        }
    }
    inherited.close();
    let cache_bytes_max = volume_options.cache.bytes_max;
    let read = match &trees {
        Some((trees, attributes)) => Trees::Read { trees, attributes: *attributes },
        None => Trees::None,
    };
    let needs = CommandNeeds { writable: true, input, cache_bytes_max, trees: read };
    confine_command(&options.confinement, needs)?;
    drop(trees);
    volume_options.ext4.journal_device = options.journal_device(journal)?;
    source_options.ext4.journal_device.clone_from(&volume_options.ext4.journal_device);
    let mut writing =
        Writing { volume_options, images, source_options, sources, interrupted, umask };
    let outcome = work(&mut writing, console);
    for image in writing.images {
        let State::Volume(volume) = image.state else { continue };
        if let Err(error) = volume.close() {
            let (path, action) =
                (image.paths[0].as_path(), "cannot write all changes, and some may be lost");
            console.report(&Failure::action(path, action, &error));
            if let Some(lost) = volume.lost_files().to_string().strip_prefix("; ") {
                console.report(&Failure::new(path, lost));
            }
        }
    }
    outcome
}

/// Errors: the image of the source `target` is also one of `images`, which are written, or has
/// bytes of it.
fn refuse_same_bytes(
    (read_options, target): (&ImageOptions, &Target),
    (options, images): (&ImageOptions, &[OpenImage]),
) -> Result<()> {
    let source = target.image.as_path();
    let paths = images.iter().filter_map(|image| image.paths.first());
    let is_same = |image: &&PathBuf| {
        let written = (image.as_path(), options.range());
        related::have_same_bytes((source, read_options.range()), written)
    };
    let Some(image) = paths.into_iter().find(is_same) else { return Ok(()) };
    let image = text::escape(image.as_os_str().as_bytes()).into_owned();
    let what = format!(
        "has bytes of the destination's image {image}, and nothing was copied: a source is another image, or the same file system"
    );
    Err(Failure::new(source, what).advise("copy to a directory of the host first"))
}

/// Prints a warning about an image.
fn warn(image: &Path, warning: &str) {
    let name = text::escape(image.as_os_str().as_bytes()).into_owned();
    console::warn(format_args!("{name}: {warning}"));
}

/// Warns of damage that was found when a volume was opened.
fn warn_of_damage(image: &Path, volume: &Volume) {
    if let Some(warning) = volume.warning() {
        warn(image, &warning);
    }
}

/// Warns of a volume that says that errors were found in it.
pub fn warn_of_errors(image: &Path, volume: &Volume) {
    if volume.has_error_mark() {
        let repair = if volume.info().format == "f2fs" { "fsck.f2fs" } else { "e2fsck -f" };
        let text = format!(
            "is marked as a volume with errors; `{repair}` repairs it, and removes the mark"
        );
        warn(image, &text);
    }
}

/// Warns of default mount options of a volume that have no effect.
fn warn_of_default_options(image: &Path, volume: &Volume) {
    if let Some(warning) = defaults::warning(&volume.default_options(), &[]) {
        warn(image, &warning);
    }
}

/// Opens the image of `target` for writing, unless it is one of `images`, and adds it to them.
fn open_image(options: &ImageOptions, target: &Target, images: &mut Vec<OpenImage>) {
    if !find_same(images, target) {
        images.push(OpenImage::new(target, options.open_image_for_writing(target)));
    }
}

/// Opens the image of `target` for reading, unless it is one of `sources`, and adds it to them.
fn open_source(options: &ImageOptions, target: &Target, sources: &mut Vec<OpenImage>) {
    if !find_same(sources, target) {
        sources.push(OpenImage::new(target, options.open_image(target)));
    }
}

/// Returns whether the image of `target` is one of `images`, which gets the path.
fn find_same(images: &mut [OpenImage], target: &Target) -> bool {
    let path = target.image.as_path();
    if images.iter().any(|image| image.has_path(path)) {
        return true;
    }
    let identity = std::fs::metadata(path).map(|metadata| identity(&metadata)).ok();
    let same = |image: &&mut OpenImage| identity.is_some() && image.identity == identity;
    match images.iter_mut().find(same) {
        Some(image) => image.paths.push(path.into()),
        None => return false,
    }
    true
}

impl OpenImage {
    fn new(target: &Target, opened: Result<Image>) -> Self {
        let path = target.image.as_path();
        let identity = std::fs::metadata(path).map(|metadata| identity(&metadata)).ok();
        let state = opened.map_or_else(State::Failed, State::Unread);
        Self { paths: vec![path.into()], identity, state }
    }

    fn has_path(&self, path: &Path) -> bool {
        self.paths.iter().any(|known| known == path)
    }
}

/// Calls `change` for each target, which accesses no files of the host. Reports failures, and
/// continues with the next target.
pub fn change_targets(
    options: &ImageOptions,
    targets: &[Target],
    console: &mut Console,
    mut change: impl FnMut(&Target, &mut Writing, &mut Console) -> Result<()>,
) -> Result<()> {
    // Before anything is opened.
    let host_files = HostFiles::none(Inherited::list());
    change_images(options, targets, host_files, console, |writing, console| {
        for target in targets {
            let outcome = change(target, writing, console);
            console.tolerate(outcome)?;
        }
        Ok(())
    })
}

impl Writing {
    /// Returns the volume on the target's image, open for writing.
    pub fn get(&mut self, target: &Target) -> Result<Arc<Volume>> {
        self.check_interrupted()?;
        target.refuse_inode_number()?;
        let path = target.image.as_path();
        let known = self.images.iter_mut().find(|image| image.has_path(path));
        let image = known.expect("the images of all targets were opened");
        let unknown = State::Failed(Failure::new(path, "cannot be opened for writing"));
        let opened = match std::mem::replace(&mut image.state, unknown) {
            State::Unread(unread) => {
                self.volume_options.wait_callback = wait_callback(path, &self.interrupted);
                let device = unread.device().map_err(|error| Failure::library(path, &error));
                let volume =
                    device.and_then(|device| open_volume(path, device, &self.volume_options));
                let warn = |volume: &Volume| {
                    warn_of_damage(path, volume);
                    warn_of_errors(path, volume);
                    warn_of_default_options(path, volume);
                };
                volume.inspect(warn).map(Arc::new)
            }
            State::Volume(volume) => Ok(volume),
            State::Failed(failure) => Err(failure),
        };
        image.state = match &opened {
            Ok(volume) => State::Volume(Arc::clone(volume)),
            Err(failure) => State::Failed(failure.clone()),
        };
        opened
    }

    /// Returns the volume on the image of a source, and a number of it. The volume may also be one
    /// that is open for writing.
    pub fn source(&mut self, source: &Target) -> Result<(Arc<Volume>, u64)> {
        self.check_interrupted()?;
        let path = source.image.as_path();
        let Some(number) = self.sources.iter().position(|image| image.has_path(path)) else {
            return Ok((self.get(source)?, u64::MAX));
        };
        let Some(image) = self.sources.get_mut(number) else {
            return Err(Failure::new(path, "cannot be read"));
        };
        let failed = State::Failed(Failure::new(path, "cannot be read"));
        let opened = match std::mem::replace(&mut image.state, failed) {
            State::Unread(unread) => {
                let device = unread.device().map_err(|error| Failure::library(path, &error));
                device.and_then(|device| {
                    let volume = Volume::open_device(Arc::clone(&device), &self.source_options);
                    volume
                        .inspect(|volume| warn_of_damage(path, volume))
                        .map(Arc::new)
                        .map_err(|error| open_failure(path, device, &self.source_options, &error))
                })
            }
            State::Volume(volume) => Ok(volume),
            State::Failed(failure) => Err(failure),
        };
        image.state = match &opened {
            Ok(volume) => State::Volume(Arc::clone(volume)),
            Err(failure) => State::Failed(failure.clone()),
        };
        opened.map(|volume| (volume, number as u64))
    }

    /// Returns the device and inode number of the target's image. `None` if they could not be
    /// found.
    pub fn identity(&self, target: &Target) -> Option<(u64, u64)> {
        let known = self.images.iter().find(|image| image.has_path(&target.image));
        known.and_then(|image| image.identity)
    }

    /// Errors: a signal has interrupted the command.
    pub fn check_interrupted(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Failure::interrupted());
        }
        Ok(())
    }
}

/// Returns the callback for waits. It prints the reason once, and cancels the wait after a signal.
fn wait_callback(image: &Path, interrupted: &Arc<AtomicBool>) -> WaitCallback {
    let image = image.to_owned();
    let interrupted = Arc::clone(interrupted);
    let printed = Once::new();
    WaitCallback::new(move |reason| {
        printed.call_once(|| {
            let _ = writeln!(std::io::stderr(), "bifolio: {}", Failure::new(&*image, reason));
        });
        !interrupted.load(Ordering::Relaxed)
    })
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Opens the volume on `device`, which belongs to `image`, for writing. Errors: if the volume is
/// not supported, the failure says whether it can be read.
fn open_volume(image: &Path, device: SharedDevice, options: &VolumeOptions) -> Result<Volume> {
    Volume::open_device(Arc::clone(&device), options)
        .map_err(|error| open_failure(image, device, options, &error))
}

/// Returns what makes a volume with `features` writable, or otherwise that it can be read.
fn way_out(image: &Path, error: &Error) -> String {
    const READ_ONLY: &str = "it can only be read";
    let Error::Unsupported(Unsupported::Features { names }) = error else {
        return READ_ONLY.to_owned();
    };
    let image = text::escape(image.as_os_str().as_encoded_bytes());
    let ways: Option<Vec<String>> = names
        .iter()
        .map(|name| {
            Some(match name.as_str() {
                "shared_blocks" => format!("`e2fsck -fy -E unshare_blocks {image}` gives each file blocks of its own"),
                "quota" | "project" | "read-only" => format!("`tune2fs -O ^{name} {image}` removes the feature {name}"),
                "casefold" => format!("`tune2fs -O ^casefold {image}` removes the feature casefold, if no directory uses it"),
                _ => return None,
            })
        })
        .collect();
    match ways {
        Some(ways) => {
            format!("{READ_ONLY}, unless {} (see e2fsck(8) and tune2fs(8))", ways.join(", and "))
        }
        None => READ_ONLY.to_owned(),
    }
}

/// Returns the failure to open an image for reading.
pub fn cannot_read(image: &Path, error: &Error) -> Failure {
    match error {
        Error::Open { errno, .. } if *errno == Errno::BUSY.raw_os_error() => users::in_use(image),
        error => Failure::library(image, error),
    }
}

/// Returns the failure to open the volume on `device`. If it is not supported for writing, the
/// advice is what makes it so, or to read it. If its recovery has failed, the advice is to read it
/// without.
pub fn open_failure(
    image: &Path,
    device: SharedDevice,
    options: &VolumeOptions,
    error: &Error,
) -> Failure {
    let reading = VolumeOptions { writable: false, no_recovery: true, ..options.clone() };
    let failure = match error {
        Error::Unsupported(
            Unsupported::Features { .. } | Unsupported::Revision { .. } | Unsupported::Operation(_),
        ) if options.writable => {
            return match Volume::open_device(device, &reading) {
                Ok(_) => Failure::new(image, format!("cannot open for writing: {error}"))
                    .advise(way_out(image, error)),
                Err(error) => Failure::library(image, &error),
            };
        }
        error if options.writable => cannot_write(image, error),
        error => Failure::library(image, error),
    };
    // No checker knows that a later checkpoint was lost.
    let is_lost = |corrupt: &Corrupt| corrupt.structure == LATER_CHECKPOINT;
    match error {
        Error::Corrupt(corrupt) if !options.no_recovery && !is_lost(corrupt) => {}
        _ => return failure,
    }
    // Not if the damage hinders only writing, or if the volume has no last changes.
    let as_usual = VolumeOptions { writable: false, ..options.clone() };
    if options.writable && Volume::open_device(Arc::clone(&device), &as_usual).is_ok() {
        return failure.advise("it can still be read; `bifolio check` lists all inconsistencies, which e2fsck or fsck.f2fs repairs");
    }
    match Volume::open_device(device, &reading) {
        Ok(_) => failure.advise(
            "its last changes cannot be recovered: use --no-recovery to read it without them, or \
             `bifolio check` to list all inconsistencies",
        ),
        Err(_) => failure,
    }
}

/// Returns the failure to open an image for writing.
pub fn cannot_write(image: &Path, error: &Error) -> Failure {
    match error {
        Error::Interrupted => Failure::interrupted(),
        Error::Open { errno, .. } if *errno == Errno::BUSY.raw_os_error() => users::in_use(image),
        Error::Open { errno, .. } if *errno == Errno::ROFS.raw_os_error() => {
            Failure::new(image, "is write-protected").advise("it can only be read")
        }
        error => Failure::open(image, "cannot open for writing", error),
    }
}
