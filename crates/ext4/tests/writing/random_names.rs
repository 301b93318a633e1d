//! Tests of random operations on names. A model, e2fsck and the kernel judge the result.

#[path = "../common/namespace.rs"]
mod namespace;

use crate::common::{Image, open_for_writing};
use base::attributes::FileType;
use namespace::{World, read_tree};
use testkit::{LoopMount, private_mounts};

/// Kinds of volumes that the running kernel can mount: their blocks are not larger than the host's
/// pages.
const KINDS: &[(&str, &str)] = &[
    ("ext4", "-t ext4 -b 1024"),
    ("ext4", "-t ext4 -b 4096"),
    ("ext4", "-t ext4 -b 4096 -O metadata_csum_seed,orphan_file"),
    ("ext4", "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^dir_index"),
    ("ext4", "-t ext4 -b 4096 -O bigalloc -C 16384"),
    ("ext3", "-t ext3 -b 1024"),
    ("ext2", "-t ext2 -b 4096"),
    ("ext4", "-t ext4 -b 2048 -O ^has_journal -I 128"),
    ("ext4", "-t ext4 -b 4096 -O inline_data,ea_inode"),
];
const LARGE_KINDS: &[&str] = &["-t ext4 -b 16384", "-t ext4 -b 65536"];

fn check(options: &str, seed: u64, operations: usize, format: Option<&str>) {
    let arguments: Vec<&str> = options.split_whitespace().collect();
    let image = Image::make(64, &arguments);
    let mut tree = None;
    // The second round continues on the volume that the first one has closed.
    for round in 0..2 {
        let volume = open_for_writing(&image);
        let mut world = World::new(volume, seed + round, 40);
        if let Some(tree) = &tree {
            assert!(world.tree == *tree, "{options}: reopened");
        }
        for _ in 0..operations {
            world.step();
        }
        world.volume.close().unwrap();
        assert!(read_tree(&*world.volume.file_system()) == world.tree, "{options}: in memory");
        tree = Some(world.tree.clone());
        drop(world);
        image.check_by_e2fsck();
        assert!(Some(read_tree(&*image.open().file_system())) == tree, "{options}: on disk");
    }
    if let Some(format) = format {
        private_mounts();
        let mount = LoopMount::new(&image.path, format, "ro");
        let tree = tree.unwrap();
        for (path, entry) in &tree {
            let path = mount.path().join(&path[1..]);
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            use std::os::unix::fs::MetadataExt;
            assert_eq!(metadata.ino(), entry.inode, "{}", path.display());
            assert_eq!(metadata.nlink(), u64::from(entry.links), "{}", path.display());
            if entry.kind == FileType::Directory {
                let count = std::fs::read_dir(&path).unwrap().count();
                let prefix = format!("{}/", path.display());
                let expected = tree
                    .keys()
                    .map(|other| format!("{}", mount.path().join(&other[1..]).display()))
                    .filter(|other| {
                        other.strip_prefix(&prefix).is_some_and(|rest| !rest.contains('/'))
                    })
                    .count();
                assert_eq!(count, expected, "{}", path.display());
            }
        }
    }
}

#[test]
fn random_operations_agree_with_the_model_and_the_kernel() {
    for (index, (format, options)) in KINDS.iter().enumerate() {
        check(options, 100 + index as u64, 600, Some(format));
    }
}

#[test]
fn random_operations_with_large_blocks_agree_with_the_model() {
    for (index, options) in LARGE_KINDS.iter().enumerate() {
        check(options, 200 + index as u64, 400, None);
    }
}
