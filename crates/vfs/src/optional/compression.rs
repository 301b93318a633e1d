//! Compressed files, as by the requests of f2fs. Not here: the compression of data (the format).

use std::sync::Arc;

use base::Result;
use fs::Compression;

use crate::node::Node;
use crate::volume::clock::now;

impl Node {
    /// Returns how the data of a regular file is compressed, or `None` if it is not. Errors:
    /// `Unsupported` if the volume has no compressed files.
    pub fn compression(&self) -> Result<Option<Compression>> {
        let _lock = self.lock_shared();
        self.inode().compression()
    }

    /// Sets how the data of a compressed file is compressed, as F2FS_IOC_SET_COMPRESS_OPTION does.
    /// Errors: `FileTooLarge` for a file that has blocks; `InvalidArgument` for files that are not
    /// compressed, and values that the format does not have; `Unsupported` for other formats than
    /// f2fs.
    pub fn set_compression(self: &Arc<Self>, algorithm: u8, log_cluster_blocks: u8) -> Result<()> {
        self.change_quiesced(|node| {
            node.inode().set_compression(algorithm, log_cluster_blocks)?;
            node.refit_clusters()
        })
    }

    /// Frees the blocks that compression saves, which are reserved until then for data that does
    /// not compress. Returns their number. The data cannot be changed afterwards.
    ///
    /// Errors: `InvalidArgument` if the file is not compressed, or they are free; `NotPermitted`
    /// for immutable and append-only files; `Unsupported` for other formats than f2fs; writeback
    /// errors of earlier data.
    pub fn release_saved_blocks(self: &Arc<Self>) -> Result<u64> {
        self.change_quiesced(|node| node.inode().release_saved_blocks(now()))
    }

    /// Reserves the blocks that [`release_saved_blocks`](Self::release_saved_blocks) has freed.
    /// Returns their number. The data can be changed afterwards.
    ///
    /// Errors: `InvalidArgument` if the file is not compressed, or they were not released;
    /// `NoSpace`; `NotPermitted` for immutable and append-only files; `Unsupported` for other
    /// formats than f2fs.
    pub fn reserve_saved_blocks(self: &Arc<Self>) -> Result<u64> {
        self.change_quiesced(|node| node.inode().reserve_saved_blocks(now()))
    }
}
