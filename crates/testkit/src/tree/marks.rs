//! Attributes of inodes: modes, owners, extended attributes, ACLs, times, flags, projects.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, IFlags, Timespec, Timestamps, XattrFlags};

use super::{TreeOptions, contents, create, folder, write};
use crate::host::ioctl;
use crate::must;

/// Creates files with all permission bits, and with owners that need 16 and 32 bits.
pub(super) fn modes_and_owners(top: &Path) {
    for mode in [0, 0o400, 0o644, 0o777, 0o4755, 0o2755, 0o1777, 0o7777] {
        let path = top.join(format!("mode {mode:04o}"));
        write(&path, "");
        must(std::fs::set_permissions(&path, Permissions::from_mode(mode)), path.display());
    }
    let sticky = folder(top, "shared folder");
    must(std::fs::set_permissions(&sticky, Permissions::from_mode(0o3777)), "mode");
    for (uid, gid) in [(1, 2), (65_534, 65_535), (65_536, 65_537), (0x1234_5678, 0xFFFF_FFFE)] {
        let path = top.join(format!("owner {uid}:{gid}"));
        write(&path, "");
        must(lchown(&path, Some(uid), Some(gid)), path.display());
        let link = top.join(format!("link of {uid}:{gid}"));
        must(symlink("nowhere", &link), link.display());
        must(lchown(&link, Some(uid), Some(gid)), link.display());
    }
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let set = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty());
    must(set, format_args!("{}: {name}, {} bytes", path.display(), value.len()));
}

/// Creates extended attributes of all namespaces and sizes, on all types of inodes that may have
/// them.
pub(super) fn xattrs(top: &Path, options: &TreeOptions) {
    let file = |name: &str| {
        let path = top.join(name);
        write(&path, name);
        path
    };
    let path = file("each namespace");
    for name in ["user.colour", "trusted.origin", "security.label"] {
        set_xattr(&path, name, name.as_bytes());
    }
    // A capability set of version 2, in the format of setcap.
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set_xattr(&file("capability"), "security.capability", &capability);
    set_xattr(&file("empty value"), "user.empty", b"");
    set_xattr(&file("zeroes"), "user.zero", &[0; 40]);
    set_xattr(&file("longest name"), &format!("user.{}", "n".repeat(250)), b"value");

    let path = file("many");
    for number in 0..15 {
        set_xattr(&path, &format!("user.number-{number}"), &contents(number, number as usize));
    }
    // Equal attributes on several files may share a block.
    for number in 0..3 {
        set_xattr(&file(&format!("shared {number}")), "user.shared", &contents(9, 300));
    }
    for size in [1, 30, 60, 90, 130, 200, 500, 900, 1000, 2000, 3900, 16_000, 60_000] {
        if size + 100 <= options.xattr_bytes_max {
            set_xattr(&file(&format!("size {size}")), "user.sized", &contents(size as u64, size));
        }
    }
    let path = file("both in the inode and outside");
    set_xattr(&path, "user.a", b"small");
    set_xattr(&path, "user.b", &contents(1, options.xattr_bytes_max.min(4000) / 2));
    set_xattr(&path, "trusted.c", b"small too");

    set_xattr(&folder(top, "folder"), "user.kind", b"directory");
    let link = top.join("symbolic link");
    must(symlink("nowhere", &link), "a symbolic link");
    set_xattr(&link, "trusted.kind", b"link");
    set_xattr(&link, "security.kind", b"link");
    let fifo = top.join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    must(rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0), "a fifo");
    set_xattr(&fifo, "trusted.kind", b"fifo");
}

// The tags of ACL entries, of linux/posix_acl.h.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of ACL entries without one.
const NO_ID: u32 = u32::MAX;

/// Returns a POSIX ACL in the format of setxattr(2): version 2, then tag, permissions and id of
/// each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Returns an access ACL with `users` users in addition to the owner.
pub(crate) fn acl_of_users(users: u16) -> Vec<u8> {
    let mut entries = vec![(OWNER, 6, NO_ID)];
    entries.extend((0..users).map(|number| (USER, number % 8, 100_000 + u32::from(number))));
    entries.extend([(GROUP_OWNER, 5, NO_ID), (MASK, 7, NO_ID), (OTHER, 1, NO_ID)]);
    acl(&entries)
}

