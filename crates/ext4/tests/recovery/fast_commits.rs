//! Tests of rare fast commits, and of fast commits that available kernels do not write. Recovery in
//! memory and recovery in place must have the same result, and e2fsck must find no errors.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::common::fast_commits::{DIRECTORY, FastCommits, REGULAR, free, image_of};
use crate::common::replays::{
    BLOCK, Entry, GENERATION, ROOT, generation, make, old_name, open_image, recover, tree,
};
use crate::common::{Image, inode_of};
use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Unsupported};
use ext4::fast_commit::ondisk::{TAG_CREATE, TAG_LINK, TAG_UNLINK};
use ext4::{InodeFlags, ROOT_INODE, Volume};

#[test]
fn blocks_move_between_files() {
    for options in ["", "-O bigalloc -C 4096", "-O ^metadata_csum,^64bit"] {
        let image = make(options);
        let [first, second] = ["first", "second"].map(|name| inode_of(&image, name).0);
        let before = tree(&image.open());
        let [from, to] = ["/first", "/second"].map(|name| before[name].runs[0].1);
        let blocks = 16 * BLOCK as u64;
        let mut commits = FastCommits::new(BLOCK);
        // The files exchange their second halves. The first half of the first file becomes
        // unwritten.
        commits.inode(first, &image_of(REGULAR, blocks, generation(&image, first), 0));
        commits.delete_range(first, 8, 8);
        commits.inode(second, &image_of(REGULAR, blocks, generation(&image, second), 0));
        commits.delete_range(second, 8, 8);
        commits.add_range(first, 8, to + 8, 8);
        commits.add_range(second, 8, from + 8, 8);
        commits.add_range(first, 0, from, 0x8000 + 8);
        commits.commit();
        commits.leave_in(&image);
        let tree = recover(&image, 1);
        assert_eq!(tree["/first"].runs, [(0, from, 8, true), (8, to + 8, 8, false)], "{options}");
        assert_eq!(tree["/second"].runs, [(0, to, 8, false), (8, from + 8, 8, false)], "{options}");
        for name in ["/first", "/second"] {
            assert_eq!(tree[name].blocks, before[name].blocks, "{options}");
        }
    }
}

#[test]
fn corruption_in_a_file_that_fast_commits_delete_is_reported() {
    let options = format!("-t ext4 -b {BLOCK} -J size=16 -O fast_commit,^metadata_csum");
    let image = Image::filled(48, &options, |folder| {
        // Five extents, so that the map has a leaf.
        let file = std::fs::File::create(folder.join("file")).unwrap();
        (0..5).for_each(|index| file.write_all_at(&[1; BLOCK], index * 4 * BLOCK as u64).unwrap());
    });
    let number = inode_of(&image, "file").0;
    let leaf = image.debugfs("ex /file");
    let leaf = leaf.lines().nth(1).and_then(|line| line.split_whitespace().nth(7)).unwrap();
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_UNLINK, ROOT, number, "file");
    commits.commit();
    commits.leave_in(&image);
    image.debugfs_write(&format!("zap_block -p 0x77 {leaf}\n"));

    let volume = image.open();
    let report = volume.recovery().unwrap();
    assert_eq!(report.fast_commits, 1);
    assert!(matches!(report.fast_commit_failure, Some(Error::Corrupt(_))), "{report:?}");
    assert!(volume.info().details.iter().any(|(name, _)| *name == "fast_commit_damage"));
    drop(volume);
    let volume = common::open_for_writing(&image);
    assert!(!tree(&volume).contains_key("/file"));
    assert_eq!(volume.errors().count, 1);
    volume.close().unwrap();
    drop(volume);
    assert_eq!(image.open().errors().count, 1, "the error is on the disk");
}

