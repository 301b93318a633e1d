//! Moves of a file's data to the blocks of a second file, the donor, which gets the file's old
//! blocks (EXT4_IOC_MOVE_EXT).
//!
//! The data is copied first. The new blocks are durably unwritten in the donor's map, so no file
//! shows their contents. Then one transaction exchanges the blocks in both maps. Its commit flushes
//! the copy before it is durable itself. A crash leaves the old blocks or the new ones, with the
//! same data. Not here: the cache, and the locks of both inodes, which the caller holds
//! exclusively.

use std::ops::Range;
use std::sync::Arc;

use base::attributes::FileType;
use base::{DeviceOffset, Error, FileBlock, FileOffset, Result, Unsupported};
use fs::Piece;

use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::map_write::NEEDS_EXTENTS;
use crate::map_write::Pair;

/// A function that copies a range of whole blocks of a file to an offset of the device, with zeroes
/// past the end of the file.
pub type CopyData<'c> = dyn FnMut(Range<FileOffset>, DeviceOffset) -> Result<()> + 'c;

impl Inode {
    /// Exchanges the blocks of `range` with those of `donor` from `to` on. `copy` copies the file's
    /// data to the new blocks. Unwritten blocks stay unwritten. Where one of the two files has a
    /// hole, neither is changed. Exchanged parts of the donor's range read as zeroes. After an
    /// error, so may parts that were not exchanged yet. The exchange is durable when this function
    /// returns.
    ///
    /// Returns the number of moved bytes. After an error, a part may be moved. Errors: `NoSpace` if
    /// the maps need more blocks; `Unsupported` for block maps, inline and encrypted data, data
    /// that goes through the journal, and clusters.
    ///
    /// The caller excludes other users from both files. The cache has no data of the donor, and no
    /// I/O is in flight for either file.
    pub fn move_extents(
        &self,
        range: Range<FileOffset>,
        donor: &Self,
        to: FileOffset,
        copy: &mut CopyData<'_>,
    ) -> Result<u64> {
        let volume = self.volume();
        if !Arc::ptr_eq(volume, donor.volume()) || self.number() == donor.number() {
            return Err(Error::InvalidArgument("the files are the same, or on different volumes"));
        }
        self.check_movable()?;
        donor.check_movable()?;
        volume.check_writable()?;
        let length = range.end.0.saturating_sub(range.start.0);
        let donor_end = to.checked_add(length).ok_or(Error::FileTooLarge)?;
        let blocks = self.whole_blocks(&range)?;
        let donor_blocks = donor.whole_blocks(&(to..donor_end))?;
        let count = (blocks.end.0 - blocks.start.0).min(donor_blocks.end.0 - donor_blocks.start.0);
        let mut moved = 0;
        let done =
            self.move_blocks((blocks.start, donor_blocks.start, count), donor, copy, &mut moved);
        if moved > 0 {
            // Later writes to the donor overwrite the old blocks. If the exchange were not durable,
            // a crash could leave these blocks, with the donor's data, in this file.
            volume.writer()?.journal.commit_all()?;
        }
        done.map(|()| moved << volume.geometry().block_size.shift())
    }

    /// Exchanges `count` blocks, from `at` on in this file and from `donor_at` on in the donor.
    /// Adds the number of moved blocks to `moved`.
    fn move_blocks(
        &self,
        (at, donor_at, count): (FileBlock, FileBlock, u64),
        donor: &Self,
        copy: &mut CopyData<'_>,
        moved: &mut u64,
    ) -> Result<()> {
        let mut done = 0;
        while done < count {
            let (at, donor_at) = (FileBlock(at.0 + done), FileBlock(donor_at.0 + done));
            let (pairs, examined) = self.plan(at, donor, donor_at, count - done)?;
            self.move_pairs(donor, pairs, copy, moved)?;
            done += examined;
        }
        Ok(())
    }

