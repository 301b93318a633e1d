//! Memory use of the recovery of hostile images. The tests measure the peak memory of their
//! process, so they have a program of their own.
#![allow(clippy::print_stdout, reason = "the measurement")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use base::{DeviceOffset, Error, InodeNumber};
use common::fast_commits::{FastCommits, REGULAR, free, image_of};
use common::{Image, inode_of, number_after};
use ext4::Volume;
use ext4::fast_commit::ondisk::TAG_CREATE;

const BLOCK: usize = 1024;
/// The number of blocks of a group.
const GROUP_BLOCKS: u64 = 8192;
const GROUPS: u64 = 512;
/// The root directory.
const ROOT: u64 = 2;
/// The maximum memory for the recovery of an image with fragmented groups, in bytes. An index of
/// the free space of all groups would use hundreds of MiB.
const MEMORY_MAX: u64 = 48 << 20;
/// The number of groups of a volume with many orphans.
const ORPHAN_GROUPS: u64 = 16;
/// The number of inodes of a volume with many orphans. All of them would use more than 128 MiB in
/// memory.
const ORPHAN_INODES: u32 = 1 << 17;
/// The maximum memory for the recovery of these orphans, in bytes. Most of it caches metadata.
const ORPHANS_MEMORY_MAX: u64 = 72 << 20;
/// The first inode that is an orphan.
const FIRST_ORPHAN: u32 = 20;

/// The maximum memory for the recovery of a log of 256 MiB whose blocks are holes, in bytes.
const HOLES_MEMORY_MAX: u64 = 64 << 20;

/// Lock that each test holds, since all tests in the process share the peak.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns the peak memory of this process since the last call, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    // Resets the peak.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    kibibytes << 10
}

fn read_u32(file: &File, at: u64) -> u32 {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at).unwrap();
    u32::from_le_bytes(bytes)
}

/// Marks every second block of every group as in use. Returns the last free block of each group.
fn fragment(image: &Image) -> Vec<u64> {
    let file = File::options().read(true).write(true).open(&image.path).unwrap();
    let mut free_blocks = Vec::new();
    for group in 0..GROUPS {
        // Descriptors have 32 bytes each, and begin in the block after the superblock.
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
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
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

    // The replay is now written to the image. The file becomes an orphan, whose deletion frees a
    // block in each group.
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

/// Creates an image in which all inodes from [`FIRST_ORPHAN`] on are empty regular files in use.
/// `set` can change the bytes of each inode.
fn with_inodes(set: impl Fn(u32, &mut [u8])) -> Image {
    let options = format!(
        "-t ext4 -b 1024 -I 128 -N {ORPHAN_INODES} -J size=1 -E orphan_file_size=640K \
         -O orphan_file,^metadata_csum,^uninit_bg,^64bit,^flex_bg,^resize_inode"
    );
    let options: Vec<&str> = options.split_whitespace().collect();
    let image = Image::make((ORPHAN_GROUPS * GROUP_BLOCKS * BLOCK as u64) >> 20, &options);
    let file = File::options().read(true).write(true).open(&image.path).unwrap();
    let per_group = ORPHAN_INODES / ORPHAN_GROUPS as u32;
    for group in 0..ORPHAN_GROUPS {
        let descriptor = 2 * BLOCK as u64 + group * 32;
        let bitmap = u64::from(read_u32(&file, descriptor + 4)) * BLOCK as u64;
        file.write_all_at(&vec![0xff; per_group as usize / 8], bitmap).unwrap();
        file.write_all_at(&[0; 2], descriptor + 14).unwrap();
        let at = u64::from(read_u32(&file, descriptor + 8)) * BLOCK as u64;
        let mut table = vec![0; per_group as usize * 128];
        file.read_exact_at(&mut table, at).unwrap();
        for (number, inode) in (1 + group as u32 * per_group..).zip(table.chunks_mut(128)) {
            if number >= FIRST_ORPHAN {
                inode[0..2].copy_from_slice(&0o100_644_u16.to_le_bytes());
                inode[0x1a] = 1;
                // An extent tree without extents.
                inode[0x22] = 8;
                inode[0x28..0x30].copy_from_slice(&[0x0a, 0xf3, 0, 0, 4, 0, 0, 0]);
                set(number, inode);
            }
        }
        file.write_all_at(&table, at).unwrap();
    }
    image
}

/// Opens an image. Returns the volume, and the number of bytes by which the peak memory of the
/// process has grown.
fn open_measured(image: &Image) -> (Arc<Volume>, u64) {
    peak();
    let before = peak();
    let volume = image.open();
    let grown = peak() - before;
    println!("the process has grown by {} MiB", grown >> 20);
    (volume, grown)
}

#[test]
fn memory_does_not_grow_with_the_inodes_of_an_orphan_file() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let image = with_inodes(|_, _| ());
    let number = number_after(&image.dumpe2fs(&["-h"]), "Orphan file inode:").unwrap();
    let blocks = image.debugfs(&format!("blocks <{number}>"));
    let blocks: Vec<u64> = blocks.split_whitespace().map(|block| block.parse().unwrap()).collect();
    let file = File::options().write(true).open(&image.path).unwrap();
    let mut numbers = FIRST_ORPHAN..=ORPHAN_INODES;
    for block in blocks {
        let slots: Vec<u8> = numbers.by_ref().take(254).flat_map(u32::to_le_bytes).collect();
        file.write_all_at(&slots, block * BLOCK as u64).unwrap();
    }
    assert!(numbers.next().is_none(), "the orphan file has a slot for each inode");
    drop(file);
    image.debugfs_write("feature orphan_present needs_recovery\n");
    let (volume, grown) = open_measured(&image);
    let report = &volume.recovery().unwrap().orphans;
    assert!(report.failure.is_none(), "{report:?}");
    assert_eq!(report.truncated, ORPHAN_INODES + 1 - FIRST_ORPHAN);
    assert!(grown <= ORPHANS_MEMORY_MAX, "the process has grown by {} MiB", grown >> 20);
}

#[test]
fn memory_does_not_grow_with_the_inodes_of_an_orphan_list() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let image = with_inodes(|number, inode| {
        let next = if number == ORPHAN_INODES { 0 } else { number + 1 };
        inode[0x14..0x18].copy_from_slice(&next.to_le_bytes());
        if number == FIRST_ORPHAN {
            // The extent tree refers to a leaf in a block of zeroes. Recovery stops with an error
            // at this first orphan.
            let block = (ORPHAN_GROUPS * GROUP_BLOCKS - 8) as u32;
            inode[0x28..0x30].copy_from_slice(&[0x0a, 0xf3, 1, 0, 4, 0, 1, 0]);
            inode[0x38..0x3c].copy_from_slice(&block.to_le_bytes());
        }
    });
    image.debugfs_write(&format!("ssv last_orphan {FIRST_ORPHAN}\nfeature needs_recovery\n"));
    let (volume, grown) = open_measured(&image);
    let report = &volume.recovery().unwrap().orphans;
    assert!(matches!(report.failure, Some(Error::Corrupt(_))), "{report:?}");
    assert_eq!(report.truncated, 0);
    assert!(grown <= ORPHANS_MEMORY_MAX, "the process has grown by {} MiB", grown >> 20);
}

