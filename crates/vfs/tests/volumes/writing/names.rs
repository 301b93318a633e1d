//! Creation, linking and removal of names.

use base::Error;
use base::attributes::{DeviceNumber, FileType};
use testkit::memory::MemoryFileSystem;
use vfs::{Creation, Follow};

use crate::writing::*;

#[test]
fn created_inodes_are_found_by_their_names() {
    let (volume, file_system) = volume();
    mkdir(&volume, "/d");
    let file = create(&volume, "/d/file");
    let link = volume.create_at(b"/link", &Creation::symlink(b"d/file"), &ROOT).unwrap();
    assert_eq!(node(&volume, "/d/file").number(), file.number());
    assert!(Arc::ptr_eq(&node(&volume, "/d/file"), &file));
    assert_eq!(link.read_link().unwrap(), b"d/file");
    assert_eq!(link.attributes().permissions, 0o777);
    let device = Creation {
        device: DeviceNumber { major: 8, minor: 1 },
        ..Creation::of(FileType::BlockDevice, 0o600)
    };
    let device = volume.create_at(b"/d/device", &device, &ROOT).unwrap();
    assert_eq!(device.attributes().device, DeviceNumber { major: 8, minor: 1 });
    assert_eq!(device.attributes().links, 1);
    assert!(device.attributes().changed.seconds > 1_700_000_000);
    assert_eq!(file_system.verify(), 0);
}

#[test]
fn invalid_names_are_refused() {
    let (volume, _) = volume();
    let root = volume.root().unwrap();
    let create = |name: &[u8]| volume.create_in(&root, name, &regular(0o644), &ROOT).map(drop);
    let long = [b'x'; 256];
    assert_eq!(create(&long), Err(Error::NameTooLong));
    assert_eq!(create(&long[1..]), Ok(()));
    for name in [&b""[..], b"a/b", b"a\0"] {
        assert!(matches!(create(name), Err(Error::InvalidArgument(_))), "{name:?}");
    }
    for name in [&b"."[..], b".."] {
        assert_eq!(create(name), Err(Error::Exists));
        let removed = volume.rmdir(&root, name, &ROOT);
        assert!(matches!(removed, Err(Error::InvalidArgument(_))));
    }
    let link =
        |target: &[u8]| volume.create_at(b"/link", &Creation::symlink(target), &ROOT).map(drop);
    assert_eq!(link(b""), Err(Error::NotFound));
    assert_eq!(link(&[b'x'; 4096]), Err(Error::NameTooLong));
    assert!(matches!(link(b"a\0b"), Err(Error::InvalidArgument(_))));
}

#[test]
fn existing_names_and_wrong_types_are_refused() {
    let (volume, file_system) = volume();
    mkdir(&volume, "/d");
    mkdir(&volume, "/d/e");
    create(&volume, "/file");
    let made = |path: &[u8]| volume.mkdir(path, 0o755, &ROOT).map(drop);
    assert_eq!(made(b"/file"), Err(Error::Exists));
    assert_eq!(made(b"/"), Err(Error::Exists));
    assert_eq!(made(b"/none/x"), Err(Error::NotFound));
    assert_eq!(made(b"/file/x"), Err(Error::NotDirectory));
    assert_eq!(made(b"/d/new/"), Ok(()));
    assert_eq!(volume.create_file(b"/d/x/", 0, &ROOT).unwrap_err(), Error::NotFound);
    let root = volume.root().unwrap();
    assert_eq!(volume.unlink(&root, b"d", &ROOT), Err(Error::IsDirectory));
    assert_eq!(volume.rmdir(&root, b"file", &ROOT), Err(Error::NotDirectory));
    assert_eq!(volume.rmdir(&root, b"d", &ROOT), Err(Error::NotEmpty));
    assert_eq!(volume.remove(b"/file/", &ROOT), Err(Error::NotDirectory));
    assert_eq!(
        volume.link_at(b"/d", b"/other"),
        Err(Error::NotPermitted("a directory cannot have hard links"))
    );
    assert_eq!(volume.link_at(b"/file", b"/d/e"), Err(Error::Exists));
    assert_eq!(file_system.verify(), 0);
}

#[test]
fn a_file_with_two_names_is_released_after_both_are_removed() {
    let (volume, file_system) = volume();
    create(&volume, "/a");
    volume.link_at(b"/a", b"/b").unwrap();
    assert_eq!(node(&volume, "/b").attributes().links, 2);
    volume.remove(b"/a", &ROOT).unwrap();
    assert_eq!(volume.resolve(b"/a", Follow::No).unwrap_err(), Error::NotFound);
    assert_eq!(node(&volume, "/b").attributes().links, 1);
    assert_eq!(file_system.released(), 0);
    volume.remove(b"/b", &ROOT).unwrap();
    assert_eq!((file_system.released(), file_system.inode_count()), (1, 1));
}

#[test]
fn no_name_is_added_to_a_removed_directory() {
    let (volume, file_system) = volume();
    let gone = mkdir(&volume, "/gone");
    let file = create(&volume, "/file");
    volume.remove(b"/gone", &ROOT).unwrap();
    let made = volume.create_in(&gone, b"x", &regular(0o644), &ROOT);
    assert_eq!(made.unwrap_err(), Error::NotFound);
    assert_eq!(volume.create_unnamed(&gone, &regular(0), &ROOT).unwrap_err(), Error::NotFound);
    assert_eq!(volume.link(&gone, b"x", &file), Err(Error::NotFound));
    let root = volume.root().unwrap();
    let flags = vfs::RenameFlags::default();
    let moved = volume.rename_in((&root, b"file"), (&gone, b"x"), flags, &ROOT);
    assert_eq!(moved, Err(Error::NotFound));
    assert_eq!(file_system.verify(), 1);
}

#[test]
fn an_entry_with_its_own_directory_is_corrupt_and_causes_no_deadlock() {
    let (volume, file_system) = volume();
    let number = mkdir(&volume, "/d").number();
    file_system.damage_entry(number, b"loop", number.0);
    for removed in [
        volume.remove(b"/d/loop", &ROOT),
        volume.rename_at(b"/d/loop", b"/x", vfs::RenameFlags::default(), &ROOT),
    ] {
        assert!(matches!(removed, Err(Error::Corrupt(_))), "{removed:?}");
    }
}

#[test]
fn a_read_only_volume_refuses_every_change() {
    let file_system = MemoryFileSystem::read_only();
    let volume = open(&file_system, 16);
    let root = volume.root().unwrap();
    assert!(!volume.is_writable());
    assert_eq!(volume.mkdir(b"/d", 0o755, &ROOT).unwrap_err(), Error::ReadOnly);
    assert_eq!(volume.unlink(&root, b"x", &ROOT), Err(Error::ReadOnly));
    assert_eq!(
        root.set_xattr(b"user.a", b"", vfs::XattrMode::Either, vfs::Privileges::Keep),
        Err(Error::ReadOnly)
    );
    assert_eq!(root.set_attributes(&Default::default(), &ROOT), Err(Error::ReadOnly));
}

#[test]
fn syncs_reach_the_format_and_a_closed_volume_refuses_changes() {
    let (volume, file_system) = volume();
    let file = create(&volume, "/file");
    volume.sync().unwrap();
    file.sync(true).unwrap();
    assert_eq!(file_system.syncs(), 2);
    volume.close().unwrap();
    assert!(file_system.is_closed());
    assert_eq!(volume.mkdir(b"/d", 0o755, &ROOT).unwrap_err(), Error::ReadOnly);
}