#[test]
fn inodes_are_deleted_replaced_and_renamed() {
    for options in ["", "-O orphan_file"] {
        let image = make(options);
        let [first, second] = ["first", "second"].map(|name| inode_of(&image, name).0);
        let before = tree(&image.open());
        let made = free(&image, "ffi")[0];
        let mut commits = FastCommits::new(BLOCK);
        commits.name(TAG_UNLINK, ROOT, first, "first");
        commits.commit();
        // Another file reuses the inode and a block of the first file.
        let start = before["/first"].runs[0].1;
        commits.name(TAG_CREATE, ROOT, first, "other");
        commits.inode(first, &image_of(REGULAR, 100, GENERATION, 0));
        commits.add_range(first, 0, start + 3, 1);
        commits.name(TAG_LINK, ROOT, second, "third");
        commits.name(TAG_UNLINK, ROOT, second, "second");
        // A directory that the last commit deletes again.
        commits.name(TAG_CREATE, ROOT, made, "gone");
        commits.inode(made, &image_of(DIRECTORY, BLOCK as u64, GENERATION, 0));
        commits.commit();
        commits.name(TAG_UNLINK, ROOT, made, "gone");
        commits.commit();
        commits.leave_in(&image);
        let tree = recover(&image, 3);
        assert_eq!(tree["/other"].runs, [(0, start + 3, 1, false)], "{options}");
        assert_eq!((tree["/other"].number, tree["/other"].blocks), (first, 2), "{options}");
        assert_eq!(tree["/third"], before["/second"], "{options}");
        for name in ["/first", "/second", "/gone"] {
            assert!(!tree.contains_key(name), "{options}: {name}");
        }
    }
}

#[test]
fn a_file_with_many_runs_gets_an_extent_tree() {
    for options in ["", "-O bigalloc -C 4096"] {
        let image = make(options);
        let cluster = if options.is_empty() { 1 } else { 4 };
        let made = free(&image, "ffi")[0];
        // With bigalloc, a block has the same position in its cluster on the volume as in the file.
        let blocks: Vec<u64> = free(&image, "ffb 2400");
        let blocks: Vec<u64> = blocks.into_iter().filter(|block| block % cluster == 0).collect();
        let blocks: Vec<u64> = blocks.into_iter().step_by(2).take(250).collect();
        let mut commits = FastCommits::new(BLOCK);
        commits.name(TAG_CREATE, ROOT, made, "made");
        commits.inode(made, &image_of(REGULAR, 250 * cluster * BLOCK as u64, GENERATION, 0));
        for (at, &block) in (0..).zip(&blocks) {
            commits.add_range(made, at * cluster as u32, block, 1);
        }
        commits.commit();
        commits.leave_in(&image);
        let tree = recover(&image, 1);
        let runs = (0..).zip(&blocks).map(|(at, &block)| (at * cluster, block, 1, false));
        assert_eq!(tree["/made"].runs, runs.collect::<Vec<_>>(), "{options}");
    }
}

/// Creates files in all directories by fast commits. Returns the trees before and after the
/// recovery.
fn fill(options: &str) -> [BTreeMap<String, Entry>; 2] {
    let image = make(options);
    let before = tree(&image.open());
    let [few, many] = ["few", "many"].map(|name| inode_of(&image, name).0);
    let first = free(&image, "ffi")[0];
    let mut commits = FastCommits::new(BLOCK);
    let made = first + 150;
    commits.name(TAG_CREATE, many, made, "made");
    commits.inode(made, &image_of(DIRECTORY, BLOCK as u64, GENERATION, 0));
    for number in 0..150_u32 {
        let parent = [few, many, made][number as usize % 3];
        let inode = first + u64::from(number);
        commits.name(TAG_CREATE, parent, inode, &format!("{number}-{}", "n".repeat(50)));
        commits.inode(inode, &image_of(REGULAR, 0, GENERATION, 0));
    }
    for number in 0..50 {
        let gone = before[&format!("/many/{}", old_name(number))].number;
        commits.name(TAG_UNLINK, many, gone, &old_name(number));
    }
    commits.commit();
    commits.leave_in(&image);
    let tree = recover(&image, 1);
    assert_eq!(tree.len(), before.len() + 151 - 50, "{options}");
    assert_eq!(tree["/many"].links, before["/many"].links + 1, "{options}");
    [before, tree]
}

#[test]
fn directories_keep_or_get_an_index() {
    for options in ["", "-O ^metadata_csum", "-O large_dir", "-O bigalloc -C 4096"] {
        let [before, after] = fill(options);
        assert!(before["/many"].has_index && !before["/few"].has_index, "{options}");
        for name in ["/many", "/few", "/many/made"] {
            assert!(after[name].has_index, "{options}: {name}");
        }
    }
    let [_, after] = fill("-O ^dir_index");
    assert!(!after["/many"].has_index);
}

