//! Tests of volumes of every shape that mke2fs makes, judged by dumpe2fs.

use crate::common::{Image, number_after};
use base::attributes::FileType;
use base::{FileBlock, GroupNumber};
use ext4::{Bitmap, ROOT_INODE};
use testkit::must;

/// Checks that a volume opens, and that its counts, groups and bitmaps equal those that dumpe2fs
/// prints.
fn check(megabytes: u64, options: &str) {
    let image = Image::filled(megabytes, options, |_| {});
    let volume = image.open();
    let geometry = volume.geometry();
    let text = image.dumpe2fs(&[]);
    let field = |label: &str| number_after(&text, label).unwrap_or_else(|| panic!("{label}"));
    assert_eq!(u64::from(geometry.block_size.bytes()), field("\nBlock size:"));
    assert_eq!(geometry.block_count, field("\nBlock count:"));
    assert_eq!(u64::from(geometry.inode_count), field("\nInode count:"));
    // dumpe2fs prints no inode size for revision 0.
    let inode_size = number_after(&text, "\nInode size:").unwrap_or(128);
    assert_eq!(u64::from(geometry.inode_size), inode_size);
    let features = text.lines().find_map(|line| line.strip_prefix("Filesystem features:"));
    let features = features.unwrap().trim().replace("(none)", "");
    assert_eq!(geometry.features.names().join(" "), features);

    let groups: Vec<&str> =
        text.split("\nGroup ").filter(|group| group.contains(": (Blocks ")).collect();
    assert_eq!(groups.len(), geometry.group_count as usize, "{options}");
    for (index, text) in groups.iter().enumerate() {
        check_group(&volume, GroupNumber(index as u32), text, options);
    }

    let root = must(volume.inode(ROOT_INODE), options);
    assert_eq!(root.attributes().kind, FileType::Directory);
    let ours = root.read_block(FileBlock(0), "test").unwrap().unwrap();
    let theirs = image.debugfs("blocks <2>");
    assert_eq!(Some(ours.block().0.to_string().as_str()), theirs.split_whitespace().next());
    let space = volume.statfs();
    assert_eq!(space.blocks_free, field("\nFree blocks:"), "{options}");
    assert_eq!(space.inodes_free, field("\nFree inodes:"), "{options}");
}

fn check_group(volume: &ext4::Volume, number: GroupNumber, text: &str, options: &str) {
    let context = format!("{options} group {number}");
    let group = must(volume.group(number), &context);
    let ratio = u64::from(volume.geometry().blocks_per_cluster());
    // "(Blocks 0-32767)" comes first. Locations follow their labels.
    let found = |label| number_after(text, label).unwrap_or_else(|| panic!("{context} {label}"));
    assert_eq!(volume.geometry().group_start(number).0, found("(Blocks "), "{context}");
    assert_eq!(group.block_bitmap.0, found("Block bitmap at "), "{context}");
    assert_eq!(group.inode_bitmap.0, found("Inode bitmap at "), "{context}");
    assert_eq!(group.inode_table.0, found("Inode table at "), "{context}");

    let blocks = must(volume.block_bitmap(&group), &context);
    assert_eq!(blocks.free(), group.free_clusters, "{context}");
    let start = volume.geometry().group_start(number).0;
    assert_eq!(free_list(&blocks, start, ratio), listed(text, "Free blocks: "), "{context}");
    let inodes = must(volume.inode_bitmap(&group), &context);
    assert_eq!(inodes.free(), group.free_inodes, "{context}");
    let first = u64::from(number.0) * u64::from(volume.geometry().inodes_per_group) + 1;
    assert_eq!(free_list(&inodes, first, 1), listed(text, "Free inodes: "), "{context}");
}

/// Returns the clear bits as ranges in the format of dumpe2fs.
fn free_list(bitmap: &Bitmap, first: u64, unit: u64) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for bit in (0..bitmap.length()).filter(|&bit| !bitmap.is_set(bit)) {
        let start = first + u64::from(bit) * unit;
        match ranges.last_mut() {
            // dumpe2fs ends a range with the first block of its last cluster.
            Some(last) if last.1 + unit == start => last.1 = start,
            _ => ranges.push((start, start)),
        }
    }
    let ranges: Vec<String> = ranges
        .into_iter()
        .map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") })
        .collect();
    ranges.join(", ")
}

fn listed<'a>(text: &'a str, label: &str) -> &'a str {
    text.lines().find_map(|line| line.trim().strip_prefix(label.trim_end())).unwrap_or("").trim()
}

#[test]
fn ext2_and_ext3_volumes_are_read() {
    check(8, "-t ext2");
    check(20, "-t ext2 -b 1024 -O ^sparse_super,^resize_inode");
    check(16, "-t ext2 -r 0 -b 1024");
    check(40, "-t ext3 -b 1024");
    check(40, "-t ext3 -b 2048 -I 128");
}

#[test]
fn every_block_size_is_read() {
    check(64, "-t ext4 -b 1024");
    check(64, "-t ext4 -b 2048");
    check(64, "-t ext4 -b 4096 -O metadata_csum_seed,orphan_file");
    check(64, "-t ext4 -b 8192");
    check(64, "-t ext4 -b 16384");
    check(128, "-t ext4 -b 32768");
    check(256, "-t ext4 -b 65536");
}

#[test]
fn every_layout_of_groups_is_read() {
    check(64, "-t ext4 -O ^metadata_csum,uninit_bg");
    check(64, "-t ext4 -O ^metadata_csum,^uninit_bg,^64bit,^flex_bg");
    check(64, "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^flex_bg,^64bit");
    check(64, "-t ext4 -b 1024 -O ^64bit");
    check(64, "-t ext4 -b 1024 -g 1024 -O meta_bg,^resize_inode");
    check(64, "-t ext4 -b 1024 -g 256 -N 2048 -O meta_bg,^resize_inode,^flex_bg");
    check(64, "-t ext4 -b 1024 -g 512 -O sparse_super2");
    check(64, "-t ext4 -b 1024 -g 512 -G 4");
    check(64, "-t ext4 -I 1024 -O ^has_journal,inline_data");
}

#[test]
fn clusters_of_blocks_are_read() {
    check(128, "-t ext4 -O bigalloc -C 65536");
    check(128, "-t ext4 -b 1024 -O bigalloc -C 16384");
    check(64, "-t ext4 -b 1024 -g 4096 -O bigalloc,meta_bg,^resize_inode -C 4096");
}

#[test]
fn volumes_with_other_features_are_read() {
    check(64, "-t ext4 -O quota,project,mmp,ea_inode,large_dir,encrypt,verity,stable_inodes");
    check(64, "-t ext4 -O casefold -E encoding=utf8");
    check(64, "-t ext4 -O fast_commit");
}
