//! The operations of fallocate(2) on open files. Not here: allocation (the format), and the cache
//! (`iomap`).

use std::ops::Range;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, Result};
use fs::Shift;
use iomap::{Caching, WritableFile};

use crate::file::File;
use crate::file::rw_flags::WriteSync;
use crate::node::rights::{self, Privileges};
use crate::node::{Life, Node};
use crate::volume::clock::now;

/// An operation on a range of a file: a mode of fallocate(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Blocks are allocated, so that later writes find space. Blocks without data read as zeroes. A
    /// shorter file is extended to the end of the range, unless it keeps its size.
    Allocate {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
    /// Blocks are allocated that no other file shares, if the format shares blocks
    /// (FALLOC_FL_UNSHARE_RANGE). Otherwise as `Allocate`.
    Unshare {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
    /// The range becomes a hole, as far as it is within the file (FALLOC_FL_PUNCH_HOLE).
    PunchHole,
    /// The range reads as zeroes, and its blocks are allocated (FALLOC_FL_ZERO_RANGE).
    ZeroRange {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
    /// The range is removed, and the data behind it moves to its start (FALLOC_FL_COLLAPSE_RANGE).
    CollapseRange,
    /// A hole is inserted, and the data there moves behind it (FALLOC_FL_INSERT_RANGE).
    InsertRange,
}

impl Fallocate {
    /// Returns the mode for the flags of fallocate(2) (`linux/falloc.h`), or `None` if they are
    /// invalid.
    pub fn from_flags(flags: u32) -> Option<Self> {
        const KEEP_SIZE: u32 = 0x01;
        let keep_size = flags & KEEP_SIZE != 0;
        match flags & !KEEP_SIZE {
            0x00 => Some(Self::Allocate { keep_size }),
            0x02 if keep_size => Some(Self::PunchHole),
            0x08 if !keep_size => Some(Self::CollapseRange),
            0x10 => Some(Self::ZeroRange { keep_size }),
            0x20 if !keep_size => Some(Self::InsertRange),
            0x40 => Some(Self::Unshare { keep_size }),
            _ => None,
        }
    }

    /// Returns whether a file that ends before the end of the range is extended.
    fn grows(self) -> bool {
        matches!(
            self,
            Self::Allocate { keep_size: false }
                | Self::Unshare { keep_size: false }
                | Self::ZeroRange { keep_size: false }
        )
    }

    /// Returns whether no existing data changes.
    fn only_adds(self) -> bool {
        matches!(self, Self::Allocate { .. } | Self::Unshare { .. })
    }
}

impl File {
    /// Returns the unit of ranges to collapse and insert: the length of a block or a cluster, in
    /// bytes.
    pub fn allocation_unit(&self) -> u64 {
        self.node().inode().allocation_unit()
    }

    /// Applies `mode` to `range`, in bytes. After an error, a part of the change may be made. After
    /// `NoSpace`, the file reads as before, except that parts of blocks may be zeroes. If punching
    /// a hole fails, dirty data in it may be lost; [`sync_all`](File::sync_all) also reports that
    /// error. The change is as durable as a write. Moved data is on the device.
    ///
    /// Errors: `InvalidArgument` for an empty range, and for ranges to collapse or insert that are
    /// not whole [units](Self::allocation_unit) or not within the file; `NotOpenFor`;
    /// `FileTooLarge`; `Unsupported` for files with block maps, except for holes.
    pub fn fallocate(
        &self,
        mode: Fallocate,
        range: Range<FileOffset>,
        privileges: Privileges,
    ) -> Result<()> {
        self.require_writing()?;
        self.node().fallocate(mode, range.clone(), privileges)?;
        // A shift also moves the data behind the range.
        let end = if matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange) {
            u64::MAX
        } else {
            range.end.0
        };
        self.make_durable(range.start.0..end, WriteSync::None)
    }
}

impl Node {
    fn fallocate(
        self: &Arc<Self>,
        mode: Fallocate,
        range: Range<FileOffset>,
        privileges: Privileges,
    ) -> Result<()> {
        if range.start >= range.end {
            return Err(Error::InvalidArgument("the range is empty"));
        }
        if self.kind() != FileType::Regular {
            return Err(Error::WrongType("space can be allocated for regular files only"));
        }
        if range.end.0 > self.inode().size_max() {
            return Err(Error::FileTooLarge);
        }
        let writeback = self.writeback()?;
        self.volume().begin_change()?;
        let Some(file) = self.writable()? else { return Err(Error::ReadOnly) };
        writeback.throttle(self, Caching::Kept)?;
        let mut state = self.lock();
        // The volume may have been closed before the lock was taken.
        self.writeback()?;
        if mode.only_adds() {
            rights::may_change(&self.attributes())?;
        } else {
            rights::may_overwrite(&self.attributes())?;
        }
        self.inode().check_changeable()?;
        state.atomic.check_none()?;
        let size = file.size();
        self.check_range(mode, &range, size)?;
        self.drop_privileges(&mut state, privileges)?;
        let done = self.change_range(file, mode, &range);
        // Also after an error: parts of blocks may be zeroes in the cache.
        self.inode().note_modified(now());
        if state.life == Life::Named {
            writeback.note(self);
        }
        done?;
        if mode.grows() && range.end.0 > size {
            self.resize(Some(file), &state, range.end.0)?;
        }
        Ok(())
    }

    /// Applies `mode` to a range of the file, but does not change the file's end. The caller holds
    /// the lock.
    fn change_range(
        &self,
        file: &Arc<WritableFile>,
        mode: Fallocate,
        range: &Range<FileOffset>,
    ) -> Result<()> {
        let bytes = range.start.0..range.end.0;
        match mode {
            Fallocate::Allocate { .. } | Fallocate::Unshare { .. } => {
                self.inode().preallocate(range.clone())
            }
            Fallocate::PunchHole => {
                self.inode().prepare_to_clear()?;
                self.clear(file, bytes, false)
            }
            Fallocate::ZeroRange { .. } => {
                self.inode().prepare_to_clear()?;
                self.inode().preallocate(range.clone())?;
                // If clearing fails, earlier writes are still in the file.
                iomap::write_back_and_wait(file, bytes.clone());
                self.clear(file, bytes, true)
            }
            Fallocate::CollapseRange | Fallocate::InsertRange => {
                let size = file.size();
                let length = bytes.end - bytes.start;
                let (to, moved) = match mode {
                    Fallocate::CollapseRange => (Shift::Collapse, size - length),
                    _ => (Shift::Insert, size + length),
                };
                iomap::detach_cache(file, bytes.start);
                self.inode().shift(range.clone(), to, size, now())?;
                let size_max = self.inode().size_max();
                // The size of a damaged inode may be larger.
                debug_assert!(moved <= size.max(size_max), "{moved} is past {size_max}");
                iomap::set_size_after_move(file, moved);
                Ok(())
            }
        }
    }

    fn clear(&self, file: &Arc<WritableFile>, range: Range<u64>, keeps_space: bool) -> Result<()> {
        let _dropping = self.begin_to_drop_data();
        let punch = || iomap::punch_cache(file, range.clone());
        let Range { start, end } = self.writeback()?.with_room(self, punch)?;
        if start >= end {
            return Ok(());
        }
        let cleared = self.inode().clear(FileOffset(start)..FileOffset(end), keeps_space);
        cleared.inspect_err(|error| file.record_error(error.clone()))
    }

    /// Fails for ranges that cannot be collapsed or inserted.
    fn check_range(&self, mode: Fallocate, range: &Range<FileOffset>, size: u64) -> Result<()> {
        if !matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange) {
            return Ok(());
        }
        let unit = self.inode().allocation_unit();
        if range.start.0 % unit != 0 || range.end.0 % unit != 0 {
            return Err(Error::InvalidArgument(
                "the range is not a multiple of the block or cluster size",
            ));
        }
        match mode {
            Fallocate::CollapseRange if range.end.0 >= size => {
                Err(Error::InvalidArgument("a range to collapse must end before the file does"))
            }
            Fallocate::InsertRange if range.start.0 >= size => {
                Err(Error::InvalidArgument("a range to insert must begin before the file's end"))
            }
            Fallocate::InsertRange => {
                let grown = size.checked_add(range.end.0 - range.start.0);
                let fits = grown.is_some_and(|size| size <= self.inode().size_max());
                if fits { Ok(()) } else { Err(Error::FileTooLarge) }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_modes_of_the_kernel() {
        for (flags, mode) in [
            (0, Some(Fallocate::Allocate { keep_size: false })),
            (1, Some(Fallocate::Allocate { keep_size: true })),
            (2, None),
            (3, Some(Fallocate::PunchHole)),
            (8, Some(Fallocate::CollapseRange)),
            (9, None),
            (0x10, Some(Fallocate::ZeroRange { keep_size: false })),
            (0x20, Some(Fallocate::InsertRange)),
            (0x21, None),
            (0x41, Some(Fallocate::Unshare { keep_size: true })),
            (0x18, None),
            (0x04, None),
            (0x80, None),
        ] {
            assert_eq!(Fallocate::from_flags(flags), mode, "{flags:#x}");
        }
    }
}
