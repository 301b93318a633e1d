//! Creation of images with mke2fs. Not here: filling them.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::host::command::run;
use crate::must;

/// The options for creating an image.
#[derive(Clone, Debug)]
pub struct Mke2fs {
    /// "ext2", "ext3" or "ext4".
    pub format: &'static str,
    /// The block size in bytes.
    pub block_size: u32,
    /// The size of the image in bytes.
    pub size: u64,
    /// Further arguments, separated by white space, such as `-O bigalloc -C 65536`.
    pub arguments: String,
}

impl Mke2fs {
    /// Returns options for an image of 512 MiB (more with large blocks) with the defaults of
    /// mke2fs.
    pub fn new(format: &'static str, block_size: u32) -> Self {
        let size = (512 << 20).max(u64::from(block_size) * 32_768);
        Self { format, block_size, size, arguments: String::new() }
    }

    /// Adds arguments.
    pub fn with(mut self, arguments: &str) -> Self {
        self.arguments.push(' ');
        self.arguments.push_str(arguments);
        self
    }

    /// Creates the image as a sparse file, with the contents of the folder `source` if there is
    /// one.
    pub fn make(&self, image: &Path, source: Option<&Path>) {
        let file = must(File::create(image), image.display());
        must(file.set_len(self.size), image.display());
        let mut command = Command::new("mke2fs");
        // -F: otherwise mke2fs asks whether to use blocks larger than a page.
        command.args(["-q", "-F", "-t", self.format, "-b", &self.block_size.to_string()]);
        command.args(self.arguments.split_whitespace());
        if let Some(source) = source {
            command.arg("-d").arg(source);
        }
        run(command.arg(image));
    }
}

/// Checks that e2fsck finds no errors in `image`.
#[track_caller]
pub fn check_by_e2fsck(image: &Path) {
    run(Command::new("e2fsck").arg("-fn").arg(image));
}

/// A configuration for mke2fs, which replaces a distribution's defaults.
pub const MKE2FS_CONF: &[u8] = b"[defaults]
    base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
    default_mntopts = acl,user_xattr
    enable_periodic_fsck = 0
    blocksize = 4096
    inode_size = 256
    inode_ratio = 16384
[fs_types]
    ext2 = {
    }
    ext3 = {
        features = has_journal
    }
    ext4 = {
        features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
    }
";
