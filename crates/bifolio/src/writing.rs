//! Images that a command changes. Each image is opened for writing once, and closed at the end even if the command
//! fails. Not here: the changes.
//!
//! A command succeeds only if all images were closed without errors, because only then are its changes durable. After
//! a panic the images are left as after a crash: the journal is replayed when an image is next opened.

use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use base::{Error, Unsupported, WaitCallback};
use clap::Args;
use device::SharedDevice;
use rustix::fs::Mode;
use rustix::io::Errno;
use vfs::{Credentials, Volume, VolumeOptions};

use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::loop_device;
use crate::signals;
use crate::target::{ImageOptions, Target};
use crate::users;

/// Options for the owner of new files.
#[derive(Args, Clone, Copy, Debug)]
pub struct Ownership {
    /// Set the owner of new files, as a number
    #[arg(long, value_name = "UID", default_value_t = 0)]
    owner: u32,
    /// Set the group of new files, as a number; a set-group-ID directory passes on its own group instead
    #[arg(long, value_name = "GID", default_value_t = 0)]
    group: u32,
}

impl Ownership {
    /// Returns privileged credentials with the owner of new files. As in debugfs, a user who can write to an image
    /// acts as its root, and may allocate the blocks that are reserved for root.
    pub fn credentials(&self) -> Credentials {
        Credentials { uid: self.owner, gid: self.group, groups: Vec::new(), privileged: true }
    }
}

/// The images that a command changes.
pub struct Writing<'a> {
    options: &'a ImageOptions,
    open: Vec<Open>,
    interrupted: Arc<AtomicBool>,
    /// The umask of the command.
    pub umask: u16,
}

struct Open {
    image: PathBuf,
    /// Device and inode number, because an image can have several paths.
    identity: (u64, u64),
    volume: Arc<Volume>,
}

/// Calls `work`, which changes images, and then closes the images. A failure to close an image fails the command.
pub fn change_images(
    options: &ImageOptions,
    console: &mut Console,
    work: impl FnOnce(&mut Writing<'_>, &mut Console) -> Result<()>,
) -> Result<()> {
    let interrupted = signals::catch()?;
    let umask = (rustix::process::umask(Mode::empty()).as_raw_mode() & 0o777) as u16;
    let mut writing = Writing { options, open: Vec::new(), interrupted, umask };
    let outcome = work(&mut writing, console);
    for Open { image, volume, .. } in writing.open {
        if let Err(error) = volume.close() {
            let action = "cannot write all changes, and some may be lost";
            console.report(&Failure::action(image.as_path(), action, &error));
        }
    }
    outcome
}

/// Calls `change` for each target. Reports failures, and continues with the next target.
pub fn change_targets(
    options: &ImageOptions,
    targets: &[Target],
    console: &mut Console,
    mut change: impl FnMut(&Target, &mut Writing<'_>, &mut Console) -> Result<()>,
) -> Result<()> {
    change_images(options, console, |writing, console| {
        for target in targets {
            let outcome = change(target, writing, console);
            console.tolerate(outcome)?;
        }
        Ok(())
    })
}

impl Writing<'_> {
    /// Returns the volume on the target's image, open for writing.
    pub fn get(&mut self, target: &Target) -> Result<Arc<Volume>> {
        self.check_interrupted()?;
        let image = target.image.as_path();
        if let Some(open) = self.open.iter().find(|open| open.image == image) {
            return Ok(Arc::clone(&open.volume));
        }
        let cannot_open = |error| Failure::host(image, "cannot open", &error);
        let metadata = std::fs::metadata(image).map_err(cannot_open)?;
        let identity = identity(&metadata);
        let known = self.open.iter().find(|open| open.identity == identity);
        let volume = match known {
            Some(open) => Arc::clone(&open.volume),
            None => {
                let volume = self.options.open_for_writing(target, &self.interrupted)?;
                let open = Open { image: image.into(), identity, volume: Arc::new(volume) };
                let volume = Arc::clone(&open.volume);
                self.open.push(open);
                volume
            }
        };
        Ok(volume)
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

impl ImageOptions {
    /// Opens the volume on the target's image for writing, and replays its journal in place. The caller closes it.
    /// If it waits for another host, it prints the reason. Setting `interrupted` cancels the wait.
    pub fn open_for_writing(
        &self,
        target: &Target,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Volume> {
        let image = target.image.as_path();
        let mut options = self.volume_options_for_writing()?;
        let device = self.open_device_for_writing(target)?;
        options.wait_callback = wait_callback(image, interrupted);
        open_volume_for_writing(image, device, &options)
    }
}

/// Opens the volume on `device`, which belongs to `image`, for writing. Errors: if the volume is not supported, the failure
/// says whether it can be read.
fn open_volume_for_writing(
    image: &Path,
    device: SharedDevice,
    options: &VolumeOptions,
) -> Result<Volume> {
    Volume::open_device(Arc::clone(&device), options).map_err(|error| match &error {
        Error::Unsupported(Unsupported::Features { .. } | Unsupported::Operation(_)) => {
            let reading = VolumeOptions { writable: false, no_recovery: true, ..options.clone() };
            match Volume::open_device(device, &reading) {
                Ok(_) => Failure::new(image, format!("cannot open for writing: {error}"))
                    .advise("it can only be read"),
                Err(error) => Failure::library(image, &error),
            }
        }
        error => cannot_write(image, error),
    })
}

/// Errors: a loop device of the host uses the image.
pub fn refuse_loop_device(image: &Path) -> Result<()> {
    let metadata = std::fs::metadata(image);
    let metadata = metadata.map_err(|error| Failure::host(image, "cannot open", &error))?;
    match loop_device::find_claimed(&metadata) {
        Some(device) => {
            let text = format!("is in use by the loop device {}", device.display());
            Err(Failure::new(image, text).advise("unmount or detach it first"))
        }
        None => Ok(()),
    }
}

/// Returns the failure to open an image for reading.
pub fn cannot_read(image: &Path, error: &Error) -> Failure {
    match error {
        Error::Open { errno, .. } if *errno == Errno::BUSY.raw_os_error() => users::in_use(image),
        error => Failure::library(image, error),
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
