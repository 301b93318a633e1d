//! Comparison of space and inode counts with the running kernel's.

use crate::common;
use std::process::Command;

use crate::common::{Image, run};
use testkit::{LoopMount, private_mounts};

fn check(format: &str, megabytes: u64, options: &str, fill: bool) {
    let image = Image::filled(megabytes, &format!("-t {format} {options}"), |folder| {
        if fill {
            std::fs::write(folder.join("file"), vec![1; 3_000_000]).unwrap();
            std::fs::create_dir(folder.join("folder")).unwrap();
        }
    });
    let ours = image.open().statfs();
    let mount = LoopMount::new(&image.path, format, "ro");
    // Fundamental block size, blocks, free, available, inodes, free inodes, longest name.
    let theirs =
        run(Command::new("stat").args(["-f", "-c", "%S %b %f %a %c %d %l"]).arg(mount.path()));
    let ours = format!(
        "{} {} {} {} {} {} {}",
        ours.block_size,
        ours.blocks,
        ours.blocks_free,
        ours.blocks_available,
        ours.inodes,
        ours.inodes_free,
        ours.name_bytes_max
    );
    assert_eq!(ours, theirs.trim(), "{format} {options}");
}

#[test]
fn counts_equal_those_of_the_kernel() {
    private_mounts();
    for fill in [false, true] {
        check("ext2", 16, "-b 1024", fill);
        check("ext3", 32, "-b 2048", fill);
        check("ext4", 64, "", fill);
        check("ext4", 300, "-b 1024 -m 1", fill);
        check("ext4", 300, "-b 1024 -g 1024 -O meta_bg,^resize_inode", fill);
        check("ext4", 300, "-b 1024 -g 1024 -O sparse_super2 -E num_backup_sb=2", fill);
        check("ext4", 300, "-O ^metadata_csum,uninit_bg,^flex_bg,^has_journal", fill);
        check("ext4", 300, "-O bigalloc,^resize_inode -C 65536", fill);
        check("ext4", 300, "-b 1024 -O bigalloc -C 16384", fill);
        check("ext4", 300, "-E resize=4G", fill);
    }
}

#[test]
fn overhead_clusters_are_counted_if_the_superblock_does_not_have_the_number() {
    private_mounts();
    for options in
        ["-O bigalloc,^resize_inode -C 65536", "-b 1024 -g 4096 -O bigalloc,^flex_bg -C 4096"]
    {
        let image = Image::filled(300, &format!("-t ext4 {options}"), |_| {});
        image.debugfs_write("set_super_value overhead_clusters 0\n");
        let ours = image.open().statfs();
        let mount = LoopMount::new(&image.path, "ext4", "ro");
        let theirs = run(Command::new("stat").args(["-f", "-c", "%b"]).arg(mount.path()));
        assert_eq!(ours.blocks.to_string(), theirs.trim(), "{options}");
    }
}

#[test]
fn the_superblock_counts_all_overhead_if_a_descriptor_is_damaged() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-O", "metadata_csum"]);
    let intact = image.open().statfs();
    let mut bytes = image.bytes();
    // The checksum of the first descriptor.
    bytes[2048 + 0x1E] ^= 1;
    let damaged = common::open(bytes).unwrap().statfs();
    assert_eq!(damaged.blocks, intact.blocks);
}
