//! Mounting by system calls, for root only. Creating the mount and attaching it to the directory tree are two
//! steps. Not here: the device that is mounted (`hold`).

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_create_exclusive, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::mount::{MountError, MountId, MountOptions, SUBTYPE};

/// S_IFDIR: the type of the root inode.
const ROOT_MODE: &str = "40000";

/// A mount that is not attached to the directory tree. Dropping it unmounts it.
#[derive(Debug)]
pub struct Detached {
    connection: OwnedFd,
    mount: OwnedFd,
}

impl Detached {
    /// Creates a mount that shows `source`. With a `block_size`, in bytes, `source` is a block device, and
    /// the kernel claims it for the life of the mount. Fails with EBUSY if the device is already claimed.
    pub fn new(
        source: &OsStr,
        options: &MountOptions,
        block_size: Option<u32>,
    ) -> Result<Self, MountError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let connection =
            rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(MountError::Device)?;
        create(source, options, block_size, connection.as_raw_fd())
            .and_then(|mount| {
                // Before Linux 6.6, a second mount of the same device shares the first, and this connection
                // is left without a file system.
                if is_unconnected(&connection)? { Err(Errno::BUSY) } else { Ok(mount) }
            })
            .map(|mount| Self { connection, mount })
            .map_err(MountError::Mount)
    }

    /// Returns the identity of the mount, which attaching does not change.
    pub fn id(&self) -> Option<MountId> {
        MountId::of(&self.mount)
    }

    /// Attaches the mount to `directory`, and returns its connection.
    pub fn attach(self, directory: &Path) -> Result<OwnedFd, MountError> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&self.mount, "", CWD, directory, flags).map_err(MountError::Mount)?;
        Ok(self.connection)
    }
}

fn create(
    source: &OsStr,
    options: &MountOptions,
    block_size: Option<u32>,
    connection: i32,
) -> Result<OwnedFd, Errno> {
    let kind = if block_size.is_some() { "fuseblk" } else { "fuse" };
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", source)?;
    fsconfig_set_string(&context, "subtype", SUBTYPE)?;
    fsconfig_set_string(&context, "fd", connection.to_string())?;
    fsconfig_set_string(&context, "rootmode", ROOT_MODE)?;
    fsconfig_set_string(&context, "user_id", rustix::process::getuid().as_raw().to_string())?;
    fsconfig_set_string(&context, "group_id", rustix::process::getgid().as_raw().to_string())?;
    if let Some(block_size) = block_size {
        fsconfig_set_string(&context, "blksize", block_size.to_string())?;
    }
    if options.checks_access() {
        fsconfig_set_flag(&context, "default_permissions")?;
    }
    if options.allow_other {
        fsconfig_set_flag(&context, "allow_other")?;
    }
    if !options.writable {
        fsconfig_set_flag(&context, "ro")?;
    }
    if options.sync {
        // What the kernel collects of a write, too, is written before the call returns.
        fsconfig_set_flag(&context, "sync")?;
    }
    if options.access.lazy {
        fsconfig_set_flag(&context, "lazytime")?;
    }
    match fsconfig_create_exclusive(&context) {
        Err(Errno::OPNOTSUPP) => fsconfig_create(&context)?,
        created => created?,
    }
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options))
}

fn attributes(options: &MountOptions) -> MountAttrFlags {
    let mut attributes = options.access_attributes();
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !options.writable);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.suid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.dev);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !options.exec);
    attributes
}

/// Returns whether the connection has no file system.
fn is_unconnected(connection: &OwnedFd) -> Result<bool, Errno> {
    let mut watched = [PollFd::new(connection, PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&Timespec::default()))?;
    Ok(watched[0].revents().contains(PollFlags::ERR))
}

/// Calls umount2(2). The path is canonical: no symbolic link is followed.
pub fn unmount(directory: &Path) -> Result<(), MountError> {
    rustix::mount::unmount(directory, UnmountFlags::NOFOLLOW).map_err(MountError::Unmount)
}

/// Returns whether the mount on `directory` is in use, or has another mount on it.
pub fn is_in_use(directory: &Path) -> bool {
    // MNT_EXPIRE only marks a mount that is not in use.
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::EXPIRE;
    rustix::mount::unmount(directory, flags) == Err(Errno::BUSY)
}

/// Detaches the mount `id` from `directory`, even if it is in use. Does nothing if it is not there.
pub fn take_away(directory: &Path, id: &MountId) -> Result<(), MountError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(directory, flags, Mode::empty()) else { return Ok(()) };
    if MountId::of(&opened).as_ref() != Some(id) {
        return Ok(());
    }
    // An open directory stays on the same mount.
    let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
    rustix::mount::unmount(path, UnmountFlags::DETACH).map_err(MountError::Unmount)
}

/// Gives a mount the same limits for dirty pages as other file systems. By default the kernel writes back,
/// and throttles writers, at a hundredth of those. `device` is the mount's device number ("major:minor").
/// Needs root and Linux 6.2.
pub fn lift_limit_on_writeback(device: &str, is_block_device: bool) {
    let suffix = if is_block_device { "-fuseblk" } else { "" };
    let limit = format!("/sys/class/bdi/{device}{suffix}/strict_limit");
    if let Err(error) = std::fs::write(&limit, "0") {
        tracing::info!("{limit} stays: {error}");
    }
}
