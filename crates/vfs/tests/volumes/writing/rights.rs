//! Permission checks.

use base::Error;
use base::attributes::AttributeChange;
use vfs::{Privileges, RenameFlags, XattrMode};

use crate::writing::*;

const IMMUTABLE: u32 = 0x10;
const APPEND_ONLY: u32 = 0x20;

#[track_caller]
fn check_not_permitted<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::NotPermitted(_))), "{result:?}");
}

fn chmod(permissions: u16) -> AttributeChange {
    AttributeChange { permissions: Some(permissions), ..AttributeChange::default() }
}

#[test]
fn in_a_sticky_directory_only_owners_remove_names() {
    let (volume, _) = volume();
    let directory = volume.mkdir(b"/tmp", 0o1777, &user(7)).unwrap();
    let make = || drop(volume.create_file(b"/tmp/file", 0o666, &user(8)).unwrap());
    make();
    check_not_permitted(volume.unlink(&directory, b"file", &user(9)));
    check_not_permitted(volume.rename_at(b"/tmp/file", b"/x", RenameFlags::default(), &user(9)));
    create(&volume, "/other");
    let onto = volume.rename_at(b"/other", b"/tmp/file", RenameFlags::default(), &user(9));
    check_not_permitted(onto);
    for uid in [7, 8] {
        volume.unlink(&directory, b"file", &user(uid)).unwrap();
        make();
    }
    volume.unlink(&directory, b"file", &ROOT).unwrap();
}

#[test]
fn only_the_owner_changes_attributes_and_only_root_the_owner() {
    let (volume, _) = volume();
    let file = volume.create_file(b"/file", 0o644, &user(7)).unwrap();
    check_not_permitted(file.set_attributes(&chmod(0o600), &user(8)));
    file.set_attributes(&chmod(0o600), &user(7)).unwrap();
    assert_eq!(file.attributes().permissions, 0o600);
    let chown = |uid, gid| AttributeChange { uid, gid, ..AttributeChange::default() };
    check_not_permitted(file.set_attributes(&chown(Some(8), None), &user(7)));
    check_not_permitted(file.set_attributes(&chown(None, Some(50)), &user(7)));
    let member = Credentials { groups: vec![50], ..user(7) };
    file.set_attributes(&chown(None, Some(50)), &member).unwrap();
    file.set_attributes(&chown(Some(8), None), &ROOT).unwrap();
    assert_eq!((file.attributes().uid, file.attributes().gid), (8, 50));
}

#[test]
fn only_members_of_the_group_set_setgid() {
    let (volume, _) = volume();
    let file = volume.create_file(b"/file", 0o755, &user(7)).unwrap();
    let to_group = AttributeChange { gid: Some(50), ..AttributeChange::default() };
    file.set_attributes(&to_group, &ROOT).unwrap();
    file.set_attributes(&chmod(0o6755), &user(7)).unwrap();
    assert_eq!(file.attributes().permissions, 0o4755);
    let member = Credentials { groups: vec![50], ..user(7) };
    file.set_attributes(&chmod(0o6755), &member).unwrap();
    assert_eq!(file.attributes().permissions, 0o6755);
}

#[test]
fn even_root_does_not_change_immutable_inodes() {
    let (volume, file_system) = volume();
    let file = create(&volume, "/file");
    let directory = mkdir(&volume, "/d");
    create(&volume, "/d/inside");
    for number in [file.number(), directory.number()] {
        file_system.set_flags(number, IMMUTABLE);
    }
    check_not_permitted(file.set_attributes(&chmod(0), &ROOT));
    check_not_permitted(file.set_size(0, Privileges::Keep));
    check_not_permitted(file.set_xattr(b"user.a", b"", XattrMode::Either, Privileges::Keep));
    check_not_permitted(volume.remove(b"/file", &ROOT));
    check_not_permitted(volume.link_at(b"/file", b"/other"));
    check_not_permitted(volume.create_file(b"/d/new", 0, &ROOT));
    check_not_permitted(volume.remove(b"/d/inside", &ROOT));
    check_not_permitted(volume.rename_at(b"/d/inside", b"/x", RenameFlags::default(), &ROOT));
    create(&volume, "/x");
    check_not_permitted(volume.rename_at(b"/x", b"/d/x", RenameFlags::default(), &ROOT));
}

#[test]
fn names_can_be_added_to_append_only_directories_and_not_removed() {
    let (volume, file_system) = volume();
    let directory = mkdir(&volume, "/log");
    file_system.set_flags(directory.number(), APPEND_ONLY);
    let file = create(&volume, "/log/file");
    check_not_permitted(volume.remove(b"/log/file", &ROOT));
    file_system.set_flags(file.number(), APPEND_ONLY);
    check_not_permitted(file.set_size(0, Privileges::Keep));
}