    /// Returns pairs of runs to exchange among the next `count` blocks, and the number of blocks
    /// examined.
    fn plan(
        &self,
        at: FileBlock,
        donor: &Self,
        donor_at: FileBlock,
        count: u64,
    ) -> Result<(Vec<Pair>, u64)> {
        let mut pairs = Vec::new();
        let mut examined = 0;
        while examined < count && pairs.len() < Pair::COUNT_MAX {
            let (at, donor_at) = (FileBlock(at.0 + examined), FileBlock(donor_at.0 + examined));
            let left = count - examined;
            let range = at..FileBlock(at.0 + left);
            let donor_range = donor_at..FileBlock(donor_at.0 + left);
            let (own, other) =
                (self.piece_at(at, range.end)?, donor.piece_at(donor_at, donor_range.end)?);
            let length = (own.end().0 - at.0).min(other.end().0 - donor_at.0);
            let length = length.min(left).min(Pair::LENGTH_MAX);
            if let (Piece::Run(own), Piece::Run(other)) = (own, other) {
                let (own, other) = (own.within(&range), other.within(&donor_range));
                pairs.extend(own.zip(other).map(|(own, other)| Pair {
                    at,
                    donor_at,
                    length,
                    block: own.block,
                    donor_block: other.block,
                    unwritten: own.unwritten,
                    donor_unwritten: other.unwritten,
                }));
            }
            examined += length;
        }
        Ok((pairs, examined))
    }

    fn move_pairs(
        &self,
        donor: &Self,
        mut pairs: Vec<Pair>,
        copy: &mut CopyData<'_>,
        moved: &mut u64,
    ) -> Result<()> {
        let volume = self.volume();
        let size = volume.geometry().block_size;
        let bytes = |blocks: u64| FileOffset(blocks << size.shift());
        for pair in &mut pairs {
            if !std::mem::replace(&mut pair.donor_unwritten, true) {
                donor.zero(bytes(pair.donor_at.0)..bytes(pair.donor_at.0 + pair.length))?;
            }
        }
        if pairs.iter().any(|pair| !pair.unwritten) {
            // The donor's blocks must be durably unwritten before data is copied to them, also
            // those that were made unwritten above. Otherwise a crash could leave this file's data
            // in the donor.
            volume.writer()?.journal.commit_all()?;
        }
        for pair in pairs.iter().filter(|pair| !pair.unwritten) {
            let to = size.device_offset(pair.donor_block).ok_or(Error::FileTooLarge)?;
            copy(bytes(pair.at.0)..bytes(pair.at.0 + pair.length), to)?;
        }
        while !pairs.is_empty() {
            let credits = self.credits_for_map(1) + donor.credits_for_map(1);
            let mut blocks =
                volume.change_with_space(credits, |handle| self.exchange(handle, donor, &pairs))?;
            *moved += blocks;
            let left = pairs.into_iter().filter_map(|pair| {
                let done = blocks.min(pair.length);
                blocks -= done;
                pair.without_first(done)
            });
            pairs = left.collect();
        }
        Ok(())
    }

    /// Fails if the file's blocks cannot be exchanged.
    pub fn check_movable(&self) -> Result<()> {
        let refuse = |operation| Err(Unsupported::Operation(operation).into());
        if self.kind() != FileType::Regular {
            return Err(Error::InvalidArgument("not a regular file"));
        }
        if self.volume().geometry().features.has(Feature::Bigalloc) {
            return refuse("exchanging blocks on a volume with clusters (bigalloc)");
        }
        if self.has(InodeFlags::ENCRYPTED) {
            return Err(Unsupported::Encrypted(self.number()).into());
        }
        if self.has(InodeFlags::INLINE_DATA) {
            return refuse("exchanging blocks of inline data");
        }
        if self.has(InodeFlags::JOURNAL_DATA) {
            return refuse("exchanging blocks of data that goes through the journal");
        }
        if self.has(InodeFlags::VERITY) {
            return refuse("exchanging blocks of a file that fs-verity protects");
        }
        if !self.has(InodeFlags::EXTENTS) {
            return Err(NEEDS_EXTENTS.into());
        }
        Ok(())
    }
}
