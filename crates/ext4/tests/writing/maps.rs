//! Tests of maps: extent trees and block maps of every depth, judged by debugfs and by the contents
//! of files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Image, contents, inode_of, join, maps, run, runs};
use base::FileOffset;
use ext4::Volume;
use iomap::{IomapKind, MapRead};
use testkit::{LoopMount, private_mounts};

/// Writes a file of `blocks` blocks. A block is a hole if `has_data` returns false for it.
fn write_sparse(path: &Path, block: u64, blocks: u64, has_data: impl Fn(u64) -> bool) {
    let file = File::create(path).unwrap();
    let mut data = vec![0; block as usize];
    for index in (0..blocks).filter(|&index| has_data(index)) {
        for (at, word) in data.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(index << 20 | at as u64 | 1 << 63).to_le_bytes());
        }
        file.write_all_at(&data, index * block).unwrap();
    }
    file.set_len(blocks * block).unwrap();
}

/// Returns the runs of a file according to `debugfs stat`: "(0-11):100-111, (IND):112, …", with
/// "[u]" for unwritten runs.
fn runs_by_debugfs(image: &Image, name: &str) -> Vec<(u64, u64, u64, bool)> {
    let text = image.debugfs(&format!("stat /{name}"));
    let list = text.split_once("BLOCKS:").or_else(|| text.split_once("EXTENTS:")).unwrap().1;
    let range = |text: &str| -> Option<(u64, u64)> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let mut runs = Vec::new();
    for item in list.split("TOTAL").next().unwrap().split(',').map(str::trim) {
        let Some((file, volume)) = item.split_once(':') else { continue };
        let file = file.trim_start_matches('(');
        let unwritten = file.ends_with("[u])");
        // Blocks of the map itself have names, not numbers.
        let Some((start, end)) = range(file.trim_end_matches("[u])").trim_end_matches(')')) else {
            continue;
        };
        let (block, _) = range(volume).unwrap();
        join(&mut runs, (start, block, end - start + 1, unwritten));
    }
    runs
}

