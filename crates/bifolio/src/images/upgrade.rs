//! Mounts that begin read-only and become writable by a remount: opening the image in the guard,
//! and the volume in the server. Not here: the remount (`fuse`).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use device::{Image, PartLock, Reopen};
use fuse::{Hold, Upgrade};
use rustix::fs::{FileType, Stat, StatVfs};
use vfs::{Volume, VolumeOptions};

use crate::console::failure::{Failure, Result};
use crate::images::related;
use crate::images::target::{ImageOptions, Target, is_busy};
use crate::images::users::{self, InUse};
use crate::images::writing;
use crate::mount_options::defaults;

/// The image of a mount that begins read-only, and its external journal.
pub type Opened = (Image, Option<Image>);

/// Why a mount whose options are for writing does not become writable if its volume is open for
/// reading.
pub const HOST_IS_FULL: &str =
    "the host had no space for what had to be written: unmount it, and mount it again";

/// Why a mount stays read-only if the first writes to its image would fail.
const HOST_IS_FULL_NOW: &str = "the host has no space for what has to be written: free some first";

/// The free space that a file system may keep for itself when it is full, as ext4 does: a part of
/// its blocks, and a maximum.
const KEPT_PART: u64 = 50;
const KEPT_MAX: u64 = 4096;
/// The unit of the space that a file has, in bytes.
const SPACE_UNIT: u64 = 512;

/// Returns why a mount that begins read-only cannot become writable, as far as its options say.
fn refusal(image: &ImageOptions, has_part: bool) -> Option<&'static str> {
    if image.no_recovery {
        return Some(
            "it was mounted without recovery: unmount it, and mount it without this option",
        );
    }
    if image.incomplete {
        return Some("it was mounted as an incomplete image, which can only be read");
    }
    if has_part {
        return Some("it is a part of an image: unmount it, and mount it for writing");
    }
    let is_root = rustix::process::geteuid().is_root();
    (!is_root).then_some("an ordinary user has mounted it: unmount it, and mount it for writing")
}

/// Opens the image of a mount that begins read-only, if the mount may become writable. `options`
/// are those for reading.
///
/// The image is opened before guard and server become two processes, so that they share its lock.
pub fn open(
    target: &Target,
    image: &ImageOptions,
    has_part: bool,
    options: &VolumeOptions,
) -> Result<(Upgrade, Option<Opened>)> {
    if let Some(reason) = refusal(image, has_part) {
        return Ok((Upgrade::never(reason), None));
    }
    let unread = image.open_image(target)?;
    let journal = image.open_journal(false)?;
    let reopen = |opened: &Image, path: &Path| {
        Reopen::new(opened, path).map_err(|error| Failure::library(path, &error))
    };
    let files = Arc::new(Files {
        image: reopen(&unread, &target.image)?,
        journal: match (&journal, &image.journal) {
            (Some(journal), Some(path)) => Some(reopen(journal, path)?),
            _ => None,
        },
        target: target.clone(),
    });
    let in_guard = Arc::clone(&files);
    let options = VolumeOptions { writable: true, ..options.clone() };
    let upgrade = Upgrade::by(
        move || Files::open(&in_guard).map_err(|failure| failure.to_string()),
        move |opened| files.volume(opened, &options).map_err(|failure| failure.to_string()),
    );
    Ok((upgrade, Some((unread, journal))))
}

/// The files of a mount that becomes writable.
struct Files {
    image: Reopen,
    journal: Option<Reopen>,
    target: Target,
}

/// The locks of files that are open for writing, in the guard.
struct Locks {
    /// Those of readers, until they are made those of writers.
    files: Arc<Files>,
    /// Those of what backs the image.
    _related: Vec<PartLock>,
}

impl Drop for Locks {
    fn drop(&mut self) {
        for file in self.files.all() {
            if let Err(error) = file.give_up() {
                let what = "another program has locked it, and may change it: unmount it";
                tracing::warn!("{}: {what}: {error}", file.path().display());
            }
        }
    }
}

