//! Pinned files, whose blocks stay where they are: writes overwrite them in place, and cleaning
//! leaves them.
//!
//! A block of a pinned file gets its address from fallocate(2), and never from a write, as in
//! Linux: data that is written to a hole would have to go to a new place. Linux gives preallocated
//! blocks their addresses without writing them, so that reads show what they held before. Here they
//! are zeroed before a node refers to them, and a node is durable only after them.
//!
//! A write in place needs no token. Whatever takes a block away from the file first waits for its
//! writes: truncation, and the end of pinning. All other changes of blocks are refused while the
//! file is pinned. Not here: the choice of the blocks (`write/segments/sections.rs`).

use std::ops::Range;

use base::{Error, FileBlock, FileOffset, FsBlock, Result, Unsupported};
use iomap::{Iomap, MapRead};

use super::LiveInode;
use crate::inode::Inode;
use crate::inode::map::{BlockState, END};
use crate::inode::record::{flags, inline};
use crate::ondisk::node::advise;
use crate::write::{Demand, Placed};

/// The blocks that are zeroed at a time.
const ZEROED_BLOCKS: u64 = 256;

/// The part of an inode's field for the depth of a directory that counts, in a pinned file, the
/// failures to clean it.
const FAILURES: u32 = 0xFFFF;

impl Inode {
    fn is_pinned(&self) -> bool {
        self.record().has_flag(flags::PINNED)
    }

    /// Returns how often cleaning has failed to move the blocks of a pinned file; `None` if the
    /// file is not pinned.
    pub(crate) fn pin_failures(&self) -> Option<u32> {
        self.is_pinned().then_some(self.record().depth & FAILURES)
    }
}

impl LiveInode {
    pub(crate) fn is_pinned(&self) -> bool {
        self.current().is_pinned()
    }

    /// Pins a file, or ends that. The cache has no dirty data, and none is in flight.
    ///
    /// # Errors
    ///
    /// `FileTooLarge` for a file that has blocks, whose places are not chosen for pinning;
    /// `Unsupported` for compressed files and those with fs-verity.
    pub(crate) fn set_pinned(&self, is_pinned: bool) -> Result<()> {
        if is_pinned == self.is_pinned() {
            return Ok(());
        }
        self.check_changeable()?;
        self.check_uncompressed()?;
        if is_pinned {
            let has_map = self.current().record().inline_area.is_none();
            if has_map && !self.is_hole(FileBlock(0)..END)? {
                return Err(Error::FileTooLarge);
            }
            self.convert_inline()?;
        }
        self.change(Demand::Few, &[], |editor, _| {
            self.update(editor, |raw| {
                if is_pinned {
                    raw.inline |= inline::PINNED;
                } else {
                    raw.inline &= !inline::PINNED;
                    raw.current_depth.set(raw.current_depth.get() & !FAILURES);
                }
            })
        })
    }

    /// Fails for pinned files.
    pub(super) fn check_unpinned(&self) -> Result<()> {
        if !self.is_pinned() {
            return Ok(());
        }
        let feature = "changing the blocks of pinned files";
        Err(Unsupported::Inode { inode: self.number, feature }.into())
    }

    /// Fails if a write to `blocks` would need new blocks.
    pub(super) fn check_overwrites(&self, blocks: &Range<FileBlock>) -> Result<()> {
        if self.pieces_without_address(blocks.clone())?.is_empty() {
            return Ok(());
        }
        let feature = "writing to blocks of pinned files that fallocate has not allocated";
        Err(Unsupported::Inode { inode: self.number, feature }.into())
    }

    /// Returns the range that contains byte `at`, whose blocks are overwritten. Errors: `Corrupt`
    /// if they are not the file's.
    pub(super) fn map_in_place(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let map = self.map_read(at, length)?;
        if let Some(address) = map.address {
            let geometry = self.volume.geometry();
            let shift = geometry.block_size.shift();
            let first = address.0 >> shift;
            let blocks = FsBlock(first)..FsBlock(first + (map.length >> shift));
            let place = (self.number, FileBlock(map.offset.0 >> shift));
            self.volume.writer()?.check_in_place(self.volume.core(), place, blocks)?;
        }
        Ok(map)
    }

    /// Fails for a pinned file if a truncation to `size` bytes would free a part of a section,
    /// which cleaning could not gain.
    pub(crate) fn check_truncation(&self, size: u64) -> Result<()> {
        let geometry = self.volume.geometry();
        let section_bytes = geometry.section_blocks() << geometry.block_size.shift();
        if !size.is_multiple_of(section_bytes) && self.is_pinned() {
            return Err(Error::InvalidArgument(
                "pinned files are truncated to whole sections only",
            ));
        }
        Ok(())
    }