/// Returns the runs of the journal's file: the first block in the file, the first block in the
/// volume, and the length.
fn journal_runs(image: &Image) -> Vec<(u64, u64, u64)> {
    let text = image.debugfs("ex <8>");
    let mut runs = Vec::new();
    for line in text.lines() {
        let words = line.split(|char: char| !char.is_ascii_digit()).filter(|word| !word.is_empty());
        // Depth and depth of the tree, number and number of entries, range in the file, range in
        // the volume, length.
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        if let [level, depth, _, _, first, _, physical, _, length] = numbers[..] {
            if level == depth {
                runs.push((first, physical, length));
            }
        }
    }
    runs
}

#[test]
fn memory_does_not_grow_with_the_holes_of_a_log() {
    const BLOCK: u64 = 4096;
    /// The maximum number of tags in a descriptor block.
    const TAGS_MAX: u64 = 510;
    /// The flag of a tag: the block is escaped.
    const ESCAPED: u32 = 1;
    /// The flag of a tag: no UUID follows.
    const SAME_UUID: u32 = 2;
    /// The flag of a tag: it is the last one of its descriptor block.
    const LAST: u32 = 8;
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let options = "-t ext4 -b 4096 -J size=256 -E nodiscard,lazy_itable_init=1,lazy_journal_init=1 \
                   -O ^metadata_csum,^64bit,^resize_inode";
    let options: Vec<&str> = options.split_whitespace().collect();
    let image = Image::make(2048, &options);
    let runs = journal_runs(&image);
    let blocks: u64 = runs.iter().map(|run| run.2).sum();
    assert_eq!(blocks, (256 << 20) / BLOCK);
    let file = File::options().read(true).write(true).open(&image.path).unwrap();
    let write = |block: u64, words: &[u32]| {
        let run = runs.iter().find(|run| (run.0..run.0 + run.2).contains(&block)).unwrap();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        file.write_all_at(&bytes, (run.1 + block - run.0) * BLOCK).unwrap();
    };
    // Free blocks of the volume.
    let is_free = |block: &u64| {
        let is_log = runs.iter().any(|run| (run.1..run.1 + run.2).contains(block));
        !is_log && block % 32768 > 8192
    };
    let mut targets = (32768..).filter(is_free);
    let (mut at, mut sequence, mut logged) = (1, 7, 0);
    while at + 3 < blocks {
        let tags = TAGS_MAX.min(blocks - at - 2);
        let mut descriptor = vec![0xc03b_3998, 1, sequence];
        for tag in 1..=tags {
            let target = targets.next().unwrap() as u32;
            descriptor.extend([target, ESCAPED | SAME_UUID | if tag == tags { LAST } else { 0 }]);
        }
        write(at, &descriptor);
        write(at + tags + 1, &[0xc03b_3998, 2, sequence]);
        at += tags + 2;
        sequence += 1;
        logged += tags;
    }
    // The superblock of the journal: the header, the size and the number of blocks, the first block
    // of the log, the first transaction, and its block.
    write(0, &[0xc03b_3998, 4, 0, BLOCK as u32, blocks as u32, 1, 7, 1]);
    drop(file);
    image.debugfs_write("feature needs_recovery\n");

    let (volume, grown) = open_measured(&image);
    let log = &volume.recovery().unwrap().log;
    assert!(log.blocks_changed == logged && log.damage.is_none(), "{log:?}");
    let mut block = vec![0; BLOCK as usize];
    let target = (32768..).find(|block| is_free(block)).unwrap();
    volume.device().read_at(DeviceOffset(target * BLOCK), &mut block).unwrap();
    assert!(
        block[..4] == 0xc03b_3998_u32.to_be_bytes() && block[4..].iter().all(|&byte| byte == 0)
    );
    assert!(grown <= HOLES_MEMORY_MAX, "the process has grown by {} MiB", grown >> 20);
}