#[test]
fn fast_commits_change_inline_directories() {
    let image = make("-O inline_data");
    let few = inode_of(&image, "few").0;
    let volume = image.open();
    assert!(volume.inode(InodeNumber(few)).unwrap().has(InodeFlags::INLINE_DATA));
    drop(volume);
    let made = free(&image, "ffi")[0];
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_CREATE, few, made, "short");
    let inline = InodeFlags::INLINE_DATA.0;
    let mut directory = image_of(DIRECTORY, 60, GENERATION, inline);
    // Inline directories have no extents.
    let flags = u32::from_le_bytes(directory[32..36].try_into().unwrap()) & !InodeFlags::EXTENTS.0;
    directory[32..36].copy_from_slice(&flags.to_le_bytes());
    commits.inode(made, &directory);
    commits.name(TAG_CREATE, made, made + 1, "file");
    commits.inode(made + 1, &image_of(REGULAR, 0, GENERATION, 0));
    commits.commit();
    commits.leave_in(&image);
    let tree = recover(&image, 1);
    assert_eq!(tree["/few/short"].kind, FileType::Directory);
    assert_eq!(tree["/few/short/file"].number, made + 1);
    assert_eq!(tree["/few"].links, 3);
    let [_, after] = fill("-O inline_data");
    assert!(after["/few"].has_index);
}

#[test]
fn a_directory_that_reuses_an_inode_number_keeps_its_new_names() {
    for options in ["", "-O ^metadata_csum"] {
        let image = make(options);
        let [few, one] = ["few", "few/one"].map(|name| inode_of(&image, name).0);
        let mut commits = FastCommits::new(BLOCK);
        commits.name(TAG_UNLINK, few, one, "one");
        commits.name(TAG_UNLINK, ROOT, few, "few");
        commits.commit();
        // The new directory reuses the inode number of the old directory, and its file that of the
        // old file.
        commits.name(TAG_CREATE, ROOT, few, "few");
        commits.inode(few, &image_of(DIRECTORY, BLOCK as u64, GENERATION, 0));
        commits.name(TAG_CREATE, few, one, "one");
        commits.inode(one, &image_of(REGULAR, 0, GENERATION, 0));
        commits.commit();
        commits.leave_in(&image);
        let tree = recover(&image, 2);
        assert_eq!((tree["/few"].number, tree["/few"].links), (few, 2), "{options}");
        assert_eq!((tree["/few/one"].number, tree["/few/one"].links), (one, 1), "{options}");
    }
}

#[test]
fn an_entry_gets_the_type_of_the_file_that_reuses_its_inode_number() {
    let image = make("");
    let [few, first] = ["few", "first"].map(|name| inode_of(&image, name).0);
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_UNLINK, ROOT, first, "first");
    commits.commit();
    commits.name(TAG_CREATE, ROOT, first, "first");
    commits.inode(first, &image_of(DIRECTORY, BLOCK as u64, GENERATION, 0));
    commits.commit();
    // Here a regular file reuses the inode number of a directory.
    let one = inode_of(&image, "few/one").0;
    commits.name(TAG_UNLINK, few, one, "one");
    commits.name(TAG_UNLINK, ROOT, few, "few");
    commits.commit();
    commits.name(TAG_CREATE, ROOT, few, "few");
    commits.inode(few, &image_of(REGULAR, 0, GENERATION, 0));
    commits.commit();
    commits.leave_in(&image);
    let tree = recover(&image, 4);
    assert_eq!((tree["/first"].kind, tree["/first"].links), (FileType::Directory, 2));
    assert_eq!((tree["/few"].kind, tree["/few"].links), (FileType::Regular, 1));
    let kinds = kinds_in_root(&image.open());
    assert_eq!(kinds["first"], FileType::Directory);
    assert_eq!(kinds["few"], FileType::Regular);
}

/// Returns the file types in the entries of the root directory.
fn kinds_in_root(volume: &Arc<Volume>) -> BTreeMap<String, FileType> {
    let mut kinds = BTreeMap::new();
    let root = volume.inode(ROOT_INODE).unwrap();
    root.read_dir(DirCursor::default(), &mut |entry| {
        kinds.insert(String::from_utf8(entry.name.to_vec()).unwrap(), entry.kind.unwrap());
        ControlFlow::Continue(())
    })
    .unwrap();
    kinds
}

