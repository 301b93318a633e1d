//! Exclusive claims of block devices. The kernel claims a device for a mount before anything is read from it. Not
//! here: locks of files (`device`).
//!
//! The kernel passes sync(2), syncfs(2) and remount on only to servers of block devices (Linux 6.18), and
//! waits only for those when it unmounts. So an image file gets a loop device. No I/O goes through it: the
//! server reads and writes the file.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::loop_device::LoopDevice;
use super::system::Detached;
use crate::mount::{MountError, MountOptions};

/// Block size that the kernel is given for a device, in bytes. Every device supports it. The volume's own is
/// not known yet, and newer kernels use their page size in any case.
const BLOCK_SIZE: u32 = 4096;

/// A device or image to claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A block device. Others can neither mount it nor open it exclusively (O_EXCL).
    Device(PathBuf),
    /// An image file, from this byte on, through a loop device. The mount goes on without one if none can be
    /// attached.
    Image {
        /// The file.
        path: PathBuf,
        /// Offset of the volume, in bytes.
        offset: u64,
    },
}

/// A claimed device. Dropping this releases it.
#[derive(Debug)]
pub enum Claimed {
    /// Claimed by a mount that is not attached yet.
    ByMount(Detached),
    /// Claimed by an exclusive descriptor, where the host refuses `fuseblk` mounts.
    ByDescriptor(OwnedFd),
}

impl Claim {
    /// Claims the device. Returns `None` if an image has no loop device.
    ///
    /// # Errors
    ///
    /// `InUse` if the device is mounted or open exclusively.
    pub fn take(&self, options: &MountOptions) -> Result<Option<Claimed>, MountError> {
        match self {
            Self::Device(device) => claim_device(device, options).map(Some),
            Self::Image { path, offset } => match claim_image(path, *offset, options) {
                Ok(detached) => Ok(Some(Claimed::ByMount(detached))),
                Err(error @ MountError::InUse(_)) => Err(error),
                Err(error) => {
                    tracing::info!("{}: no loop device to mount: {error}", path.display());
                    Ok(None)
                }
            },
        }
    }
}

fn claim_device(device: &Path, options: &MountOptions) -> Result<Claimed, MountError> {
    match Detached::new(device.as_os_str(), options, Some(BLOCK_SIZE)) {
        Ok(detached) => Ok(Claimed::ByMount(detached)),
        Err(MountError::Mount(Errno::BUSY)) => Err(MountError::InUse(device.into())),
        Err(MountError::Mount(errno @ (Errno::PERM | Errno::NOSYS | Errno::NODEV))) => {
            tracing::info!("no fuseblk for {}: {errno}", device.display());
            open_exclusively(device, options)
        }
        Err(error) => Err(error),
    }
}

fn claim_image(path: &Path, offset: u64, options: &MountOptions) -> Result<Detached, MountError> {
    let device = LoopDevice::attach(path, offset).map_err(MountError::Mount)?;
    // The mount keeps the loop device open after this function drops it.
    match Detached::new(device.path().as_os_str(), options, Some(BLOCK_SIZE)) {
        // Another program was faster, and has the image now.
        Err(MountError::Mount(Errno::BUSY)) => Err(MountError::InUse(device.path().into())),
        made => made,
    }
}

fn open_exclusively(device: &Path, options: &MountOptions) -> Result<Claimed, MountError> {
    let access = if options.writable { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(device, flags, Mode::empty()) {
        Ok(descriptor) => Ok(Claimed::ByDescriptor(descriptor)),
        Err(Errno::BUSY) => Err(MountError::InUse(device.into())),
        Err(errno) => Err(MountError::Mount(errno)),
    }
}
