//! Extended attributes of f2fs whose sync was cut off between the inode, which is marked as synced,
//! and the node in which the list goes on. Linux leaves such states. An old file has its old
//! attributes then, and a new one those that are whole.

use std::sync::Arc;
use std::time::Duration;

use base::Error;
use device::{MemoryDevice, SharedDevice};
use testkit::f2fs::{Kind, check_by_both, lose_synced_xattr_node};
use vfs::{Credentials, File, Follow, OpenMode, Privileges, Volume, VolumeOptions, XattrMode};

const KINDS: [&str; 3] = ["plain", "attributes", "large_inline_xattrs"];
const SMALL: &[u8] = b"user.small";
const CHANGED: &[u8] = b"user.changed";
/// The length of a value that does not fit into an inode.
const LARGE: usize = 3000;

fn open(device: &Arc<MemoryDevice>, writable: bool) -> Volume {
    // Nothing is committed in the background.
    let commit_interval = Duration::from_secs(3600);
    let options = VolumeOptions { writable, commit_interval, ..VolumeOptions::default() };
    Volume::open_device(Arc::clone(device) as SharedDevice, &options).unwrap()
}

fn set(file: &File, name: &[u8], value: &[u8]) {
    file.node().set_xattr(name, value, XattrMode::Either, Privileges::Keep).unwrap();
}

fn make(volume: &Volume) -> File {
    let node = volume.create_file(b"/file", 0o644, &Credentials::ROOT).unwrap();
    node.open_for(OpenMode { write: true, append: false }).unwrap()
}

/// Syncs a change of attributes on a volume of each kind, loses its last node, and checks the
/// attributes after recoveries in memory and in place.
fn check(change: fn(&Volume), small: &[u8], changed: Result<&[u8], Error>) {
    for name in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        Kind::named(name).make(&path, 64);
        let device = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
        let volume = open(&device, true);
        change(&volume);
        let mut image = device.snapshot();
        lose_synced_xattr_node(&mut image);
        let cut = Arc::new(MemoryDevice::new(image));
        for writable in [false, true] {
            let volume = open(&cut, writable);
            let node = volume.resolve(b"/file", Follow::No).unwrap();
            assert_eq!(node.get_xattr(SMALL).as_deref(), Ok(small), "{name}");
            assert_eq!(node.get_xattr(CHANGED).as_deref(), changed.as_ref().copied(), "{name}");
            let details = volume.info().details;
            assert!(details.iter().any(|(detail, _)| *detail == "xattrs_kept"), "{name}");
            drop(node);
            if writable {
                volume.close().unwrap();
            }
        }
        std::fs::write(&path, cut.snapshot()).unwrap();
        check_by_both(&path);
    }
}

#[test]
fn an_old_file_keeps_its_attributes() {
    let change = |volume: &Volume| {
        let file = make(volume);
        set(&file, CHANGED, b"old");
        set(&file, SMALL, b"1");
        volume.sync().unwrap();
        set(&file, SMALL, b"2");
        set(&file, CHANGED, &[3; LARGE]);
        file.sync_all().unwrap();
    };
    check(change, b"1", Ok(b"old"));
}

#[test]
fn a_new_file_has_the_attributes_that_are_whole() {
    let change = |volume: &Volume| {
        volume.sync().unwrap();
        let file = make(volume);
        set(&file, SMALL, b"2");
        set(&file, CHANGED, &[3; LARGE]);
        file.sync_all().unwrap();
    };
    check(change, b"2", Err(Error::NoAttribute));
}

#[test]
fn attributes_of_an_earlier_sync_are_kept() {
    let change = |volume: &Volume| {
        volume.sync().unwrap();
        let file = make(volume);
        set(&file, CHANGED, b"old");
        set(&file, SMALL, b"1");
        file.sync_all().unwrap();
        set(&file, CHANGED, &[3; LARGE]);
        file.sync_all().unwrap();
    };
    check(change, b"1", Ok(b"old"));
}