/// Returns the names in a directory.
fn names_in(volume: &Arc<Volume>, number: u64) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let directory = volume.inode(InodeNumber(number)).unwrap();
    directory
        .read_dir(DirCursor::default(), &mut |entry| {
            assert!(names.insert(String::from_utf8(entry.name.to_vec()).unwrap()), "a name twice");
            ControlFlow::Continue(())
        })
        .unwrap();
    names.retain(|name| !name.starts_with('.'));
    names
}

/// Recovers the image in memory, and then in place. Checks that a directory has the same names
/// after both, and returns them.
fn recover_names(image: &Image, number: u64) -> BTreeSet<String> {
    let in_memory = names_in(&image.open(), number);
    let volume = common::open_for_writing(image);
    assert_eq!(names_in(&volume, number), in_memory);
    volume.close().unwrap();
    drop(volume);
    image.check_by_e2fsck();
    in_memory
}

#[test]
fn many_names_change_in_a_large_directory_without_an_index() {
    // If each name were searched in all blocks, the test would take too long.
    const OLD: u32 = 6000;
    const NEW: u32 = 8500;
    let long = |number: u32| format!("{number:04}-{}", "o".repeat(245));
    let options = format!(
        "-t ext4 -b {BLOCK} -I 256 -N 512 -J size=16,fast_commit_size=2048 -O fast_commit,^dir_index"
    );
    let image = Image::filled(64, &options, |folder| {
        let first = folder.join("0000");
        std::fs::write(&first, b"").unwrap();
        std::fs::create_dir(folder.join("large")).unwrap();
        for number in 0..OLD {
            std::fs::hard_link(&first, folder.join("large").join(long(number))).unwrap();
        }
    });
    let [large, file] = ["large", "0000"].map(|name| inode_of(&image, name).0);
    let mut commits = FastCommits::new(BLOCK);
    for number in 0..NEW {
        commits.name(TAG_LINK, large, file, &number.to_string());
    }
    for number in 0..50 {
        commits.name(TAG_UNLINK, large, file, &long(number));
    }
    commits.commit();
    commits.leave_in(&image);
    let old = (50..OLD).map(long);
    let expected: BTreeSet<String> = old.chain((0..NEW).map(|number| number.to_string())).collect();
    assert!(recover_names(&image, large) == expected);
}

#[test]
fn a_corrupt_index_is_dropped() {
    let image = make("-O ^metadata_csum");
    let many = inode_of(&image, "many").0;
    let first = free(&image, "ffi")[0];
    let mut commits = FastCommits::new(BLOCK);
    for number in 0..50_u64 {
        let inode = first + number;
        commits.name(TAG_CREATE, many, inode, &format!("{number}-{}", "n".repeat(50)));
        commits.inode(inode, &image_of(REGULAR, 0, GENERATION, 0));
    }
    commits.commit();
    commits.leave_in(&image);
    // All index entries point past the end of the directory. They follow ".", ".." and a header.
    let root: u64 = image.debugfs(&format!("bmap <{many}> 0")).trim().parse().unwrap();
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    for slot in 0..4 {
        let at = root * BLOCK as u64 + 36 + 8 * slot;
        file.write_all_at(&0xfff_u32.to_le_bytes(), at).unwrap();
    }
    drop(file);
    let names = recover_names(&image, many);
    assert_eq!(names.len(), 150);
    assert!(!image.open().inode(InodeNumber(many)).unwrap().has(InodeFlags::INDEX));
}

#[test]
fn the_map_of_a_deleted_inode_is_not_used() {
    let image = make("");
    let first = inode_of(&image, "first").0;
    let before = tree(&image.open());
    let deleted = free(&image, "ffi")[0];
    image.debugfs_write(&format!(
        "copy_inode first <{deleted}>\nsif <{deleted}> links_count 0\nsif <{deleted}> dtime 1000000000\n"
    ));
    let mut commits = FastCommits::new(BLOCK);
    commits.inode(deleted, &image_of(REGULAR, 0, generation(&image, first), 0));
    commits.delete_range(deleted, 0, 16);
    commits.commit();
    commits.leave_in(&image);
    assert!(recover(&image, 1) == before);
}

