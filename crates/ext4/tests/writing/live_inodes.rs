//! Tests of inode bitmaps that mark inodes in use as free, and of descriptors that contradict
//! bitmaps. No new file gets such an inode. No inode is allocated in its group, and the superblock
//! records the error.

use crate::common;
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Image, TIME, new_file, new_inode, open_for_writing};
use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, GroupNumber, InodeNumber};
use ext4::{Inode, ROOT_INODE, Volume};

const KINDS: [&str; 4] = [
    "-t ext4 -b 1024 -O ea_inode,orphan_file -E lazy_itable_init=0 -N 400",
    "-t ext4 -b 1024 -O ea_inode,^metadata_csum,uninit_bg -E lazy_itable_init=0 -N 400",
    "-t ext4 -b 1024 -O ea_inode,^has_journal -E lazy_itable_init=1 -N 400",
    "-t ext2 -b 1024 -N 400",
];

/// Returns an image with one inode of each kind in the first group, and the inodes' numbers.
fn image(options: &str) -> (Image, Vec<(&'static str, InodeNumber)>) {
    let image = Image::make(40, &options.split_whitespace().collect::<Vec<_>>());
    let volume = open_for_writing(&image);
    let root = volume.inode(ROOT_INODE).unwrap();
    let mut numbers = vec![("lost+found", root.lookup(b"lost+found").unwrap())];
    // Directories in the root go to other groups.
    let parent = volume.inode(root.lookup(b"lost+found").unwrap()).unwrap();
    let directory = parent.create(b"directory", &new_inode(FileType::Directory)).unwrap();
    directory.create(b"in it", &new_inode(FileType::Regular)).unwrap();
    numbers.push(("directory", directory.number()));
    let file = new_file(&volume, "file");
    numbers.push(("file", file.number()));
    let link = fs::NewInode { target: b"target", ..new_inode(FileType::Symlink) };
    numbers.push(("link", root.create(b"link", &link).unwrap().number()));
    if options.contains("ea_inode") {
        let change = AttributeChange::default();
        file.set_xattr(b"user.large", &[7; 3000], XattrMode::Either, &change).unwrap();
        let numbers_in_use = numbers.iter().map(|(_, number)| number.0).max().unwrap() + 1;
        // The value's inode is the next one.
        numbers.push(("value", InodeNumber(numbers_in_use)));
    }
    if options.contains("orphan_file") {
        let number = common::number_after(&image.dumpe2fs(&["-h"]), "Orphan file inode:");
        numbers.push(("orphan file", InodeNumber(number.unwrap())));
    }
    volume.close().unwrap();
    drop((volume, root, parent, directory, file));
    image.check_by_e2fsck();
    (image, numbers)
}

/// Marks an inode as free in the bitmap, and with `counted` also in the counts of the descriptor.
fn mark_free(image: &Image, number: InodeNumber, counted: bool) {
    let volume = image.open();
    let (group, _) = volume.geometry().inode_position(number).unwrap();
    let descriptor = volume.group(group).unwrap();
    drop(volume);
    let mut commands = format!("freei <{number}>\n");
    if counted {
        let free = descriptor.free_inodes + 1;
        commands += &format!("set_bg {} free_inodes_count {free}\n", group.0);
        commands += &format!("set_bg {} checksum calc\n", group.0);
    }
    image.debugfs_write(&commands);
}

/// Creates files in an image, and marks the inode of the file with the index `free` as free in
/// bitmap and descriptor.
fn image_with_free(image: Image, files: &[&str], free: usize) -> (Image, InodeNumber) {
    let volume = open_for_writing(&image);
    let numbers: Vec<_> = files.iter().map(|name| new_file(&volume, name).number()).collect();
    volume.close().unwrap();
    drop(volume);
    mark_free(&image, numbers[free], true);
    (image, numbers[free])
}

/// Returns the error of creating a file, which must fail.
fn fail_to_create(root: &Inode) -> Error {
    root.create(b"new", &new_inode(FileType::Regular)).map(drop).expect_err("it was created")
}

/// Repairs an image with errors by e2fsck.
fn repair_with_e2fsck(image: &Image) {
    let repaired = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    assert_eq!(repaired.status.code(), Some(1), "{}", String::from_utf8_lossy(&repaired.stdout));
}

/// Creates files until that fails. Returns their inode numbers, and the error.
fn fill(volume: &Arc<Volume>) -> (BTreeSet<u64>, Error) {
    let root = volume.inode(ROOT_INODE).unwrap();
    let mut numbers = BTreeSet::new();
    loop {
        let name = format!("new {}", numbers.len());
        match root.create(name.as_bytes(), &new_inode(FileType::Regular)) {
            Ok(inode) => assert!(numbers.insert(inode.number().0), "allocated twice"),
            Err(error) => return (numbers, error),
        }
    }
}

/// Repairs the image by e2fsck, and checks that all files are still there.
fn repair(image: &Image) {
    repair_with_e2fsck(image);
    image.check_by_e2fsck();
    let volume = image.open();
    let at =
        |directory: &Inode, name: &[u8]| volume.inode(directory.lookup(name).unwrap()).unwrap();
    let root = volume.inode(ROOT_INODE).unwrap();
    let directory = at(&at(&root, b"lost+found"), b"directory");
    at(&directory, b"in it");
    let file = at(&root, b"file");
    if file.list_xattrs().unwrap().len() == 1 {
        assert_eq!(file.get_xattr(b"user.large").unwrap(), [7; 3000]);
    }
    assert_eq!(at(&root, b"link").read_link().unwrap(), b"target");
}

#[test]
fn an_inode_in_use_is_not_allocated_even_if_its_bitmap_marks_it_free() {
    for options in KINDS {
        let (image, numbers) = image(options);
        let sound = image.bytes();
        for (name, number) in numbers {
            for counted in [true, false] {
                std::fs::write(&image.path, &sound).unwrap();
                let context = format!("{options}: {name}, counted: {counted}");
                mark_free(&image, number, counted);
                let volume = open_for_writing(&image);
                let group = |number| volume.geometry().inode_position(number).unwrap().0;
                let (allocated, error) = fill(&volume);
                assert!(allocated.len() > 60, "{context}: {}", allocated.len());
                assert!(!allocated.contains(&number.0), "{context}");
                // No inode behind it in its group was allocated.
                let behind =
                    |&&new: &&u64| new > number.0 && group(InodeNumber(new)) == group(number);
                assert_eq!(allocated.iter().find(behind), None, "{context}");
                assert!(matches!(error, Error::NoSpace | Error::Corrupt(_)), "{context}: {error}");
                assert_eq!(volume.errors().count, 1, "{context}");
                volume.close().unwrap();
                drop(volume);
                assert!(image.dumpe2fs(&["-h"]).contains("with errors"), "{context}");
                repair(&image);
            }
        }
    }
}

#[test]
fn creating_a_file_fails_if_the_only_group_is_damaged() {
    let image = Image::make(4, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
    let (image, number) = image_with_free(image, &["file"], 0);
    let volume = open_for_writing(&image);
    let root = volume.inode(ROOT_INODE).unwrap();
    let error = fail_to_create(&root);
    let Error::Corrupt(corrupt) = error else { panic!("{error}") };
    assert_eq!(corrupt.location.inode, Some(number));
    assert_eq!(root.lookup(b"new"), Err(Error::NotFound));
    // The existing file can still be changed and removed. Its inode is left to e2fsck.
    let file = Arc::new(volume.inode(number).unwrap());
    file.set_attributes(&AttributeChange::default()).unwrap();
    root.unlink(b"file", &file, TIME).unwrap();
    file.release().unwrap();
    volume.check_writable().unwrap();
    volume.close().unwrap();
    drop((volume, root, file));
    repair_with_e2fsck(&image);
}

#[test]
fn an_unlinked_file_with_users_keeps_its_inode_even_if_the_bitmap_marks_it_free() {
    for options in ["-t ext2 -b 1024", "-t ext4 -b 1024 -O orphan_file"] {
        let image = Image::make(4, &options.split_whitespace().collect::<Vec<_>>());
        let files = ["first", "second", "third"];
        let (image, _) = image_with_free(image, &files, 1);
        let volume = open_for_writing(&image);
        let root = volume.inode(ROOT_INODE).unwrap();
        // The file is in the middle of the orphans, where its time of deletion is the number of the
        // next orphan.
        let users = files.map(|name| {
            let file = Arc::new(volume.inode(root.lookup(name.as_bytes()).unwrap()).unwrap());
            root.unlink(name.as_bytes(), &file, TIME).unwrap();
            file
        });
        let error = fail_to_create(&root);
        assert!(matches!(error, Error::Corrupt(_)), "{options}: {error}");
        users.iter().for_each(|file| file.release().unwrap());
        volume.close().unwrap();
    }
}

#[test]
fn the_error_policy_applies_to_damaged_bitmaps() {
    let options = ["-t", "ext4", "-b", "1024", "-e", "remount-ro"];
    let image = Image::make(40, &options);
    let (image, _) = image_with_free(image, &["file"], 0);
    let volume = open_for_writing(&image);
    let error = fail_to_create(&volume.inode(ROOT_INODE).unwrap());
    assert!(matches!(error, Error::ShutDown(_)), "{error}");
    assert!(matches!(volume.check_writable(), Err(Error::ShutDown(_))));
}

/// A command of debugfs, and fields to set in the group's descriptor for a given number of inodes
/// in the group.
type Damage = (&'static str, fn(u32) -> String);

#[test]
fn no_inode_is_allocated_in_groups_whose_descriptor_contradicts_the_bitmap() {
    let last = |volume: &Volume| volume.geometry().inodes_per_group;
    let damages: [Damage; 4] = [
        ("freei <2>", |_| "free_inodes_count 190".into()),
        ("", |in_group| format!("itable_unused {}", in_group - 3)),
        ("", |in_group| format!("used_dirs_count {in_group}")),
        // The inodes of the first group were never used.
        ("", |in_group| {
            format!(
                "flags 0x5\nset_bg 0 free_inodes_count {in_group}\n\
                 set_bg 0 itable_unused {in_group}\nset_bg 0 used_dirs_count 0"
            )
        }),
    ];
    for (command, damage) in damages {
        let (image, numbers) = image(KINDS[0]);
        let in_group = last(&image.open());
        let damage = damage(in_group);
        image.debugfs_write(&format!("{command}\nset_bg 0 {damage}\nset_bg 0 checksum calc\n"));
        let volume = open_for_writing(&image);
        let (allocated, _) = fill(&volume);
        let first = |number: u64| {
            volume.geometry().inode_position(InodeNumber(number)).unwrap().0 == GroupNumber(0)
        };
        assert!(
            allocated.len() > 60 && !allocated.iter().any(|&number| first(number)),
            "{damage}: {allocated:?}"
        );
        assert!(numbers.iter().all(|(_, number)| !allocated.contains(&number.0)));
        assert_eq!(volume.errors().count, 1, "{damage}");
        volume.close().unwrap();
    }
}
