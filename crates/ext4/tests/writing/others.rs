//! Tests of written volumes, as other programs see them.

use std::sync::Arc;

use crate::common::{Image, open_device_for_writing, open_for_writing};
use base::InodeNumber;
use base::attributes::{AttributeChange, Timestamp};
use device::{MemoryDevice, SharedDevice};
use ext4::Volume;

fn image(options: &str) -> Image {
    Image::filled(32, options, |folder| {
        for name in ["a", "b", "c"] {
            std::fs::write(folder.join(name), name.repeat(5000)).unwrap();
            std::os::unix::fs::symlink("target", folder.join(format!("link to {name}"))).unwrap();
        }
        std::fs::create_dir(folder.join("directory")).unwrap();
    })
}

const KINDS: &[&str] = &[
    "-t ext4 -b 1024",
    "-t ext4 -b 4096 -O ^has_journal,inline_data",
    "-t ext4 -b 65536",
    "-t ext4 -I 128 -O ^metadata_csum,uninit_bg",
    "-t ext4 -I 1024 -O ^64bit",
    "-t ext2 -b 2048",
];

/// Returns all inodes in use.
fn inodes(volume: &Arc<Volume>) -> Vec<ext4::Inode> {
    let all = (1..=volume.geometry().inode_count).map(|number| InodeNumber(number.into()));
    all.filter_map(|number| volume.special_inode(number).ok()).collect()
}

#[test]
fn writing_inodes_back_as_they_are_changes_nothing() {
    for options in KINDS {
        // Without a journal, which would change.
        let image = image(&format!("{options} -O ^has_journal"));
        let before = image.bytes();
        let volume = open_for_writing(&image);
        for inode in inodes(&volume) {
            inode.set_attributes(&AttributeChange::default()).unwrap();
        }
        volume.close().unwrap();
        assert!(image.bytes() == before, "{options}");
    }
}

#[test]
fn other_programs_see_changed_attributes() {
    for options in KINDS {
        let image = image(options);
        let volume = open_for_writing(&image);
        let time = |seconds, nanoseconds| Some(Timestamp { seconds, nanoseconds });
        let change = AttributeChange {
            permissions: Some(0o4751),
            uid: Some(70_000),
            gid: Some(80_000),
            accessed: time(-5, 7),
            modified: time(1 << 32, 999_999_999),
            changed: time(1_700_000_000, 1),
        };
        let number = crate::common::number_after(&image.debugfs("stat /a"), "Inode: ").unwrap();
        volume.inode(InodeNumber(number)).unwrap().set_attributes(&change).unwrap();
        volume.close().unwrap();
        drop(volume);
        let seen = image.open().inode(InodeNumber(number)).unwrap().attributes();
        assert_eq!((seen.permissions, seen.uid, seen.gid), (0o4751, 70_000, 80_000), "{options}");
        if !options.contains("-I 128") {
            assert_eq!(Some(seen.modified), change.modified, "{options}");
            assert_eq!(Some(seen.accessed), change.accessed, "{options}");
        }
        image.check_by_e2fsck();
        assert!(image.debugfs("stat /a").contains("Mode:  04751"), "{options}");
    }
}

#[test]
fn a_volume_with_unsupported_features_is_refused_by_their_names() {
    let image = image("-t ext4 -O project,quota");
    let error = open_device_for_writing(image.device(false)).unwrap_err().to_string();
    assert!(error.contains("quota") && error.contains("project"), "{error}");
}

#[test]
fn a_volume_with_an_invalid_orphan_file_is_not_opened_for_writing() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-O", "orphan_file"]);
    let header = image.dumpe2fs(&["-h"]);
    let number = crate::common::number_after(&header, "Orphan file inode:").unwrap();
    let blocks = image.debugfs(&format!("blocks <{number}>"));
    let first: usize = blocks.split_whitespace().next().unwrap().parse().unwrap();
    let tail = (first + 1) * 1024 - 8;
    let cases = [
        (tail, "magic number"),
        (tail + 4, "checksum"),
        // A number that the checksum does not cover.
        (first * 1024, "checksum"),
    ];
    for (at, expected) in cases {
        let mut bytes = image.bytes();
        bytes[at] ^= 0x55;
        let device: SharedDevice = Arc::new(MemoryDevice::new(bytes));
        let error = open_device_for_writing(device).unwrap_err().to_string();
        assert!(error.contains("orphan file block") && error.contains(expected), "{error}");
    }
}
