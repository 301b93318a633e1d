//! Mounting by the system calls themselves, which only root may.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::mount::{Force, MountError, MountRequest, SUBTYPE};

/// S_IFDIR: the type of the root inode.
const ROOT_MODE: u32 = 0o040000;
/// The largest block size that every kernel takes for a device, in bytes.
const DEVICE_BLOCK_MAX: u32 = 4096;

/// mount(2).
pub fn mount(request: &MountRequest<'_>) -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(MountError::Device)?;
    let kind = match request.block_device {
        Some(_) => format!("fuseblk.{SUBTYPE}"),
        None => format!("fuse.{SUBTYPE}"),
    };
    let data = data(request, device.as_raw_fd());
    let data = CString::new(data).map_err(|_| MountError::Mount(Errno::INVAL))?;
    let source = request.source.as_os_str();
    rustix::mount::mount(source, request.directory, kind, mount_flags(request), data.as_c_str())
        .map_err(MountError::Mount)?;
    Ok(device)
}

/// umount2(2). Never through a symbolic link: the path is a real one.
pub fn unmount(directory: &Path, force: Force) -> Result<(), MountError> {
    let flags = match force {
        Force::None => UnmountFlags::NOFOLLOW,
        Force::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    rustix::mount::unmount(directory, flags).map_err(MountError::Unmount)
}

/// Has the kernel collect writes for the mount with this device number ("major:minor") as for any other
/// file system. It would begin to write them, and hold writers up, at a hundredth of what it lets others
/// collect. Only root may; before Linux 6.2 nobody can.
pub fn lift_limit_on_writeback(device: &str) {
    let limit = format!("/sys/class/bdi/{device}/strict_limit");
    if let Err(error) = std::fs::write(&limit, "0") {
        tracing::info!("{limit} stays: {error}");
    }
}

fn data(request: &MountRequest<'_>, device: i32) -> String {
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let mut data = format!(
        "fd={device},rootmode={ROOT_MODE:o},user_id={user},group_id={group},default_permissions"
    );
    if request.options.allow_other {
        data.push_str(",allow_other");
    }
    if let Some(block_size) = request.block_device {
        data.push_str(&format!(",blksize={}", block_size.clamp(512, DEVICE_BLOCK_MAX)));
    }
    data
}

fn mount_flags(request: &MountRequest<'_>) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, !request.options.writable);
    flags.set(MountFlags::NOSUID, !request.options.suid);
    flags.set(MountFlags::NODEV, !request.options.dev);
    flags.set(MountFlags::NOEXEC, !request.options.exec);
    flags
}
