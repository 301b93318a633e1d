//! Kinds of images, with all features of the ext family that Bifolio reads.

use std::path::Path;
use std::process::Command;

use crate::Mke2fs;
use crate::host::command;
use crate::tree::{Feature, TreeOptions};

/// A kind of image.
pub struct Kind {
    /// The name in the names of tests.
    pub name: &'static str,
    /// The format's name for mke2fs.
    pub format: &'static str,
    /// Arguments for mke2fs. `{cluster}` is the size of sixteen blocks.
    pub arguments: &'static str,
    /// Arguments for tune2fs, which runs on the empty image. May be empty.
    pub tune: &'static str,
    /// A request for debugfs, which runs on the empty image. May be empty.
    pub debug: &'static str,
    /// Changes the options of the tree to what the format supports.
    pub adjust: fn(&mut TreeOptions),
}

impl Kind {
    /// Returns the kind with this name.
    pub fn named(name: &str) -> &'static Self {
        let mut kinds = KINDS.iter().chain(GUEST_KINDS);
        kinds.find(|kind| kind.name == name).unwrap_or_else(|| panic!("no kind {name}"))
    }

    /// Creates an empty image of this kind with blocks of `block_size`.
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

    /// Returns the options of the tree that fills an image.
    pub fn tree(&self, block_size: u32) -> TreeOptions {
        let mut options = TreeOptions::new(block_size);
        (self.adjust)(&mut options);
        options
    }
}

/// Sets the limits of files with indirect blocks: smaller files, and no preallocation.
fn indirect(options: &mut TreeOptions) {
    let size = u64::from(options.block_size);
    let pointers = size / 4;
    let blocks = 12 + pointers + pointers.pow(2) + pointers.pow(3);
    // i_blocks counts at most 2^32 sectors, of which the kernel reserves some for the map itself.
    options.file_size_max = (blocks * size).min((1 << 41) - (1 << 33));
    options.preallocate = false;
}

fn with_projects(options: &mut TreeOptions) {
    options.projects = true;
}

fn with_large_xattrs(options: &mut TreeOptions) {
    options.xattr_bytes_max = 64 << 10;
}

/// Sets the limit of files without the feature huge_file: 2^32 sectors.
fn without_huge_files(options: &mut TreeOptions) {
    options.file_size_max = options.file_size_max.min((1 << 41) - (1 << 33));
}

fn with_verity(options: &mut TreeOptions) {
    options.features.push(Feature::Verity);
}

fn with_inline_data(options: &mut TreeOptions) {
    options.inline_data = true;
}

fn everything(options: &mut TreeOptions) {
    with_inline_data(options);
    with_projects(options);
    with_large_xattrs(options);
    with_verity(options);
}

const fn kind(name: &'static str, arguments: &'static str) -> Kind {
    Kind { name, format: "ext4", arguments, tune: "", debug: "", adjust: |_| {} }
}

/// Kinds that the running kernel fills.
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
    // The default features of mke2fs 1.47.4.
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

/// Kinds that the kernels of some machines do not mount, so that the guest fills them.
pub const GUEST_KINDS: &[Kind] = &[
    kind("quota", "-O quota"),
    Kind { adjust: with_projects, ..kind("project", "-O project,quota") },
    kind("encrypt", "-O encrypt"),
    Kind { adjust: with_verity, ..kind("verity", "-O verity") },
    kind("casefold", "-O casefold"),
    Kind {
        adjust: everything,
        // Without encryption, which Linux 7.2 does not support with blocks larger than a page.
        ..kind(
            "everything",
            "-O bigalloc,inline_data,metadata_csum_seed,ea_inode,quota,project,orphan_file,\
             large_dir,fast_commit,verity -C {cluster} -I 512",
        )
    },
];
