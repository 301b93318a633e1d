//! The blocks that compression saves: reserved with the file, or released to the volume.

use base::{FileBlock, InodeNumber, Result};

use super::nodes::Editor;
use crate::inode::map::{BlockState, END};
use crate::ondisk::node::{NEW_ADDRESS, NULL_ADDRESS};

impl Editor<'_> {
    /// Frees the reserved blocks of all compressed clusters of a file, if `releases`, or reserves
    /// them again. Returns their number, with one for the mark of each cluster.
    pub(crate) fn set_released(&mut self, number: InodeNumber, releases: bool) -> Result<u64> {
        let (from, to) = match releases {
            true => (NEW_ADDRESS, NULL_ADDRESS),
            false => (NULL_ADDRESS, NEW_ADDRESS),
        };
        let inode = self.inode(number)?;
        let length = inode
            .record()
            .compression
            .map_or(0, |compression| u64::from(compression.cluster_size.blocks()));
        let (mut at, mut saved, mut clusters) = (FileBlock(0), 0, 0);
        while at < END {
            let piece = inode.piece_at(at, END)?;
            if matches!(piece.state, BlockState::Compressed(_)) {
                let slots =
                    self.slots_of(number, &(piece.start..FileBlock(piece.start.0 + length)))?;
                self.replace_addresses(slots, |_, old| {
                    let is_saved = old == from;
                    saved += u64::from(is_saved);
                    if is_saved { to } else { old }
                })?;
                clusters += 1;
            }
            at = piece.end;
        }
        saved += clusters;
        let sign = if releases { -1 } else { 1 };
        self.count_blocks(number, sign * clusters as i64)?;
        self.count_saved_blocks(number, sign * saved as i64)?;
        Ok(saved)
    }
}
