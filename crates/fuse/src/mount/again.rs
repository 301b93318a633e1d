//! Further mounts of a volume that is mounted already. As with the kernel's file systems, all
//! mounts of a device show one superblock: a further mount is a bind mount of the root, and the
//! server ends with the last one. Not here: first mounts.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::loop_device::loop_backing;
use super::system::attributes;
use super::table::{self, MountEntry, has_option};
use super::{MountError, MountOptions, check_free, open_mount, open_root, path_of};
use crate::child;
use crate::retry::retry;

/// The attributes that a further mount does not share with the first one.
const OWN_ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR__ATIME)
    .union(MountAttrFlags::MOUNT_ATTR_NODIRATIME);

/// The time within which a server answers. It may wait for its device.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// `struct mount_attr`.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Returns a mount, in this mount namespace, of the volume that starts at the byte `offset` of
/// `image`, if the mount has a block device and a server. Mounts without a block device can have
/// several servers, which only read, or cannot be shared.
///
/// This function **forks**: no other thread may be running.
///
/// # Errors
///
/// `NoAnswer` if the server of such a mount neither answers nor has ended.
pub fn served(image: &Path, offset: u64) -> Result<Option<MountEntry>, MountError> {
    let Ok(metadata) = image.metadata() else { return Ok(None) };
    let is_wanted = |source: &Path| {
        let device = source.metadata().ok().filter(|found| found.file_type().is_block_device());
        let Some(device) = device else { return false };
        if metadata.file_type().is_block_device() {
            return offset == 0 && device.rdev() == metadata.rdev();
        }
        loop_backing(source).is_some_and(|file| {
            (file.device, file.inode, file.offset) == (metadata.dev(), metadata.ino(), offset)
        })
    };
    for entry in table::ours() {
        let is_one =
            entry.is_block_device() && entry.root == "/" && is_wanted(Path::new(&entry.source));
        if is_one && has_server(&entry)? {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Returns whether requests to a mount are answered, as far as its path leads to it. A child asks:
/// a thread that waits for a server may never end.
fn has_server(mount: &MountEntry) -> Result<bool, MountError> {
    // The kernel may open a directory without a request, but asks the server for the counts of the
    // file system each time.
    let is_answered = || {
        let root = open_mount(mount, OFlags::RDONLY);
        root.and_then(|root| retry(|| rustix::fs::fstatfs(&root))).is_ok()
    };
    let answer = child::ask(ANSWER_TIMEOUT, is_answered).map_err(MountError::Mount)?;
    answer.ok_or_else(|| MountError::NoAnswer(mount.mount_point.clone()))
}

/// Mounts the volume of the mount `first` on `directory`, too, with the attributes of `options`.
/// Its other options are those of the first mount.
///
/// # Errors
///
/// `ReadOnly` if the options are for writing, and the first mount is for reading.
pub fn mount_again(
    first: &MountEntry,
    directory: &Path,
    options: &MountOptions,
) -> Result<(), MountError> {
    check_free(directory)?;
    if options.writable && has_option(&first.super_options, "ro") {
        return Err(MountError::ReadOnly(first.mount_point.clone()));
    }
    let again = || {
        let root = open_mount(first, OFlags::PATH)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        // The path leads to the open directory, whatever is mounted on the mount point by now.
        let tree = open_tree(CWD, path_of(&root), flags)?;
        set_attributes(&tree, attributes(options), OWN_ATTRIBUTES)?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&tree, "", open_root(directory, OFlags::PATH)?, "", flags)
    };
    again().map_err(MountError::Mount)
}

/// Makes a mount that is not attached yet read-only, although its file system is not.
pub fn make_read_only(mount: &OwnedFd) -> Result<(), Errno> {
    set_attributes(mount, MountAttrFlags::MOUNT_ATTR_RDONLY, MountAttrFlags::empty())
}

/// Sets and clears attributes of a mount, and separates it from mounts that get the same mounts as
/// it (shared subtrees).
fn set_attributes(
    mount: &OwnedFd,
    set: MountAttrFlags,
    clear: MountAttrFlags,
) -> Result<(), Errno> {
    let attributes = Attributes {
        set: set.bits().into(),
        clear: clear.bits().into(),
        propagation: libc::MS_PRIVATE,
        user_namespace: 0,
    };
    // SAFETY: the kernel reads an empty string and `Attributes`, both of which live until the call
    // returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
