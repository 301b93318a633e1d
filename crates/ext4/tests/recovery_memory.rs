//! The memory and the reads of recoveries of hostile images. This is a program of its own, whose peak of memory is
//! measured.
#![allow(clippy::print_stdout, reason = "the measurement")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use base::InodeNumber;
use common::fast_commits::{FastCommits, REGULAR, free, image_of};
use common::{Image, inode_of};
use ext4::fast_commit::ondisk::TAG_CREATE;

const BLOCK: usize = 1024;
/// Bytes and blocks of a group.
const GROUP_BLOCKS: u64 = 8192;
const GROUPS: u64 = 512;
/// The root directory.
const ROOT: u64 = 2;
/// The memory that a recovery of these images may take. An index of the free space of all groups takes hundreds of MiB.
const MEMORY_MAX: u64 = 48 << 20;

/// Returns the largest size in memory that this process has had since the last call, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    // From now on, the peak is that of what follows.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    kibibytes << 10
}

fn read_u32(file: &File, at: u64) -> u32 {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at).unwrap();
    u32::from_le_bytes(bytes)
}

/// Marks every second free block of every group as in use. Returns a block of each group that is still free.
fn fragment(image: &Image) -> Vec<u64> {
    let file = File::options().read(true).write(true).open(&image.path).unwrap();
    let mut free_blocks = Vec::new();
    for group in 0..GROUPS {
        // Descriptors have 32 bytes, and begin in the block after the superblock's.
        let descriptor = 2 * BLOCK as u64 + group * 32;
        let at = u64::from(read_u32(&file, descriptor)) * BLOCK as u64;
        let mut bitmap = [0; BLOCK];
        file.read_exact_at(&mut bitmap, at).unwrap();
        let mut last = None;
        // The last bits of the last group are not in the volume.
        for byte in &mut bitmap {
            *byte |= 0xaa;
        }
        let free: u32 = bitmap.iter().map(|byte| byte.count_zeros()).sum();
        for bit in (0..GROUP_BLOCKS).filter(|bit| bitmap[*bit as usize / 8] >> (bit % 8) & 1 == 0) {
            last = Some(1 + group * GROUP_BLOCKS + bit);
        }
        free_blocks.extend(last);
        file.write_all_at(&bitmap, at).unwrap();
        file.write_all_at(&(free as u16).to_le_bytes(), descriptor + 12).unwrap();
    }
    free_blocks
}

#[test]
fn memory_does_not_grow_with_the_free_space_of_the_groups() {
    let options = "-t ext4 -b 1024 -I 256 -N 4096 -J size=16 -E nodiscard \
                   -O fast_commit,^metadata_csum,^uninit_bg,^64bit,^flex_bg,^resize_inode";
    let options: Vec<&str> = options.split_whitespace().collect();
    let image = Image::make((GROUPS * GROUP_BLOCKS * BLOCK as u64) >> 20, &options);
    let made = free(&image, "ffi")[0];
    let blocks = fragment(&image);
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_CREATE, ROOT, made, "made");
    commits.inode(made, &image_of(REGULAR, blocks.len() as u64 * BLOCK as u64, 1, 0));
    for (at, &block) in (0..).zip(&blocks) {
        commits.add_range(made, at, block, 1);
    }
    commits.commit();
    commits.leave_in(&image);

    // The fast commits map a block in each group.
    peak();
    let before = peak();
    let volume = image.open();
    let grown = peak() - before;
    println!("the process has grown by {} MiB", grown >> 20);
    assert_eq!(volume.recovery().unwrap().fast_commits, 1);
    let inode = volume.inode(InodeNumber(made)).unwrap();
    assert_eq!(common::runs(&volume, &inode).len(), blocks.len());
    drop(inode);
    drop(volume);
    assert!(grown <= MEMORY_MAX, "the process has grown by {} MiB", grown >> 20);

    // Now they are there, and an orphan frees one in each group.
    common::open_for_writing(&image).close().unwrap();
    assert_eq!(inode_of(&image, "made").0, made);
    image.debugfs_write(&format!(
        "sif <{made}> links_count 0\nunlink made\nssv last_orphan {made}\nfeature needs_recovery\n"
    ));
    peak();
    let before = peak();
    let volume = image.open();
    let grown = peak() - before;
    println!("the process has grown by {} MiB", grown >> 20);
    let report = &volume.recovery().unwrap().orphans;
    assert!(report.deleted == 1 && report.failure.is_none(), "{report:?}");
    assert!(grown <= MEMORY_MAX, "the process has grown by {} MiB", grown >> 20);
}
