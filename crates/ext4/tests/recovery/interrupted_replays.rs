//! Tests of fast commits that Linux has replayed in part before a power cut.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::common::fast_commits::{DIRECTORY, FastCommits, REGULAR, free, image_of};
use crate::common::replays::{
    BLOCK, GENERATION, ROOT, blocks_of, generation, make, old_name, open_image, place, recover,
    tree,
};
use crate::common::{Image, inode_of};
use base::attributes::FileType;
use base::{Error, FsBlock};
use ext4::fast_commit::ondisk::{TAG_CREATE, TAG_LINK, TAG_UNLINK};
use testkit::{LoopMount, Random, private_mounts};

/// Marks blocks as free, and counts them as free. Linux does this during its replay of fast
/// commits, and marks them as in use again only at the end.
fn mark_free(image: &Image, blocks: &BTreeSet<u64>) {
    let volume = image.open();
    let mut commands = String::new();
    let mut counts = BTreeMap::new();
    for &block in blocks {
        commands += &format!("freeb {block}\n");
        let group = volume.geometry().group_of_block(FsBlock(block)).unwrap();
        let free = volume.group(group).unwrap().free_clusters;
        *counts.entry(group.0).or_insert(free) += 1;
    }
    for (group, free) in counts {
        commands += &format!("set_bg {group} free_blocks_count {free}\n");
        commands += &format!("set_bg {group} checksum calc\n");
    }
    drop(volume);
    image.debugfs_write(&commands);
}

#[test]
fn blocks_that_an_interrupted_replay_has_freed_are_not_allocated() {
    for options in ["", "-O ^metadata_csum,^64bit"] {
        let image = make(options);
        // The file has many holes, so its extent tree has nodes outside the inode.
        let source = image.scratch.path("striped");
        let striped = std::fs::File::create(&source).unwrap();
        for stripe in 0..150 {
            striped.write_all_at(&[1; 4096], stripe * 8192).unwrap();
        }
        image.debugfs_write(&format!("cd few\nwrite {} old\n", source.display()));
        let names = ["few", "many", "first", "few/old"];
        let [few, many, first, old] = names.map(|name| inode_of(&image, name).0);
        let before = tree(&image.open());
        assert!(before["/few/old"].runs.len() >= 150, "{options}");
        assert_eq!(before["/few/old"].runs[0].2, 4, "{options}");
        let inodes = free(&image, "ffi")[0];
        let new: Vec<u64> = free(&image, "ffb 1200").into_iter().skip(200).step_by(2).collect();
        // The fast commits contain the old file, the directories, and a name that already exists.
        let mut freed = BTreeSet::new();
        for number in [ROOT, few, many, first, old] {
            freed.extend(blocks_of(&image, number));
        }
        assert!(freed.len() > 600 + 1 + 16 + 3, "{options}");
        mark_free(&image, &freed);
        let mut commits = FastCommits::new(BLOCK);
        commits.inode(many, &image_of(DIRECTORY, BLOCK as u64, generation(&image, many), 0));
        let size = before["/few/old"].size;
        commits.inode(old, &image_of(REGULAR, size, generation(&image, old), 0));
        commits.delete_range(old, 0, 4);
        commits.name(TAG_CREATE, ROOT, first, "first");
        commits.name(TAG_CREATE, many, inodes, "new");
        commits.inode(inodes, &image_of(REGULAR, 250 * BLOCK as u64, GENERATION, 0));
        for (at, &block) in (0..250).zip(&new) {
            commits.add_range(inodes, at, block, 1);
        }
        for number in 1..=100 {
            let parent = [few, many][number as usize % 2];
            let name = format!("{number}-{}", "n".repeat(50));
            commits.name(TAG_CREATE, parent, inodes + number, &name);
            commits.inode(inodes + number, &image_of(REGULAR, 0, GENERATION, 0));
        }
        commits.commit();
        commits.leave_in(&image);
        let tree = recover(&image, 1);
        assert_eq!(tree["/first"], before["/first"], "{options}");
        assert_eq!(tree["/few/old"].runs, before["/few/old"].runs[1..], "{options}");
        assert_eq!(tree.len(), before.len() + 101, "{options}");
    }
}

