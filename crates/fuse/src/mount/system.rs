//! Mounts by system calls, for root only. A mount is first created, then attached to the directory
//! tree. Not here: claims of devices (`claim`).

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_create_exclusive, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use super::mount_point::{self, MountPoint};
use crate::mount::{MountError, MountId, MountOptions, SUBTYPE};

/// S_IFDIR: the type of the root inode.
const ROOT_MODE: &str = "40000";

/// A mount that is not attached to the directory tree. Dropping this value unmounts it.
#[derive(Debug)]
pub struct Detached {
    connection: OwnedFd,
    mount: OwnedFd,
}

impl Detached {
    /// Creates a mount that shows `source`. With a `block_size`, in bytes, `source` is a block
    /// device, and the kernel claims it as long as the mount exists. Fails with EBUSY if the device
    /// is already claimed.
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
                // Before Linux 6.6, a second mount of the same device shares the first, and this
                // connection is left without a file system.
                if is_unconnected(&connection)? { Err(Errno::BUSY) } else { Ok(mount) }
            })
            .map(|mount| Self { connection, mount })
            .map_err(MountError::Mount)
    }

    /// Returns the identity of the mount. Attaching does not change it.
    pub fn id(&self) -> Option<MountId> {
        MountId::of(&self.mount)
    }

    /// Makes the mount read-only, although its options are for writing.
    pub fn make_read_only(&self) -> Result<(), MountError> {
        super::again::make_read_only(&self.mount).map_err(MountError::Mount)
    }

    /// Attaches the mount to `directory`, and returns its connection.
    pub fn attach(self, directory: &Path) -> Result<OwnedFd, MountError> {
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        mount_point::open(directory, OFlags::PATH)
            .and_then(|directory| move_mount(&self.mount, "", directory, "", flags))
            .map_err(MountError::Mount)?;
        Ok(self.connection)
    }
}

/// Creates a mount of the FUSE `connection`.
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
        // The kernel then sends the data that it has collected of a write before the call returns.
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

/// Returns the attributes of a mount with these options.
pub fn attributes(options: &MountOptions) -> MountAttrFlags {
    let mut attributes = options.access_attributes();
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !options.writable);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.suid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.dev);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !options.exec);
    attributes
}

/// Returns whether the connection belongs to no file system.
fn is_unconnected(connection: &OwnedFd) -> Result<bool, Errno> {
    let mut watched = [PollFd::new(connection, PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&Timespec::default()))?;
    Ok(watched[0].revents().contains(PollFlags::ERR))
}

/// Unmounts `directory`. No symbolic link is followed.
pub fn unmount(directory: &Path) -> Result<(), MountError> {
    unmount_with(directory, UnmountFlags::empty()).map_err(MountError::Unmount)
}

fn unmount_with(directory: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    let mount_point = MountPoint::find(directory)?;
    rustix::mount::unmount(mount_point.path(), flags | UnmountFlags::NOFOLLOW)
}

/// Returns whether the mount on `directory` is in use, or has another mount on it.
pub fn is_in_use(directory: &Path) -> bool {
    // MNT_EXPIRE only marks a mount that is not in use.
    unmount_with(directory, UnmountFlags::EXPIRE) == Err(Errno::BUSY)
}

/// Detaches the mount `id` from `directory`, even if it is in use. Does nothing if it is not
/// mounted there.
pub fn detach(directory: &Path, id: &MountId) -> Result<(), MountError> {
    let Ok(opened) = mount_point::open(directory, OFlags::PATH) else { return Ok(()) };
    if MountId::of(&opened).as_ref() != Some(id) {
        return Ok(());
    }
    // An open directory stays on the same mount.
    let path = mount_point::path_of(&opened);
    rustix::mount::unmount(path, UnmountFlags::DETACH).map_err(MountError::Unmount)
}

/// Sets the limits for dirty pages of a mount to those of other file systems. By default, the
/// kernel writes back and throttles writers at a hundredth of these limits. `device` is the mount's
/// device number ("major:minor"). Needs root and Linux 6.2.
pub fn lift_limit_on_writeback(device: &str, is_block_device: bool) {
    let suffix = if is_block_device { "-fuseblk" } else { "" };
    let limit = format!("/sys/class/bdi/{device}{suffix}/strict_limit");
    if let Err(error) = std::fs::write(&limit, "0") {
        tracing::info!("cannot change {limit}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_that_became_a_symbolic_link_is_not_followed() {
        testkit::private_mounts();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let directory = folder.join("elsewhere/mount");
        std::fs::create_dir_all(&directory).unwrap();
        symlink("elsewhere", folder.join("link")).unwrap();
        let swapped = folder.join("link/mount");
        let new = || Detached::new("source".as_ref(), &MountOptions::default(), None).unwrap();
        let refused = new().attach(&swapped).unwrap_err();
        assert!(matches!(refused, MountError::Mount(Errno::LOOP)), "{refused}");

        let mount = new();
        let id = mount.id();
        let mounted = || MountId::of(&mount_point::open(&directory, OFlags::PATH).unwrap());
        let _connection = mount.attach(&directory).unwrap();
        let refused = unmount(&swapped).unwrap_err();
        assert!(matches!(refused, MountError::Unmount(Errno::NOTDIR)), "{refused}");
        assert!(!is_in_use(&swapped));
        detach(&swapped, id.as_ref().unwrap()).unwrap();
        // The call above has not marked the mount: otherwise this one would unmount it.
        assert!(!is_in_use(&directory));
        assert_eq!(mounted(), id);
        unmount(&directory).unwrap();
        assert_ne!(mounted(), id);
    }
}
