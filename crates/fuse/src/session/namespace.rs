//! A mount namespace of the server's own, with nothing in it.
//!
//! When the last process of a mount namespace ends, the kernel unmounts what is mounted there. Of a mount on a
//! block device, it then waits for the answer to DESTROY, and if the process that ends is the server, nobody
//! is left to answer: the process can never end, and all later sync(2) calls of the host wait for it. So the server must
//! not be in a namespace with its own mount.

use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsmount, fsopen, mount_change, move_mount, unmount,
};

use super::process;

/// Moves the calling process, which must have a single thread, to a mount namespace of its own whose root is an empty
/// directory. Files that are open stay open.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN. Mounts on block devices cannot be made without it.
pub fn leave() -> Result<(), Errno> {
    process::unshare_mounts()?;
    let all = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    // What is mounted later must not appear here, and what is mounted here must not appear elsewhere.
    mount_change("/", all)?;
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    rustix::process::fchdir(&root)?;
    // The old root comes to lie on the new one, and goes with all that is mounted below it: copies of mounts would
    // keep their devices in use.
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir(Path::new("/"))
}