#[test]
fn link_counts_are_correct_after_an_interrupted_replay() {
    let image = make("");
    let [few, first] = ["few", "first"].map(|name| inode_of(&image, name).0);
    // The interrupted replay has updated the link counts. It has not yet removed the old entries of
    // a rename and of a removal.
    image.debugfs_write("ln first renamed\nmkdir few/sub\nset_inode_field few links_count 2\n");
    let sub = inode_of(&image, "few/sub").0;
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_LINK, ROOT, first, "renamed");
    commits.name(TAG_UNLINK, ROOT, first, "first");
    commits.name(TAG_UNLINK, few, sub, "sub");
    commits.commit();
    commits.leave_in(&image);
    let tree = recover(&image, 1);
    assert_eq!((tree["/renamed"].number, tree["/renamed"].links), (first, 1));
    assert_eq!(tree["/renamed"].runs.len(), 1);
    assert_eq!(tree["/few"].links, 2);
    assert!(!tree.contains_key("/few/sub") && !tree.contains_key("/first"));
}

#[test]
fn files_that_an_interrupted_replay_has_written_get_their_names() {
    let image = make("");
    let first = inode_of(&image, "first").0;
    let made = free(&image, "ffi")[0];
    // The replay has written the inodes, but not the entries of the names.
    image.debugfs_write("write /dev/null made\nln first linked\n");
    assert_eq!(inode_of(&image, "made").0, made);
    image.debugfs_write("unlink made\nunlink linked\nsif first links_count 2\n");
    let mut image_of_first = image_of(REGULAR, 16 * BLOCK as u64, generation(&image, first), 0);
    image_of_first[26..28].copy_from_slice(&2_u16.to_le_bytes());
    let mut commits = FastCommits::new(BLOCK);
    // The inode number is used, freed, and used again.
    commits.name(TAG_CREATE, ROOT, made, "gone");
    commits.name(TAG_UNLINK, ROOT, made, "gone");
    commits.name(TAG_CREATE, ROOT, made, "made");
    commits.inode(made, &image_of(REGULAR, 0, generation(&image, made), 0));
    commits.name(TAG_LINK, ROOT, first, "linked");
    commits.inode(first, &image_of_first);
    commits.commit();
    commits.leave_in(&image);
    let tree = recover(&image, 1);
    assert_eq!((tree["/made"].number, tree["/made"].links), (made, 1));
    assert_eq!((tree["/linked"].number, tree["/linked"].links), (first, 2));
    assert_eq!(tree["/first"].links, 2);
    assert!(!tree.contains_key("/gone"));
}

#[test]
fn directories_that_an_interrupted_replay_has_written_are_written_again() {
    for is_hole in [true, false] {
        for is_named in [true, false] {
            let image = make("");
            let before = tree(&image.open());
            let made = free(&image, "ffi")[0];
            image.debugfs_write("mkdir made\n");
            assert_eq!(inode_of(&image, "made").0, made);
            let block: u64 = image.debugfs(&format!("bmap <{made}> 0")).trim().parse().unwrap();
            // The first block is a hole, or has its former contents.
            if is_hole {
                image.debugfs_write("punch made 0 0\nsif made size 1024\n");
            } else {
                open_image(&image).write_all_at(&[0x77; BLOCK], block * BLOCK as u64).unwrap();
            }
            image.debugfs_write(&format!("unlink made\nsif <{ROOT}> links_count 5\n"));
            let mut commits = FastCommits::new(BLOCK);
            commits.name(TAG_CREATE, ROOT, made, "made");
            let generation = generation(&image, made);
            commits.inode(made, &image_of(DIRECTORY, BLOCK as u64, generation, 0));
            commits.name(TAG_CREATE, made, made + 1, "file");
            commits.inode(made + 1, &image_of(REGULAR, 0, GENERATION, 0));
            if !is_named {
                commits.name(TAG_UNLINK, made, made + 1, "file");
                commits.name(TAG_UNLINK, ROOT, made, "made");
            }
            commits.commit();
            commits.leave_in(&image);
            let tree = recover(&image, 1);
            if is_named {
                assert_eq!((tree["/made"].links, tree["/made"].blocks), (2, 2), "{is_hole}");
                assert_eq!(tree["/made/file"].number, made + 1, "{is_hole}");
            } else {
                assert!(tree == before, "{is_hole}");
            }
        }
    }
}

