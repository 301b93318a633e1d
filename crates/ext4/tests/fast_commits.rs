//! Fast commits that are rare or that no kernel here writes: recovery in memory and in place give the same, and
//! e2fsck finds nothing wrong.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use base::InodeNumber;
use base::attributes::{DirCursor, FileType};
use common::fast_commits::{DIRECTORY, FastCommits, REGULAR, image_of};
use common::{Image, inode_of};
use ext4::fast_commit::ondisk::{TAG_CREATE, TAG_UNLINK};
use ext4::{InodeFlags, ROOT_INODE, Volume};

const BLOCK: usize = 1024;
const GENERATION: u32 = 77;
/// The root directory.
const ROOT: u64 = 2;

/// Returns a volume with a directory of a few names and one of many, and files with this number of blocks.
fn make(options: &str) -> Image {
    let options = format!("-t ext4 -b {BLOCK} -I 256 -N 512 -J size=16 -O fast_commit {options}");
    let image = Image::filled(48, &options, |folder| {
        std::fs::create_dir(folder.join("few")).unwrap();
        std::fs::write(folder.join("few/one"), b"").unwrap();
        std::fs::create_dir(folder.join("many")).unwrap();
        for number in 0..100 {
            std::fs::write(folder.join("many").join(old_name(number)), b"").unwrap();
        }
        for (name, blocks) in [("first", 16), ("second", 16)] {
            std::fs::write(folder.join(name), vec![1; blocks * BLOCK]).unwrap();
        }
    });
    // Only so does a directory get its index.
    let _ = testkit::command::output(Command::new("e2fsck").arg("-fyD").arg(&image.path));
    image
}

fn old_name(number: u32) -> String {
    format!("{number:03}-{}", "o".repeat(60))
}

/// What there is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    number: u64,
    kind: FileType,
    links: u64,
    size: u64,
    blocks: u64,
    has_index: bool,
    runs: Vec<(u64, u64, u64, bool)>,
}

/// Returns everything below the root directory.
fn tree(volume: &Arc<Volume>) -> BTreeMap<String, Entry> {
    let mut tree = BTreeMap::new();
    let mut ahead = vec![(String::new(), ROOT_INODE)];
    while let Some((path, number)) = ahead.pop() {
        let directory = volume.inode(number).unwrap();
        let mut names = Vec::new();
        directory
            .read_dir(DirCursor::default(), &mut |entry| {
                names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.inode));
                ControlFlow::Continue(())
            })
            .unwrap();
        for (name, number) in names.into_iter().filter(|(name, _)| !name.starts_with('.')) {
            assert_eq!(directory.lookup(name.as_bytes()), Ok(number), "{path}/{name}");
            let inode = volume.inode(number).unwrap();
            let attributes = inode.attributes();
            let is_regular = attributes.kind == FileType::Regular;
            let path = format!("{path}/{name}");
            if attributes.kind == FileType::Directory {
                ahead.push((path.clone(), number));
            }
            let entry = Entry {
                number: number.0,
                kind: attributes.kind,
                links: attributes.links.into(),
                size: attributes.size,
                blocks: attributes.blocks,
                has_index: inode.has(InodeFlags::INDEX),
                runs: if is_regular && !inode.has(InodeFlags::INLINE_DATA) {
                    common::runs(volume, &inode)
                } else {
                    Vec::new()
                },
            };
            assert_eq!(tree.insert(path, entry), None);
        }
    }
    tree
}

/// Returns the tree after a recovery in memory, which is that after one in place.
fn recover(image: &Image, commits: usize) -> BTreeMap<String, Entry> {
    let volume = image.open();
    assert_eq!(volume.recovery().unwrap().fast_commits, commits);
    let in_memory = tree(&volume);
    let free = volume.statfs();
    drop(volume);
    let volume = common::open_for_writing(image);
    assert_eq!(tree(&volume), in_memory);
    assert_eq!(volume.statfs().blocks_free, free.blocks_free);
    assert_eq!(volume.statfs().inodes_free, free.inodes_free);
    volume.close().unwrap();
    drop(volume);
    image.check_by_e2fsck();
    in_memory
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
        // The new directory has the inode number of the old one, and so has its file.
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
    // The same in the other direction.
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
