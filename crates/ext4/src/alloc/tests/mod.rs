//! Allocating and freeing on real images: what e2fsprogs makes of the bitmaps and counts.

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::process::Command;
use std::sync::Arc;

use super::*;
use crate::{OpenOptions, ROOT_INODE};
use base::{FsBlock, InodeNumber};
use common::{Image, run};
use device::{FileDevice, SharedDevice};
use iomap::{CacheOptions, PageCache};

/// Images of 40 MiB, unless it says otherwise.
const KINDS: &[(u64, &str)] = &[
    (40, "-t ext4 -b 1024"),
    (40, "-t ext4 -b 4096"),
    (256, "-t ext4 -b 65536"),
    (40, "-t ext4 -b 1024 -O bigalloc,^resize_inode -C 8192"),
    (256, "-t ext4 -b 4096 -O bigalloc,^resize_inode -C 65536"),
    (40, "-t ext2 -b 1024"),
    (40, "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^flex_bg"),
    (40, "-t ext4 -b 1024 -g 1024 -O meta_bg,^resize_inode"),
    (40, "-t ext4 -b 1024 -G 4 -O ^has_journal,^64bit"),
];

fn open(image: &Image) -> Arc<Volume> {
    let device: SharedDevice = Arc::new(FileDevice::open(&image.path, false).unwrap());
    let options = CacheOptions { bytes_max: 32 << 20, ..CacheOptions::default() };
    let cache = PageCache::new(options).unwrap();
    Volume::open_for_writing(device, &cache, &OpenOptions::default()).unwrap()
}

fn e2fsck(image: &Image) {
    run(Command::new("e2fsck").args(["-fn"]).arg(&image.path));
}

/// Numbers that look random (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What dumpe2fs says is free: blocks and inodes. Its counts must be those of what it lists.
fn free_by_dumpe2fs(image: &Image) -> (Vec<u64>, Vec<u64>) {
    let text = image.dumpe2fs(&[]);
    let (header, groups) = text.split_once("\nGroup 0:").unwrap();
    let list = |label: &str| {
        let lines = groups.lines().filter_map(|line| line.trim().strip_prefix(label));
        let ranges = lines.flat_map(|line| line.split(',')).filter(|part| !part.trim().is_empty());
        let numbers = ranges.flat_map(|range| {
            let (first, last) = range.trim().split_once('-').unwrap_or((range, range));
            first.trim().parse::<u64>().unwrap()..=last.trim().parse().unwrap()
        });
        numbers.collect::<Vec<u64>>()
    };
    let (blocks, inodes) = (list("Free blocks: "), list("Free inodes: "));
    let in_header = |label| common::number_after(header, label).unwrap();
    assert_eq!(in_header("Free inodes:"), inodes.len() as u64);
    let counts = groups.lines().map(str::trim).filter_map(|line| {
        [" free blocks, ", " free clusters, "].iter().find_map(|middle| line.split_once(middle))
    });
    let (mut clusters, mut free_inodes) = (0, 0);
    for (free, rest) in counts {
        clusters += free.parse::<u64>().unwrap();
        free_inodes += common::number_after(&format!(" {rest}"), " ").unwrap();
    }
    assert_eq!(free_inodes, inodes.len() as u64);
    let cluster = common::number_after(header, "Cluster size:").unwrap_or(1)
        / common::number_after(header, "Cluster size:").map_or(1, |_| in_header("Block size:"));
    assert_eq!(clusters * cluster, in_header("Free blocks:"));
    (blocks, inodes)
}

#[test]
fn what_is_allocated_and_freed_at_random_is_what_others_see() {
    for (megabytes, options) in KINDS {
        let image = Image::filled(*megabytes, options, |folder| {
            std::fs::write(folder.join("file"), vec![1; 3_000_000]).unwrap();
        });
        let seed = 0x9E37_79B9_7F4A_7C15;
        let volume = open(&image);
        let mut random = Random(seed);
        let mut held: Vec<(FsBlock, u64)> = Vec::new();
        let mut inodes: Vec<(InodeNumber, bool)> = Vec::new();
        for round in 0..400 {
            let goal = FsBlock(random.below(volume.geometry().block_count));
            let wanted = 1 + random.below(if round % 4 == 0 { 3000 } else { 20 });
            let is_directory = round % 3 == 0;
            volume
                .change(8, |handle| {
                    if random.below(3) == 0 && !held.is_empty() {
                        let (start, count) =
                            held.swap_remove(random.below(held.len() as u64) as usize);
                        volume.free_blocks(handle, start, count)
                    } else {
                        match volume.allocate_blocks(handle, goal, wanted, Purpose::Data) {
                            Ok(taken) => held.push(taken),
                            Err(Error::NoSpace) => {}
                            Err(error) => return Err(error),
                        }
                        Ok(())
                    }?;
                    if random.below(3) == 0 && !inodes.is_empty() {
                        let (number, is_directory) =
                            inodes.swap_remove(random.below(inodes.len() as u64) as usize);
                        return volume.free_inode(handle, number, is_directory);
                    }
                    inodes.push((
                        volume.allocate_inode(handle, ROOT_INODE, is_directory)?,
                        is_directory,
                    ));
                    Ok(())
                })
                .unwrap();
            if round % 50 == 49 {
                volume.sync().unwrap();
            }
        }
        volume.close().unwrap();
        drop(volume);
        free_by_dumpe2fs(&image);
        let volume = open(&image);
        for (start, count) in held.drain(..) {
            volume.change(8, |handle| volume.free_blocks(handle, start, count)).unwrap();
        }
        for (number, is_directory) in inodes.drain(..) {
            volume.change(4, |handle| volume.free_inode(handle, number, is_directory)).unwrap();
        }
        volume.close().unwrap();
        e2fsck(&image);
    }
}