#[test]
fn a_checksum_that_an_interrupted_replay_has_not_updated_is_corrected() {
    for is_damaged in [false, true] {
        let image = make("");
        let [first, second] = ["first", "second"].map(|name| inode_of(&image, name).0);
        let before = tree(&image.open());
        let host = open_image(&image);
        let at = place(&image, first);
        let mut inode = [0; 256];
        host.read_exact_at(&mut inode, at).unwrap();
        // The owner has changed, but not the checksum.
        inode[2] ^= 1;
        let mut commits = FastCommits::new(BLOCK);
        commits.inode(first, &inode[..160]);
        commits.name(TAG_LINK, ROOT, second, "linked");
        commits.commit();
        commits.leave_in(&image);
        if is_damaged {
            // The group differs from the image in the fast commit.
            inode[24] ^= 1;
        }
        host.write_all_at(&inode, at).unwrap();
        if is_damaged {
            let opened = common::open_device(image.device(true));
            assert!(matches!(opened.err(), Some(Error::Corrupt(_))));
        } else {
            let tree = recover(&image, 1);
            assert_eq!(tree["/first"], before["/first"]);
            assert!(tree.contains_key("/linked"));
        }
    }
}

#[test]
fn a_node_of_a_file_that_is_deleted_later_is_not_allocated() {
    let image = make("");
    // Each file has 4 or 5 extents of 3 blocks. The second file's map has a leaf.
    for (name, extents) in [("x", 4), ("y", 5)] {
        let source = image.scratch.path(name);
        let file = std::fs::File::create(&source).unwrap();
        for extent in 0..extents {
            file.write_all_at(&[1; 3 * BLOCK], extent * 8 * BLOCK as u64).unwrap();
        }
        image.debugfs_write(&format!("write {} {name}\n", source.display()));
    }
    let [x, y] = ["x", "y"].map(|name| inode_of(&image, name).0);
    assert!(x < y);
    let before = tree(&image.open());
    let data = before["/y"].runs.iter().flat_map(|run| run.1..run.1 + run.2);
    let data: BTreeSet<u64> = data.collect();
    let nodes: BTreeSet<u64> = blocks_of(&image, y).difference(&data).copied().collect();
    assert_eq!(nodes.len(), 1);
    // All other blocks before the node's group ends are in use, so the search finds the node.
    let node = *nodes.first().unwrap();
    let behind = free(&image, "ffb 45000");
    let mut commands = String::new();
    let kept = behind.len() - 2000;
    for block in &behind[..kept] {
        commands += &format!("setb {block}\n");
    }
    image.debugfs_write(&commands);
    mark_free(&image, &nodes);
    let mut commits = FastCommits::new(BLOCK);
    commits.inode(y, &image_of(REGULAR, 35 * BLOCK as u64, generation(&image, y), 0));
    commits.commit();
    commits.inode(x, &image_of(REGULAR, 27 * BLOCK as u64, generation(&image, x), 0));
    commits.delete_range(x, 1, 1);
    commits.name(TAG_UNLINK, ROOT, y, "y");
    commits.commit();
    commits.leave_in(&image);
    let volume = common::open_for_writing(&image);
    let tree = tree(&volume);
    volume.close().unwrap();
    drop(volume);
    assert_eq!((tree["/x"].runs.len(), blocks_of(&image, x).contains(&node)), (5, false));
    assert!(!tree.contains_key("/y"));
}

