//! Inode bitmaps that mark inodes in use as free, and descriptors that contradict bitmaps. No new file gets
//! such an inode. Nothing is allocated in its group, and the superblock records the error.

mod common;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, GroupNumber, InodeNumber};
use common::{Image, TIME, new_file, new_inode, open_for_writing};
use ext4::{Inode, ROOT_INODE, Volume};

const KINDS: [&str; 4] = [
    "-t ext4 -b 1024 -O ea_inode,orphan_file -E lazy_itable_init=0 -N 400",
    "-t ext4 -b 1024 -O ea_inode,^metadata_csum,uninit_bg -E lazy_itable_init=0 -N 400",
    "-t ext4 -b 1024 -O ea_inode,^has_journal -E lazy_itable_init=1 -N 400",
    "-t ext2 -b 1024 -N 400",
];

/// An image with one inode of each kind in the first group, and their numbers.
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

/// Has the bitmap call an inode free, and with `counted` the descriptor agree.
fn call_free(image: &Image, number: InodeNumber, counted: bool) {
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

/// An image with files, the `free`th of which has an inode that its bitmap and its descriptor call free.
fn image_with_free(image: Image, files: &[&str], free: usize) -> (Image, InodeNumber) {
    let volume = open_for_writing(&image);
    let numbers: Vec<_> = files.iter().map(|name| new_file(&volume, name).number()).collect();
    volume.close().unwrap();
    drop(volume);
    call_free(&image, numbers[free], true);
    (image, numbers[free])
}

/// Creates a file that must not be created; the error.
fn fail_to_create(root: &Inode) -> Error {
    root.create(b"new", &new_inode(FileType::Regular)).map(drop).expect_err("it was created")
}

/// e2fsck has something to mend, and mends all of it.
fn mend_with_e2fsck(image: &Image) {
    let mended = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    assert_eq!(mended.status.code(), Some(1), "{}", String::from_utf8_lossy(&mended.stdout));
}

/// As many new files as the volume has inodes for; their numbers, and why there are no more.
fn fill(volume: &Arc<Volume>) -> (BTreeSet<u64>, Error) {
    let root = volume.inode(ROOT_INODE).unwrap();
    let mut numbers = BTreeSet::new();
    loop {
        let name = format!("new {}", numbers.len());
        match root.create(name.as_bytes(), &new_inode(FileType::Regular)) {
            Ok(inode) => assert!(numbers.insert(inode.number().0), "given away twice"),
            Err(error) => return (numbers, error),
        }
    }
}

/// e2fsck mends the image, and all that was on it is still there.
fn mend(image: &Image) {
    mend_with_e2fsck(image);
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
fn an_inode_in_use_is_given_to_nobody_though_its_bitmap_calls_it_free() {
    for options in KINDS {
        let (image, numbers) = image(options);
        let sound = image.bytes();
        for (what, number) in numbers {
            for counted in [true, false] {
                std::fs::write(&image.path, &sound).unwrap();
                let location = format!("{options}: {what}, counted: {counted}");
                call_free(&image, number, counted);
                let volume = open_for_writing(&image);
                let group = |number| volume.geometry().inode_position(number).unwrap().0;
                let (given, error) = fill(&volume);
                assert!(given.len() > 60, "{location}: {}", given.len());
                assert!(!given.contains(&number.0), "{location}");
                // Of its group only what comes before it was given, if anything.
                let behind =
                    |&&one: &&u64| one > number.0 && group(InodeNumber(one)) == group(number);
                assert_eq!(given.iter().find(behind), None, "{location}");
                assert!(matches!(error, Error::NoSpace | Error::Corrupt(_)), "{location}: {error}");
                assert_eq!(volume.errors().count, 1, "{location}");
                volume.close().unwrap();
                drop(volume);
                assert!(image.dumpe2fs(&["-h"]).contains("with errors"), "{location}");
                mend(&image);
            }
        }
    }
}

#[test]
fn with_one_group_there_is_an_error_instead_of_a_new_file() {
    let image = Image::make(4, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
    let (image, number) = image_with_free(image, &["file"], 0);
    let volume = open_for_writing(&image);
    let root = volume.inode(ROOT_INODE).unwrap();
    let error = fail_to_create(&root);
    let Error::Corrupt(corrupt) = error else { panic!("{error}") };
    assert_eq!(corrupt.location.inode, Some(number));
    assert_eq!(root.lookup(b"new"), Err(Error::NotFound));
    // What is there can still be changed, and removed: its inode is left to e2fsck.
    let file = Arc::new(volume.inode(number).unwrap());
    file.set_attributes(&AttributeChange::default()).unwrap();
    root.unlink(b"file", &file, TIME).unwrap();
    file.release().unwrap();
    volume.check_writable().unwrap();
    volume.close().unwrap();
    drop((volume, root, file));
    mend_with_e2fsck(&image);
}

#[test]
fn an_unlinked_file_with_users_keeps_its_inode_whatever_the_bitmap_says() {
    for options in ["-t ext2 -b 1024", "-t ext4 -b 1024 -O orphan_file"] {
        let image = Image::make(4, &options.split_whitespace().collect::<Vec<_>>());
        let files = ["first", "second", "third"];
        let (image, _) = image_with_free(image, &files, 1);
        let volume = open_for_writing(&image);
        let root = volume.inode(ROOT_INODE).unwrap();
        // In the middle of the orphans, where its time of deletion is the next one's number.
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
fn the_error_policy_is_obeyed() {
    let options = ["-t", "ext4", "-b", "1024", "-e", "remount-ro"];
    let image = Image::make(40, &options);
    let (image, _) = image_with_free(image, &["file"], 0);
    let volume = open_for_writing(&image);
    let error = fail_to_create(&volume.inode(ROOT_INODE).unwrap());
    assert!(matches!(error, Error::ShutDown(_)), "{error}");
    assert!(matches!(volume.check_writable(), Err(Error::ShutDown(_))));
}

/// A command to debugfs, and what to set in the group's descriptor, given the number of inodes in the group.
type Lie = (&'static str, fn(u32) -> String);

#[test]
fn descriptors_that_contradict_their_inode_bitmap_are_not_believed() {
    let last = |volume: &Volume| volume.geometry().inodes_per_group;
    let lies: [Lie; 4] = [
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
    for (command, lie) in lies {
        let (image, numbers) = image(KINDS[0]);
        let in_group = last(&image.open());
        let lie = lie(in_group);
        image.debugfs_write(&format!("{command}\nset_bg 0 {lie}\nset_bg 0 checksum calc\n"));
        let volume = open_for_writing(&image);
        let (given, _) = fill(&volume);
        let first = |number: u64| {
            volume.geometry().inode_position(InodeNumber(number)).unwrap().0 == GroupNumber(0)
        };
        assert!(given.len() > 60 && !given.iter().any(|&number| first(number)), "{lie}: {given:?}");
        assert!(numbers.iter().all(|(_, number)| !given.contains(&number.0)));
        assert_eq!(volume.errors().count, 1, "{lie}");
        volume.close().unwrap();
    }
}
