//! Truncation of f2fs files whose data is in their inodes, as Linux leaves small ones. The judges
//! are fsck.f2fs, and the contents after a recovery.

use std::path::Path;
use std::sync::Arc;

use testkit::f2fs::{Kind, check_by_both, damage_inline, store_inline};
use vfs::{Credentials, Follow, Node, Privileges, Volume, VolumeOptions};

/// The flag of files with inline data.
const INLINE_DATA: u32 = 0x1000_0000;
const DATA: &[u8] = b"a few bytes of data";
/// A size that no inode has room for.
const LARGE: u64 = 5000;

fn open(image: &Path) -> Volume {
    VolumeOptions::new().writable(true).cache_bytes_max(8 << 20).open(image).unwrap()
}

/// Checks the contents of a file, and whether they are in its inode.
fn check(node: &Arc<Node>, contents: &[u8], is_inline: bool) {
    let attributes = node.attributes();
    assert_eq!(attributes.size, contents.len() as u64);
    assert_eq!(attributes.flags & INLINE_DATA != 0, is_inline, "{attributes:?}");
    let mut found = vec![7; contents.len() + 10];
    let length = node.open().unwrap().read_at(&mut found, 0).unwrap();
    assert_eq!(&found[..length], contents);
}

fn padded(data: &[u8], length: usize) -> Vec<u8> {
    let mut contents = data.to_vec();
    contents.resize(length, 0);
    contents
}

/// Makes a volume of this kind with the file `small`, and changes its image.
fn make(image: &Path, kind: &str, change: impl FnOnce(&mut [u8])) {
    Kind::named(kind).make(image, 64);
    let volume = open(image);
    volume.create_file(b"/small", 0o644, &Credentials::ROOT).unwrap();
    volume.close().unwrap();
    drop(volume);
    let mut bytes = std::fs::read(image).unwrap();
    change(&mut bytes);
    std::fs::write(image, bytes).unwrap();
}

fn truncate(kind: &str) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    make(&image, kind, |bytes| store_inline(bytes, b"small", DATA));
    let volume = open(&image);
    let node = volume.resolve(b"/small", Follow::No).unwrap();
    check(&node, DATA, true);
    let set_size = |size: u64| node.set_size(size, Privileges::Keep).unwrap();
    set_size(5);
    check(&node, &DATA[..5], true);
    // What was cut off does not come back.
    set_size(100);
    check(&node, &padded(&DATA[..5], 100), true);
    node.open().unwrap().sync_all().unwrap();
    drop(node);
    // As in a crash.
    drop(volume);

    let volume = open(&image);
    let node = volume.resolve(b"/small", Follow::No).unwrap();
    check(&node, &padded(&DATA[..5], 100), true);
    let set_size = |size: u64| node.set_size(size, Privileges::Keep).unwrap();
    set_size(0);
    check(&node, b"", true);
    set_size(200);
    check(&node, &[0; 200], true);
    set_size(LARGE);
    check(&node, &[0; LARGE as usize], false);
    drop(node);
    volume.close().unwrap();
    drop(volume);
    check_by_both(&image);
}

#[test]
fn inline_data_is_truncated_in_place() {
    truncate("plain");
}

#[test]
fn inline_data_is_truncated_in_place_beside_extra_attributes() {
    truncate("attributes");
}

#[test]
fn a_damaged_inode_with_inline_data_is_shown_as_by_linux() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    make(&image, "attributes", |bytes| {
        store_inline(bytes, b"small", DATA);
        damage_inline(bytes, b"small");
    });
    let volume = open(&image);
    let node = volume.resolve(b"/small", Follow::No).unwrap();
    check(&node, DATA, true);
    assert_eq!(node.attributes().flags, INLINE_DATA);
    node.set_size(LARGE, Privileges::Keep).unwrap();
    check(&node, &padded(DATA, LARGE as usize), false);
    drop(node);
    volume.close().unwrap();
    drop(volume);
    check_by_both(&image);
}