/// Returns the image of a file of 16 blocks with this link count.
fn image_with_links(image: &Image, number: u64, links: u16) -> Vec<u8> {
    let mut bytes = image_of(REGULAR, 16 * BLOCK as u64, generation(image, number), 0);
    bytes[26..28].copy_from_slice(&links.to_le_bytes());
    bytes
}

#[test]
fn a_file_whose_new_entry_was_written_before_its_link_count_keeps_all_names() {
    let image = make("");
    let first = inode_of(&image, "first").0;
    image.debugfs_write("ln first linked\n");
    assert_eq!(tree(&image.open())["/linked"].links, 1);
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_LINK, ROOT, first, "linked");
    commits.inode(first, &image_with_links(&image, first, 2));
    commits.commit();
    commits.leave_in(&image);
    let tree = recover(&image, 1);
    assert_eq!((tree["/first"].links, tree["/linked"].number), (2, first));
}

#[test]
fn a_file_whose_old_entry_was_removed_before_its_link_count_changed_has_one_link() {
    let image = make("");
    let first = inode_of(&image, "first").0;
    image.debugfs_write("sif first links_count 2\n");
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_UNLINK, ROOT, first, "linked");
    commits.inode(first, &image_with_links(&image, first, 1));
    commits.commit();
    commits.leave_in(&image);
    assert_eq!(recover(&image, 1)["/first"].links, 1);
}

#[test]
fn the_link_count_of_an_image_does_not_count_names_that_the_log_does_not_contain() {
    let image = make("");
    let first = inode_of(&image, "first").0;
    image.debugfs_write("ln first linked\nsif first links_count 2\n");
    let mut commits = FastCommits::new(BLOCK);
    // Linux was removing a name when it wrote the image. The removal is not in the log.
    commits.inode(first, &image_with_links(&image, first, 1));
    commits.commit();
    commits.leave_in(&image);
    assert_eq!(recover(&image, 1)["/first"].links, 2);
}

#[test]
fn a_name_that_is_removed_after_the_image_is_not_counted() {
    for removed in [&["linked"][..], &["linked", "first"]] {
        let image = make("");
        let first = inode_of(&image, "first").0;
        let mut commits = FastCommits::new(BLOCK);
        commits.name(TAG_LINK, ROOT, first, "linked");
        commits.inode(first, &image_with_links(&image, first, 2));
        commits.commit();
        for name in removed {
            commits.name(TAG_UNLINK, ROOT, first, name);
        }
        commits.commit();
        commits.leave_in(&image);
        let tree = recover(&image, 2);
        let links = tree.get("/first").map(|entry| entry.links);
        assert_eq!(links, (removed.len() == 1).then_some(1), "{removed:?}");
    }
}

#[test]
fn parents_have_the_links_of_their_directories_whatever_was_written_first() {
    // The interrupted replay has written or not written: the link count of the parent, and the
    // entry.
    for (is_counted, is_entered) in [(false, false), (false, true), (true, false), (true, true)] {
        let image = make("");
        let many = inode_of(&image, "many").0;
        image.debugfs_write("cd many\nmkdir other\nmkdir made\n");
        let made = inode_of(&image, "many/made").0;
        let mut commits = FastCommits::new(BLOCK);
        commits.name(TAG_CREATE, many, made, "made");
        let generation = generation(&image, made);
        commits.inode(made, &image_of(DIRECTORY, BLOCK as u64, generation, 0));
        commits.commit();
        let unlink = if is_entered { "" } else { "unlink many/made\n" };
        let links = 3 + u16::from(is_counted);
        image.debugfs_write(&format!("{unlink}sif many links_count {links}\n"));
        commits.leave_in(&image);
        let tree = recover(&image, 1);
        assert_eq!(tree["/many"].links, 4, "{is_counted} {is_entered}");
        assert_eq!(tree["/many/made"].number, made, "{is_counted} {is_entered}");
    }
}