fn depth(image: &Image, name: &str) -> u32 {
    let text = image.debugfs(&format!("ex /{name}"));
    let top = text.lines().find_map(|line| line.trim().strip_prefix("0/"));
    top.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn check_runs(image: &Image, volume: &Arc<Volume>, name: &str) {
    let inode = volume.inode(inode_of(image, name)).unwrap();
    let (ours, theirs) = (runs(volume, &inode), runs_by_debugfs(image, name));
    let differs = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
    assert_eq!(differs, None, "{name}");
    assert_eq!(ours.len(), theirs.len(), "{name}");
}

/// Checks that files have the runs that debugfs prints, and the contents of their sources.
fn check(image: &Image, names: &[&str]) {
    let volume = image.open();
    for name in names {
        let inode = volume.inode(inode_of(image, name)).unwrap();
        check_runs(image, &volume, name);
        let source = std::fs::read(image.scratch.path("source").join(name)).unwrap();
        assert!(contents(&volume, &inode) == source, "{name} differs");
    }
}

fn small_files(folder: &Path, block: u64) {
    let make = |name: &str, blocks, has_data: fn(u64) -> bool| {
        write_sparse(&folder.join(name), block, blocks, has_data);
    };
    make("empty", 0, |_| false);
    make("one", 1, |_| true);
    make("solid", 100, |_| true);
    make("hole", 5000, |_| false);
    make("start", 3000, |index| index < 3);
    make("end", 3000, |index| index == 2999);
    make("striped", 1000, |index| index % 2 == 0);
    make("islands", 2900, |index| matches!(index, 11 | 12 | 267 | 268 | 300..=399 | 2500));
    std::fs::write(folder.join("odd"), vec![7; block as usize * 3 + 5]).unwrap();
}

const SMALL: &[&str] = &["one", "solid", "hole", "start", "end", "striped", "islands", "odd"];

#[test]
fn files_of_every_block_size_are_mapped() {
    for (block, megabytes) in
        [(1024, 32), (2048, 64), (4096, 64), (8192, 128), (16384, 256), (32768, 384), (65536, 512)]
    {
        for features in ["", "-O ^extent,^64bit", "-O ^metadata_csum,^64bit"] {
            if block == 65536 && !features.is_empty() {
                continue;
            }
            let options = format!("-t ext4 -b {block} {features}");
            let image = Image::filled(megabytes, &options, |folder| small_files(folder, block));
            check(&image, SMALL);
        }
    }
}

#[test]
fn clusters_of_blocks_are_mapped() {
    let options = "-t ext4 -b 1024 -O bigalloc -C 16384";
    let image = Image::filled(64, options, |folder| small_files(folder, 1024));
    check(&image, SMALL);
}

#[test]
fn an_extent_tree_of_depth_three_is_mapped() {
    let image = Image::filled(160, "-t ext4 -b 1024 -O ^has_journal -N 64", |folder| {
        write_sparse(&folder.join("deep"), 1024, 64_000, |index| index % 2 == 1);
    });
    assert_eq!(depth(&image, "deep"), 3);
    check(&image, &["deep"]);
}

#[test]
fn a_triple_indirect_map_is_read() {
    // Blocks of 1 KiB: 12 direct, 256, 256², then the third level from block 65804 on.
    let image = Image::filled(64, "-t ext2 -b 1024 -N 64", |folder| {
        write_sparse(&folder.join("triple"), 1024, 300_000, |index| {
            matches!(index, 11 | 12 | 268 | 524 | 65_803 | 65_804 | 131_340 | 200_000..=200_300)
        });
    });
    check(&image, &["triple"]);
}

#[test]
fn a_long_hole_is_one_mapping() {
    let image = Image::filled(64, "-t ext2 -b 1024 -N 64", |folder| {
        write_sparse(&folder.join("void"), 1024, 10_000_000, |_| false);
        write_sparse(&folder.join("far"), 1024, 10_000_000, |index| index == 9_999_999);
    });
    check(&image, &[]);
    let volume = image.open();
    let map_count = |name| maps(&volume.inode(inode_of(&image, name)).unwrap()).len();
    assert_eq!(map_count("void"), 1);
    // A hole, the block, and the rest of its block of pointers.
    assert!(map_count("far") <= 3, "{}", map_count("far"));
}

#[test]
fn preallocated_blocks_are_unwritten_even_past_the_end() {
    let image = Image::filled(64, "-t ext4 -b 4096", |folder| {
        write_sparse(&folder.join("file"), 4096, 10, |index| index < 4);
    });
    image.debugfs_write("fallocate /file 0 10000\nset_inode_field /file size 40960\n");
    let volume = image.open();
    let inode = volume.inode(inode_of(&image, "file")).unwrap();
    let at = |offset| inode.map_read(FileOffset(offset), 1).unwrap();
    assert_eq!(at(0).kind, IomapKind::Mapped);
    assert_eq!(at(16_384).kind, IomapKind::Unwritten);
    let beyond = at(40_960 + 4096 * 9_000);
    assert_eq!(beyond.kind, IomapKind::Unwritten);
    let end = at(10_001 * 4096);
    assert_eq!((end.kind, end.flags.last), (IomapKind::Hole, true));
}

#[test]
fn maps_written_by_the_kernel_are_read() {
    private_mounts();
    for options in ["-t ext4 -b 1024", "-t ext4 -b 4096 -O ^metadata_csum", "-t ext3 -b 1024"] {
        let image = Image::filled(200, options, |_| {});
        let format = &options[3..7];
        let mount = LoopMount::new(&image.path, format, "rw");
        let path = mount.path().join("file");
        let block = if options.contains("4096") { 4096 } else { 1024 };
        let file = File::create(&path).unwrap();
        let data: Vec<u8> = (0..60 << 20).map(|byte: u32| (byte >> 10) as u8 | 1).collect();
        file.write_all_at(&data, 0).unwrap();
        file.sync_all().unwrap();
        let fallocate = |arguments: &[&str]| {
            run(Command::new("fallocate").args(arguments).arg(&path));
        };
        if format == "ext4" {
            fallocate(&["-o", "80MiB", "-l", "10MiB", "-n"]);
            fallocate(&["-z", "-o", "33MiB", "-l", "500KiB"]);
            fallocate(&["-i", "-o", "5MiB", "-l", "1MiB"]);
            fallocate(&["-c", "-o", "7MiB", "-l", "64KiB"]);
        }
        // The order of the holes splits nodes in their middles.
        for hole in (0..700).map(|index: u64| index * 257 % 700) {
            let at = hole * 40 * 1024;
            punch(&file, at, block);
        }
        let expected = std::fs::read(&path).unwrap();
        drop(file);
        mount.unmount();

        let volume = image.open();
        let inode = volume.inode(inode_of(&image, "file")).unwrap();
        check_runs(&image, &volume, "file");
        assert!(contents(&volume, &inode) == expected, "{options}");
        if format == "ext4" {
            assert!(depth(&image, "file") >= 1, "{options}");
        }
    }
}

fn punch(file: &File, at: u64, length: u64) {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, flags, at, length).unwrap();
}