#[test]
fn inodes_in_blocks_that_were_never_written_are_new() {
    for (options, has_checksums) in [("", true), ("-O ^metadata_csum,uninit_bg", false)] {
        let image = make(&format!("-E lazy_itable_init=1,nodiscard {options}"));
        let [first, few] = ["first", "few"].map(|name| inode_of(&image, name).0);
        let place = |number: u64| {
            let text = image.debugfs(&format!("imap <{number}>"));
            let after = |word: &str| text.split_once(word).unwrap().1.trim_start();
            let block: u64 = after("located at block ").split(',').next().unwrap().parse().unwrap();
            let offset = after("offset 0x").split_whitespace().next().unwrap();
            block * BLOCK as u64 + u64::from_str_radix(offset, 16).unwrap()
        };
        // The last inodes of the last group.
        let [file, folder, named] = [510, 511, 512];
        let host = std::fs::File::options().read(true).write(true).open(&image.path).unwrap();
        // The blocks show files of a volume that was on the device before.
        for (to, from) in [(file, first), (folder, few), (named, first)] {
            let mut inode = [0; 256];
            host.read_exact_at(&mut inode, place(from)).unwrap();
            host.write_all_at(&inode, place(to)).unwrap();
        }
        drop(host);
        let before = tree(&image.open());
        let mut commits = FastCommits::new(BLOCK);
        commits.name(TAG_CREATE, ROOT, file, "file");
        commits.inode(file, &image_of(REGULAR, 5, generation(&image, first), 0));
        commits.name(TAG_CREATE, ROOT, folder, "folder");
        commits.inode(folder, &image_of(DIRECTORY, 0, generation(&image, few), 0));
        // No image of this inode is in the log.
        commits.name(TAG_CREATE, ROOT, named, "named");
        commits.commit();
        commits.leave_in(&image);
        let tree = recover(&image, 1);
        assert_eq!((tree["/file"].blocks, tree["/file"].size), (0, 5), "{has_checksums}");
        assert_eq!(tree["/folder"].links, 2);
        assert!(!tree.contains_key("/named") && !tree.contains_key("/folder/one"));
        assert_eq!(tree["/first"], before["/first"]);
    }
}

#[test]
fn invalid_names_are_ignored() {
    let image = make("");
    let made = free(&image, "ffi")[0];
    let mut commits = FastCommits::new(BLOCK);
    for (number, name) in (made..).zip(["good", "a/b", "a\0b", "better"]) {
        commits.name(TAG_CREATE, ROOT, number, name);
        commits.inode(number, &image_of(REGULAR, 0, GENERATION, 0));
    }
    commits.commit();
    let names_before = names_in(&image.open(), ROOT);
    commits.leave_in(&image);
    let names = recover_names(&image, ROOT);
    let new: Vec<&String> = names.difference(&names_before).collect();
    assert_eq!(new, ["better", "good"]);
}

#[test]
fn an_invalid_inode_image_is_ignored() {
    let image = make("");
    let [first, second] = ["first", "second"].map(|name| inode_of(&image, name).0);
    let before = tree(&image.open());
    let made = free(&image, "ffi")[0];
    let mut commits = FastCommits::new(BLOCK);
    // An existing file with an invalid size.
    let mut image_of_first = image_of(REGULAR, 100, generation(&image, first), 0);
    image_of_first[108..112].copy_from_slice(&u32::MAX.to_le_bytes());
    commits.inode(first, &image_of_first);
    // An invalid length of the extra fields, in a new file, and in a file that reuses an inode
    // number.
    let mut damaged = image_of(REGULAR, 100, GENERATION, 0);
    damaged[128..130].copy_from_slice(&33_u16.to_le_bytes());
    commits.name(TAG_CREATE, ROOT, made, "bad");
    commits.inode(made, &damaged);
    commits.name(TAG_UNLINK, ROOT, second, "second");
    commits.name(TAG_CREATE, ROOT, second, "other");
    commits.inode(second, &damaged);
    commits.name(TAG_CREATE, ROOT, made + 1, "good");
    commits.inode(made + 1, &image_of(REGULAR, 100, GENERATION, 0));
    commits.commit();
    commits.leave_in(&image);
    let tree = recover(&image, 1);
    assert_eq!(tree["/first"], before["/first"]);
    assert_eq!(tree["/good"].size, 100);
    for name in ["/bad", "/second", "/other"] {
        assert!(!tree.contains_key(name), "{name}");
    }
}

