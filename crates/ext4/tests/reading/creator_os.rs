//! Tests of volumes created for systems other than Linux, which use some inode bytes differently.
//! The bytes after a change are compared with those that the running kernel writes.

use crate::common;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Image, TIME, inode_of, new_inode, open_for_writing};
use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, InodeNumber, Unsupported};
use ext4::{CreatorOs, Feature, Named, ROOT_INODE, RenameMode};
use testkit::{LoopMount, private_mounts};

/// The fields of an inode that each system defines.
const OSD1: std::ops::Range<usize> = 0x24..0x28;
const OSD2: std::ops::Range<usize> = 0x74..0x80;
/// The part of the second field that holds the high halves of the owner and the group on all
/// systems.
const OWNERS: std::ops::Range<usize> = 4..8;

/// Systems by their names in mke2fs (it has none for Masix), and features to add, or to remove
/// since the system cannot have them.
const SYSTEMS: [(&str, CreatorOs, &str); 4] = [
    ("hurd", CreatorOs::Hurd, "^64bit,^huge_file,^metadata_csum,^extents"),
    ("2", CreatorOs::Other(2), "^64bit"),
    ("freebsd", CreatorOs::Other(3), "^64bit,^huge_file,^metadata_csum"),
    ("lites", CreatorOs::Other(4), "metadata_csum"),
];

/// Returns the offset of an inode in the image.
fn offset_of(image: &Image, number: InodeNumber) -> usize {
    let text = image.debugfs(&format!("imap <{number}>"));
    let after = |label: &str| text.split_once(label).unwrap_or_else(|| panic!("{text}")).1.trim();
    let block = common::number_after(&text, "located at block").unwrap() as usize;
    let offset = usize::from_str_radix(after("offset 0x"), 16).unwrap();
    block * 1024 + offset
}

/// Returns the system's own fields of an inode.
fn fields(image: &Image, number: InodeNumber) -> (Vec<u8>, Vec<u8>) {
    let (bytes, at) = (image.bytes(), offset_of(image, number));
    let part = |range: std::ops::Range<usize>| bytes[at + range.start..at + range.end].to_vec();
    (part(OSD1), part(OSD2))
}

/// Creates an image for a system, with files that have values in those fields. The values are valid
/// for e2fsck: the translator's block is in use.
fn image(system: &str, features: &str) -> Image {
    let options = format!("-t ext4 -b 1024 -o {system} -O {features} -J size=1");
    let image = Image::filled(8, &options, |source| {
        for name in ["touched", "untouched", "removed"] {
            std::fs::write(source.join(name), vec![7; 5000]).unwrap();
        }
    });
    if system == "hurd" {
        let mut commands = String::new();
        for (name, block) in [("touched", 6000), ("untouched", 6001)] {
            let blocks =
                common::number_after(&image.debugfs(&format!("stat {name}")), "Blockcount:");
            commands += &format!("setb {block}\nsif {name} version {block}\n");
            commands += &format!("sif {name} blocks {}\n", blocks.unwrap() + 2);
        }
        image.debugfs_write(&commands);
        // Corrects the counts of blocks.
        let repaired = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
        assert!(repaired.status.code().is_some_and(|code| code <= 1), "{repaired:?}");
        let mut bytes = image.bytes();
        for name in ["touched", "untouched"] {
            let at = offset_of(&image, inode_of(&image, name));
            // The high half of the mode, and the author.
            bytes[at + OSD2.start + 2..][..2].copy_from_slice(&[0x12, 0x34]);
            bytes[at + OSD2.start + 8..][..4].copy_from_slice(&[1, 2, 3, 4]);
        }
        std::fs::write(&image.path, bytes).unwrap();
    }
    image.check_by_e2fsck();
    image
}

