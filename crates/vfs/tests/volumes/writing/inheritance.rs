//! Attributes that new inodes inherit from their directory.

use base::Error;
use base::attributes::FileType;
use vfs::{Creation, Privileges, RenameFlags, XattrMode};

use crate::writing::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Returns an ACL with an entry for user 1000.
fn acl(owner: u8, named: u8, group: u8, mask: u8, other: u8) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions, id) in [
        (0x01, owner, u32::MAX),
        (0x02, named, 1000),
        (0x04, group, u32::MAX),
        (0x10, mask, u32::MAX),
        (0x20, other, u32::MAX),
    ] {
        value.extend([tag, 0, permissions, 0]);
        value.extend(u32::to_le_bytes(id));
    }
    value
}

fn creation(kind: FileType, permissions: u16, umask: u16) -> Creation<'static> {
    Creation { umask, ..Creation::of(kind, permissions) }
}

#[test]
fn inodes_inherit_the_group_of_a_setgid_directory_and_directories_the_bit() {
    let (volume, _) = volume();
    let owner = Credentials { gid: 50, ..user(7) };
    volume.mkdir(b"/d", 0o2775, &owner).unwrap();
    let file = volume.create_file(b"/d/file", 0o2755, &user(8)).unwrap().attributes();
    assert_eq!((file.uid, file.gid, file.permissions), (8, 50, 0o755));
    let whiteout = RenameFlags { whiteout: true, ..RenameFlags::default() };
    volume.rename_at(b"/d/file", b"/moved", whiteout, &user(8)).unwrap();
    let left = node(&volume, "/d/file").attributes();
    assert_eq!((left.uid, left.gid, left.permissions), (8, 50, 0));
    let file = volume.create_file(b"/d/locked", 0o2644, &user(8)).unwrap().attributes();
    assert_eq!(file.permissions, 0o2644, "without group execute the bit is a mark");
    let member = Credentials { groups: vec![50], ..user(9) };
    let file = volume.create_file(b"/d/own", 0o2755, &member).unwrap().attributes();
    assert_eq!((file.gid, file.permissions), (50, 0o2755));
    let directory = volume.mkdir(b"/d/sub", 0o700, &user(8)).unwrap().attributes();
    assert_eq!((directory.gid, directory.permissions), (50, 0o2700));
    volume.mkdir(b"/plain", 0o755, &owner).unwrap();
    assert_eq!(volume.create_file(b"/plain/file", 0, &user(8)).unwrap().attributes().gid, 8);
}

#[test]
fn without_a_default_acl_the_umask_applies() {
    let (volume, _) = volume();
    let file = volume.create_at(b"/f", &creation(FileType::Regular, 0o666, 0o027), &ROOT).unwrap();
    assert_eq!(file.attributes().permissions, 0o640);
    assert_eq!(file.list_xattrs().unwrap(), Vec::<Vec<u8>>::new());
}

#[test]
fn a_default_acl_is_inherited_and_the_umask_ignored() {
    let (volume, _) = volume();
    let directory = mkdir(&volume, "/d");
    let default = acl(7, 7, 5, 7, 0);
    directory.set_xattr(DEFAULT, &default, XattrMode::Either, Privileges::Keep).unwrap();
    let made = |path: &[u8], kind, permissions| {
        volume.create_at(path, &creation(kind, permissions, 0o077), &ROOT).unwrap()
    };
    let file = made(b"/d/file", FileType::Regular, 0o666);
    assert_eq!(file.attributes().permissions, 0o660, "the group bits are the mask");
    assert_eq!(file.get_xattr(ACCESS).unwrap(), acl(6, 7, 5, 6, 0));
    assert_eq!(file.get_xattr(DEFAULT), Err(Error::NoAttribute));
    let sub = made(b"/d/sub", FileType::Directory, 0o755);
    assert_eq!(sub.get_xattr(ACCESS).unwrap(), acl(7, 7, 5, 5, 0));
    assert_eq!(sub.get_xattr(DEFAULT).unwrap(), default);
    let link = volume.create_at(b"/d/link", &Creation::symlink(b"x"), &ROOT).unwrap();
    assert_eq!(link.attributes().permissions, 0o777);
    assert_eq!(link.list_xattrs().unwrap(), Vec::<Vec<u8>>::new());
}