#[test]
fn an_index_without_dots_is_dropped() {
    let image = make("-O ^metadata_csum");
    let many = inode_of(&image, "many").0;
    let made = free(&image, "ffi")[0];
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_CREATE, many, made, "made");
    commits.inode(made, &image_of(REGULAR, 0, GENERATION, 0));
    commits.commit();
    commits.leave_in(&image);
    let root: u64 = image.debugfs(&format!("bmap <{many}> 0")).trim().parse().unwrap();
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    let start = root * BLOCK as u64;
    // Replaces the name of the first entry.
    file.write_all_at(b"x", start + 8).unwrap();
    for slot in 0..16 {
        file.write_all_at(&0xfff_u32.to_le_bytes(), start + 36 + 8 * slot).unwrap();
    }
    drop(file);
    let names = recover_names(&image, many);
    assert_eq!(names.len(), 101);
    assert!(names.contains("made") && !names.contains("x"));
}

#[test]
fn a_directory_of_more_than_16_gib_is_refused() {
    const LARGE_BLOCK: usize = 65536;
    let options = "-t ext4 -b 65536 -I 256 -N 512 -J size=128 -O fast_commit,large_dir";
    let image = Image::filled(18 << 10, options, |folder| {
        std::fs::create_dir(folder.join("large")).unwrap();
    });
    let large = inode_of(&image, "large").0;
    let made = free(&image, "ffi")[0];
    let mut commits = FastCommits::new(LARGE_BLOCK);
    commits.name(TAG_CREATE, large, made, "made");
    commits.inode(made, &image_of(REGULAR, 0, GENERATION, 0));
    commits.commit();
    commits.leave_in(&image);
    for (size, is_refused) in [(16_u64 << 30, false), ((16 << 30) + LARGE_BLOCK as u64, true)] {
        image.debugfs_write(&format!("set_inode_field <{large}> size {size}\n"));
        let opened = common::open_device(image.device(true));
        let error = opened.err();
        let is_unsupported = matches!(error, Some(Error::Unsupported(Unsupported::Operation(_))));
        assert_eq!((error.is_some(), is_unsupported), (is_refused, is_refused), "{error:?}");
    }
}

#[test]
fn fast_commits_after_a_log_without_transactions_are_ignored() {
    let image = make("");
    let first = inode_of(&image, "first").0;
    let before = tree(&image.open());
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_LINK, ROOT, first, "linked");
    commits.commit();
    commits.leave_in(&image);
    let journal: u64 = image.debugfs("bmap <8> 0").trim().parse().unwrap();
    // The start of the log.
    open_image(&image).write_all_at(&[0; 4], journal * BLOCK as u64 + 28).unwrap();
    assert!(recover(&image, 0) == before);
}

#[test]
fn a_wrong_count_of_unused_inodes_does_not_make_a_file_new() {
    let image = make("-E lazy_itable_init=1,nodiscard");
    let first = inode_of(&image, "first").0;
    let before = tree(&image.open());
    let mut commits = FastCommits::new(BLOCK);
    // A file without a name in the log would be left alone.
    commits.name(TAG_LINK, ROOT, first, "linked");
    let mut image_of_first = image_of(REGULAR, 16 * BLOCK as u64, generation(&image, first), 0);
    image_of_first[26..28].copy_from_slice(&2_u16.to_le_bytes());
    commits.inode(first, &image_of_first);
    commits.commit();
    commits.leave_in(&image);
    let unused = image.open().geometry().inodes_per_group;
    image.debugfs_write(&format!(
        "set_bg 0 itable_unused {unused}\nset_bg 0 flags 0\nset_bg 0 checksum calc\n"
    ));
    let tree = tree(&image.open());
    assert_eq!(tree["/first"].runs, before["/first"].runs);
    assert_eq!((tree["/linked"].number, tree["/linked"].links), (first, 2));
}

#[test]
fn fast_commits_can_change_more_than_an_ordinary_transaction() {
    const EXTENTS: u64 = 480;
    let options = format!("-t ext4 -b {BLOCK} -I 256 -N 8192 -J size=2 -O fast_commit");
    let image = Image::make(4096, &options.split(' ').collect::<Vec<_>>());
    let made = free(&image, "ffi")[0];
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_CREATE, ROOT, made, "made");
    commits.inode(made, &image_of(REGULAR, EXTENTS * BLOCK as u64, GENERATION, 0));
    // Each extent changes the bitmap of another group.
    for extent in 0..EXTENTS {
        commits.add_range(made, extent as u32, extent * 8192 + 7000, 1);
    }
    commits.commit();
    commits.leave_in(&image);
    let tree = recover(&image, 1);
    assert_eq!(tree["/made"].runs.len() as u64, EXTENTS);
}
