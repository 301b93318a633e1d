//! Volumes with fast commits, their recovery, and the trees that result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use base::InodeNumber;
use base::attributes::{DirCursor, FileType};
use ext4::{InodeFlags, ROOT_INODE, Volume};

use super::Image;

pub const BLOCK: usize = 1024;
pub const GENERATION: u32 = 77;
/// The root directory.
pub const ROOT: u64 = 2;

/// Creates a volume with a small directory, a large directory, and two files of 16 blocks each.
pub fn make(options: &str) -> Image {
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
    // e2fsck creates the index of the large directory.
    let _ = testkit::command::output(Command::new("e2fsck").arg("-fyD").arg(&image.path));
    image
}

pub fn old_name(number: u32) -> String {
    format!("{number:03}-{}", "o".repeat(60))
}

/// The inode at a path, and its attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub number: u64,
    pub kind: FileType,
    pub links: u64,
    pub size: u64,
    pub blocks: u64,
    pub has_index: bool,
    pub runs: Vec<(u64, u64, u64, bool)>,
}

/// Returns all paths below the root directory with their inodes.
pub fn tree(volume: &Arc<Volume>) -> BTreeMap<String, Entry> {
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
                    super::runs(volume, &inode)
                } else {
                    Vec::new()
                },
            };
            assert_eq!(tree.insert(path, entry), None);
        }
    }
    tree
}

/// Recovers the image in memory, and then in place. Checks that both trees are equal, and returns
/// the tree.
pub fn recover(image: &Image, commits: usize) -> BTreeMap<String, Entry> {
    let volume = image.open();
    assert_eq!(volume.recovery().unwrap().fast_commits, commits);
    let in_memory = tree(&volume);
    let free = volume.statfs();
    drop(volume);
    let volume = super::open_for_writing(image);
    assert_eq!(tree(&volume), in_memory);
    assert_eq!(volume.statfs().blocks_free, free.blocks_free);
    assert_eq!(volume.statfs().inodes_free, free.inodes_free);
    volume.close().unwrap();
    drop(volume);
    image.check_by_e2fsck();
    in_memory
}

pub fn generation(image: &Image, number: u64) -> u32 {
    image.open().inode_record(InodeNumber(number)).unwrap().generation
}

/// Returns the blocks of a file or directory, including the blocks of its map.
pub fn blocks_of(image: &Image, number: u64) -> BTreeSet<u64> {
    let text = image.debugfs(&format!("blocks <{number}>"));
    text.split_whitespace().map(|block| block.parse().unwrap()).collect()
}

/// Returns the position of an inode in the image, in bytes.
pub fn place(image: &Image, number: u64) -> u64 {
    let text = image.debugfs(&format!("imap <{number}>"));
    let after = |word: &str| text.split_once(word).unwrap().1.trim_start();
    let block: u64 = after("located at block ").split(',').next().unwrap().parse().unwrap();
    let offset = after("offset 0x").split_whitespace().next().unwrap();
    block * BLOCK as u64 + u64::from_str_radix(offset, 16).unwrap()
}

pub fn open_image(image: &Image) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(&image.path).unwrap()
}
