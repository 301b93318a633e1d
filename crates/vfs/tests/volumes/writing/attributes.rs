//! Changes of attributes, sizes and extended attributes.

use base::Error;
use base::attributes::{AttributeChange, Timestamp};
use vfs::{Privileges, XattrMode};

use crate::writing::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";
/// An empty set of capabilities.
const CAPABILITIES: &[u8] = b"\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Creates a file with these permissions and capabilities.
fn privileged(volume: &Volume, path: &str, permissions: u16) -> Arc<Node> {
    let file = create(volume, path);
    file.set_xattr(CAPABILITY, CAPABILITIES, XattrMode::Create, Privileges::Keep).unwrap();
    chmod(&file, permissions);
    file
}

fn chmod(node: &Node, permissions: u16) {
    let change = AttributeChange { permissions: Some(permissions), ..AttributeChange::default() };
    node.set_attributes(&change, &ROOT).unwrap();
}

fn permissions(node: &Node) -> u16 {
    node.attributes().permissions
}

fn set_xattr(node: &Node, name: &[u8], value: &[u8]) -> Result<(), Error> {
    node.set_xattr(name, value, XattrMode::Either, Privileges::Keep)
}

#[test]
fn only_requested_attributes_and_the_change_time_change() {
    let (volume, _) = volume();
    let file = create(&volume, "/file");
    let modified = Timestamp { seconds: -5, nanoseconds: 7 };
    // Two changes within a tick of the clock would have the same time.
    let old = AttributeChange { changed: Some(modified), ..AttributeChange::default() };
    file.set_attributes(&old, &ROOT).unwrap();
    let before = file.attributes();
    let change = AttributeChange { modified: Some(modified), ..AttributeChange::default() };
    file.set_attributes(&change, &ROOT).unwrap();
    let after = file.attributes();
    assert!(after.changed > before.changed);
    assert_eq!(after, base::attributes::Attributes { modified, changed: after.changed, ..before });
}

#[test]
fn a_truncation_clears_privileges_that_the_caller_may_not_keep() {
    let (volume, _) = volume();
    let file = privileged(&volume, "/a", 0o6755);
    file.set_size(10, Privileges::Keep).unwrap();
    assert_eq!(permissions(&file), 0o6755);
    assert_eq!(
        file.get_xattr(CAPABILITY),
        Err(Error::NoAttribute),
        "capabilities are always removed"
    );
    file.set_size(20, Privileges::Drop).unwrap();
    assert_eq!((permissions(&file), file.attributes().size), (0o755, 20));
    let file = privileged(&volume, "/b", 0o6745);
    let group = file.attributes().gid;
    file.set_size(5, Privileges::DropFor(group)).unwrap();
    assert_eq!(permissions(&file), 0o2745, "without group execute setgid is a mark");
    file.set_size(4, Privileges::DropFor(group)).unwrap();
    assert_eq!(permissions(&file), 0o2745);
    file.set_size(0, Privileges::DropFor(group + 1)).unwrap();
    assert_eq!(permissions(&file), 0o745, "only the group's members may keep the mark");
    // The vfs remembers that a file has no privileges, until it may have some again.
    set_xattr(&file, CAPABILITY, CAPABILITIES).unwrap();
    chmod(&file, 0o4711);
    file.set_size(1, Privileges::Drop).unwrap();
    assert_eq!(permissions(&file), 0o711);
    assert_eq!(file.get_xattr(CAPABILITY), Err(Error::NoAttribute));
    let directory = mkdir(&volume, "/d");
    assert_eq!(directory.set_size(0, Privileges::Keep), Err(Error::IsDirectory));
}

#[test]
fn attributes_that_setxattr_refuses_everywhere_are_refused() {
    let (volume, _) = volume();
    let file = create(&volume, "/file");
    let longest = [&b"user."[..], &[b'n'; 250]].concat();
    set_xattr(&file, &longest, b"x").unwrap();
    let longer = [&longest[..], b"n"].concat();
    for (name, value) in [(&longer[..], &b"x"[..]), (CAPABILITY, b"caps"), (CAPABILITY, b"")] {
        let refused = set_xattr(&file, name, value);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    }
    assert_eq!(file.list_xattrs(), Ok(vec![longest]));
}

