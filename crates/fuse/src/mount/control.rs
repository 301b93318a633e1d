//! The kernel's control files for connections (fusectl): the abort of a connection. The guard has
//! no copy of it.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::MountId;

/// The directory on which the host mounts the files.
const DIRECTORY: &str = "/sys/fs/fuse/connections";

/// Aborts the connection of a mount: the kernel fails all requests, and no thread waits for an
/// answer any more.
pub fn abort(mount: &MountId) -> Result<(), Errno> {
    let number = connection(&mount.device).ok_or(Errno::INVAL)?;
    let file = format!("{number}/abort");
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(Path::new(DIRECTORY).join(&file), flags, Mode::empty()) {
        // The host has not mounted the files, which only root may do.
        Err(Errno::NOENT) => rustix::fs::openat(&mount_files()?, &file, flags, Mode::empty()),
        opened => opened,
    }?;
    rustix::io::write(&opened, b"1").map(drop)
}

/// Returns the number of the connection of a mount with this device ("major:minor").
fn connection(device: &str) -> Option<u32> {
    const MINOR_BITS: u32 = 20;
    let (major, minor) = device.split_once(':')?;
    Some(major.parse::<u32>().ok()? << MINOR_BITS | minor.parse::<u32>().ok()?)
}

/// Mounts the files, without attaching the mount to a directory.
fn mount_files() -> Result<OwnedFd, Errno> {
    let file_system = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&file_system)?;
    let attributes = MountAttrFlags::empty();
    rustix::mount::fsmount(&file_system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_numbered_by_the_device() {
        assert_eq!(connection("0:52"), Some(52));
        assert_eq!(connection("7:3"), Some(0x70_0003));
        assert_eq!(connection("7"), None);
    }
}
