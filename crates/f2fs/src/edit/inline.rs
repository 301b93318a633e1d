//! Changes of inline contents: data of a file, or entries of a directory, that are in its inode.
//! Not here: the entries (`entries.rs`), and the block that data moves to (`live/inline.rs`).

use base::{InodeNumber, Result};

use super::nodes::{Editor, nid_of};
use crate::geometry::WORD_BYTES;
use crate::inode::record::inline;

impl Editor<'_> {
    /// Removes the inline contents of an inode, which gets a map with holes instead. Returns them;
    /// `None` if it has none.
    pub(crate) fn take_inline(&self, number: InodeNumber) -> Result<Option<Vec<u8>>> {
        let inode = self.inode(number)?;
        let Some(area) = inode.record().inline_area.clone() else { return Ok(None) };
        let contents = self.edit_node(nid_of(number), number, |bytes| {
            // The record was parsed from a block of this size.
            let contents = bytes[area.clone()].to_vec();
            // The word before them is unused as long as there is no map, and may be damaged.
            bytes[area.start - WORD_BYTES..area.end].fill(0);
            contents
        })?;
        let kind = if inode.attributes().is_dir() { inline::DENTRIES } else { inline::DATA };
        self.edit_inode(number, |raw| raw.inline &= !(kind | inline::DATA_EXISTS))?;
        Ok(Some(contents))
    }

    /// Zeroes the inline data of a file behind its end, and from byte `size` on.
    pub(crate) fn cut_inline(&self, number: InodeNumber, size: u64) -> Result<()> {
        let inode = self.inode(number)?;
        let area = inode.record().inline_area.clone().unwrap_or_default();
        let left = inode.attributes().size.min(size);
        self.edit_node(nid_of(number), number, |bytes| {
            // The record was parsed from a block of this size.
            let data = &mut bytes[area];
            let start = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
            data[start..].fill(0);
        })?;
        if left == 0 {
            self.edit_inode(number, |raw| raw.inline &= !inline::DATA_EXISTS)?;
        }
        Ok(())
    }
}
