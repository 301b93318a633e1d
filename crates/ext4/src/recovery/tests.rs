//! Tests of the blocks that a log may change, and of the journal's own blocks.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::DeviceOffset;
use device::{MemoryDevice, SharedDevice};

use crate::common::{self, Image, run};

const BLOCK: usize = 1024;
/// A block past the end of a volume of 7 MiB.
const BEHIND: usize = 7500;
/// The block whose number is replaced by `BEHIND` in the log.
const REPLACED: u32 = 7000;
/// The contents of `BEHIND` in the log.
const LOGGED: [u8; BLOCK] = [0xA5; BLOCK];

/// Returns an image of 7 MiB.
fn volume() -> Image {
    let options = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O"];
    Image::make(7, &[&options[..], &["^metadata_csum,^resize_inode"]].concat())
}

/// Returns the bytes of a device of 8 MiB with the volume of `image`, whose log has these blocks,
/// and a block behind the volume.
fn with_log(image: &Image, blocks: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut numbers: Vec<String> = blocks.iter().map(|(number, _)| number.to_string()).collect();
    numbers.push(REPLACED.to_string());
    let contents: Vec<&[u8]> =
        blocks.iter().map(|(_, block)| &block[..]).chain([&LOGGED[..]]).collect();
    let contents = image.scratch.write("blocks", &contents.concat());
    image.debugfs_write(&format!(
        "jo\njw -b {} {}\njc\nfeature needs_recovery\n",
        numbers.join(","),
        contents.display()
    ));
    let mut bytes = image.bytes();
    let descriptor = [0xC03B_3998_u32, 1].map(u32::to_be_bytes).concat();
    let descriptor = bytes.chunks_mut(BLOCK).find(|block| block.starts_with(&descriptor)).unwrap();
    let tag = descriptor.windows(4).position(|word| word == REPLACED.to_be_bytes()).unwrap();
    descriptor[tag..tag + 4].copy_from_slice(&(BEHIND as u32).to_be_bytes());
    bytes.resize(8 << 20, 0);
    bytes
}

/// Opens the volume read-only, and for writing. Returns whether the block behind its old end was
/// replayed, and its number of blocks.
fn recover(image: &Image, bytes: Vec<u8>) -> [(bool, u64); 2] {
    let device = Arc::new(MemoryDevice::new(bytes));
    let in_memory = common::open_device(device.clone() as SharedDevice).unwrap();
    let mut block = [0; BLOCK];
    in_memory.device().read_at(DeviceOffset((BEHIND * BLOCK) as u64), &mut block).unwrap();
    let in_memory = (block == LOGGED, in_memory.geometry().block_count);
    let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
    let count = volume.geometry().block_count;
    volume.close().unwrap();
    let bytes = device.snapshot();
    std::fs::write(&image.path, &bytes).unwrap();
    image.check_by_e2fsck();
    [in_memory, (bytes[BEHIND * BLOCK..].starts_with(&LOGGED), count)]
}

#[test]
fn a_log_changes_nothing_behind_the_volume() {
    let image = volume();
    let bytes = with_log(&image, &[]);
    assert_eq!(recover(&image, bytes), [(false, 7168); 2]);
}

#[test]
fn a_log_changes_the_blocks_that_it_adds_to_the_volume() {
    let image = volume();
    let before = image.bytes();
    run(std::process::Command::new("resize2fs").arg(&image.path).arg("8000"));
    let grown = image.bytes();
    std::fs::write(&image.path, &before).unwrap();
    let mut changed: Vec<(usize, Vec<u8>)> = (before.chunks(BLOCK).zip(grown.chunks(BLOCK)))
        .enumerate()
        .filter(|(_, (before, grown))| before != grown)
        .map(|(number, (_, grown))| (number, grown.to_vec()))
        .collect();
    let superblock = changed.iter_mut().find(|(number, _)| *number == 1).unwrap();
    // The flag of recovery, which a volume has while it is mounted.
    superblock.1[0x60] |= 4;
    let bytes = with_log(&image, &changed);
    assert_eq!(recover(&image, bytes), [(true, 8000); 2]);
}

#[test]
fn a_journal_in_too_many_pieces_is_not_written() {
    const BLOCK: usize = 4096;
    const POINTERS: usize = BLOCK / 4;
    const GROUP: u32 = 32_768;
    let image = Image::make(5 << 10, &["-t", "ext3", "-b", "4096", "-J", "size=4", "-N", "2048"]);
    // Behind the journal's end, a tree of two levels with 2^20 runs: the blocks of all groups but
    // the first ones, in descending order, without the metadata at the start of each group.
    let (root, leaves) = (3 * GROUP - 1, 2 * GROUP + 5000);
    let blocks = (4..39).flat_map(|group| group * GROUP + 2000..(group + 1) * GROUP).rev();
    let blocks: Vec<u32> = blocks.take(POINTERS * POINTERS).collect();
    image.debugfs_write(&format!("sif <8> block[DIND] {root}\n"));
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    let write = |block: u32, pointers: &[u32]| {
        let bytes: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
        file.write_all_at(&bytes, u64::from(block) * BLOCK as u64).unwrap();
    };
    write(root, &(leaves..).take(POINTERS).collect::<Vec<_>>());
    blocks.chunks(POINTERS).zip(leaves..).for_each(|(pointers, leaf)| write(leaf, pointers));
    drop(file);
    let error = common::open_device_for_writing(image.device(false));
    let error = error.map(drop).unwrap_err().to_string();
    assert!(error.contains("metadata is in too many pieces"), "{error}");
}
