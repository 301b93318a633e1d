//! Extreme structures, compared with the kernel: deep extent trees and hash indexes, and more
//! subdirectories than a link count can represent.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tempfile::TempDir;
use testkit::{LoopMount, Manifest, Mke2fs, must};

/// Fills an image with the kernel, and compares its contents as read by the kernel and by bifolio.
fn check(image: &Mke2fs, fill: impl FnOnce(&Path)) -> Manifest {
    testkit::private_mounts();
    let folder = must(TempDir::new(), "a folder");
    let path = folder.path().join("image");
    image.make(&path, None);
    let mount = LoopMount::new(&path, "ext4", "rw");
    fill(mount.path());
    mount.unmount();
    let mount = LoopMount::new(&path, "ext4", "ro");
    let theirs = Manifest::of_host(mount.path());
    mount.unmount();
    Manifest::of_image(&path).assert_equal("bifolio", &theirs, "the kernel");
    theirs
}

#[test]
fn an_extent_tree_of_depth_three_reads_as_by_the_kernel() {
    // Four extents in the inode, 84 in a block of 1 KiB: more than 4 × 84 × 84 need a third level.
    let extents = 30_000;
    let theirs = check(&Mke2fs::new("ext4", 1024), |top| {
        let file = must(File::create(top.join("scattered")), "a file");
        for number in 0..extents {
            let data = [number as u8 | 1; 1024];
            must(file.write_all_at(&data, number * 2048), "writing");
        }
    });
    let found = theirs.fact("scattered", "extents").map_or(0, |text| text.split(", ").count());
    assert_eq!(found as u64, extents);
}

#[test]
fn a_hash_index_of_three_levels_reads_as_by_the_kernel() {
    let image = Mke2fs::new("ext4", 1024).with("-O large_dir");
    let theirs = check(&image, |top| {
        let folder = top.join("folder");
        must(std::fs::create_dir(&folder), "a folder");
        // Four names of this length fit in a block, some 120 blocks in a block of the index.
        for number in 0..60_000 {
            if number % 30_000 == 0 {
                must(std::fs::write(top.join(format!("{number}")), "linked"), "a file");
            }
            let target = top.join(format!("{}", number / 30_000 * 30_000));
            must(std::fs::hard_link(target, folder.join(format!("{number:0240}"))), "a link");
        }
    });
    assert!(theirs.len() > 60_000);
}

#[test]
fn a_directory_with_too_many_subdirectories_for_its_link_count_reads_as_by_the_kernel() {
    let image = Mke2fs::new("ext4", 1024).with("-N 70000");
    let theirs = check(&image, |top| {
        for number in 0..65_010 {
            must(std::fs::create_dir(top.join(format!("{number}"))), "a folder");
        }
    });
    assert_eq!(theirs.fact(".", "links"), Some("1"));
}

#[test]
fn a_hole_of_three_gibibytes_reads_as_zeroes_to_the_last_byte() {
    testkit::private_mounts();
    let folder = must(TempDir::new(), "a folder");
    let path = folder.path().join("image");
    Mke2fs::new("ext4", 4096).make(&path, None);
    let size = (3 << 30) + 12_345;
    let mount = LoopMount::new(&path, "ext4", "rw");
    let file = must(File::create(mount.path().join("hole")), "a file");
    must(file.write_all_at(b"end", size - 3), "writing");
    drop(file);
    mount.unmount();

    let device = must(device::open(&path, device::OpenDevice::default()), "the image");
    let volume =
        must(vfs::Volume::open_device(device, &vfs::VolumeOptions::default()), "the volume");
    let node = must(volume.resolve(b"/hole", vfs::Follow::No), "the file");
    let file = must(node.open(), "the file");
    let mut buffer = vec![1; 4 << 20];
    let mut at = 0;
    while at < size {
        let read = must(file.read_at(&mut buffer, at), at) as u64;
        let (zeroes, end) = buffer[..read as usize].split_at(read.min(size - 3 - at) as usize);
        assert!(zeroes.iter().all(|&byte| byte == 0), "after {at}");
        assert!(end.is_empty() || end == b"end", "after {at}");
        assert_ne!(read, 0, "at {at} of {size}");
        at += read;
    }
}
