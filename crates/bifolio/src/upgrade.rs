//! Mounts that begin read-only and become writable by a remount: opening the image in the guard, and the volume in the server. Not
//! here: the remount (`fuse`).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use device::{Image, PartLock, Reopen};
use fuse::Upgrade;
use vfs::{Volume, VolumeOptions};

use crate::failure::{Failure, Result};
use crate::related;
use crate::target::{ImageOptions, Target, is_busy};
use crate::users::{self, InUse};
use crate::writing;

/// The image of a mount that begins read-only, and its external journal.
pub type Opened = (Image, Option<Image>);

/// Why a mount whose options are for writing does not become writable if its volume is open for reading.
pub const HOST_IS_FULL: &str =
    "the host had no space for what had to be written: unmount it, and mount it again";

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

/// Opens the image of a mount that begins read-only, if the mount may become writable. `options` are those for reading.
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
    let mut locks = Vec::new();
    let in_guard = Arc::clone(&files);
    let options = VolumeOptions { writable: true, ..options.clone() };
    let upgrade = Upgrade::by(
        move || in_guard.open(&mut locks).map_err(|failure| failure.to_string()),
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

impl Files {
    /// Opens the files for writing. Adds locks of what backs the image to `locks`.
    fn open(&self, locks: &mut Vec<PartLock>) -> Result<Vec<OwnedFd>> {
        let image = self.target.image.as_path();
        let related = related::lock(image, false).map_err(|user| match user {
            InUse::Locked(path) => users::locked(&path),
            user => user.into_failure(),
        })?;
        let mut opened = Vec::new();
        for file in std::iter::once(&self.image).chain(&self.journal) {
            opened.push(file.open().map_err(|error| {
                self.give_up();
                match is_busy(&error) {
                    true => users::locked(file.path()),
                    false => writing::cannot_write(file.path(), &error),
                }
            })?);
        }
        *locks = related;
        Ok(opened)
    }

    /// Opens the volume for writing, on files that the guard has opened.
    fn volume(&self, opened: Vec<OwnedFd>, options: &VolumeOptions) -> Result<Arc<Volume>> {
        let volume = self.try_volume(opened, options);
        if volume.is_err() {
            self.give_up();
        }
        volume
    }

    fn try_volume(&self, opened: Vec<OwnedFd>, options: &VolumeOptions) -> Result<Arc<Volume>> {
        let mut opened = opened.into_iter();
        let mut device = |file: &Reopen| {
            let none = || Failure::new(file.path(), "was not opened");
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
        Ok(Arc::new(volume))
    }

    /// Makes the locks those of readers again.
    fn give_up(&self) {
        std::iter::once(&self.image).chain(&self.journal).for_each(Reopen::give_up);
    }
}
