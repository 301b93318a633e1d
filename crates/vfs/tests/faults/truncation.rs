//! Truncations and deletions that fail, since the map of the file cannot be read.

use std::sync::Arc;

use base::FileOffset;
use device::{BlockDevice, FaultDevice, FaultPlan, MemoryDevice};
use testkit::{Mke2fs, check_by_e2fsck};
use vfs::{Credentials, Fallocate, Follow, Privileges, Volume, VolumeOptions};

use crate::kind::{KINDS, Kind};
use crate::{EIO, WRITE, create, number, write};

#[test]
fn data_behind_a_failed_truncation_does_not_come_back() {
    for features in ["^orphan_file", "orphan_file"] {
        for evicts in [false, true] {
            fail_a_truncation(features, evicts);
        }
    }
}

/// Lets a truncation fail, evicts the node if `evicts`, and extends the file again.
fn fail_a_truncation(features: &str, evicts: bool) {
    const CUT: u64 = 3000;
    const FAR: u64 = 500_000;
    let image = tempfile::NamedTempFile::new().unwrap();
    let kind = Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) };
    kind.with(&format!("-O {features}")).make(image.path(), None);
    let memory = Arc::new(MemoryDevice::new(std::fs::read(image.path()).unwrap()));
    let volume = Kind::Ext4.open(memory.clone());
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    // More extents than one leaf has.
    for number in 0..200 {
        write(&file, 2048 * number, &[7; 1024]).unwrap();
    }
    create(&volume, "/other").unwrap();
    drop(file);
    volume.close().unwrap();

    let device = Arc::new(FaultDevice::new(memory.clone(), FaultPlan::default()));
    let mut options = VolumeOptions { writable: true, nodes_max: 1, ..VolumeOptions::default() };
    options.cache.bytes_max = 16 << 20;
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    let look_up = |path: &str| volume.resolve(path.as_bytes(), Follow::No).unwrap();
    let mut node = look_up("/file");
    let mut file = node.open_for(WRITE).unwrap();
    // From here on, the first leaf is cached, and the others cannot be read.
    assert_eq!(file.read_at(&mut [0; CUT as usize], 0), Ok(CUT as usize));
    device.fail_reads_in(0..device.size());
    assert_eq!(number(node.set_size(CUT, Privileges::Keep)), EIO);
    assert_eq!(node.attributes().size, CUT);
    assert_eq!(number(write(&file, FAR, b"far").map(drop)), EIO);
    assert_eq!(number(node.set_size(FAR, Privileges::Keep)), EIO);
    device.heal();
    if evicts {
        file.sync_all().unwrap();
        let inode = Arc::downgrade(&node);
        drop((file, node));
        for _ in 0..3 {
            look_up("/other").open_for(WRITE).unwrap();
            create(&volume, "/more").unwrap();
            volume.remove(b"/more", &Credentials::ROOT).unwrap();
        }
        assert_eq!(inode.strong_count(), 0, "the node is still in memory");
        node = look_up("/file");
        file = node.open_for(WRITE).unwrap();
    }
    write(&file, FAR, b"far").unwrap();
    let mut bytes = vec![1; FAR as usize + 3];
    assert_eq!(file.read_at(&mut bytes, 0), Ok(bytes.len()));
    let mut expected = vec![0; FAR as usize];
    expected[..1024].fill(7);
    expected[2048..CUT as usize].fill(7);
    expected.extend(b"far");
    assert!(bytes == expected, "truncated data has come back ({features}, {evicts})");
    drop((file, node));
    volume.close().unwrap();
    std::fs::write(image.path(), memory.snapshot()).unwrap();
    check_by_e2fsck(image.path());
}

#[test]
fn a_deletion_that_cannot_read_metadata_leaves_the_volume_writable() {
    for with_bitmaps in [false, true] {
        fail_a_deletion(with_bitmaps);
    }
}

/// Lets a deletion fail: `with_bitmaps`, at the first of several leaves of the map, after the
/// others, and otherwise at a bitmap.
fn fail_a_deletion(with_bitmaps: bool) {
    let image = tempfile::NamedTempFile::new().unwrap();
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.make(image.path(), None);
    let memory = Arc::new(MemoryDevice::new(std::fs::read(image.path()).unwrap()));
    let volume = Kind::Ext4.open(memory.clone());
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    // Three leaves have this many extents.
    for number in 0..200 {
        write(&file, 2048 * number, &[7; 1024]).unwrap();
    }
    drop(file);
    volume.close().unwrap();

    let device = Arc::new(FaultDevice::new(memory.clone(), FaultPlan::default()));
    let volume = Kind::Ext4.open(device.clone());
    let node = volume.resolve(b"/file", Follow::No).unwrap();
    let file = node.open().unwrap();
    create(&volume, "/other").unwrap();
    volume.sync().unwrap();
    let cached: &[u64] = if with_bitmaps { &[199, 100] } else { &[199, 100, 0] };
    for number in cached {
        assert_eq!(file.read_at(&mut [0; 1024], 2048 * number), Ok(1024));
    }
    drop(file);
    if with_bitmaps {
        node.set_size(2048 * 199, Privileges::Keep).unwrap();
    }
    create(&volume, "/more").unwrap();
    device.fail_reads_in(0..device.size());
    volume.remove(b"/file", &Credentials::ROOT).unwrap();
    drop(node);
    assert!(!device.faults().is_empty(), "nothing was read");
    assert_eq!(number(volume.sync()), 0, "the volume was shut down ({with_bitmaps})");
    device.heal();
    volume.resolve(b"/more", Follow::No).unwrap();
    create(&volume, "/yet more").unwrap();
    volume.close().unwrap();
    // Deletes the orphan.
    Kind::Ext4.open(memory.clone()).close().unwrap();
    std::fs::write(image.path(), memory.snapshot()).unwrap();
    check_by_e2fsck(image.path());
}

