//! Changing images: each image of a command line is opened for writing once, and closed at the end
//! whatever happens in between. Not here: the changes.
//!
//! A command succeeds only when every image could be closed: what it says it did is durable then.
//! One that panics leaves its images as a crash does, for the journal to put right.

use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use base::{Error, Patience, Unsupported};
use clap::Args;
use rustix::fs::Mode;
use rustix::io::Errno;
use vfs::{Credentials, Volume};

use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::loop_device;
use crate::signals;
use crate::target::{ImageOptions, Target};
use crate::users;

/// Whose new files are.
#[derive(Args, Clone, Copy, Debug)]
pub struct Ownership {
    /// The user that new files belong to, as a number
    #[arg(long, value_name = "UID", default_value_t = 0)]
    owner: u32,
    /// The group that new files belong to, as a number, unless their directory hands down its own
    #[arg(long, value_name = "GID", default_value_t = 0)]
    group: u32,
}

impl Ownership {
    /// Those of somebody who may do everything, and to whom belongs what is made: who can write to an
    /// image is its root, as with debugfs, and has the blocks that are kept for root, too.
    pub fn credentials(&self) -> Credentials {
        Credentials { uid: self.owner, gid: self.group, groups: Vec::new(), privileged: true }
    }
}

/// The images that a command changes.
pub struct Writing<'a> {
    options: &'a ImageOptions,
    open: Vec<Open>,
    interrupted: Arc<AtomicBool>,
    /// The permissions that new files do not get unless they are asked for.
    pub umask: u16,
}

struct Open {
    image: PathBuf,
    /// Device and inode number: one image can be named in several ways.
    identity: (u64, u64),
    volume: Arc<Volume>,
}

/// Has `work` change images, and closes them. What fails in closing fails the command.
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
            let action = "cannot be closed, and not all that was changed may be there";
            console.report(&Failure::action(image.as_path(), action, &error));
        }
    }
    outcome
}

/// Has `change` change each target. What one cannot be done to is reported, and the others go on.
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
    /// The volume on the target's image, open for writing.
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

    /// Ends the command when a signal asks for it.
    pub fn check_interrupted(&self) -> Result<()> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Failure::interrupted()),
            false => Ok(()),
        }
    }
}

/// Says once what is waited for, and waits until a signal comes.
fn patience(image: &Path, interrupted: &Arc<AtomicBool>) -> Patience {
    let (image, interrupted, said) = (image.to_owned(), Arc::clone(interrupted), Once::new());
    Patience::new(move |what| {
        said.call_once(|| {
            let _ = writeln!(std::io::stderr(), "bifolio: {}", Failure::new(&*image, what));
        });
        !interrupted.load(Ordering::Relaxed)
    })
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl ImageOptions {
    /// Opens the volume on the target's image for writing. What its journal holds is put in place.
    /// The caller closes it. Waiting for another host, which is said, ends when it is `interrupted`.
    pub fn open_for_writing(
        &self,
        target: &Target,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Volume> {
        let image = target.image.as_path();
        if self.no_recovery {
            let failure = Failure::new("--no-recovery", "an image cannot be changed as it lies");
            return Err(failure.usage());
        }
        let device = self.open_device_for_writing(target)?;
        let mut options = self.volume_options_for_writing()?;
        options.patience = patience(image, interrupted);
        Volume::open(device, &options).map_err(|error| cannot_write(image, &error))
    }
}

/// Refuses an image that the host itself has as a loop device.
pub fn refuse_loop_device(image: &Path) -> Result<()> {
    let metadata = std::fs::metadata(image);
    let metadata = metadata.map_err(|error| Failure::host(image, "cannot open", &error))?;
    match loop_device::in_use(&metadata) {
        Some(device) => {
            let what = format!("is in use: the host has it as {}", device.display());
            Err(Failure::new(image, what).advise("unmount it first"))
        }
        None => Ok(()),
    }
}

/// Why an image cannot be opened for reading.
pub fn cannot_read(image: &Path, error: &Error) -> Failure {
    match error {
        Error::Open { errno, .. } if *errno == Errno::BUSY.raw_os_error() => users::in_use(image),
        error => Failure::library(image, error),
    }
}

/// Why an image cannot be opened for writing.
pub fn cannot_write(image: &Path, error: &Error) -> Failure {
    match error {
        Error::Interrupted => Failure::interrupted(),
        Error::Open { errno, .. } if *errno == Errno::BUSY.raw_os_error() => users::in_use(image),
        Error::Open { errno, .. } if *errno == Errno::ROFS.raw_os_error() => {
            Failure::new(image, "is write-protected").advise("it can be read all the same")
        }
        Error::Open { errno, .. } => {
            let error = std::io::Error::from_raw_os_error(*errno);
            Failure::host(image, "cannot open it for writing", &error)
        }
        Error::Unsupported(Unsupported::Features { .. } | Unsupported::Operation(_)) => {
            Failure::new(image, format!("cannot be written: {error}"))
                .advise("it can be read all the same")
        }
        error => Failure::library(image, error),
    }
}
