//! Directories of every kind, made by mke2fs, e2fsck and the kernel: we list and find what debugfs
//! lists.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::Command;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber};
use common::{Image, Scratch, run};
use ext4::{Inode, ROOT_INODE};

/// What a directory lists: names, with inode and type.
type Listing = BTreeMap<Vec<u8>, (u64, Option<FileType>)>;

/// Lists a directory, starting anew after every `step` entries.
fn list(directory: &Inode, step: usize) -> Listing {
    let (mut listing, mut cursor) = (Listing::new(), DirCursor(0));
    loop {
        let mut count = 0;
        directory
            .read_dir(cursor, &mut |entry| {
                let known = listing.insert(entry.name.to_vec(), (entry.inode.0, entry.kind));
                assert_eq!(known, None, "listed twice");
                assert!(entry.next.0 > cursor.0, "cursors ascend");
                cursor = entry.next;
                count += 1;
                if count == step { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        if count < step {
            return listing;
        }
    }
}

/// What `debugfs -R "ls -p"` lists. Names must have no slash, which is its separator.
fn list_by_debugfs(image: &Image, directory: InodeNumber, has_types: bool) -> Listing {
    let mut listing = Listing::new();
    for line in image.debugfs(&format!("ls -p <{directory}>")).lines() {
        let fields: Vec<&str> = line.split('/').collect();
        let [_, inode, mode, _, _, name, ..] = fields[..] else { continue };
        // An unused entry, such as the one that hides an index block.
        if inode == "0" {
            continue;
        }
        let mode = u32::from_str_radix(mode, 8).unwrap();
        let kind = FileType::from_mode(mode).filter(|_| has_types);
        listing.insert(name.as_bytes().to_vec(), (inode.parse().unwrap(), kind));
    }
    listing
}

/// What we list is what debugfs lists, whatever the step, and every name is found.
fn check(image: &Image, directory: InodeNumber, entries_min: usize) {
    let volume = image.open();
    let has_types = volume.superblock().has(ext4::Feature::Filetype);
    let theirs = list_by_debugfs(image, directory, has_types);
    assert!(theirs.len() >= entries_min, "{} entries", theirs.len());
    let inode = volume.inode(directory).unwrap();
    for step in [1, 7, usize::MAX] {
        let ours = list(&inode, step);
        let differs = ours.iter().find(|(name, value)| theirs.get(*name) != Some(*value));
        assert_eq!(differs, None, "step {step}");
        assert_eq!(ours.len(), theirs.len(), "step {step}");
    }
    for (name, (number, _)) in &theirs {
        assert_eq!(inode.lookup(name).unwrap().0, *number);
        let absent = [name.as_slice(), b"~"].concat();
        assert_eq!(inode.lookup(&absent), Err(Error::NotFound));
    }
    assert_eq!(inode.lookup(&[b'x'; 255]), Err(Error::NotFound));
    assert_eq!(inode.lookup(&[b'x'; 256]), Err(Error::NameTooLong));
    assert_eq!(inode.lookup(b""), Err(Error::NotFound));
}

/// A tree with `count` empty files in the folder "many", half of them with names in UTF-8.
fn tree_of_many(scratch: &Scratch, count: u32, padding: usize) -> std::path::PathBuf {
    let root = scratch.path("tree");
    let many = root.join("many");
    std::fs::create_dir_all(&many).unwrap();
    for number in 0..count {
        let accent = if number % 2 == 0 { "" } else { "é" };
        std::fs::write(many.join(format!("{number}{accent}{}", "-".repeat(padding))), b"").unwrap();
    }
    root
}

/// An image of such a tree, whose folder e2fsck has given an index.
fn hashed_image(
    megabytes: u64,
    options: &[&str],
    tune: &[&str],
    (count, padding): (u32, usize),
) -> (Image, InodeNumber) {
    let scratch = Scratch::new();
    let tree = tree_of_many(&scratch, count, padding);
    let mut all = options.to_vec();
    all.extend(["-d", tree.to_str().unwrap()]);
    let image = Image::make(megabytes, &all);
    if !tune.is_empty() {
        run(Command::new("tune2fs").args(tune).arg(&image.path));
    }
    let checked = Command::new("e2fsck").args(["-fyD"]).arg(&image.path).output().unwrap();
    assert!(checked.status.code().unwrap() <= 1, "{checked:?}");
    let number = image.open().inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
    (image, number)
}

#[test]
fn every_hash_version_finds_every_name() {
    for algorithm in ["legacy", "half_md4", "tea"] {
        for flags in ["0x0001", "0x0002"] {
            let (image, many) = hashed_image(
                16,
                &["-t", "ext4", "-b", "1024", "-N", "4000"],
                &["-E", &format!("hash_alg={algorithm}")],
                (3000, 20),
            );
            // Signed or unsigned, and the directory hashed anew.
            image.debugfs_write(&format!("set_super_value flags {flags}\n"));
            let checked = Command::new("e2fsck").args(["-fyD"]).arg(&image.path).output().unwrap();
            assert!(checked.status.code().unwrap() <= 1, "{checked:?}");
            let dump = image.debugfs(&format!("htree_dump <{many}>"));
            assert!(dump.contains("Hash Version"), "{dump}");
            check(&image, many, 3000);
        }
    }
}
