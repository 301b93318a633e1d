//! Volumes created for systems other than Linux, which use some inode bytes differently. The bytes after a
//! change are compared with those that the running kernel leaves.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, InodeNumber, Unsupported};
use common::{Image, TIME, inode_of, new_inode, open_for_writing};
use ext4::{CreatorOs, Feature, Named, ROOT_INODE, RenameMode};
use testkit::{LoopMount, private_mounts};

/// Where the fields lie that a system can use as it likes, in an inode.
const OSD1: std::ops::Range<usize> = 0x24..0x28;
const OSD2: std::ops::Range<usize> = 0x74..0x80;
/// The part of the second one that holds the high halves of the owner and the group everywhere.
const OWNERS: std::ops::Range<usize> = 4..8;

/// Systems as mke2fs calls them (Masix has no name there), and features that mke2fs would give them and they cannot have.
const SYSTEMS: [(&str, CreatorOs, &str); 4] = [
    ("hurd", CreatorOs::Hurd, "^64bit,^huge_file,^metadata_csum,^extents"),
    ("2", CreatorOs::Other(2), "^64bit"),
    ("freebsd", CreatorOs::Other(3), "^64bit,^huge_file,^metadata_csum"),
    ("lites", CreatorOs::Other(4), "metadata_csum"),
];

/// Where an inode lies on the image, in bytes.
fn place_of(image: &Image, number: InodeNumber) -> usize {
    let text = image.debugfs(&format!("imap <{number}>"));
    let after = |label: &str| text.split_once(label).unwrap_or_else(|| panic!("{text}")).1.trim();
    let block = common::number_after(&text, "located at block").unwrap() as usize;
    let offset = usize::from_str_radix(after("offset 0x"), 16).unwrap();
    block * 1024 + offset
}

/// The fields of an inode that belong to its system.
fn fields(image: &Image, number: InodeNumber) -> (Vec<u8>, Vec<u8>) {
    let (bytes, at) = (image.bytes(), place_of(image, number));
    let part = |range: std::ops::Range<usize>| bytes[at + range.start..at + range.end].to_vec();
    (part(OSD1), part(OSD2))
}

/// An image for a system, with files that have something in those fields. What they have is sound for
/// e2fsck: the translator's block is in use.
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
        // The counts of blocks.
        let mended = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
        assert!(mended.status.code().is_some_and(|code| code <= 1), "{mended:?}");
        let mut bytes = image.bytes();
        for name in ["touched", "untouched"] {
            let at = place_of(&image, inode_of(&image, name));
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
        let location = format!("{creator:?}: {name}");
        // New inodes have another owner here.
        if name == "directory/moved" {
            assert_eq!(our.1, their.1, "{location}");
        }
        for part in [0..OWNERS.start, OWNERS.end..12] {
            assert_eq!(our.1[part.clone()], their.1[part], "{location}");
        }
        if creator == CreatorOs::Hurd {
            assert_eq!(our.0, their.0, "{location}");
        }
    }
}

#[test]
fn fields_of_other_systems_are_left_as_the_kernel_leaves_them() {
    private_mounts();
    for (system, creator, features) in SYSTEMS {
        let ours = image(system, features);
        let before = fields(&ours, inode_of(&ours, "untouched"));
        let geometry = ours.open().geometry().clone();
        assert_eq!(geometry.creator, creator);
        change_by_us(&ours);
        ours.check_by_e2fsck();
        assert_eq!(fields(&ours, inode_of(&ours, "untouched")), before, "{system}");
        // The kernel makes no checksums of such inodes, which e2fsck and debugfs mind.
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
fn volumes_of_the_hurd_whose_features_need_other_fields_are_only_read() {
    let image = Image::make(8, &["-t", "ext4", "-b", "1024", "-o", "hurd", "-O", "64bit"]);
    image.open().inode(ROOT_INODE).unwrap();
    let opened = common::open_device_for_writing(image.device(false));
    assert!(matches!(opened, Err(Error::Unsupported(Unsupported::Operation(_)))), "{opened:?}");
    image.check_by_e2fsck();
}
