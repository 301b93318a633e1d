//! Pinned files, whose blocks stay where they are, as by F2FS_IOC_SET_PIN_FILE.
//! Not here: the allocation of their blocks, and writes in place (the format).

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, Result};

use crate::node::Node;
use crate::volume::clock::now;

impl Node {
    /// Returns how often cleaning has failed to move the blocks of a pinned file; `None` for a file
    /// that is not pinned. Errors: `WrongType` for other inodes than regular files, `Unsupported`
    /// for other formats than f2fs.
    pub fn pin_failures(&self) -> Result<Option<u32>> {
        self.check_pinnable()?;
        let _lock = self.lock_shared();
        self.inode().pin_failures()
    }

    /// Pins a file, or ends that. Blocks of a pinned file are overwritten in place, and cleaning
    /// does not move them. They are allocated by [`File::fallocate`](crate::File::fallocate) only:
    /// a write to a hole fails, and so does punching, zeroing, collapsing and inserting ranges, and
    /// an atomic write. A truncation leaves whole sections, or fails with `InvalidArgument`.
    ///
    /// Errors: `WrongType` for other inodes than regular files; `FileTooLarge` for a file that has
    /// blocks already; `NotPermitted` for immutable and append-only files; `Unsupported` for other
    /// formats than f2fs, for compressed files and during an atomic write; writeback errors of
    /// earlier data.
    pub fn set_pinned(self: &Arc<Self>, is_pinned: bool) -> Result<()> {
        self.check_pinnable()?;
        // From the time when the cache is quiesced to the change, no write is in flight: each is in
        // place, or not.
        self.change_quiesced(|node| {
            node.inode().set_pinned(is_pinned)?;
            node.inode().note_modified(now());
            Ok(())
        })
    }

    fn check_pinnable(&self) -> Result<()> {
        if self.kind() == FileType::Regular {
            Ok(())
        } else {
            Err(Error::WrongType("only regular files can be pinned"))
        }
    }
}
