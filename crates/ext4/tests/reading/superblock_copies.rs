//! Tests of volumes whose first superblock is damaged. They are read through a copy of it, at any
//! position at which mke2fs puts copies, and with the changes in the journal. They are not opened
//! for writing.

use crate::common;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Image, Scratch, contents, run};
use base::{BlockSize, Error, Problem, Unsupported};
use device::{MemoryDevice, SharedDevice};
use ext4::{OpenOptions, ROOT_INODE, SuperblockLocation, Volume};
use iomap::{CacheOptions, PageCache};

const DATA: &[u8] = &[5; 100_000];

fn fill(folder: &std::path::Path) {
    std::fs::write(folder.join("file"), DATA).unwrap();
    std::fs::create_dir(folder.join("folder")).unwrap();
}

/// Overwrites the first superblock, and the descriptors behind it.
fn destroy(image: &Image) {
    let volume = image.open();
    let geometry = volume.geometry();
    let descriptors = geometry.descriptor_block(0).0 + u64::from(geometry.descriptor_blocks());
    let is_meta = geometry.first_meta_descriptor_block == 0;
    let end = if is_meta { 2048 } else { descriptors << geometry.block_size.shift() };
    drop(volume);
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&vec![0x5A; (end - 1024) as usize], 1024).unwrap();
}

fn warning(volume: &Volume) -> String {
    volume.warning().expect("the first superblock is damaged")
}

fn check_contents(image: &Image, volume: &Arc<Volume>) {
    let number = volume.inode(ROOT_INODE).unwrap().lookup(b"file").unwrap();
    let file = volume.inode(number).unwrap();
    assert!(contents(volume, &file) == DATA, "{}", image.path.display());
}

fn refused_for_writing(image: &Image) -> (u64, u32) {
    match common::open_device_for_writing(image.device(false)) {
        Err(Error::Unsupported(Unsupported::DamagedSuperblock { copy, block_size })) => {
            (copy.0, block_size)
        }
        opened => panic!("{opened:?}"),
    }
}

#[test]
fn copies_are_found_where_mke2fs_puts_them() {
    for (megabytes, options, block, block_size) in [
        (16, "-t ext4 -b 1024", 8193, 1024),
        (40, "-t ext3 -b 2048 -J size=4", 16_384, 2048),
        (140, "-t ext4 -b 4096", 32_768, 4096),
        (140, "-t ext4 -b 4096 -O ^metadata_csum,^sparse_super,^resize_inode", 32_768, 4096),
        (40, "-t ext2 -b 1024 -O sparse_super2 -E num_backup_sb=1", 8193, 1024),
        (2200, "-t ext4 -b 4096 -O bigalloc -C 65536 -N 1024", 524_288, 4096),
        (140, "-t ext4 -b 4096 -O meta_bg,^resize_inode -N 1024", 32_768, 4096),
        (5 << 10, "-t ext4 -b 65536 -N 1024 -O ^has_journal", 65_528, 65_536),
    ] {
        let image = Image::filled(megabytes, options, fill);
        destroy(&image);
        let volume = testkit::must(common::open_device(image.device(true)), options);
        let warning = warning(&volume);
        assert!(warning.contains(&format!("copy in block {block} ")), "{options}: {warning}");
        assert!(warning.contains("magic number"), "{options}: {warning}");
        check_contents(&image, &volume);
        drop(volume);
        assert_eq!(refused_for_writing(&image), (block, block_size), "{options}");
        // e2fsck repairs the volume with the copy that the error names.
        let (b, size) = (block.to_string(), block_size.to_string());
        let mut e2fsck = Command::new("e2fsck");
        testkit::command::output(e2fsck.args(["-fy", "-b", &b, "-B", &size]).arg(&image.path));
        image.check_by_e2fsck();
        assert_eq!(image.open().warning(), None);
    }
}

#[test]
fn a_superblock_with_a_wrong_checksum_is_damaged() {
    let image = Image::filled(16, "-t ext4 -b 1024", fill);
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    // A byte of the label.
    file.write_all_at(b"x", 1024 + 0x78).unwrap();
    let volume = image.open();
    assert!(warning(&volume).contains("checksum"), "{}", warning(&volume));
    check_contents(&image, &volume);
}

#[test]
fn a_copy_at_an_unusual_position_is_used_if_the_options_name_it() {
    let image = Image::filled(16, "-t ext4 -b 1024 -g 2048", fill);
    destroy(&image);
    let error = common::open_device(image.device(true)).unwrap_err();
    let is_magic = |error: &Error| match error {
        Error::Corrupt(corrupt) => matches!(corrupt.problem, Problem::Magic { .. }),
        _ => false,
    };
    assert!(is_magic(&error), "{error}");
    let open = |block, size: Option<u64>| {
        let cache = PageCache::new(CacheOptions { bytes_max: 8 << 20, ..Default::default() });
        let block_size = size.map(|size| BlockSize::from_bytes(size).unwrap());
        let superblock = Some(SuperblockLocation { block, block_size });
        let options = OpenOptions { superblock, ..OpenOptions::default() };
        Volume::open(image.device(true), &cache.unwrap(), &options)
    };
    for size in [None, Some(1024)] {
        let volume = open(2049, size).unwrap();
        check_contents(&image, &volume);
        assert!(warning(&volume).contains("copy in block 2049 (group 1)"));
    }
    assert!(open(2049, Some(4096)).is_err());
    assert!(is_magic(&open(2050, None).unwrap_err()));
    assert!(open(u64::MAX, None).is_err());
}

#[test]
fn copies_that_remain_of_an_older_file_system_are_not_used() {
    let scratch = Scratch::new();
    let path = scratch.path("image");
    std::fs::File::create(&path).unwrap().set_len(140 << 20).unwrap();
    let source = scratch.path("source");
    std::fs::create_dir(&source).unwrap();
    fill(&source);
    for (size, time) in [("1024", "1500000000"), ("4096", "1600000000")] {
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.env("E2FSPROGS_FAKE_TIME", time).args(["-qF", "-t", "ext4", "-b", size, "-d"]);
        run(mke2fs.arg(&source).arg(&path));
    }
    let image = Image { scratch, path };
    destroy(&image);
    let volume = image.open();
    assert!(warning(&volume).contains("copy in block 32768 "), "{}", warning(&volume));
    check_contents(&image, &volume);
}

#[test]
fn changes_and_the_superblock_are_read_from_the_journal() {
    let image = Image::filled(16, "-t ext4 -b 1024 -J size=1", fill);
    let device = Arc::new(MemoryDevice::new(image.bytes()));
    let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
    common::new_file(&volume, "new");
    volume.sync().unwrap();
    let mut after = device.snapshot();
    after[1024..2048].fill(0);
    let volume = common::open(after.clone()).unwrap();
    assert!(warning(&volume).starts_with("from the journal"), "{}", warning(&volume));
    let root = volume.inode(ROOT_INODE).unwrap();
    root.lookup(b"new").unwrap();
    check_contents(&image, &volume);
    assert!(volume.recovery().unwrap().log.transactions > 0);
    drop((root, volume));
    std::fs::write(&image.path, &after).unwrap();
    assert_eq!(refused_for_writing(&image), (8193, 1024));
}

#[test]
fn devices_without_a_volume_are_refused_with_a_short_message() {
    for bytes in [vec![0; 16 << 20], vec![0xA5; 16 << 20]] {
        let error = common::open(bytes).unwrap_err().to_string();
        assert!(error.contains("magic number") && error.len() < 100, "{error}");
    }
}