impl Files {
    /// Opens the files for writing. Returns what keeps their locks, and makes them those of readers
    /// again when dropped.
    fn open(self: &Arc<Self>) -> Result<(Vec<OwnedFd>, Hold)> {
        let image = self.target.image.as_path();
        let related = related::lock(image, false).map_err(|user| match user {
            InUse::Locked(path) => users::locked(&path),
            user => user.into_failure(),
        })?;
        let locks = Locks { files: Arc::clone(self), _related: related };
        let mut opened = Vec::new();
        for file in self.all() {
            opened.push(file.open().map_err(|error| match is_busy(&error) {
                true => users::locked(file.path()),
                false => writing::cannot_write(file.path(), &error),
            })?);
            if opened.last().is_some_and(host_is_full) {
                return Err(Failure::new(file.path(), HOST_IS_FULL_NOW));
            }
        }
        Ok((opened, Box::new(locks)))
    }

    /// Opens the volume for writing, on files that the guard has opened.
    fn volume(&self, opened: Vec<OwnedFd>, options: &VolumeOptions) -> Result<Arc<Volume>> {
        let mut opened = opened.into_iter();
        let mut device = |file: &Reopen| {
            let none = || {
                Failure::new(
                    file.path(),
                    "the guard of the mount has not passed this file: unmount and mount again",
                )
            };
            let device = file.device(opened.next().ok_or_else(none)?);
            device.map_err(|error| Failure::library(file.path(), &error))
        };
        let image = device(&self.image)?;
        let mut options = options.clone();
        options.ext4.journal_device = self.journal.as_ref().map(&mut device).transpose()?;
        let volume = Volume::open_device(Arc::clone(&image), &options)
            .map_err(|error| writing::open_failure(&self.target.image, image, &options, &error))?;
        if let Some(warning) = volume.warning() {
            tracing::warn!("{}", self.target.warning(&warning));
        }
        if let Some(warning) = defaults::warning(&volume.default_options(), &[]) {
            tracing::warn!("{}", self.target.warning(&warning));
        }
        Ok(Arc::new(volume))
    }

    /// Returns the image, and the external journal if there is one.
    fn all(&self) -> impl Iterator<Item = &Reopen> {
        std::iter::once(&self.image).chain(&self.journal)
    }
}

/// Returns whether an image has holes, and the file system that it is on has no space for them. Of
/// a loop device, this is asked about its file.
fn host_is_full(image: &OwnedFd) -> bool {
    let Ok(opened) = rustix::fs::fstat(image) else { return false };
    let is_full = match FileType::from_raw_mode(opened.st_mode) {
        FileType::RegularFile => {
            let host = rustix::fs::fstatvfs(image);
            host.map(|host| has_holes(&opened) && has_no_space(&host))
        }
        FileType::BlockDevice => {
            let (major, minor) =
                (rustix::fs::major(opened.st_rdev), rustix::fs::minor(opened.st_rdev));
            let folder = format!("/sys/dev/block/{major}:{minor}");
            let Some(file) = fuse::backing_file(Path::new(&folder)) else { return false };
            let host = rustix::fs::statvfs(&file);
            host.and_then(|host| Ok(has_holes(&rustix::fs::stat(&file)?) && has_no_space(&host)))
        }
        _ => Ok(false),
    };
    is_full.unwrap_or(false)
}

fn has_holes(file: &Stat) -> bool {
    let [space, size] =
        [file.st_blocks, file.st_size].map(|number| u64::try_from(number).unwrap_or(0));
    space.saturating_mul(SPACE_UNIT) < size
}

fn has_no_space(host: &StatVfs) -> bool {
    host.f_bavail == 0 && host.f_bfree <= KEPT_MAX.min(host.f_blocks / KEPT_PART)
}