#[test]
fn the_block_count_is_that_of_the_map() {
    for options in ["", "-O bigalloc -C 4096", "-O ^huge_file"] {
        let image = make(options);
        let [first, second] = ["first", "second"].map(|name| inode_of(&image, name).0);
        let before = tree(&image.open());
        // The replay has mapped blocks without counting them, and has unmapped blocks of an image
        // with another count.
        image.debugfs_write("sif first blocks 4\nsif second blocks 100\n");
        let mut commits = FastCommits::new(BLOCK);
        for number in [first, second] {
            let size = 16 * BLOCK as u64;
            commits.inode(number, &image_of(REGULAR, size, generation(&image, number), 0));
            commits.delete_range(number, 8, 8);
            commits.add_range(number, 8, before["/first"].runs[0].1 + 8, 8);
            if number == second {
                commits.delete_range(number, 8, 8);
            }
        }
        commits.commit();
        commits.leave_in(&image);
        let tree = recover(&image, 1);
        assert_eq!(tree["/first"].blocks, before["/first"].blocks, "{options}");
        assert_eq!(tree["/second"].blocks, before["/second"].blocks / 2, "{options}");
    }
}

#[test]
fn an_inode_that_no_replay_has_written_is_not_corrected() {
    let image = make("");
    let first = inode_of(&image, "first").0;
    let host = open_image(&image);
    let at = place(&image, first);
    let mut inode = [0; 256];
    host.read_exact_at(&mut inode, at).unwrap();
    let mut commits = FastCommits::new(BLOCK);
    commits.inode(first, &inode[..160]);
    commits.commit();
    commits.leave_in(&image);
    // The block count is damaged. A replay would have copied that of the image.
    inode[28] ^= 1;
    host.write_all_at(&inode, at).unwrap();
    let opened = common::open_device(image.device(true));
    assert!(matches!(opened.err(), Some(Error::Corrupt(_))));
}

/// Mounts the image with the kernel's ext4, changes it by fast commits, and shuts the file system
/// down. Returns the contents of the image.
fn leave_fast_commits(image: &Image) -> Vec<u8> {
    let mount = LoopMount::new(&image.path, "ext4", "commit=600,noinit_itable");
    let path = |name: &str| mount.path().join(name);
    let write = |name: &str, block: u64, blocks: usize| {
        let file = File::options().write(true).create(true).truncate(false).open(path(name));
        let file = file.unwrap();
        file.write_all_at(&vec![b'k'; blocks * BLOCK], block * BLOCK as u64).unwrap();
        file.sync_all().unwrap();
    };
    fs::create_dir(path("few/made")).unwrap();
    for number in 0..14 {
        write(&format!("few/{number}-{}", "n".repeat(60)), number, number as usize % 20);
        write("few/made/striped", 2 * number, 1);
    }
    fs::hard_link(path("first"), path("many/linked")).unwrap();
    write("first", 14, 10);
    fs::rename(path("second"), path("few/renamed")).unwrap();
    write("few/renamed", 4, 30);
    fs::remove_file(path("many").join(old_name(7))).unwrap();
    fs::remove_file(path("few/one")).unwrap();
    write("many/linked", 30, 5);
    // Files that are deleted, renamed and replaced, with blocks that are used again.
    for number in 0..8 {
        write("few/made/old", 3 * number, 2);
    }
    fs::remove_file(path("few/made/old")).unwrap();
    write("few/made/new", 5, 40);
    fs::hard_link(path("few/made/new"), path("few/made/other")).unwrap();
    write("few/made/new", 60, 1);
    fs::rename(path("few/made/other"), path("few/renamed")).unwrap();
    fs::create_dir(path("many/sub")).unwrap();
    write("many/sub/file", 3, 3);
    fs::remove_file(path("many/sub/file")).unwrap();
    fs::remove_dir(path("many/sub")).unwrap();
    write("few/made/last", 0, 9);
    testkit::command::run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(mount.path()));
    let bytes = fs::read(&image.path).unwrap();
    mount.unmount();
    bytes
}