/// Creates short and long access and default ACLs.
pub(super) fn acls(top: &Path) {
    let short = [
        (OWNER, 6, NO_ID),
        (USER, 4, 1000),
        (GROUP_OWNER, 4, NO_ID),
        (MASK, 6, NO_ID),
        (OTHER, 0, NO_ID),
    ];
    let mut long = vec![(OWNER, 7, NO_ID)];
    long.extend((0..20).map(|number| (USER, number % 8, 100_000 + u32::from(number))));
    long.push((GROUP_OWNER, 5, NO_ID));
    long.extend((0..20).map(|number| (GROUP, number % 8, 3 + u32::from(number))));
    long.extend([(MASK, 7, NO_ID), (OTHER, 1, NO_ID)]);
    for (name, entries) in [("short", &short[..]), ("long", &long)] {
        let path = top.join(name);
        write(&path, name);
        set_xattr(&path, "system.posix_acl_access", &acl(entries));
        let inherited = folder(top, &format!("{name} default"));
        set_xattr(&inherited, "system.posix_acl_default", &acl(entries));
        set_xattr(&inherited, "system.posix_acl_access", &acl(entries));
        write(&inherited.join("inherits"), name);
        folder(&inherited, "inherits too");
    }
}

/// Creates files with times before 1970, after 2038 and up to ext4's last one, with nanoseconds.
pub(super) fn times(top: &Path) {
    let times = [
        (0, 0),
        (0, 999_999_999),
        (-1, 1),
        (-(1 << 31), 0),
        (-(1 << 31), 123_456_789),
        ((1 << 31) - 1, 999_999_999),
        (1 << 31, 1),
        ((1 << 32) - 1, 5),
        (1 << 32, 500_000_000),
        (3 << 32, 7),
        ((1 << 34) - (1 << 31) - 1, 999_999_999),
        (1_600_000_000, 123_456_789),
    ];
    for (number, (seconds, nanoseconds)) in times.into_iter().enumerate() {
        let file = top.join(format!("file {number}"));
        write(&file, "");
        let link = top.join(format!("link {number}"));
        must(symlink("nowhere", &link), link.display());
        for path in [file, link, folder(top, &format!("folder {number}"))] {
            let modified = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            let accessed = Timespec { tv_sec: seconds / 2, tv_nsec: nanoseconds / 2 };
            let both = Timestamps { last_access: accessed, last_modification: modified };
            let set = rustix::fs::utimensat(CWD, &path, &both, AtFlags::SYMLINK_NOFOLLOW);
            must(set, path.display());
        }
    }
}

/// Sets the inode flags that programs can set. This is the last part of the tree, since some flags
/// forbid further changes.
pub(super) fn flags(top: &Path) {
    let flags = [
        ("nodump", IFlags::NODUMP),
        ("noatime", IFlags::NOATIME),
        ("synchronous", IFlags::SYNC),
        ("append only", IFlags::APPEND),
        ("immutable", IFlags::IMMUTABLE),
    ];
    for (name, flag) in flags {
        let file = create(&top.join(name));
        let before = must(rustix::fs::ioctl_getflags(&file), name);
        set_flags(&file, before | flag, name);
    }
    let file = must(File::open(folder(top, "top of hierarchies")), "a folder");
    let before = must(rustix::fs::ioctl_getflags(&file), "flags");
    set_flags(&file, before | IFlags::TOPDIR | IFlags::DIRSYNC, "flags of a folder");
}

/// Creates files and folders with project ids.
pub(super) fn projects(top: &Path) {
    for project in [1, 65_536, 0xFFFF_FFFE] {
        let file = create(&top.join(format!("file of {project}")));
        must(ioctl::set_project(&file, project), project);
        let path = folder(top, &format!("folder of {project}"));
        let file = must(File::open(&path), path.display());
        must(ioctl::set_project(&file, project), project);
    }
}

/// Sets flags, if the file system supports them. tmpfs, which may contain a source tree, does not
/// support all.
fn set_flags(file: &File, flags: IFlags, what: &str) {
    match rustix::fs::ioctl_setflags(file, flags) {
        Err(rustix::io::Errno::OPNOTSUPP) => {}
        set => must(set, what),
    }
}
