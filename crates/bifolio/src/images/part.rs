//! The part of an image that root mounts, as a device of its own, so that the server has nothing
//! else of the disk open. Not here: other users and commands, which have the whole image open, and
//! keep to the part (`device::Slice`).

use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Container, Error, Unsupported};
use device::{BlockDevice, Image, SharedDevice};
use fuse::{Inherited, LoopDevice, SessionError};
use vfs::{Volume, VolumeOptions};

use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};

/// The unit of partitions in /sys, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A device for a part of an image.
pub struct PartDevice {
    /// The path of the device.
    pub path: PathBuf,
    /// The image, whose lock keeps other programs from it.
    image: Image,
    /// The loop device at this path, unless it is a partition that the host knows.
    attached: Option<LoopDevice>,
}

impl PartDevice {
    /// Returns a device for the part of the target's image that the options choose. Returns `None`
    /// if there is none: the image is mounted as a whole, or from another container, or by an
    /// ordinary user, or there are no loop devices, or none may be attached. Then the whole image
    /// is opened. If that is more than the part, and for writing, a warning says so.
    ///
    /// # Errors
    ///
    /// The part cannot be found. If the process that looks for it has reported why, this function
    /// ends the program instead.
    pub fn new(
        target: &Target,
        options: &ImageOptions,
        writable: bool,
        may_attach: bool,
        inherited: &Inherited,
    ) -> Result<Option<Self>> {
        if options.is_whole() {
            return Ok(None);
        }
        // With the offset 0, the part is the whole image.
        let has_rest = writable && options.offset != Some(0);
        if !rustix::process::geteuid().is_root() {
            // Only root can attach loop devices.
            if has_rest {
                warn_of_rest(target);
            }
            return Ok(None);
        }
        // The part is claimed, not the disk, which may have others in use.
        let options = ImageOptions { exclusive: false, ..options.clone() };
        // The process that parses the image cannot write to it.
        let image = options.open_image(target)?;
        let find = || match find_part(target, &image, writable) {
            Ok(part) => Ok(part.map(|range| [range.start, range.end])),
            Err(error) => {
                let failure = Failure::library(&*target.image, &error);
                tracing::error!("{failure}");
                Err(failure.status().code())
            }
        };
        let found = fuse::ask(options.confinement.layers(), inherited, find);
        let Some([start, end]) = found.map_err(|error| no_answer(target, &error))? else {
            // Another container. The process that says so has read the image, and may have been
            // taken over.
            return match writable {
                true => {
                    let error =
                        Error::Unsupported(Unsupported::Container(Container::AndroidSparse));
                    Err(Failure::library(&*target.image, &error))
                }
                false => Ok(None),
            };
        };
        if start >= end || options.offset.is_some_and(|offset| offset != start) {
            let text = format!(
                "the partition was found at the bytes {start} to {end}, and not where it should begin"
            );
            return Err(Failure::new(&*target.image, text));
        }
        let known = known_partition(&target.image, &options, start..end);
        // A partition is locked by itself, and others of the disk can be used.
        let is_known = known.is_some();
        let options =
            ImageOptions { shares_other_parts: is_known, locks_related: !is_known, ..options };
        let image = match writable {
            true => {
                drop(image);
                options.open_image_for_writing(target)?
            }
            false => image,
        };
        let attached = match known {
            // The path may lead to another file by now.
            None if may_attach => attach(&image, &target.image, start..end, writable),
            _ => None,
        };
        let path = known.or_else(|| Some(attached.as_ref()?.path().to_owned()));
        if path.is_none() && has_rest {
            warn_of_rest(target);
        }
        Ok(path.map(|path| Self { path, image, attached }))
    }

    /// Returns the open file that has the lock of the image.
    pub fn locked(&self) -> BorrowedFd<'_> {
        self.image.as_fd()
    }

    /// Returns whether this is a loop device.
    pub fn is_loop(&self) -> bool {
        self.attached.is_some()
    }
}

/// Returns the bytes that the requested part of the image has. `None` if that has the whole image,
/// or another container.
///
/// The server of the mount does not see the rest of the image. So the part must not be written if
/// that makes the image a member of something, such as a RAID, and the damage to its partition
/// table is told here.
fn find_part(target: &Target, image: &Image, writable: bool) -> Result<Option<Range<u64>>, Error> {
    let Some(part) = image.part()? else { return Ok(None) };
    let range = part.range();
    let damage = part.origin().and_then(|origin| origin.damage.cloned());
    let part: SharedDevice = Arc::new(part);
    if writable {
        if let Some(member) = Volume::membership(&part, &VolumeOptions::default()) {
            return Err(Unsupported::Member(member).into());
        }
        if let Some(damage) = damage {
            let text = vfs::table_warning(&damage);
            tracing::warn!("{}", target.warning(&text));
        }
    }
    Ok(Some(range))
}

/// Warns that the server could also change the rest of the image, of which a part is mounted.
fn warn_of_rest(target: &Target) {
    let text = "cannot restrict the server to the part of the image: it has the whole image open";
    tracing::warn!("{}", Failure::new(&*target.image, text));
}

/// Returns the failure of a mount whose part was not found. Ends the program if the failure was
/// reported.
fn no_answer(target: &Target, error: &SessionError<Failure>) -> Failure {
    if let SessionError::Reported(status) = error {
        std::process::exit((*status).into());
    }
    let text = format!("cannot find the part of the image to mount: {error}");
    Failure::new(&*target.image, text)
}

/// Attaches a loop device to the bytes `range` of an open image file.
fn attach(open: &impl AsFd, image: &Path, range: Range<u64>, writable: bool) -> Option<LoopDevice> {
    let open = PathBuf::from(format!("/proc/self/fd/{}", open.as_fd().as_raw_fd()));
    if !fs::metadata(&open).ok()?.is_file() {
        return None;
    }
    let attached = LoopDevice::attach(&open, range, writable);
    attached
        .inspect_err(|errno| {
            tracing::info!("{}: cannot attach a loop device: {errno}", image.display());
        })
        .ok()
}

/// Returns the host's device for the partition of a disk, if the options choose one by its number
/// and it has these bytes.
fn known_partition(disk: &Path, options: &ImageOptions, range: Range<u64>) -> Option<PathBuf> {
    let number = options.partition?;
    let metadata = fs::metadata(disk).ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let folder = |device: u64| {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
    };
    let number_in = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let found = fs::read_dir(folder(metadata.rdev())).ok()?.flatten();
    let mut partitions =
        found.filter(|entry| number_in(entry.path().join("partition")) == Some(u64::from(number)));
    let partition = partitions.next()?;
    let start = number_in(partition.path().join("start"))?.checked_mul(SECTOR_BYTES)?;
    let size = number_in(partition.path().join("size"))?.checked_mul(SECTOR_BYTES)?;
    let node = Path::new("/dev").join(partition.file_name());
    let metadata = fs::metadata(&node).ok()?;
    // The node may be of another device, such as in a container.
    let is_device = metadata.file_type().is_block_device()
        && folder(metadata.rdev()).canonicalize().ok()? == partition.path().canonicalize().ok()?;
    (is_device && start == range.start && start.checked_add(size)? == range.end).then_some(node)
}
