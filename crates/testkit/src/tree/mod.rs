//! A tree of files that uses all features of the ext family, and some of f2fs. It is the same each
//! time. Not here: the image that contains it.

mod data;
mod features;
mod marks;
mod names;
mod source;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::must;

pub use features::Feature;
pub(crate) use marks::acl_of_users;
pub use source::Source;

/// What the file system to be filled can hold, and how much of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreeOptions {
    /// The block size in bytes. Sizes and offsets are chosen around multiples of it.
    pub block_size: u32,
    /// Whether space can be preallocated, and holes punched.
    pub preallocate: bool,
    /// The maximum size of all extended attributes of a file, in bytes.
    pub xattr_bytes_max: usize,
    /// The maximum size of a (sparse) file.
    pub file_size_max: u64,
    /// Whether inode flags can be set.
    pub flags: bool,
    /// Whether project ids can be set.
    pub projects: bool,
    /// Whether the data of small files is in their inodes.
    pub inline_data: bool,
    /// Features that few formats have, with files for each.
    pub features: Vec<Feature>,
    /// The number of names in the largest directory.
    pub names: usize,
    /// The number of extents in the most fragmented file.
    pub extents: u64,
}

impl TreeOptions {
    /// Returns options for ext4 with extents and blocks of `block_size`.
    pub fn new(block_size: u32) -> Self {
        let size = u64::from(block_size);
        Self {
            block_size,
            preallocate: true,
            xattr_bytes_max: block_size as usize - 128,
            // One block less than 2^32, since some tools cannot address the last byte of the last
            // block.
            file_size_max: (size << 32) - size,
            flags: true,
            projects: false,
            inline_data: false,
            features: Vec::new(),
            names: 1500,
            extents: (12 << 20) / size.max(4096),
        }
    }
}

/// Fills the folder `top`, which exists and is empty except for `lost+found`.
pub fn populate(top: &Path, options: &TreeOptions) {
    data::sizes(&folder(top, "sizes"), options);
    data::sparse(&folder(top, "sparse"), options);
    if options.preallocate {
        data::preallocated(&folder(top, "preallocated"), options);
    }
    names::names(&folder(top, "names"));
    names::directories(&folder(top, "directories"), options);
    names::links(&folder(top, "links"));
    names::symlinks(&folder(top, "symlinks"), options);
    names::special(&folder(top, "special"));
    marks::modes_and_owners(&folder(top, "modes"));
    marks::xattrs(&folder(top, "xattrs"), options);
    marks::acls(&folder(top, "acls"));
    if options.projects {
        marks::projects(&folder(top, "projects"));
    }
    for feature in &options.features {
        feature.use_in(top, options);
    }
    marks::times(&folder(top, "times"));
    if options.flags {
        marks::flags(&folder(top, "flags"));
    }
}

/// Fills the folder `top` like [`populate`], but only with files that a program can copy by reading
/// them: without large holes, preallocation, attributes and special files.
pub fn populate_for_copy(top: &Path, options: &TreeOptions) {
    data::sizes(&folder(top, "sizes"), options);
    names::names(&folder(top, "names"));
    names::directories(&folder(top, "directories"), options);
    names::symlinks(&folder(top, "symlinks"), options);
    marks::modes_and_owners(&folder(top, "modes"));
}

fn folder(top: &Path, name: &str) -> PathBuf {
    let path = top.join(name);
    must(std::fs::create_dir(&path), path.display());
    path
}

/// Returns the path `folder/name` for a name of any bytes.
fn join(folder: &Path, name: impl AsRef<[u8]>) -> PathBuf {
    folder.join(OsStr::from_bytes(name.as_ref()))
}

fn create(path: &Path) -> File {
    must(File::create_new(path), path.display())
}

fn write(path: &Path, contents: impl AsRef<[u8]>) {
    must(std::fs::write(path, contents), path.display());
}

/// Returns `length` pseudo-random bytes from a seed, none of which is zero.
pub fn contents(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    };
    let mut bytes = vec![0; length.next_multiple_of(8)];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&without_zeroes(next()).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Replaces each byte of a word that is zero by one.
fn without_zeroes(word: u64) -> u64 {
    const LOW_BITS: u64 = 0x7F7F_7F7F_7F7F_7F7F;
    // The highest bit of each byte that is not zero. No sum carries over to the next byte.
    let not_zero = ((word & LOW_BITS) + LOW_BITS) | word;
    word | (!not_zero & !LOW_BITS) >> 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_the_requested_length_and_no_zeroes() {
        for length in (0..20).chain([100_000]) {
            let bytes = contents(5, length);
            assert_eq!(bytes.len(), length);
            assert!(!bytes.contains(&0));
        }
        assert!(contents(5, 19).starts_with(&contents(5, 9)));
        assert_ne!(contents(5, 100), contents(6, 100));
        assert_eq!(without_zeroes(0xFF00_8000_0100_7F00), 0xFF01_8001_0101_7F01);
    }
}
