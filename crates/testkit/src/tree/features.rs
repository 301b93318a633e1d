//! Files for features that few formats have: compression, casefolding, verity, encryption.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::IFlags;
use serde::{Deserialize, Serialize};

use super::{TreeOptions, contents, create, folder, write};
use crate::host::ioctl;
use crate::images::encryption;
use crate::must;

/// A feature of few formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Feature {
    /// Compression of the contents of files.
    Compression,
    /// Directories whose names differ in more than case.
    Casefold,
    /// Read-only files with hash trees.
    Verity,
    /// Encryption of names and contents. The keys are lost when the volume is unmounted.
    Encryption,
}

impl Feature {
    /// Creates a folder in `top` with files that have this feature.
    pub(super) fn use_in(self, top: &Path, options: &TreeOptions) {
        match self {
            Self::Compression => compressed(&folder(top, "compressed"), options),
            Self::Casefold => casefolded(&folder(top, "casefolded")),
            Self::Verity => verified(&folder(top, "verified"), options),
            Self::Encryption => encrypted(&folder(top, "encrypted"), options),
        }
    }
}

/// Sets a flag of a file or folder.
fn add_flag(path: &Path, flag: IFlags) {
    let file = must(File::open(path), path.display());
    let before = must(rustix::fs::ioctl_getflags(&file), path.display());
    must(rustix::fs::ioctl_setflags(&file, before | flag), path.display());
}

/// Returns `length` bytes that compress well, with a pseudo-random byte in each `period`.
fn compressible(seed: u64, length: usize, period: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        b"all work and no play ".iter().copied().cycle().take(length).collect();
    let random = contents(seed, length / period + 1);
    for (at, byte) in (0..length).step_by(period).zip(random) {
        bytes[at] = byte;
    }
    bytes
}

/// Creates files whose clusters are compressed, not compressible, holes, partial and overwritten.
fn compressed(top: &Path, options: &TreeOptions) {
    add_flag(top, IFlags::COMPRESSED);
    let block = options.block_size as usize;
    for blocks in [1, 3, 4, 5, 8, 64, 300] {
        for rest in [0, 1, block / 2] {
            let length = blocks * block + rest;
            let bytes = compressible(length as u64, length, 50);
            write(&top.join(format!("text {length:08}")), bytes);
        }
    }
    write(&top.join("random"), contents(1, 20 * block));
    write(&top.join("barely compressible"), compressible(2, 64 * block, 2));
    write(&top.join("zeroes"), vec![0; 30 * block]);

    let mut mixed = contents(3, 64 * block);
    mixed[8 * block..40 * block].copy_from_slice(&compressible(4, 32 * block, 30));
    write(&top.join("mixed"), mixed);

    let sparse = create(&top.join("sparse"));
    for (seed, at) in [0, 16, 21, 1000, 1018 + 900, 5000].into_iter().enumerate() {
        let text = compressible(seed as u64, 4 * block, 20);
        write_at(&sparse, (at * block) as u64, &text);
    }
    must(sparse.sync_all(), "sparse");

    let rewritten = create(&top.join("rewritten"));
    write_at(&rewritten, 0, &compressible(5, 32 * block, 20));
    must(rewritten.sync_all(), "rewritten");
    write_at(&rewritten, 5 * block as u64 + 100, &contents(6, 2 * block));
    must(rewritten.set_len(29 * block as u64 + 5), "rewritten");

    let released = top.join("released");
    write(&released, compressible(7, 64 * block, 40));
    let file = must(File::options().read(true).write(true).open(&released), "released");
    must(file.sync_all(), "released");
    let count =
        must(ioctl::release_compressed(&file), "releasing the space that compression saves");
    assert!(count > 0, "compression saves no space");

    if options.features.contains(&Feature::Verity) {
        let path = top.join("verified");
        write(&path, compressible(8, 70 * block + 3, 30));
        verify(&path, options);
    }
}

fn write_at(file: &File, at: u64, bytes: &[u8]) {
    must(
        std::os::unix::fs::FileExt::write_all_at(file, bytes, at),
        format_args!("writing at {at}"),
    );
}

/// Creates folders with names of mixed case and several scripts.
fn casefolded(top: &Path) {
    // FS_CASEFOLD_FL has no name in rustix.
    add_flag(top, IFlags::from_bits_retain(0x4000_0000));
    let names = [
        "README",
        "Makefile",
        "straße",
        "STRASSEN",
        "Ünïcödé",
        "Ωμέγα",
        "İstanbul",
        "ﬁle",
        "e\u{301}",
        "가",
    ];
    for name in names {
        write(&top.join(name), name);
    }
    let large = folder(top, "Large");
    for number in 0..600 {
        write(&large.join(format!("Name-Number-{number:04X}")), "");
    }
    for (name, other) in [("readme", "README"), ("MAKEFILE", "Makefile"), ("ώΜΈΓΑ", "Ωμέγα")]
    {
        let found = top.join(name).exists();
        assert!(found || name == "ώΜΈΓΑ", "{name} does not find {other}");
    }
}

/// Creates files with hash trees of zero to two levels.
fn verified(top: &Path, options: &TreeOptions) {
    let block = options.block_size as usize;
    for length in [0, 1, block, block + 1, 16 * block, 128 * block, 200 * block + 77] {
        let path = top.join(format!("{length:08}"));
        write(&path, contents(length as u64, length));
        verify(&path, options);
    }
}

/// Gives a file a hash tree.
fn verify(path: &Path, options: &TreeOptions) {
    let file = must(File::open(path), path.display());
    // Blocks of trees are not larger than a page.
    must(ioctl::enable_verity(&file, options.block_size.min(4096)), path.display());
}

/// Creates encrypted folders, one for each policy of guests. One of them has files with all other
/// features, too.
fn encrypted(top: &Path, options: &TreeOptions) {
    encryption::add_master_keys(top);
    let policies = encryption::policies().into_iter().chain(encryption::rare_policies());
    for (name, policy) in policies {
        let folder = folder(top, name);
        let file = must(File::open(&folder), name);
        must(encryption::set_encryption_policy(&file, &policy), name);
        encrypted_files(&folder, options);
        if name != "v2" {
            continue;
        }
        for feature in options.features.iter().filter(|feature| **feature != Feature::Encryption) {
            feature.use_in(&folder, options);
        }
    }
}

/// Creates files, folders and symbolic links in an encrypted folder.
fn encrypted_files(top: &Path, options: &TreeOptions) {
    let block = options.block_size as usize;
    for length in [0, 1, 100, block, 3 * block + 5, 30 * block] {
        write(&top.join(format!("file of {length}")), contents(length as u64, length));
    }
    let sparse = create(&top.join("sparse"));
    must(sparse.set_len(1 << 30), "sparse");
    write_at(&sparse, 500_000, &contents(1, 5000));
    // Names on both sides of the limits of padding, and of names without the key.
    for length in [1, 16, 17, 100, 143, 149, 150, 160, 200, 255] {
        write(&top.join("n".repeat(length)), "");
    }
    for length in [1, 40, 61, 1000, 4000] {
        must(symlink("t".repeat(length), top.join(format!("link {length}"))), "a symbolic link");
    }
    folder(top, "empty");
    let below = folder(top, "folder");
    for number in 0..300 {
        write(&below.join(format!("{number} {}", "n".repeat(number % 240))), "");
    }
}
