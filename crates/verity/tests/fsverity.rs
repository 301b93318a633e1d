//! Random files, against the trees, descriptors and digests that the program `fsverity` computes:
//! everything is verified, and a changed bit is found in the blocks below it and in no others.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use base::{BlockSize, Error, FileOffset, InodeNumber, Location};
use proptest::prelude::*;
use verity::{Descriptor, TREE_ALIGNMENT, Verifier};

/// The size of the file system's blocks, which is that of the largest blocks of trees.
const BLOCK: usize = 4096;
/// The bytes of a descriptor that store the algorithm, the size of blocks, and the length of the
/// salt.
const SHAPE: Range<usize> = 1..4;
const INODE: InodeNumber = InodeNumber(12);

/// A file, and what `fsverity` computes of it.
#[derive(Debug)]
struct Computed {
    data: Vec<u8>,
    tree: Vec<u8>,
    descriptor: Vec<u8>,
    digest: String,
    /// The size of the blocks of data and of the tree.
    unit: usize,
    /// The number of hashes in a block of the tree.
    hashes: usize,
}

impl Computed {
    fn new(folder: &Path, data: Vec<u8>, is_sha512: bool, unit: usize, salt: &[u8]) -> Self {
        let paths = ["data", "tree", "descriptor"].map(|name| folder.join(name));
        std::fs::write(&paths[0], &data).expect("a file");
        let algorithm = if is_sha512 { "sha512" } else { "sha256" };
        let mut command = Command::new("fsverity");
        command.args(["digest", "--compact"]).arg(&paths[0]);
        command.arg(format!("--hash-alg={algorithm}")).arg(format!("--block-size={unit}"));
        command.arg(format!("--out-merkle-tree={}", paths[1].display()));
        command.arg(format!("--out-descriptor={}", paths[2].display()));
        if !salt.is_empty() {
            let mut digits = String::new();
            for byte in salt {
                write!(digits, "{byte:02x}").expect("a string");
            }
            command.arg(format!("--salt={digits}"));
        }
        let output = command.output().expect("the program fsverity");
        assert!(output.status.success(), "{output:?}");
        let digest = String::from_utf8(output.stdout).expect("text");
        Self {
            data,
            tree: std::fs::read(&paths[1]).expect("the tree"),
            descriptor: std::fs::read(&paths[2]).expect("the descriptor"),
            digest: format!("{algorithm}:{}", digest.trim()),
            unit,
            hashes: unit / if is_sha512 { 64 } else { 32 },
        }
    }

    fn descriptor(&self) -> Result<Descriptor, Error> {
        Descriptor::parse(&self.descriptor, self.data.len() as u64, Location::inode(INODE))
    }

    /// Returns the numbers of the blocks of data that cannot be verified, each by itself.
    fn refused(&self) -> Result<BTreeSet<usize>, Error> {
        let block_size = BlockSize::from_bytes(BLOCK as u64).expect("a block size");
        let descriptor = self.descriptor()?;
        let unit = descriptor.block_bytes();
        let verifier = Verifier::new(descriptor, INODE, block_size)?;
        let tree_start = (self.data.len() as u64).next_multiple_of(TREE_ALIGNMENT);
        let read_tree = |at: FileOffset, into: &mut [u8]| {
            let start = (at.0 - tree_start) as usize;
            into.fill(0);
            let stored = self.tree.get(start..).unwrap_or_default();
            let count = stored.len().min(into.len());
            into[..count].copy_from_slice(&stored[..count]);
            Ok(())
        };
        let mut refused = BTreeSet::new();
        for (number, block) in self.data.chunks(unit).enumerate() {
            let mut padded = block.to_vec();
            padded.resize(unit, 0);
            let at = FileOffset((number * unit) as u64);
            match verifier.verify(at, &padded, &read_tree) {
                Ok(()) => {}
                Err(Error::Corrupt(_)) => drop(refused.insert(number)),
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    }

    fn blocks(&self) -> usize {
        self.data.len().div_ceil(self.unit)
    }

    /// Returns the blocks of data below block `number` of the tree, whose levels are stored from
    /// the root's down.
    fn below(&self, number: usize) -> BTreeSet<usize> {
        let mut counts = vec![self.blocks()];
        while counts.last().is_some_and(|count| *count > 1) {
            counts.push(counts.last().map_or(0, |count| count.div_ceil(self.hashes)));
        }
        let mut start = 0;
        for (level, count) in counts.iter().enumerate().skip(1).rev() {
            if number < start + count {
                let each = self.hashes.pow(level as u32);
                let first = (number - start) * each;
                return (first..(first + each).min(self.blocks())).collect();
            }
            start += count;
        }
        panic!("block {number} is not in the tree");
    }
}

/// Sizes on both sides of blocks, and of blocks that are full of hashes.
fn sizes() -> impl Strategy<Value = usize> {
    let around = |size: usize| (0..3_usize).prop_map(move |more| (size + more).saturating_sub(1));
    prop_oneof![
        around(0),
        around(BLOCK),
        around(16 * 1024),
        around(128 * BLOCK),
        around(256 * 1024 + 1024),
        0..600_000_usize,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_are_verified_as_fsverity_computes_them(
        (size, seed) in (sizes(), any::<u64>()),
        is_sha512: bool,
        unit in prop_oneof![Just(1024_usize), Just(2048), Just(4096)],
        salt in proptest::collection::vec(any::<u8>(), 0..=32),
        which: proptest::sample::Index,
        bit in 0..8_u32,
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let hash = |at: u64| (at ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let data = (0..size as u64).map(|at| (hash(at) >> 40) as u8).collect();
        let mut file = Computed::new(folder.path(), data, is_sha512, unit, &salt);
        let descriptor = file.descriptor().expect("a descriptor");
        prop_assert_eq!(descriptor.file_digest(), file.digest.clone());
        prop_assert_eq!(file.refused(), Ok(BTreeSet::new()));

        if size > 0 {
            let at = which.index(size);
            file.data[at] ^= 1 << bit;
            prop_assert_eq!(file.refused(), Ok(BTreeSet::from([at / unit])), "byte {}", at);
            file.data[at] ^= 1 << bit;
        }
        if !file.tree.is_empty() {
            let at = which.index(file.tree.len());
            file.tree[at] ^= 1 << bit;
            prop_assert_eq!(file.refused(), Ok(file.below(at / unit)), "byte {} of the tree", at);
            file.tree[at] ^= 1 << bit;
        }
        // A field that verification does not use is part of the digest.
        let at = which.index(file.descriptor.len());
        file.descriptor[at] ^= 1 << bit;
        match (file.refused(), file.descriptor()) {
            (Err(Error::Corrupt(_)), _) => {}
            (Ok(refused), Ok(descriptor)) => {
                let all: BTreeSet<usize> = (0..file.blocks()).collect();
                prop_assert_ne!(descriptor.file_digest(), file.digest.clone());
                // A tree of another shape may have the same hashes in parts, as may a salt with
                // more or fewer zeros behind it.
                if SHAPE.contains(&at) {
                    return Ok(());
                }
                prop_assert!(refused == all || refused.is_empty(), "{:?}", refused);
                let root = 16..16 + if is_sha512 { 64 } else { 32 };
                let salted = 80..80 + salt.len();
                let is_used = root.contains(&at) || salted.contains(&at);
                prop_assert_eq!(refused == all, is_used || all.is_empty(), "byte {}", at);
            }
            (refused, descriptor) => prop_assert!(false, "{:?}, {:?}", refused, descriptor),
        }
    }
}
