//! Moving a file's data by writing it again, for formats that write it to new blocks each time. Not
//! here: which files are moved (`defragment.rs`), and the exchange of blocks (`move_extents.rs`).

use std::ops::Range;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, Result, Unsupported};
use iomap::{Caching, IomapKind, Readahead};

use crate::file::OpenMode;
use crate::node::Node;
use crate::optional::defragment::{Defragmented, Layout};

/// The bytes that are written again while the inode is locked.
const PART_BYTES: u64 = 1 << 20;

/// While it exists, data of the node gets new blocks.
struct Moving<'n>(&'n Node);

impl<'n> Moving<'n> {
    fn begin(node: &'n Node) -> Self {
        node.inode().set_moving(true);
        Self(node)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.inode().set_moving(false);
    }
}

impl Node {
    /// Moves the data in `regions` by writing it again. It stays durable: the old blocks are in use
    /// until the new ones are durable. `before` is the layout of the file.
    pub(crate) fn move_by_writing(
        self: &Arc<Self>,
        before: Layout,
        regions: &[Range<FileOffset>],
    ) -> Result<Defragmented> {
        match self.inode().check_room_to_move(before.bytes) {
            Err(Error::NoSpace) => return Ok(Defragmented::Skipped(Error::NoSpace)),
            checked => checked?,
        }
        self.write_again(regions)?;
        let after = self.layout()?;
        Ok(match after.pieces < before.pieces {
            true => Defragmented::Moved { before, after },
            false => Defragmented::Kept(after),
        })
    }

    /// Moves the data in `range` by writing it again, durably, if it is in several pieces on the
    /// device, as F2FS_IOC_DEFRAGMENT does. Returns the number of bytes that were moved. Other
    /// threads may read and write the file concurrently.
    ///
    /// Errors: `InvalidArgument` unless `range` has whole blocks, and for pinned files and during
    /// an atomic write; `NoSpace` if there are too few free segments; `Unsupported` for other
    /// formats than f2fs, and for files that cannot be moved; `WrongType` for other inodes than
    /// regular files; `NotPermitted` for immutable and append-only files; errors of writing, which
    /// lose no data.
    pub fn defragment_range(self: &Arc<Self>, range: Range<FileOffset>) -> Result<u64> {
        self.volume().begin_change()?;
        if self.kind() != FileType::Regular {
            return Err(Error::WrongType("only regular files can be defragmented"));
        }
        if !self.inode().is_moved_by_writing() {
            return Err(Unsupported::Operation("defragmenting a part of a file").into());
        }
        self.check_defragmentable(&range)?;
        // Gives delayed data its blocks.
        self.write_back_and_wait();
        let (before, regions) = self.layout_and_regions(range)?;
        if before.pieces < 2 {
            return Ok(0);
        }
        if let Some(obstacle) = self.obstacle_to_moving()? {
            return Err(obstacle);
        }
        self.inode().check_room_to_move(before.bytes)?;
        self.write_again(&regions)?;
        self.open_for(OpenMode { write: true, append: false })?.sync_data()?;
        Ok(before.bytes)
    }

    fn check_defragmentable(&self, range: &Range<FileOffset>) -> Result<()> {
        let state = self.lock_shared();
        let unit = self.inode().allocation_unit();
        let is_possible = range.start <= range.end && range.end.0 <= self.inode().size_max();
        if !range.start.0.is_multiple_of(unit) || !range.end.0.is_multiple_of(unit) || !is_possible
        {
            return Err(Error::InvalidArgument("the range does not consist of whole blocks"));
        }
        if self.inode().pin_failures()?.is_some() {
            return Err(Error::InvalidArgument("the file is pinned"));
        }
        if state.is_some_and(|state| state.atomic.is_any()) {
            return Err(Error::InvalidArgument("the file is being written atomically"));
        }
        Ok(())
    }

    /// Writes the data in `regions` again, and waits until it is on the device.
    fn write_again(self: &Arc<Self>, regions: &[Range<FileOffset>]) -> Result<()> {
        let Some(file) = self.writable()? else { return Err(Error::ReadOnly) };
        let errors = file.errors().count();
        let _moving = Moving::begin(self);
        for region in regions {
            let mut at = region.start.0;
            while at < region.end.0 {
                let end = region.end.0.min(at.saturating_add(PART_BYTES));
                self.write_part_again(at..end)?;
                at = end;
            }
        }
        self.write_back_and_wait();
        file.errors().check_since(errors)
    }

    /// Makes the data in `range` dirty, as far as it has blocks and is in the file.
    fn write_part_again(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let writeback = self.writeback()?;
        let Some(file) = self.writable()? else { return Err(Error::ReadOnly) };
        writeback.throttle(self, Caching::Kept)?;
        let state = self.lock();
        // The volume may have been closed, and an atomic write begun, before the lock was taken.
        self.writeback()?;
        state.atomic.check_none()?;
        // Direct writes and stores to maps that are under way would be overwritten with what was
        // read before.
        iomap::quiesce_cache(file, range.clone());
        let (mut at, end) = (range.start, range.end.min(file.size()));
        while at < end {
            let data = self.data()?;
            let map = data.mapper.map_read(FileOffset(at), end - at)?;
            let next = map.end().min(end);
            if next <= at {
                break;
            }
            if matches!(map.kind, IomapKind::Mapped | IomapKind::Encoded) {
                let mut bytes = vec![0; (next - at) as usize];
                let context = self.read_context(data);
                let read =
                    iomap::read(&context, &Readahead::default(), FileOffset(at), &mut bytes)?;
                bytes.truncate(read);
                self.write_parts(file, &state, FileOffset(at), &bytes, true, Caching::Kept)?;
            }
            at = next;
        }
        Ok(())
    }
}