/// Replays the journal by the kernel's ext4. Returns false if Linux has refused its own fast
/// commits (EUCLEAN), which it does rarely. Then it has ended the replay in the middle.
fn replay_by_linux(image: &Image) -> bool {
    let folder = image.scratch.path("mount");
    fs::create_dir(&folder).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["--rw", "-t", "ext4", "-o", "loop,noinit_itable"]).arg(&image.path).arg(&folder);
    let output = testkit::command::output(&mut mount);
    if output.status.success() {
        testkit::command::run(Command::new("umount").arg(&folder));
        return true;
    }
    assert!(output.text().contains("Structure needs cleaning"), "{}", output.text());
    false
}

/// The number of states of each image that are recovered.
const STATES: u64 = 5;

/// Recovers states that a power cut during Linux's replay of fast commits can leave: until its end,
/// the replay writes the blocks that it changes in any order. No file may be lost or share blocks,
/// whatever was written. Inodes and blocks of deleted files may stay marked as in use, for e2fsck
/// to free.
fn check_interrupted_replays(options: &str) {
    let image = make(options);
    let before = leave_fast_commits(&image);
    fs::write(&image.path, &before).unwrap();
    let volume = image.open();
    let (commits, expected) = (volume.recovery().unwrap().fast_commits, tree(&volume));
    drop(volume);
    assert!(commits > 20, "only {commits} fast commits");
    let has_ended = replay_by_linux(&image);
    let after = fs::read(&image.path).unwrap();
    let by_linux = tree(&image.open());
    assert!(by_linux.keys().eq(expected.keys()), "{options}");
    for (name, entry) in expected.iter().filter(|(_, entry)| entry.kind == FileType::Regular) {
        assert!(!has_ended || by_linux[name] == *entry, "{options}: {name}");
    }
    let journal = blocks_of(&image, 8);
    // Without the superblock.
    let blocks = (2..(before.len() / BLOCK) as u64).filter(|block| !journal.contains(block));
    let bytes = |block: u64| block as usize * BLOCK..(block as usize + 1) * BLOCK;
    let changed: Vec<u64> =
        blocks.filter(|&block| before[bytes(block)] != after[bytes(block)]).collect();
    assert!(changed.len() > 10, "{options}: {changed:?}");
    for seed in 0..STATES {
        let mut random = Random(seed);
        let mut mixed = before.clone();
        for &block in changed.iter().filter(|_| random.below(2) == 0) {
            mixed[bytes(block)].copy_from_slice(&after[bytes(block)]);
        }
        fs::write(&image.path, &mixed).unwrap();
        assert_eq!(tree(&image.open()), expected, "{options} {seed}");
        let volume = common::open_for_writing(&image);
        assert_eq!(tree(&volume), expected, "{options} {seed}");
        volume.close().unwrap();
        drop(volume);
        let output = testkit::command::output(Command::new("e2fsck").arg("-fy").arg(&image.path));
        let text = output.text();
        assert!(output.status.code().is_some_and(|code| code <= 1), "{options} {seed}: {text}");
        assert!(!text.contains("Multiply-claimed"), "{options} {seed}: {text}");
        // Deleted directories that are still marked as in use are there now.
        let [mut repaired, mut expected] = [tree(&image.open()), expected.clone()];
        for tree in [&mut repaired, &mut expected] {
            tree.retain(|name, _| !name.starts_with("/lost+found"));
        }
        assert_eq!(repaired, expected, "{options} {seed}: {text}");
    }
}

#[test]
fn a_replay_by_linux_can_be_interrupted_before_any_block_is_written() {
    private_mounts();
    for options in ["", "-O ^metadata_csum,^64bit", "-O inline_data,orphan_file,large_dir"] {
        check_interrupted_replays(options);
    }
}