    pub(super) fn is_hole(&self, blocks: Range<FileBlock>) -> Result<bool> {
        // In this order: the end of a write stores addresses before blocks are no longer delayed.
        let delayed = self.delayed.lock().reserved();
        let piece = self.current().piece_at(blocks.start, blocks.end)?;
        Ok(delayed == 0 && piece.state == BlockState::Hole && piece.end >= blocks.end)
    }

    /// Returns the parts of `blocks` that have no addresses.
    fn pieces_without_address(&self, blocks: Range<FileBlock>) -> Result<Vec<Range<FileBlock>>> {
        let (current, mut at, mut found) = (self.current(), blocks.start, Vec::new());
        while at < blocks.end {
            let piece = current.piece_at(at, blocks.end)?;
            let end = piece.end.min(blocks.end);
            if matches!(piece.state, BlockState::Hole | BlockState::Reserved) {
                found.push(at..end);
            }
            at = end;
        }
        Ok(found)
    }

    /// Returns the parts of `blocks` that have no addresses, and then further ones up to a multiple
    /// of the blocks of a section, so that the file has its sections alone.
    fn pieces_in_sections(&self, blocks: Range<FileBlock>) -> Result<Vec<Range<FileBlock>>> {
        let section = self.volume.geometry().section_blocks();
        let end_max = FileBlock(self.size_max() >> self.volume.geometry().block_size.shift());
        let mut pieces = self.pieces_without_address(blocks.clone())?;
        let mut at = blocks.end;
        loop {
            let count: u64 = pieces.iter().map(|piece| piece.end.0 - piece.start.0).sum();
            let missing = count.next_multiple_of(section) - count;
            let end = FileBlock(at.0.saturating_add(missing)).min(end_max);
            if end <= at {
                return Ok(pieces);
            }
            pieces.extend(self.pieces_without_address(at..end)?);
            at = end;
        }
    }

    /// Allocates the blocks of `range`, in bytes, filled with zeroes, in sections that no other
    /// file uses. The rest of the last section goes to blocks behind the range.
    pub(super) fn preallocate_pinned(&self, range: Range<FileOffset>) -> Result<()> {
        let pieces = self.pieces_in_sections(self.blocks_of(&range))?;
        let writer = self.volume.writer()?;
        let placed = writer.place_in_sections(self.volume.core(), self.number, &pieces)?;
        let count: u64 = placed.iter().map(|(_, placed)| placed.len()).sum();
        let zeroed = placed.iter().try_for_each(|(_, placed)| self.zero(placed));
        let changed = zeroed.and_then(|()| {
            self.change(Demand::Adds(self.nodes_of(count)), &[], |editor, reserved| {
                for (token, _) in &placed {
                    let Some(Placed { at, range, .. }) = reserved.take_placement(*token) else {
                        continue;
                    };
                    editor.set_addresses(self.number, at, range)?;
                }
                let last = pieces.last().map_or(FileBlock(0), |piece| piece.end);
                let shift = self.volume.geometry().block_size.shift();
                self.update(editor, |raw| {
                    if range.end.0.max(last.0 << shift) > raw.size.get() {
                        raw.advise |= advise::KEEP_SIZE;
                    }
                })
            })
        });
        if changed.is_err() {
            placed.iter().for_each(|(token, _)| writer.unplace(self.volume.core(), *token));
        }
        self.map_changed();
        changed
    }

    /// Writes zeroes to blocks that the file will get.
    fn zero(&self, placed: &Placed) -> Result<()> {
        let block_size = self.volume.geometry().block_size;
        let (transform, zeroes) = (self.transform(), vec![0; block_size.len()]);
        let length = placed.len().min(ZEROED_BLOCKS) as usize * block_size.len();
        let mut stored = vec![0; length];
        let (mut at, mut block) = (placed.at, placed.range.start);
        while block < placed.range.end {
            let count = (placed.range.end.0 - block.0).min(ZEROED_BLOCKS);
            let stored = &mut stored[..count as usize * block_size.len()];
            if let Some(transform) = &transform {
                for (index, stored) in (0..).zip(stored.chunks_exact_mut(block_size.len())) {
                    let offset = FileOffset((at.0 + index) << block_size.shift());
                    transform.store(offset, &zeroes, stored)?;
                }
            }
            let offset = self.volume.geometry().device_offset(block);
            self.volume.device().write_at(offset, stored)?;
            (at.0, block.0) = (at.0 + count, block.0 + count);
        }
        Ok(())
    }
}
