//! The server's own namespaces: an empty one of mounts, and further ones.
//!
//! When the last process of a mount namespace ends, the kernel unmounts all mounts in it. For a
//! mount of a block device, it then waits for the answer to DESTROY. If the process that ends is
//! the server, no process is left to answer: the server can never end, and all later sync(2) calls
//! of the host wait for it. So the server must not be in a namespace with its own mount.

use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsmount, fsopen, mount_change, move_mount, unmount,
};

use rustix::thread::UnshareFlags;

use super::process;

/// Moves the calling process, which must have a single thread, to a mount namespace of its own
/// whose root is an empty directory. Files that are open stay open.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN. Mounts of block devices cannot be created without it either.
pub fn leave() -> Result<(), Errno> {
    process::unshare(UnshareFlags::NEWNS)?;
    let all = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    // Later mounts of other namespaces must not appear in this one, nor this one's mounts in
    // others.
    mount_change("/", all)?;
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(&root)?;
    // This stacks the old root on the new one. It is then unmounted with all mounts below it, since
    // copies of mounts would keep their devices in use.
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir(Path::new("/"))
}

/// Moves the calling process to namespaces of its own for the network, IPC and the host's name,
/// each where that is allowed. Its network has no interfaces. The namespace of processes stays.
pub fn leave_others() {
    for (flag, name) in process::NAMESPACES {
        if let Err(errno) = process::unshare(flag) {
            tracing::debug!("cannot move the server to its own {name} namespace: {errno}");
        }
    }
}
