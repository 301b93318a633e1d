//! Tests of hostile images: any overwritten bytes lead to errors only, within bounded time.

use crate::common;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::common::Image;
use crate::common::counting_device::{Counter, CountingDevice};
use base::{FileOffset, GroupNumber, InodeNumber};
use ext4::{SUPERBLOCK_BYTES, Superblock, Volume};
use iomap::MapRead;
use proptest::prelude::*;

const TIME_MAX: Duration = Duration::from_secs(20);

/// Returns small volumes without metadata checksums, which would detect most changes early.
fn images() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let common = "-N 64 -O ^has_journal,^metadata_csum,^resize_inode";
        [
            format!("-t ext4 -b 1024 {common}"),
            format!("-t ext4 -b 4096 {common},^64bit,uninit_bg"),
            format!("-t ext4 -b 1024 -g 512 {common},meta_bg,^flex_bg"),
            format!("-t ext4 -b 1024 -g 1024 {common},bigalloc -C 2048"),
            format!("-t ext2 -b 1024 {common}"),
        ]
        .iter()
        .map(|options| Image::filled(2, options, fill).bytes())
        .collect()
    })
}

fn fill(folder: &std::path::Path) {
    std::fs::write(folder.join("file"), vec![5; 100_000]).unwrap();
    // Every other block of 1 KiB: a tree of two levels, or a double indirect map.
    let mut striped = vec![0; 800 << 10];
    for block in striped.chunks_mut(2048) {
        block[..1024].fill(1);
    }
    std::fs::write(folder.join("striped"), striped).unwrap();
    std::os::unix::fs::symlink("target/".repeat(20), folder.join("slow")).unwrap();
    std::os::unix::fs::symlink("target", folder.join("fast")).unwrap();
}

/// Reads everything of a volume that can be read without names.
fn read_everything(volume: &Arc<Volume>) {
    let start = Instant::now();
    volume.statfs();
    volume.info();
    for group in (0..volume.geometry().group_count.min(1000)).map(GroupNumber) {
        if let Ok(group) = volume.group(group) {
            let _ = volume.block_bitmap(&group).map(|bitmap| bitmap.free());
            let _ = volume.inode_bitmap(&group).map(|bitmap| bitmap.free());
        }
    }
    for number in 0..=u64::from(volume.geometry().inode_count).min(1000) {
        let _ = volume.inode(InodeNumber(number));
        let Ok(inode) = volume.special_inode(InodeNumber(number)) else { continue };
        let _ = inode.attributes();
        let mut at = 0;
        for _ in 0..10_000 {
            let Ok(map) = inode.map_read(FileOffset(at), 1 << 30) else { break };
            assert!(map.offset.0 <= at && map.end() > at, "{map:?} at {at}");
            if let Some(address) = map.address {
                assert!(address.0 + map.length <= volume.device().size(), "{map:?}");
            }
            at = map.end();
            if at >= inode.size() {
                break;
            }
        }
        let _ = inode.map_read(FileOffset(u64::MAX), u64::MAX);
        let _ = inode.map_read(FileOffset(inode.size()), 1);
    }
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
}

