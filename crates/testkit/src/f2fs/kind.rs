//! Kinds of f2fs images, with all features that Bifolio reads.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{BLOCK_SIZE, Tools};
use crate::guest::{Job, Machine, Task};
use crate::host::command;
use crate::must;
use crate::tree::{Feature, TreeOptions};

/// A kind of f2fs image.
#[derive(Debug)]
pub struct Kind {
    /// The name in the names of tests.
    pub name: &'static str,
    /// Arguments for mkfs.f2fs.
    pub arguments: &'static str,
    /// The version of mkfs.f2fs and sload.f2fs.
    pub tools: Tools,
    /// Mount options, separated by commas. May be empty.
    pub options: &'static str,
    /// The machine whose kernel mounts the image.
    pub machine: Machine,
    /// The program that fills images.
    pub filler: Filler,
    /// The size of an image in MiB.
    pub megabytes: u64,
    /// Changes the options of the tree to what the format supports.
    pub adjust: fn(&mut TreeOptions),
}

/// A program that fills images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filler {
    /// The guest's kernel.
    Guest,
    /// sload.f2fs. It copies no extended attributes, and makes no holes.
    Sload,
}

impl Kind {
    /// Returns the kind with this name.
    pub fn named(name: &str) -> &'static Self {
        KINDS.iter().find(|kind| kind.name == name).unwrap_or_else(|| panic!("no kind {name}"))
    }

    /// Creates an empty image of this kind, as a sparse file of `megabytes`.
    pub fn make(&self, image: &Path, megabytes: u64) {
        let file = must(File::create(image), image.display());
        must(file.set_len(megabytes << 20), image.display());
        let arguments = self.arguments.split_whitespace();
        // Without -t 0, it writes zeroes to the whole file.
        command::run(
            self.tools
                .command("mkfs.f2fs")
                .args(["-q", "-f", "-t", "0"])
                .args(arguments)
                .arg(image),
        );
    }

    /// Returns the options of the tree that fills an image.
    pub fn tree(&self) -> TreeOptions {
        let mut options = TreeOptions::new(BLOCK_SIZE);
        options.file_size_max = file_size_max();
        options.xattr_bytes_max = 4000;
        options.inline_data = true;
        (self.adjust)(&mut options);
        options
    }

    /// Returns whether the image has encrypted files.
    pub fn has_encryption(&self) -> bool {
        self.arguments.contains("encrypt")
    }

    /// Returns the task for a guest to do `job` with `image`.
    pub fn task(&self, image: &Path, job: Job) -> Task {
        let image = PathBuf::from(image);
        Task { image, format: "f2fs", options: self.options.to_owned(), job, log: None }
    }
}

/// Returns the maximum size of a file: Linux does not count the addresses in the inode, whose
/// number varies.
fn file_size_max() -> u64 {
    let in_node = 1018_u64;
    let blocks = 2 * in_node + 2 * in_node.pow(2) + in_node.pow(3);
    blocks * u64::from(BLOCK_SIZE)
}

fn with_projects(options: &mut TreeOptions) {
    options.projects = true;
}

fn with_compression(options: &mut TreeOptions) {
    options.features.push(Feature::Compression);
}

fn with_casefold(options: &mut TreeOptions) {
    options.features.push(Feature::Casefold);
}

fn with_verity(options: &mut TreeOptions) {
    options.features.push(Feature::Verity);
}

fn with_encryption(options: &mut TreeOptions) {
    options.features.push(Feature::Encryption);
}

fn everything(options: &mut TreeOptions) {
    with_projects(options);
    with_compression(options);
    with_casefold(options);
    with_verity(options);
    with_encryption(options);
}

const fn kind(name: &'static str, arguments: &'static str) -> Kind {
    Kind {
        name,
        arguments,
        tools: Tools::Installed,
        options: "",
        machine: Machine::UserMode,
        filler: Filler::Guest,
        megabytes: 256,
        adjust: |_| {},
    }
}

/// Returns a kind with a feature that user-mode Linux does not have.
const fn emulated(
    name: &'static str,
    arguments: &'static str,
    adjust: fn(&mut TreeOptions),
) -> Kind {
    Kind { machine: Machine::EmulatedF2fs, adjust, ..kind(name, arguments) }
}

/// Returns a kind with compression. The mount options choose the algorithm of new files.
const fn compressed(name: &'static str, options: &'static str) -> Kind {
    Kind { options, ..emulated(name, "-O extra_attr,compression", with_compression) }
}

/// Returns a kind that sload.f2fs fills.
const fn loaded(name: &'static str, arguments: &'static str) -> Kind {
    Kind { filler: Filler::Sload, ..kind(name, arguments) }
}

/// All kinds.
pub const KINDS: &[Kind] = &[
    kind("plain", ""),
    kind("extra_attr", "-O extra_attr"),
    Kind {
        adjust: with_projects,
        ..kind(
            "attributes",
            "-O extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,quota,\
             project_quota",
        )
    },
    Kind { options: "noinline_data,noinline_dentry,noinline_xattr", ..kind("no_inline", "") },
    Kind {
        options: "inline_xattr_size=100",
        ..kind("large_inline_xattrs", "-O extra_attr,flexible_inline_xattr")
    },
    kind("quota", "-O quota"),
    Kind { adjust: with_projects, ..kind("project", "-O extra_attr,quota,project_quota") },
    kind("lost_found", "-O lost_found"),
    kind("sb_checksum", "-O sb_checksum"),
    Kind { megabytes: 512, ..kind("large_sections", "-s 4 -z 2") },
    kind("large_nat_bitmap", "-i"),
    // So large that the bitmap of the segment information table does not fit into the first block
    // of a checkpoint.
    Kind { megabytes: 4 << 20, ..kind("checkpoint_payload", "") },
    Kind { options: "mode=lfs", ..kind("written_in_order", "") },
    // Without flexible_inline_xattr, whose size sload.f2fs does not set (1.15 and 1.16).
    loaded("loaded", ""),
    loaded(
        "loaded_with_attributes",
        "-O extra_attr,inode_checksum,inode_crtime,sb_checksum,lost_found",
    ),
    Kind {
        tools: Tools::V1_16,
        adjust: with_projects,
        ..kind("newer_tools", "-O extra_attr,quota,project_quota")
    },
    Kind {
        tools: Tools::V1_16,
        ..loaded("loaded_by_newer_tools", "-O extra_attr,inode_crtime,lost_found")
    },
    // Linux mounts it only to read.
    loaded("read_only", "-O ro"),
    emulated("verity", "-O verity", with_verity),
    emulated("casefold", "-O casefold -C utf8", with_casefold),
    emulated("casefold_strict", "-O casefold -C utf8:strict", with_casefold),
    emulated("encrypt", "-O encrypt", with_encryption),
    compressed("lzo", "compress_algorithm=lzo"),
    compressed("lzo_rle", "compress_algorithm=lzo-rle"),
    compressed("lz4", "compress_algorithm=lz4,compress_chksum"),
    compressed("lz4hc", "compress_algorithm=lz4:9,compress_log_size=3"),
    compressed("zstd", "compress_algorithm=zstd:3,compress_chksum,compress_log_size=4"),
    Kind {
        options: "compress_algorithm=zstd,compress_chksum",
        ..emulated(
            "everything",
            "-O extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,quota,\
             project_quota,lost_found,compression,casefold,verity,encrypt -C utf8",
            everything,
        )
    },
];
