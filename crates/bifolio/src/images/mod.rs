//! The images that a command reads, opened before the process is confined, and their volumes.
//! Not here: images that a command changes (`writing.rs`), options and paths (`target.rs`).

pub(crate) mod address_space;
pub(crate) mod confinement;
pub(crate) mod part;
pub(crate) mod related;
pub(crate) mod target;
pub(crate) mod upgrade;
pub(crate) mod users;
pub(crate) mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use confine::{Inherited, Trees};
use device::{Image, SharedDevice};
use vfs::{Volume, VolumeOptions};

use crate::console;
use crate::console::failure::{Failure, Result};
use crate::images::confinement::{CommandNeeds, confine_command};
use crate::images::target::{ImageOptions, Target};

/// The images of a command that only reads them. They are opened by their paths first, and then the
/// process is confined, so that what parses them has access to nothing else.
pub struct Images<'a> {
    volume_options: VolumeOptions,
    /// The images, or why each could not be opened.
    opened: Vec<(&'a Path, Result<Opened>)>,
}

/// An image of a command.
enum Opened {
    /// It was not read yet.
    Unread(Image),
    /// The part that the options choose.
    Part(SharedDevice),
}

impl<'a> Images<'a> {
    /// Opens the images of `targets`, and confines the process.
    pub fn open(options: &ImageOptions, targets: &'a [Target]) -> Result<Self> {
        // Before anything is opened.
        let inherited = Inherited::list();
        Self::open_with(options, targets, &inherited, Trees::None)
    }

    /// Opens the images of `targets`, and confines the process to them and to `trees` of the host.
    /// Closes the inherited files.
    fn open_with(
        options: &ImageOptions,
        targets: &'a [Target],
        inherited: &Inherited,
        trees: Trees<'_>,
    ) -> Result<Self> {
        let (mut images, journal) = Self::open_unconfined(options, targets)?;
        inherited.close();
        let cache_bytes_max = images.volume_options.cache.bytes_max;
        confine_command(
            &options.confinement,
            CommandNeeds { writable: false, input: false, cache_bytes_max, trees },
        )?;
        images.volume_options.ext4.journal_device = options.journal_device(journal)?;
        Ok(images)
    }

    fn open_unconfined(
        options: &ImageOptions,
        targets: &'a [Target],
    ) -> Result<(Self, Option<Image>)> {
        let volume_options = options.volume_options(false)?;
        let journal = options.open_journal(false)?;
        let mut opened: Vec<(&Path, Result<Opened>)> = Vec::new();
        for target in targets {
            let image = target.image.as_path();
            if !opened.iter().any(|(known, _)| *known == image) {
                opened.push((image, options.open_image(target).map(Opened::Unread)));
            }
        }
        Ok((Self { volume_options, opened }, journal))
    }

    /// Returns the options for opening volumes.
    pub fn volume_options(&self) -> &VolumeOptions {
        &self.volume_options
    }

    /// Returns the part of the target's image that the options choose.
    pub fn device(&mut self, target: &Target) -> Result<SharedDevice> {
        let image = target.image.as_path();
        let known = self.opened.iter_mut().find(|(known, _)| *known == image);
        let (_, opened) = known.expect("the images of all targets were opened");
        // Until it is read without an error.
        let failed = Err(Failure::new(image, "cannot be read"));
        let device = match std::mem::replace(opened, failed) {
            Ok(Opened::Unread(image_file)) => {
                image_file.device().map_err(|error| Failure::library(image, &error))
            }
            Ok(Opened::Part(device)) => Ok(device),
            Err(failure) => Err(failure),
        };
        *opened = device.clone().map(Opened::Part);
        device
    }

    /// Opens the volume on the target's image.
    pub fn volume(&mut self, target: &Target) -> Result<Volume> {
        let device = self.device(target)?;
        let image = target.image.as_path();
        let volume = Volume::open_device(Arc::clone(&device), &self.volume_options);
        let volume = volume
            .map_err(|error| writing::open_failure(image, device, &self.volume_options, &error))?;
        if let Some(warning) = volume.warning() {
            console::warn(target.warning(&warning));
        }
        Ok(volume)
    }
}

/// The volumes of one command line. Each image is opened once.
pub struct Volumes<'a> {
    images: Images<'a>,
    open: Vec<(PathBuf, Result<Arc<Volume>>)>,
    /// Whether there are several images. If so, paths are printed with the name of their image.
    has_several: bool,
}

impl<'a> Volumes<'a> {
    /// Opens the images of `targets`, and confines the process.
    pub fn new(options: &ImageOptions, targets: &'a [Target]) -> Result<Self> {
        Ok(Self::of_images(Images::open(options, targets)?, targets))
    }

    /// Opens the images of `targets` for a command that also accesses `trees` of the host, and
    /// confines the process. Closes the inherited files.
    pub fn with_trees(
        options: &ImageOptions,
        targets: &'a [Target],
        inherited: &Inherited,
        trees: Trees<'_>,
    ) -> Result<Self> {
        Ok(Self::of_images(Images::open_with(options, targets, inherited, trees)?, targets))
    }

    fn of_images(images: Images<'a>, targets: &[Target]) -> Self {
        let has_several = targets.windows(2).any(|pair| pair[0].image != pair[1].image);
        Self { images, open: Vec::new(), has_several }
    }

    /// Returns the volume on the target's image. Opens it if necessary.
    pub fn get(&mut self, target: &Target) -> Result<Arc<Volume>> {
        if let Some((_, volume)) = self.open.iter().find(|(image, _)| *image == target.image) {
            return volume.clone();
        }
        let volume = self.images.volume(target).map(Arc::new);
        self.open.push((target.image.clone(), volume.clone()));
        volume
    }

    /// Returns `path` as it is printed: with the name of the image if there are several images.
    pub fn display(&self, target: &Target, path: &[u8]) -> Vec<u8> {
        if self.has_several { target.subject(path) } else { path.to_vec() }
    }
}
