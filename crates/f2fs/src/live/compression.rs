//! Which files are compressed, and the blocks that compression saves.
//! Not here: the clusters (`clusters.rs`).

use base::attributes::{FileType, Timestamp};
use base::{Error, FileBlock, Location, Result, Unsupported};

use super::LiveInode;
use crate::compress::{Algorithm, ClusterSize};
use crate::features::Feature;
use crate::inode::map::END;
use crate::inode::record::{Compression, inline};
use crate::write::Demand;

impl LiveInode {
    /// Returns whether the flags of compression can be set.
    pub(super) fn can_be_compressed(&self) -> bool {
        let kind = self.current().attributes().kind;
        self.volume.geometry().features.has(Feature::Compression)
            && matches!(kind, FileType::Regular | FileType::Directory)
    }

    /// Prepares for a change of whether the inode is compressed, or how. Errors: `InvalidArgument`
    /// for files that have blocks, are pinned, or are written atomically.
    pub(super) fn prepare_compression(&self) -> Result<()> {
        if self.current().attributes().kind == FileType::Directory {
            return Ok(());
        }
        if self.is_pinned() || self.has_atomic_write() {
            return Err(Error::InvalidArgument("pinned and atomic files are not compressed"));
        }
        self.convert_inline()?;
        if self.has_blocks()? {
            return Err(Error::InvalidArgument(
                "compression changes only while a file has no blocks",
            ));
        }
        Ok(())
    }

    /// Returns whether a file has blocks, or nodes that map them.
    fn has_blocks(&self) -> Result<bool> {
        let has_nodes = self.current().record().nodes.iter().any(|nid| *nid != 0);
        Ok(has_nodes || !self.is_hole(FileBlock(0)..END)?)
    }

    /// Sets how the data of a compressed file without blocks is compressed.
    pub(crate) fn set_compression(&self, algorithm: u8, log_cluster_size: u8) -> Result<()> {
        self.compression()?;
        let location = Location::inode(self.number);
        let invalid = |_| Error::InvalidArgument("no such compression algorithm or cluster size");
        let algorithm = Algorithm::from_number(algorithm, location).map_err(invalid)?;
        ClusterSize::from_log(log_cluster_size, location).map_err(invalid)?;
        self.check_changeable()?;
        if self.has_blocks()? {
            return Err(Error::FileTooLarge);
        }
        self.change(Demand::Few, &[], |editor, _| {
            editor.edit_extra(self.number, |extra| {
                extra.algorithm = algorithm.number();
                extra.log_cluster_size = log_cluster_size;
            })
        })
    }

    /// Frees the blocks that compression saves. Returns their number. The file cannot be changed
    /// afterwards.
    pub(crate) fn release_saved_blocks(&self, time: Timestamp) -> Result<u64> {
        if self.compression()?.is_released {
            return Err(Error::InvalidArgument("the saved blocks were released before"));
        }
        self.check_changeable()?;
        let demand = Demand::Changes(self.nodes_of(self.blocks_of_size()));
        let released = self.change(demand, &[], |editor, _| {
            let released = editor.set_released(self.number, true)?;
            self.update(editor, |raw| {
                raw.inline |= inline::RELEASED;
                raw.set_changed(time);
            })?;
            Ok(released)
        })?;
        self.map_changed();
        Ok(released)
    }

    /// Reserves the blocks that were released. Returns their number. The file can be changed
    /// afterwards.
    pub(crate) fn reserve_saved_blocks(&self, time: Timestamp) -> Result<u64> {
        if !self.compression()?.is_released {
            return Err(Error::InvalidArgument("the saved blocks were not released"));
        }
        let demand = Demand::Adds(self.nodes_of(self.blocks_of_size()));
        let reserved = self.change(demand, &[], |editor, _| {
            let reserved = editor.set_released(self.number, false)?;
            self.update(editor, |raw| {
                raw.inline &= !inline::RELEASED;
                raw.set_changed(time);
            })?;
            Ok(reserved)
        })?;
        self.map_changed();
        Ok(reserved)
    }

    fn compression(&self) -> Result<Compression> {
        if !self.volume.geometry().features.has(Feature::Compression) {
            return Err(Unsupported::Operation("compression").into());
        }
        let no_compression = Error::InvalidArgument("the file is not compressed");
        self.current().record().compression.ok_or(no_compression)
    }
}
