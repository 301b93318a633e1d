//! Project ids of f2fs: new inodes take over that of a directory, which no inode of another project
//! enters.

use std::path::Path;

use base::attributes::FileType;
use base::{Error, Result};
use testkit::f2fs::{Kind, check_by_both};
use vfs::{Creation, Credentials, Follow, OpenMode, RenameFlags, Volume, VolumeOptions};

const ROOT: &Credentials = &Credentials::ROOT;
const WRITE: OpenMode = OpenMode { write: true, append: false };
/// FS_PROJINHERIT_FL.
const INHERIT: u32 = 0x2000_0000;

fn open(image: &Path) -> Volume {
    VolumeOptions::new().writable(true).cache_bytes_max(8 << 20).open(image).unwrap()
}

fn project(volume: &Volume, path: &str) -> Option<u32> {
    volume.resolve(path.as_bytes(), Follow::No).unwrap().attributes().project
}

fn set_project(volume: &Volume, path: &str, project: u32) -> Result<()> {
    volume.resolve(path.as_bytes(), Follow::No)?.set_project(project, ROOT)
}

/// Creates a directory whose inodes inherit a project.
fn make_directory(volume: &Volume, path: &str, project: u32) {
    let node = volume.mkdir(path.as_bytes(), 0o755, ROOT).unwrap();
    node.set_project(project, ROOT).unwrap();
    node.set_flags(node.attributes().flags | INHERIT, ROOT).unwrap();
}

#[test]
fn inodes_inherit_projects_and_do_not_enter_others() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Kind::named("project").make(&image, 64);
    let volume = open(&image);
    make_directory(&volume, "/seven", 7);
    make_directory(&volume, "/eight", 8);
    for (path, kind) in [
        ("/seven/file", FileType::Regular),
        ("/seven/directory", FileType::Directory),
        ("/seven/directory/fifo", FileType::Fifo),
        ("/eight/file", FileType::Regular),
        ("/file", FileType::Regular),
    ] {
        volume.create_at(path.as_bytes(), &Creation::of(kind, 0o644), ROOT).unwrap();
    }
    volume.create_at(b"/seven/directory/link", &Creation::symlink(b"target"), ROOT).unwrap();
    let shown = |path| project(&volume, path);
    assert_eq!(shown("/file"), Some(0));
    for path in ["/seven/file", "/seven/directory/fifo", "/seven/directory/link"] {
        assert_eq!(shown(path), Some(7), "{path}");
    }
    let rename = |from: &str, to: &str, exchange| {
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        volume.rename_at(from.as_bytes(), to.as_bytes(), flags, ROOT)
    };
    let link = |from: &str, to: &str| volume.link_at(from.as_bytes(), to.as_bytes());
    let other = Err(Error::OtherProject);
    assert_eq!(link("/file", "/seven/link"), other);
    assert_eq!(rename("/file", "/seven/moved", false), other);
    assert_eq!(rename("/seven/file", "/eight/file", false), other);
    assert_eq!(rename("/seven/file", "/file", true), other);
    assert_eq!(rename("/file", "/seven/file", true), other);
    assert_eq!(rename("/seven/directory", "/eight/directory", false), other);
    // A directory that passes nothing on takes every inode.
    rename("/seven/file", "/moved", false).unwrap();
    link("/moved", "/seven/link").unwrap();
    set_project(&volume, "/file", 8).unwrap();
    rename("/file", "/eight/moved", false).unwrap();
    // Durable without a checkpoint.
    let file = volume.resolve(b"/eight/file", Follow::No).unwrap();
    volume.sync().unwrap();
    file.set_project(u32::MAX - 1, ROOT).unwrap();
    file.open_for(WRITE).unwrap().sync_all().unwrap();
    let copy = folder.path().join("copy");
    std::fs::copy(&image, &copy).unwrap();
    let recovered = open(&copy);
    assert_eq!(project(&recovered, "/eight/file"), Some(u32::MAX - 1));
    recovered.close().unwrap();
    drop((recovered, file));
    volume.close().unwrap();
    drop(volume);
    check_by_both(&image);
    check_by_both(&copy);
    let volume = VolumeOptions::new().open(&image).unwrap();
    assert_eq!(project(&volume, "/eight/moved"), Some(8));
    assert_eq!(project(&volume, "/seven/link"), Some(7));
}

#[test]
fn volumes_and_callers_without_the_right_set_no_project() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Kind::named("extra_attr").make(&image, 64);
    let volume = open(&image);
    let file = volume.create_file(b"/file", 0o644, ROOT).unwrap();
    assert!(matches!(file.set_project(7, ROOT), Err(Error::Unsupported(_))));
    file.set_project(0, ROOT).unwrap();
    let nobody = Credentials { uid: 65534, privileged: false, ..Credentials::ROOT };
    assert!(matches!(file.set_project(0, &nobody), Err(Error::NotPermitted(_))));
    drop(file);
    volume.close().unwrap();
}