#[test]
fn a_change_of_owner_clears_privileges() {
    let (volume, _) = volume();
    let give = AttributeChange { uid: Some(9), ..AttributeChange::default() };
    let file = privileged(&volume, "/file", 0o6755);
    file.set_attributes(&give, &ROOT).unwrap();
    assert_eq!((permissions(&file), file.attributes().uid), (0o755, 9));
    assert_eq!(file.get_xattr(CAPABILITY), Err(Error::NoAttribute));
    let directory = mkdir(&volume, "/d");
    chmod(&directory, 0o2755);
    directory.set_attributes(&give, &ROOT).unwrap();
    assert_eq!(permissions(&directory), 0o2755);
    // Requested permissions are set.
    let restore = AttributeChange { permissions: Some(0o4755), ..give };
    file.set_attributes(&restore, &ROOT).unwrap();
    assert_eq!(permissions(&file), 0o4755);
}

/// Returns an ACL with an entry for user 1000.
fn acl(owner: u8, named: u8, group: u8, mask: u8, other: u8) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions, id) in [
        (1, owner, u32::MAX),
        (2, named, 1000),
        (4, group, u32::MAX),
        (16, mask, u32::MAX),
        (32, other, u32::MAX),
    ] {
        value.extend([tag, 0, permissions, 0]);
        value.extend(u32::to_le_bytes(id));
    }
    value
}

#[test]
fn changes_of_the_mode_and_the_acl_update_each_other() {
    let (volume, _) = volume();
    let file = create(&volume, "/file");
    chmod(&file, 0o2750);
    set_xattr(&file, ACCESS, &acl(7, 6, 4, 6, 1)).unwrap();
    assert_eq!(permissions(&file), 0o2761);
    chmod(&file, 0o640);
    assert_eq!(file.get_xattr(ACCESS).unwrap(), acl(6, 6, 4, 4, 0));
    // A caller outside the group who sets an ACL clears the setgid bit.
    chmod(&file, 0o2640);
    file.set_xattr(ACCESS, &acl(7, 6, 4, 6, 1), XattrMode::Either, Privileges::Drop).unwrap();
    assert_eq!(permissions(&file), 0o761);
    // A mode replaces an ACL that expresses nothing more.
    let plain: Vec<u8> = [
        [2, 0, 0, 0].as_slice(),
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    set_xattr(&file, ACCESS, &plain).unwrap();
    assert_eq!((permissions(&file), file.get_xattr(ACCESS)), (0o640, Err(Error::NoAttribute)));
    // An empty ACL removes the existing one.
    set_xattr(&file, ACCESS, &acl(7, 6, 4, 6, 1)).unwrap();
    set_xattr(&file, ACCESS, &[2, 0, 0, 0]).unwrap();
    assert_eq!(file.get_xattr(ACCESS), Err(Error::NoAttribute));
}

#[test]
fn invalid_acls_are_refused() {
    let (volume, _) = volume();
    let file = create(&volume, "/file");
    let link = volume.create_at(b"/link", &Creation::symlink(b"x"), &ROOT).unwrap();
    let invalid = set_xattr(&file, ACCESS, b"nonsense");
    assert!(matches!(invalid, Err(Error::InvalidArgument(_))));
    let value = acl(7, 7, 7, 7, 7);
    assert!(matches!(set_xattr(&file, DEFAULT, &value), Err(Error::NotPermitted(_))));
    assert!(matches!(set_xattr(&link, ACCESS, &value), Err(Error::NotPermitted(_))));
    let directory = mkdir(&volume, "/d");
    set_xattr(&directory, DEFAULT, &value).unwrap();
    set_xattr(&directory, DEFAULT, &[2, 0, 0, 0]).unwrap();
    assert_eq!(directory.get_xattr(DEFAULT), Err(Error::NoAttribute));
    set_xattr(&directory, DEFAULT, &[2, 0, 0, 0]).unwrap();
}

#[test]
fn extended_attributes_are_created_replaced_and_removed() {
    let (volume, _) = volume();
    let file = create(&volume, "/file");
    let set = |mode| file.set_xattr(b"user.a", b"value", mode, Privileges::Keep);
    assert_eq!(set(XattrMode::Replace), Err(Error::NoAttribute));
    assert_eq!(set(XattrMode::Create), Ok(()));
    assert_eq!(set(XattrMode::Create), Err(Error::Exists));
    assert_eq!(set(XattrMode::Replace), Ok(()));
    assert_eq!(file.get_xattr(b"user.a").unwrap(), b"value");
    let before = file.attributes().changed;
    file.remove_xattr(b"user.a").unwrap();
    assert!(file.attributes().changed > before);
    assert_eq!(file.remove_xattr(b"user.a"), Err(Error::NoAttribute));
    let large = vec![0; 65_537];
    assert!(matches!(set_xattr(&file, b"user.b", &large), Err(Error::InvalidArgument(_))));
}
