//! Volumes of every shape, made by mke2fs: what we say of them is what debugfs says.

mod common;

use base::attributes::FileType;
use common::Image;
use ext4::ROOT_INODE;

/// The volume opens, and its root is a directory whose blocks debugfs lists too.
fn check(megabytes: u64, options: &[&str]) {
    let image = Image::make(megabytes, options);
    let volume = image.open();
    let geometry = volume.geometry();
    for group in 0..geometry.group_count {
        volume
            .group(base::GroupNumber(group))
            .unwrap_or_else(|error| panic!("{options:?} {error}"));
    }
    let root = volume.inode(ROOT_INODE).unwrap();
    assert_eq!(root.attributes().kind, FileType::Directory);
    let blocks = image.debugfs("blocks <2>");
    let ours = root.read_block(base::FileBlock(0), "test").unwrap().unwrap();
    let theirs: Vec<u64> = blocks.split_whitespace().map(|block| block.parse().unwrap()).collect();
    assert_eq!(ours.block().0, theirs[0], "{options:?}");
    assert_eq!(image.dumpe2fs("Filesystem features").unwrap(), geometry.features.names().join(" "));
}

#[test]
fn plain_volumes_open() {
    check(8, &["-t", "ext2"]);
    check(16, &["-t", "ext3", "-b", "1024"]);
    check(64, &["-t", "ext4"]);
    check(64, &["-t", "ext4", "-O", "metadata_csum_seed,orphan_file"]);
    check(64, &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"]);
}