fn change_by_us(image: &Image) {
    let volume = open_for_writing(image);
    let root = std::sync::Arc::new(volume.inode(ROOT_INODE).unwrap());
    let file = |name: &str| {
        let number = root.lookup(name.as_bytes()).unwrap();
        std::sync::Arc::new(volume.inode(number).unwrap())
    };
    let touched = file("touched");
    let change = AttributeChange {
        permissions: Some(0o640),
        uid: Some(0x0001_0005),
        changed: Some(TIME),
        ..AttributeChange::default()
    };
    touched.set_attributes(&change).unwrap();
    let value = [5; 300];
    touched.set_xattr(b"user.x", &value, XattrMode::Either, &AttributeChange::default()).unwrap();
    let removed = file("removed");
    root.unlink(b"removed", &removed, TIME).unwrap();
    removed.release().unwrap();
    root.create(b"new", &new_inode(FileType::Regular)).unwrap();
    let directory = root.create(b"directory", &new_inode(FileType::Directory)).unwrap();
    let [from, to] = [(&root, "touched"), (&directory, "moved")]
        .map(|(directory, name)| Named { directory, name: name.as_bytes() });
    touched.rename(from, to, None, &RenameMode::Move, TIME).unwrap();
    volume.close().unwrap();
}

fn change_by_the_kernel(image: &Image) {
    let mount = LoopMount::new(&image.path, "ext4", "rw,user_xattr");
    let at = |name: &str| mount.path().join(name);
    std::fs::set_permissions(at("touched"), std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(at("touched"), Some(0x0001_0005), None).unwrap();
    std::fs::remove_file(at("removed")).unwrap();
    std::fs::write(at("new"), "").unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::rename(at("touched"), at("directory/moved")).unwrap();
}

/// Compares the fields with those that the kernel leaves after the same changes.
fn compare_with_the_kernel(ours: &Image, theirs: &Image, creator: CreatorOs) {
    change_by_the_kernel(theirs);
    theirs.check_by_e2fsck();
    for name in ["directory/moved", "new", "directory"] {
        let [our, their] = [ours, theirs].map(|image| fields(image, inode_of(image, name)));
        let what = format!("{creator:?}: {name}");
        // The owner of new inodes differs.
        if name == "directory/moved" {
            assert_eq!(our.1, their.1, "{what}");
        }
        for part in [0..OWNERS.start, OWNERS.end..12] {
            assert_eq!(our.1[part.clone()], their.1[part], "{what}");
        }
        if creator == CreatorOs::Hurd {
            assert_eq!(our.0, their.0, "{what}");
        }
    }
}

#[test]
fn fields_of_other_systems_equal_those_that_the_kernel_writes() {
    private_mounts();
    for (system, creator, features) in SYSTEMS {
        let ours = image(system, features);
        let before = fields(&ours, inode_of(&ours, "untouched"));
        let geometry = ours.open().geometry().clone();
        assert_eq!(geometry.creator, creator);
        change_by_us(&ours);
        ours.check_by_e2fsck();
        assert_eq!(fields(&ours, inode_of(&ours, "untouched")), before, "{system}");
        // The kernel writes no checksums to such inodes, which e2fsck and debugfs report as errors.
        if !geometry.features.has(Feature::MetadataCsum) {
            compare_with_the_kernel(&ours, &image(system, features), creator);
        }
        if creator == CreatorOs::Hurd {
            let (translator, rest) = fields(&ours, inode_of(&ours, "directory/moved"));
            assert_eq!(translator, 6000_u32.to_le_bytes());
            assert_eq!(rest, [0, 0, 0x12, 0x34, 1, 0, 0, 0, 1, 2, 3, 4]);
        }
        let mut wrong = Vec::new();
        ours.open().check(&mut |error| {
            wrong.push(error.to_string());
            std::ops::ControlFlow::Continue(())
        });
        assert!(wrong.is_empty(), "{system}: {wrong:?}");
    }
}

#[test]
fn volumes_of_the_hurd_with_clashing_features_are_only_read() {
    let image = Image::make(8, &["-t", "ext4", "-b", "1024", "-o", "hurd", "-O", "64bit"]);
    image.open().inode(ROOT_INODE).unwrap();
    let opened = common::open_device_for_writing(image.device(false));
    assert!(matches!(opened, Err(Error::Unsupported(Unsupported::Operation(_)))), "{opened:?}");
    image.check_by_e2fsck();
}
