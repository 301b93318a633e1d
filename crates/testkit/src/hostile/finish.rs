//! Changes of small images that no tool makes: orphans in the orphan file, and an index of three
//! levels.

use std::path::Path;
use std::process::Command;

use crate::host::command::{output, run};
use crate::must;

/// The block size of the images.
const BLOCK: usize = 1024;
/// The offset of the superblock.
const SUPERBLOCK: usize = 1024;
/// The offset of the read-only compatible features in the superblock.
const READ_ONLY_FEATURES: usize = 0x64;
/// The feature `orphan_present`.
const ORPHAN_PRESENT: u32 = 1 << 16;
/// The offset of the orphan file's inode number in the superblock.
const ORPHAN_FILE: usize = 0x280;
/// The offset of the number of indirect levels in the root of an index.
const ROOT_LEVELS: usize = 30;
/// The offset of the entries in the root of an index.
const ROOT_ENTRIES: usize = 32;
/// The offset of the entries in other blocks of an index, after a directory entry that spans the
/// block.
const NODE_ENTRIES: usize = 8;

fn debugfs(image: &Path, request: &str) -> String {
    let mut command = Command::new("debugfs");
    let output = run(command.args(["-w", "-R", request]).arg(image));
    String::from_utf8_lossy(&output).into_owned()
}

/// Returns the offsets of a file's blocks in the image, in order.
fn blocks(image: &Path, file: &str) -> Vec<usize> {
    let text = debugfs(image, &format!("blocks {file}"));
    text.split_whitespace()
        .filter_map(|block| block.parse::<usize>().ok())
        .map(|at| at * BLOCK)
        .collect()
}

fn inode(image: &Path, file: &str) -> u32 {
    let text = debugfs(image, &format!("stat {file}"));
    let number = text.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no inode number: {text}"))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(must(bytes[at..at + 4].try_into(), "four bytes"))
}

fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Adds two orphans to the orphan file: a file without a name, and a file to be truncated.
pub fn with_orphans(image: &Path) {
    let doomed = "/level0/level1/level2/data";
    let orphans = [inode(image, doomed), inode(image, "/holes")];
    debugfs(image, &format!("unlink {doomed}"));
    debugfs(image, &format!("set_inode_field <{}> links_count 0", orphans[0]));
    let mut bytes = must(std::fs::read(image), image.display());
    let file = word(&bytes, SUPERBLOCK + ORPHAN_FILE);
    let first = blocks(image, &format!("<{file}>"))[0];
    for (slot, orphan) in orphans.into_iter().enumerate() {
        set_word(&mut bytes, first + 4 * slot, orphan);
    }
    let features = word(&bytes, SUPERBLOCK + READ_ONLY_FEATURES) | ORPHAN_PRESENT;
    set_word(&mut bytes, SUPERBLOCK + READ_ONLY_FEATURES, features);
    must(std::fs::write(image, &bytes), image.display());
    let copy = image.with_extension("copy");
    must(std::fs::write(&copy, bytes), copy.display());
    let text = output(Command::new("e2fsck").arg("-fy").arg(&copy)).text();
    for orphan in [
        format!("Clearing orphaned inode {}", orphans[0]),
        format!("Truncating orphaned inode {}", orphans[1]),
    ] {
        assert!(text.contains(&orphan), "{text}");
    }
}

/// Adds two levels between the root of the large directory's index and the leaves.
pub fn with_deep_index(image: &Path) {
    let nodes = 6;
    let first = blocks(image, "/many").len() as u32;
    for _ in 0..nodes {
        debugfs(image, "expand_dir /many");
    }
    let at = blocks(image, "/many");
    let mut bytes = must(std::fs::read(image), image.display());
    let root = at[0];
    let leaves = entries(&bytes, root + ROOT_ENTRIES);
    assert!(bytes[root + ROOT_LEVELS] == 0 && leaves.len() > 8, "{} leaves", leaves.len());
    // Four nodes above the leaves, and two nodes above these.
    let mut free = first..;
    let mut level = leaves;
    for count in [4, 2] {
        let per_node = level.len().div_ceil(count);
        let mut above = Vec::new();
        for below in level.chunks(per_node) {
            let block = free.next().unwrap_or_default();
            let node = at[block as usize];
            bytes[node..node + BLOCK].fill(0);
            bytes[node + 4..node + 6].copy_from_slice(&(BLOCK as u16).to_le_bytes());
            let limit = (BLOCK - NODE_ENTRIES) / 8;
            bytes[node + NODE_ENTRIES..][..2].copy_from_slice(&(limit as u16).to_le_bytes());
            set_entries(&mut bytes, node + NODE_ENTRIES, below);
            above.push((below[0].0, block));
        }
        level = above;
    }
    assert_eq!(free.next(), Some(first + nodes));
    set_entries(&mut bytes, root + ROOT_ENTRIES, &level);
    bytes[root + ROOT_LEVELS] = 2;
    must(std::fs::write(image, bytes), image.display());
    crate::check_by_e2fsck(image);
}

/// Returns the first hash and the block of each entry. The first entry has no hash here; its
/// parent's entry has it.
fn entries(bytes: &[u8], at: usize) -> Vec<(u32, u32)> {
    let count = usize::from(u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]));
    let entry = |index: usize| (word(bytes, at + 8 * index), word(bytes, at + 8 * index + 4));
    [(0, word(bytes, at + 4))].into_iter().chain((1..count).map(entry)).collect()
}

fn set_entries(bytes: &mut [u8], at: usize, entries: &[(u32, u32)]) {
    for (index, (hash, block)) in entries.iter().enumerate() {
        let at = at + 8 * index;
        if index > 0 {
            set_word(bytes, at, *hash);
        }
        set_word(bytes, at + 4, *block);
    }
    bytes[at + 2..at + 4].copy_from_slice(&(entries.len() as u16).to_le_bytes());
}
