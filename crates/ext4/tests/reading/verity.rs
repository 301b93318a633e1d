//! Tests of files with fs-verity. `fsverity` computes the trees, the descriptors and the digests.

use std::path::Path;
use std::process::Command;

use crate::common::{Image, inode_of, open, run};
use base::{Error, FileOffset};
use iomap::{CacheOptions, PageCache, ReadContext, ReadOptions, Readahead};

const SIZES: [usize; 6] = [0, 1, 4095, 4096, (1 << 20) + 1, 40 << 20];
const BLOCK: usize = 4096;

/// Files of all sizes with one kind of tree, past the files' ends.
struct Verified {
    image: Image,
    digests: Vec<String>,
    tree_lens: Vec<usize>,
}

fn data(size: usize) -> Vec<u8> {
    (0..size as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u8).collect()
}

fn fill(top: &Path, options: &[&str]) -> (Vec<String>, Vec<usize>) {
    let mut made = (Vec::new(), Vec::new());
    for size in SIZES {
        let path = top.join(format!("{size}"));
        let (tree, descriptor) = (top.join("../tree"), top.join("../descriptor"));
        std::fs::write(&path, data(size)).unwrap();
        let mut command = Command::new("fsverity");
        command.args(["digest", "--compact"]).args(options).arg(&path);
        command.arg(format!("--out-merkle-tree={}", tree.display()));
        command.arg(format!("--out-descriptor={}", descriptor.display()));
        let algorithm = if options.contains(&"--hash-alg=sha512") { "sha512" } else { "sha256" };
        made.0.push(format!("{algorithm}:{}", run(&mut command).trim()));
        let tree = std::fs::read(tree).unwrap();
        let descriptor = std::fs::read(descriptor).unwrap();
        made.1.push(tree.len());
        let mut bytes = data(size);
        bytes.resize(size.next_multiple_of(65536), 0);
        bytes.extend(&tree);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes.extend(&descriptor);
        bytes.resize((bytes.len() + 4).next_multiple_of(BLOCK) - 4, 0);
        bytes.extend((descriptor.len() as u32).to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
    }
    made
}

fn verified(options: &[&str]) -> Verified {
    let mut made = None;
    let image = Image::filled(128, "-t ext4 -b 4096 -O verity", |top| {
        made = Some(fill(top, options));
    });
    for size in SIZES {
        image.debugfs_write(&format!("sif /{size} size {size}\nsif /{size} flags 0x180000\n"));
    }
    image.check_by_e2fsck();
    let (digests, tree_lens) = made.unwrap();
    Verified { image, digests, tree_lens }
}

/// Reads each block through one cache. Returns the contents, and the blocks that cannot be
/// verified.
fn read(bytes: Vec<u8>, image: &Image, size: usize) -> (Vec<u8>, Vec<usize>) {
    let volume = open(bytes).unwrap();
    let inode = volume.inode(inode_of(image, &format!("{size}"))).unwrap();
    let options = CacheOptions { bytes_max: 64 << 20, ..CacheOptions::default() };
    let pages = PageCache::new(options).unwrap();
    let mapping = pages.new_mapping(volume.geometry().block_size);
    let context = ReadContext {
        mapping: &mapping,
        mapper: &inode,
        device: volume.device(),
        size: inode.size(),
        options: ReadOptions::default(),
    };
    let readahead = Readahead::default();
    let mut contents = vec![0; size];
    let mut bad = Vec::new();
    for (number, block) in contents.chunks_mut(BLOCK).enumerate() {
        let at = FileOffset((number * BLOCK) as u64);
        match iomap::read(&context, &readahead, at, block) {
            Ok(length) => assert_eq!(length, block.len()),
            Err(Error::Corrupt(_)) => bad.push(number),
            Err(error) => panic!("{error}"),
        }
    }
    (contents, bad)
}

/// Returns the image with one bit changed in byte `at` of a file, which may be past its end.
fn damaged(image: &Image, size: usize, at: usize) -> Vec<u8> {
    let block = image.debugfs(&format!("bmap /{size} {}", at / BLOCK));
    let block: usize = block.trim().parse().unwrap();
    let mut bytes = image.bytes();
    bytes[block * BLOCK + at % BLOCK] ^= 1;
    bytes
}

fn check(options: &[&str]) {
    let verified = verified(options);
    let image = &verified.image;
    let volume = image.open();
    for (size, digest) in SIZES.iter().zip(&verified.digests) {
        let inode = volume.inode(inode_of(image, &format!("{size}"))).unwrap();
        assert_eq!(inode.verity_digest().unwrap().as_ref(), Some(digest), "{size}, {options:?}");
        let (contents, bad) = read(image.bytes(), image, *size);
        assert!(bad.is_empty(), "{size}, {options:?}: {bad:?}");
        assert!(contents == data(*size), "{size}, {options:?}");
    }
    // One byte of data, of the root's block, of the last block of the tree, and of the descriptor.
    let size = SIZES[4];
    let (contents, bad) = read(damaged(image, size, 77 * BLOCK + 5), image, size);
    assert_eq!(bad, [77], "{options:?}");
    let mut expected = data(size);
    expected[77 * BLOCK..78 * BLOCK].fill(0);
    assert!(contents[..77 * BLOCK] == expected[..77 * BLOCK]);
    assert!(contents[78 * BLOCK..] == expected[78 * BLOCK..]);
    let all: Vec<usize> = (0..size.div_ceil(BLOCK)).collect();
    let tree = size.next_multiple_of(65536);
    let (_, bad) = read(damaged(image, size, tree), image, size);
    assert_eq!(bad, all, "root, {options:?}");
    let tree_end = tree + verified.tree_lens[4];
    let (_, bad) = read(damaged(image, size, tree_end - 1), image, size);
    assert!(bad.last() == all.last() && bad.len() < all.len(), "{bad:?}, {options:?}");
    let descriptor = tree_end.next_multiple_of(BLOCK);
    let (_, bad) = read(damaged(image, size, descriptor + 16), image, size);
    assert_eq!(bad, all, "descriptor, {options:?}");
}

#[test]
fn sha256_with_blocks_of_4096_is_verified() {
    check(&["--hash-alg=sha256", "--block-size=4096"]);
}

#[test]
fn sha256_with_a_salt_and_blocks_of_1024_is_verified() {
    check(&["--hash-alg=sha256", "--block-size=1024", "--salt=00112233445566778899"]);
}

#[test]
fn sha512_with_a_salt_is_verified() {
    check(&["--hash-alg=sha512", "--block-size=4096", "--salt=abcdef"]);
}

#[test]
fn sha512_with_blocks_of_1024_is_verified() {
    check(&["--hash-alg=sha512", "--block-size=1024"]);
}