/// Of f2fs, a truncation that fails changes no node. What the file had in the cut block behind the
/// cut may be zeroed.
#[test]
fn a_failed_truncation_of_f2fs_leaves_the_size_and_all_whole_blocks_as_they_were() {
    const CUT: u64 = 3000;
    // More blocks than the addresses in an inode, and in one other node.
    const SIZE: usize = 2200 * 4096;
    let kind = &KINDS[1];
    let disk = kind.disk();
    let volume = kind.open(disk.clone());
    let data: Vec<u8> = (0..SIZE).map(|at| (at / 4096 % 251) as u8).collect();
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    assert_eq!(write(&file, 0, &data), Ok(SIZE));
    drop(file);
    volume.close().unwrap();
    drop(volume);

    let device = Arc::new(FaultDevice::new(disk.clone(), FaultPlan::default()));
    let volume = kind.open(device.clone());
    // The first change writes a checkpoint.
    create(&volume, "/other").unwrap();
    let node = volume.resolve(b"/file", Follow::No).unwrap();
    let file = node.open_for(WRITE).unwrap();
    assert_eq!(file.read_at(&mut [0; CUT as usize], 0), Ok(CUT as usize));
    device.fail_reads_in(0..device.size());
    assert_eq!(number(node.set_size(CUT, Privileges::Keep)), EIO);
    assert_eq!(node.attributes().size, SIZE as u64);
    device.heal();
    let mut found = vec![0; SIZE + 1];
    assert_eq!(file.read_at(&mut found, 0), Ok(SIZE));
    found[CUT as usize..4096].copy_from_slice(&data[CUT as usize..4096]);
    assert!(found[..SIZE] == data, "the file has other data");
    node.set_size(CUT, Privileges::Keep).unwrap();
    assert_eq!(write(&file, SIZE as u64, b"far"), Ok(3));
    file.sync_all().unwrap();
    let mut expected = vec![0; SIZE];
    expected[..CUT as usize].copy_from_slice(&data[..CUT as usize]);
    expected.extend(b"far");
    found.resize(SIZE + 4, 1);
    assert_eq!(file.read_at(&mut found, 0), Ok(SIZE + 3));
    assert!(found[..SIZE + 3] == expected, "truncated data has come back");
    drop((file, node));
    volume.close().unwrap();
    drop(volume);
    assert_eq!(testkit::f2fs::findings(disk), [""; 0]);
}

#[test]
fn a_hole_whose_neighbours_cannot_be_read_leaves_the_volume_writable() {
    /// The number of extents, which are in several leaves.
    const EXTENTS: u64 = 200;
    /// The distance between extents, which do not share clusters.
    const STEP: u64 = 8 << 10;
    let image = tempfile::NamedTempFile::new().unwrap();
    let kind = Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) };
    kind.with("-O bigalloc,^resize_inode -C 4096").make(image.path(), None);
    let memory = Arc::new(MemoryDevice::new(std::fs::read(image.path()).unwrap()));
    let volume = Kind::Ext4.open(memory.clone());
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    for index in 0..EXTENTS {
        write(&file, STEP * index + 1024, &[7; 1024]).unwrap();
    }
    drop(file);
    volume.close().unwrap();
    drop(volume);
    let mut failed = 0;
    for index in 0..EXTENTS {
        let memory = Arc::new(MemoryDevice::new(memory.snapshot()));
        let device = Arc::new(FaultDevice::new(memory.clone(), FaultPlan::default()));
        let volume = Kind::Ext4.open(device.clone());
        // Reads the only bitmap.
        create(&volume, "/other").unwrap().open_for(WRITE).unwrap().write_at(&[1], 0).unwrap();
        volume.sync().unwrap();
        let node = volume.resolve(b"/file", Follow::No).unwrap();
        let file = node.open_for(WRITE).unwrap();
        let at = STEP * index + 1024;
        // From here on, the leaf of this extent is cached, and the others cannot be read.
        assert_eq!(file.read_at(&mut [0], at), Ok(1));
        device.fail_reads_in(0..device.size());
        let punch = || {
            let range = FileOffset(at)..FileOffset(at + 1024);
            number(file.fallocate(Fallocate::PunchHole, range, Privileges::Keep))
        };
        let result = punch();
        device.heal();
        if result == 0 {
            continue;
        }
        assert_eq!(result, EIO, "{index}");
        failed += 1;
        assert_eq!(punch(), 0, "{index}");
        create(&volume, "/more").unwrap();
        assert_eq!(number(volume.sync()), EIO, "{index}: it reports the failure once");
        drop((file, node));
        volume.close().unwrap();
        std::fs::write(image.path(), memory.snapshot()).unwrap();
        check_by_e2fsck(image.path());
    }
    // The first and the last extent of a leaf have their neighbours in other leaves.
    assert!((2..20).contains(&failed), "{failed} changes failed");
}
