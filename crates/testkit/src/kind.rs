//! Kinds of images: every feature of the ext family that we read.

use std::path::Path;
use std::process::Command;

use crate::tree::TreeOptions;
use crate::{Mke2fs, command};

/// A kind of image.
pub struct Kind {
    /// What it is called in the tests' names.
    pub name: &'static str,
    /// What mke2fs calls the format.
    pub format: &'static str,
    /// Arguments of mke2fs; `{cluster}` stands for sixteen blocks.
    pub arguments: &'static str,
    /// Arguments of tune2fs, to be run on the empty image.
    pub tune: &'static str,
    /// A request for debugfs, to be made of the empty image.
    pub debug: &'static str,
    /// What the format cannot hold, or holds beyond the default.
    pub adjust: fn(&mut TreeOptions),
}

impl Kind {
    /// The kind of this name.
    pub fn named(name: &str) -> &'static Self {
        let mut kinds = KINDS.iter().chain(GUEST_KINDS);
        kinds.find(|kind| kind.name == name).unwrap_or_else(|| panic!("no kind {name}"))
    }

    /// Makes an empty image of this kind with blocks of `block_size`.
    pub fn make(&self, block_size: u32, image: &Path) {
        let cluster = (block_size * 16).to_string();
        let arguments = self.arguments.replace("{cluster}", &cluster);
        Mke2fs::new(self.format, block_size).with(&arguments).make(image, None);
        if !self.tune.is_empty() {
            let arguments = self.tune.split_whitespace();
            command::run(Command::new("tune2fs").args(arguments).arg(image));
        }
        if !self.debug.is_empty() {
            command::run(Command::new("debugfs").args(["-w", "-R", self.debug]).arg(image));
        }
    }

    /// What to fill it with.
    pub fn tree(&self, block_size: u32) -> TreeOptions {
        let mut options = TreeOptions::new(block_size);
        (self.adjust)(&mut options);
        options
    }
}

/// Files mapped by indirect blocks: smaller, and without preallocation.
fn indirect(options: &mut TreeOptions) {
    let size = u64::from(options.block_size);
    let pointers = size / 4;
    let blocks = 12 + pointers + pointers.pow(2) + pointers.pow(3);
    // i_blocks counts 2^32 sectors at most, and the kernel keeps some back for the map itself.
    options.file_size_max = (blocks * size).min((1 << 41) - (1 << 33));
    options.preallocate = false;
}

fn with_projects(options: &mut TreeOptions) {
    options.projects = true;
}

fn with_large_xattrs(options: &mut TreeOptions) {
    options.xattr_bytes_max = 64 << 10;
}

/// Without huge_file a file has 2^32 sectors at most.
fn without_huge_files(options: &mut TreeOptions) {
    options.file_size_max = options.file_size_max.min((1 << 41) - (1 << 33));
}

fn with_inline_data(options: &mut TreeOptions) {
    options.inline_data = true;
}

fn everything(options: &mut TreeOptions) {
    with_inline_data(options);
    with_projects(options);
    with_large_xattrs(options);
}

const fn kind(name: &'static str, arguments: &'static str) -> Kind {
    Kind { name, format: "ext4", arguments, tune: "", debug: "", adjust: |_| {} }
}

/// Every kind that is filled and compared.
pub const KINDS: &[Kind] = &[
    Kind { format: "ext2", adjust: indirect, ..kind("ext2", "") },
    Kind { format: "ext3", adjust: indirect, ..kind("ext3", "") },
    kind("ext4", ""),
    kind("64bit", "-O 64bit"),
    kind("no_64bit", "-O ^64bit"),
    kind("no_flex_bg", "-O ^flex_bg"),
    kind("meta_bg", "-O meta_bg,^resize_inode"),
    kind("meta_bg_no_64bit", "-O meta_bg,^resize_inode,^64bit -g 1024"),
    kind("no_sparse_super", "-O ^sparse_super,^resize_inode"),
    kind("sparse_super2", "-O sparse_super2,^resize_inode"),
    kind("bigalloc", "-O bigalloc -C {cluster}"),
    Kind { adjust: without_huge_files, ..kind("no_huge_file", "-O ^huge_file") },
    Kind { adjust: with_inline_data, ..kind("inline_data", "-O inline_data") },
    Kind {
        adjust: with_inline_data,
        ..kind("inline_data_in_large_inodes", "-O inline_data -I 1024")
    },
    kind("metadata_csum", "-O metadata_csum,^metadata_csum_seed"),
    kind("metadata_csum_seed", "-O metadata_csum_seed"),
    Kind {
        tune: "-U 01234567-89ab-cdef-0123-456789abcdef",
        ..kind("metadata_csum_seed_and_new_uuid", "-O metadata_csum_seed")
    },
    kind("uninit_bg", "-O ^metadata_csum,uninit_bg"),
    kind("uninit_bg_64bit", "-O ^metadata_csum,uninit_bg,64bit -N 200000"),
    kind("no_checksums", "-O ^metadata_csum,^uninit_bg"),
    kind("no_dir_index", "-O ^dir_index"),
    kind("large_dir", "-O large_dir"),
    Kind { tune: "-E hash_alg=legacy", ..kind("hash_legacy", "") },
    Kind { tune: "-E hash_alg=tea", ..kind("hash_tea", "") },
    Kind { debug: "ssv flags 2", ..kind("hash_unsigned", "") },
    Kind { debug: "ssv flags 2", tune: "-E hash_alg=legacy", ..kind("hash_legacy_unsigned", "") },
    Kind { adjust: with_large_xattrs, ..kind("ea_inode", "-O ea_inode") },
    kind("orphan_file", "-O orphan_file"),
    // What mke2fs 1.47.4 makes by default.
    kind("newest_default", "-O metadata_csum_seed,orphan_file"),
    kind("no_filetype", "-O ^filetype"),
    kind("inodes_of_128_bytes", "-I 128"),
    kind("inodes_of_1024_bytes", "-I 1024"),
    kind("no_extra_isize", "-O ^extra_isize,^metadata_csum"),
    Kind { adjust: indirect, ..kind("no_extents", "-O ^extents,^64bit") },
    kind("no_journal", "-O ^has_journal"),
    kind("fast_commit", "-O fast_commit"),
    kind("stable_inodes", "-O stable_inodes"),
    kind("small_groups", "-g 1024 -G 4 -N 30000"),
    kind("packed_meta_blocks", "-E packed_meta_blocks=1"),
];

/// Kinds that not every machine's kernel mounts: the guest fills them.
pub const GUEST_KINDS: &[Kind] = &[
    kind("quota", "-O quota"),
    Kind { adjust: with_projects, ..kind("project", "-O project,quota") },
    kind("encrypt", "-O encrypt"),
    kind("verity", "-O verity"),
    kind("casefold", "-O casefold"),
    Kind {
        adjust: everything,
        // Linux 7.2 refuses encryption of blocks larger than a page, so without it.
        ..kind(
            "everything",
            "-O bigalloc,inline_data,metadata_csum_seed,ea_inode,quota,project,orphan_file,\
             large_dir,fast_commit,verity -C {cluster} -I 512",
        )
    },
];
