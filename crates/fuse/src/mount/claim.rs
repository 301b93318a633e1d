//! Exclusive claims of block devices. The kernel claims a device for a mount before the server
//! reads from it. Not here: locks of files (`device`).
//!
//! The kernel passes sync(2), syncfs(2) and remount on only to servers of block devices (from Linux
//! 6.18 on), and waits only for those when it unmounts. So an image file gets a loop device. No I/O
//! goes through it: the server reads and writes the file.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::loop_device::LoopDevice;
use super::system::Detached;
use crate::mount::{MountError, MountOptions, mounts_of};
use crate::retry::retry_for;

/// The block size for the kernel, in bytes, which every device supports. The volume's block size is
/// not known yet, and newer kernels use their page size in any case.
const BLOCK_SIZE: u32 = 4096;

/// The time for which other programs may claim a device only to look whether it is in use.
const PROBE_TIME: Duration = Duration::from_millis(500);

/// A device or image to claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A block device. Other programs can neither mount it nor open it exclusively (O_EXCL).
    Device(PathBuf),
    /// An image file, through a loop device. If no loop device can be attached, the file is mounted
    /// without a claim.
    Image {
        /// The file.
        path: PathBuf,
        /// Offset of the volume, in bytes.
        offset: u64,
    },
}

/// A claimed device. Dropping this value releases it.
#[derive(Debug)]
pub enum Claimed {
    /// Claimed by a mount that is not attached yet.
    ByMount(Detached),
    /// Claimed by an exclusive descriptor, since the host refuses `fuseblk` mounts.
    ByDescriptor(OwnedFd),
}

impl Claim {
    /// Claims the device. Waits a moment for programs that only look whether it can be claimed.
    /// Returns `None` if there is no loop device for an image.
    ///
    /// # Errors
    ///
    /// `InUse` if the device is mounted or open exclusively.
    pub fn acquire(&self, options: &MountOptions) -> Result<Option<Claimed>, MountError> {
        retry_while_in_use(PROBE_TIME, in_use, || self.try_acquire(options))
    }

    fn try_acquire(&self, options: &MountOptions) -> Result<Option<Claimed>, MountError> {
        match self {
            Self::Device(device) => claim_device(device, options).map(Some),
            Self::Image { path, offset } => match claim_image(path, *offset, options) {
                Ok(detached) => Ok(Some(Claimed::ByMount(detached))),
                Err(error @ MountError::InUse(_)) => Err(error),
                // As for an ordinary user.
                Err(MountError::Mount(errno @ (Errno::PERM | Errno::ACCESS))) => {
                    tracing::info!("{}: no right to a loop device: {errno}", path.display());
                    Ok(None)
                }
                Err(error) => {
                    tracing::warn!(
                        "{}: cannot mount a loop device, so other programs can open the image: {error}",
                        path.display()
                    );
                    Ok(None)
                }
            },
        }
    }
}

/// Calls `attempt` again, for up to `time`, while it fails since another program uses a file or
/// device that is not mounted, which may last only for a moment. `in_use` returns the path in such
/// an error.
pub fn retry_while_in_use<T, E>(
    time: Duration,
    in_use: impl Fn(&E) -> Option<&Path>,
    attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let is_brief = |error: &E| in_use(error).is_some_and(|path| mounts_of(path).is_empty());
    retry_for(time, is_brief, attempt)
}

fn in_use(error: &MountError) -> Option<&Path> {
    match error {
        MountError::InUse(device) => Some(device),
        _ => None,
    }
}

/// Claims a block device by a mount, or by an exclusive descriptor if the host refuses the mount.
fn claim_device(device: &Path, options: &MountOptions) -> Result<Claimed, MountError> {
    match Detached::new(device.as_os_str(), options, Some(BLOCK_SIZE)) {
        Ok(detached) => Ok(Claimed::ByMount(detached)),
        Err(MountError::Mount(Errno::BUSY)) => Err(MountError::InUse(device.into())),
        Err(MountError::Mount(errno @ (Errno::PERM | Errno::NOSYS | Errno::NODEV))) => {
            tracing::info!("cannot mount {} as fuseblk: {errno}", device.display());
            open_exclusively(device, options)
        }
        Err(error) => Err(error),
    }
}

/// Claims an image file by a mount of a new loop device.
fn claim_image(path: &Path, offset: u64, options: &MountOptions) -> Result<Detached, MountError> {
    let device = LoopDevice::attach(path, offset..u64::MAX, true).map_err(MountError::Mount)?;
    // The mount keeps the loop device open after this function has dropped it.
    match Detached::new(device.path().as_os_str(), options, Some(BLOCK_SIZE)) {
        // Another program has claimed the device first.
        Err(MountError::Mount(Errno::BUSY)) => Err(MountError::InUse(device.path().into())),
        made => made,
    }
}

/// Claims a block device by an exclusive descriptor.
fn open_exclusively(device: &Path, options: &MountOptions) -> Result<Claimed, MountError> {
    let access = if options.writable { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(device, flags, Mode::empty()) {
        Ok(descriptor) => Ok(Claimed::ByDescriptor(descriptor)),
        Err(Errno::BUSY) => Err(MountError::InUse(device.into())),
        Err(errno) => Err(MountError::Mount(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_claimed_for_a_moment_is_tried_again() {
        let claimed = || Err::<(), _>(MountError::InUse("/dev/none".into()));
        let mut attempts = 0;
        let done = retry_while_in_use(Duration::from_secs(60), in_use, || {
            attempts += 1;
            if attempts < 3 { claimed() } else { Ok(()) }
        });
        assert!(done.is_ok() && attempts == 3);
        let refused = retry_while_in_use(Duration::from_millis(20), in_use, claimed);
        assert!(matches!(refused, Err(MountError::InUse(_))));
        let mut attempts = 0;
        let refused = retry_while_in_use(PROBE_TIME, in_use, || {
            attempts += 1;
            Err::<(), _>(MountError::NoRight)
        });
        assert!(matches!(refused, Err(MountError::NoRight)) && attempts == 1);
    }
}