/// Generates a location and the bytes to write there: mostly small changes of metadata, at the
/// start of the image.
fn change() -> impl Strategy<Value = (usize, Vec<u8>)> {
    let value = prop_oneof![
        any::<[u8; 1]>().prop_map(|bytes| bytes.to_vec()),
        any::<[u8; 4]>().prop_map(|bytes| bytes.to_vec()),
        prop_oneof![Just(0_u32), Just(1), Just(u32::MAX), Just(1 << 31), 0..3000_u32]
            .prop_map(|word| word.to_le_bytes().to_vec()),
        Just(vec![0xFF; 64]),
        Just(vec![0; 1024]),
        any::<[u8; 32]>().prop_map(|bytes| bytes.repeat(32)),
    ];
    let location = prop_oneof![1024..2048_usize, 1024..0x8000_usize, 1024..0x20_0000_usize];
    (location, value).prop_map(|(location, value)| {
        // Fields are aligned.
        (if value.len() == 1 { location } else { location & !3 }, value)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn changed_images_give_only_errors(
        image in 0..5_usize,
        changes in prop::collection::vec(change(), 1..12),
    ) {
        let mut bytes = images()[image].clone();
        for (location, value) in changes {
            let end = bytes.len().min(location + value.len());
            let location = location.min(end);
            bytes[location..end].copy_from_slice(&value[..end - location]);
        }
        if let Ok(volume) = common::open(bytes) {
            read_everything(&volume);
        }
    }

    #[test]
    fn changed_superblocks_give_only_errors(
        image in 0..5_usize,
        changes in prop::collection::vec((0..256_usize, any::<u32>(), any::<bool>()), 1..4),
        device_bytes in prop_oneof![Just(2_u64 << 20), any::<u64>()],
    ) {
        let mut bytes: [u8; SUPERBLOCK_BYTES] = images()[image][1024..2048].try_into().unwrap();
        for (word, value, small) in changes {
            let value = if small { value % 100 } else { value };
            bytes[word * 4..word * 4 + 4].copy_from_slice(&value.to_le_bytes());
        }
        if let Ok(superblock) = Superblock::parse(&bytes, device_bytes) {
            let geometry = &superblock.geometry;
            for group in [0, 1, geometry.group_count / 2, geometry.group_count - 1] {
                let group = GroupNumber(group);
                geometry.blocks_in_group(group);
                geometry.leading_metadata_blocks(group);
                geometry.descriptor_block(group.0 / geometry.descriptors_per_block());
            }
            let last = InodeNumber(geometry.inode_count.into());
            prop_assert!(geometry.inode_position(last).is_ok());
        }
    }

    #[test]
    fn noise_is_not_a_superblock(bytes in any::<[u8; 32]>()) {
        let mut noise = [0; SUPERBLOCK_BYTES];
        for chunk in noise.chunks_mut(32) {
            chunk.copy_from_slice(&bytes);
        }
        noise[0x38..0x3A].copy_from_slice(&0xEF53_u16.to_le_bytes());
        prop_assert!(Superblock::parse(&noise, u64::MAX).is_err());
    }
}

#[test]
fn groups_in_a_hole_of_the_image_are_not_all_read() {
    const GROUPS: u32 = (1 << 22) + 1;
    let features = "^has_journal,^metadata_csum,^resize_inode,^64bit,flex_bg";
    let image =
        Image::make(2, &["-t", "ext4", "-b", "1024", "-I", "256", "-N", "64", "-O", features]);
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    // Groups of eight blocks, with four inodes each. The fields are the numbers of inodes and of
    // blocks, and the numbers of blocks, clusters and inodes in a group.
    for (at, value) in [(0, GROUPS * 4), (4, GROUPS * 8 + 1), (32, 8), (36, 8), (40, 4)] {
        file.write_all_at(&value.to_le_bytes(), 1024 + at).unwrap();
    }
    file.set_len(u64::from(GROUPS * 8 + 1) << 10).unwrap();
    let device = Arc::new(CountingDevice::new(image.device(true), Counter::default()));
    let volume = common::open_device(device.clone()).unwrap();
    assert_eq!(volume.geometry().group_count, GROUPS);
    let root = volume.inode(ext4::ROOT_INODE).unwrap();
    let map = root.map_read(FileOffset(0), 1024);
    volume.statfs();
    assert!(device.requests() < 50, "{} requests", device.requests());
    assert!(map.unwrap().address.is_some());
    drop((root, volume, device));
    let error = common::open_device_for_writing(image.device(false)).unwrap_err();
    assert!(error.to_string().contains("so many block groups"), "{error}");
}

#[test]
fn short_devices_are_refused() {
    for length in [0, 1, 1024, 1080, 2047] {
        assert!(common::open(vec![0; length]).is_err());
    }
    // An image that was truncated.
    let mut bytes = images()[0].clone();
    bytes.truncate(1 << 20);
    let error = common::open(bytes).unwrap_err().to_string();
    assert!(error.contains("needs 2097152 bytes, but has only 1048576"), "{error}");
}
