//! Kinds of f2fs images, with all features that Bifolio reads.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::BLOCK_SIZE;
use crate::guest::{Job, Machine, Task};
use crate::tree::TreeOptions;
use crate::{command, must};

/// A kind of f2fs image.
#[derive(Debug)]
pub struct Kind {
    /// The name in the names of tests.
    pub name: &'static str,
    /// Arguments for mkfs.f2fs.
    pub arguments: &'static str,
    /// Mount options, separated by commas. May be empty.
    pub options: &'static str,
    /// The machine whose kernel mounts the image.
    pub machine: Machine,
    /// The size of an image in MiB.
    pub megabytes: u64,
    /// Changes the options of the tree to what the format supports.
    pub adjust: fn(&mut TreeOptions),
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
            Command::new("mkfs.f2fs").args(["-q", "-f", "-t", "0"]).args(arguments).arg(image),
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

    /// Returns the task for a guest to do `job` with `image`.
    pub fn task(&self, image: &Path, job: Job) -> Task {
        let image = PathBuf::from(image);
        Task { image, format: "f2fs", options: self.options.to_owned(), job }
    }
}

/// Returns the maximum size of a file: Linux does not count the addresses in the inode, whose number varies.
fn file_size_max() -> u64 {
    let in_node = 1018_u64;
    let blocks = 2 * in_node + 2 * in_node.pow(2) + in_node.pow(3);
    blocks * u64::from(BLOCK_SIZE)
}

const fn kind(name: &'static str, arguments: &'static str) -> Kind {
    Kind {
        name,
        arguments,
        options: "",
        machine: Machine::UserMode,
        megabytes: 256,
        adjust: |_| {},
    }
}

/// All kinds.
pub const KINDS: &[Kind] = &[
    kind("plain", ""),
    kind("extra_attr", "-O extra_attr"),
    kind(
        "attributes",
        "-O extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum",
    ),
    Kind { options: "noinline_data,noinline_dentry,noinline_xattr", ..kind("no_inline", "") },
];
