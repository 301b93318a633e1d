//! Defragmentation: moving a file to blocks in fewer pieces. Not here: the exchange of blocks
//! (`move_extents.rs`), data that is written again (`write_again.rs`), and the search for free
//! blocks (the format).

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, Result, Unsupported};
use fs::Credentials;

use crate::file::fallocate::Fallocate;
use crate::file::{File, OpenMode};
use crate::names::namespace::Creation;
use crate::node::Node;
use crate::node::rights::{self, Privileges};
use crate::volume::Volume;

/// The cost of a jump to another piece, as the number of bytes that could be read in that time.
const JUMP_BYTES: u64 = 256 << 10;
/// The last bytes of the first page of a swap area.
const SWAP_MARKS: [&[u8; 10]; 2] = [b"SWAPSPACE2", b"SWAP-SPACE"];
/// The maximum number of parts of a file that have blocks, all of which are in memory while the
/// file is moved.
const REGIONS_MAX: usize = 1 << 20;
/// All blocks of a file.
const WHOLE_FILE: Range<FileOffset> = FileOffset(0)..FileOffset(u64::MAX);

/// The pieces of a file on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The number of pieces: runs of blocks that are contiguous on the device, in the order of the
    /// file.
    pub pieces: u64,
    /// The length of all pieces, in bytes.
    pub bytes: u64,
}

impl Layout {
    /// Returns the percentage of the file's reading time that is lost between its pieces: 0 for a
    /// file in one piece. A jump to the next piece counts as long as reading 256 KiB.
    pub fn score(&self) -> u64 {
        let lost = u128::from(self.pieces.saturating_sub(1)) * u128::from(JUMP_BYTES);
        // At most 100.
        (lost * 100 / (lost + u128::from(self.bytes)).max(1)) as u64
    }
}

/// The result of the defragmentation of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Defragmented {
    /// The file is in fewer pieces.
    Moved {
        /// The pieces before.
        before: Layout,
        /// The pieces now.
        after: Layout,
    },
    /// The file was not moved: it is in one piece, or there is no space in fewer pieces.
    Kept(Layout),
    /// The file cannot be moved for this reason, which may be too little space.
    Skipped(Error),
}

impl Volume {
    /// Moves a file to free blocks in fewer pieces, if there are any for all of it. Makes its data
    /// durable first. Other threads may read and write the file concurrently. An error loses no
    /// data.
    pub fn defragment(&self, node: &Arc<Node>) -> Result<Defragmented> {
        self.check_writable()?;
        if let Some(obstacle) = node.obstacle_to_moving()? {
            return Ok(Defragmented::Skipped(obstacle));
        }
        let file = node.open_for(OpenMode { write: true, append: false })?;
        // Allocates blocks for delayed data.
        node.write_back_and_wait();
        let (before, regions) = match node.layout_and_regions(WHOLE_FILE) {
            Err(error @ Error::Unsupported(_)) => return Ok(Defragmented::Skipped(error)),
            found => found?,
        };
        if before.pieces < 2 {
            return Ok(Defragmented::Kept(before));
        }
        if node.inode().is_moved_by_writing() {
            return node.move_by_writing(before, &regions);
        }
        let donor = self.create_unnamed(
            &self.root()?,
            &Creation::of(FileType::Regular, 0o600),
            &Credentials::ROOT,
        )?;
        let donor = donor.open_for(OpenMode { write: true, append: false })?;
        // The donor has one region after the other, without the holes between them.
        let length = regions.iter().map(|region| region.end.0 - region.start.0).sum();
        let space = FileOffset(0)..FileOffset(length);
        let allocate = Fallocate::Allocate { keep_size: false };
        match donor.fallocate(allocate, space, Privileges::Keep) {
            Err(Error::NoSpace) => return Ok(Defragmented::Skipped(Error::NoSpace)),
            allocated => allocated?,
        }
        if donor.node().layout()?.pieces >= before.pieces {
            return Ok(Defragmented::Kept(before));
        }
        let mut donor_at = FileOffset(0);
        let moved = regions.into_iter().try_for_each(|region| {
            let length = region.end.0 - region.start.0;
            let moved = match file.move_extents(region.start, &donor, donor_at, length) {
                // Another thread has truncated the file to end before the region.
                Err(Error::InvalidArgument(_)) if region.start.0 >= node.attributes().size => {
                    Ok(())
                }
                moved => moved.map(drop),
            };
            donor_at.0 += length;
            moved
        });
        let after = node.layout()?;
        match moved {
            Ok(()) if after.pieces < before.pieces => Ok(Defragmented::Moved { before, after }),
            // Another thread has changed the file concurrently.
            Ok(()) => Ok(Defragmented::Kept(after)),
            // A part of the file was moved.
            Err(Error::NoSpace) if after.pieces < before.pieces => {
                Ok(Defragmented::Moved { before, after })
            }
            Err(error @ (Error::NoSpace | Error::Unsupported(_))) => {
                Ok(Defragmented::Skipped(error))
            }
            Err(error) => Err(error),
        }
    }
}

impl Node {
    /// Returns the reason for which the blocks of this file cannot be moved, if there is one.
    pub fn obstacle_to_moving(self: &Arc<Self>) -> Result<Option<Error>> {
        if self.kind() != FileType::Regular {
            return Ok(Some(Error::WrongType("not a regular file")));
        }
        let may_move = rights::may_overwrite(&self.attributes());
        if let Err(obstacle) = may_move.and_then(|()| self.inode().check_movable()) {
            return Ok(Some(obstacle));
        }
        let operation = "moving a swap area, whose blocks a boot loader may know";
        let is_swap_area = is_swap_area(&self.open_for(OpenMode::default())?)?;
        Ok(is_swap_area.then(|| Unsupported::Operation(operation).into()))
    }

    /// Returns the pieces of the file on the device. Delayed blocks are not counted.
    pub fn layout(&self) -> Result<Layout> {
        self.layout_of(WHOLE_FILE, &mut |_| ControlFlow::Continue(()))
    }

    /// Returns the pieces in `range`, which begins and ends with whole blocks, and the parts of it
    /// that have blocks. Ignores blocks past the end of the file, and preallocated ones to which
    /// the format gives no place yet.
    ///
    /// Errors: `Unsupported` if there are more than [`REGIONS_MAX`] parts.
    pub(crate) fn layout_and_regions(
        &self,
        range: Range<FileOffset>,
    ) -> Result<(Layout, Vec<Range<FileOffset>>)> {
        let mut regions = Regions { list: Vec::new(), max: REGIONS_MAX };
        let mut added = Ok(());
        let layout = self.layout_of(range, &mut |part| {
            added = regions.add(part);
            if added.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        added?;
        Ok((layout, regions.list))
    }

    /// Returns the pieces in `range`. Calls `visit` for each extent of them, until it breaks.
    fn layout_of(
        &self,
        range: Range<FileOffset>,
        visit: &mut dyn FnMut(Range<FileOffset>) -> ControlFlow<()>,
    ) -> Result<Layout> {
        let mut layout = Layout::default();
        let mut expected = None;
        let size = self.attributes().size;
        let end = size.next_multiple_of(self.inode().allocation_unit());
        let gets_place_later = self.inode().is_moved_by_writing();
        self.extents(range.start..FileOffset(range.end.0.min(size)), &mut |extent| {
            let flags = &extent.flags;
            let has_no_place =
                flags.delalloc || flags.inline || (flags.unwritten && gets_place_later);
            let start = extent.logical.max(range.start);
            let extent_end = extent.logical.0.saturating_add(extent.length).min(range.end.0);
            let length = extent_end.saturating_sub(start.0);
            if has_no_place || length == 0 {
                return ControlFlow::Continue(());
            }
            let physical = extent.physical.0 + (start.0 - extent.logical.0);
            layout.pieces += u64::from(expected != Some(physical));
            layout.bytes += length;
            expected = physical.checked_add(length);
            visit(start..FileOffset(extent_end.min(end)))
        })?;
        Ok(layout)
    }
}

/// The parts of a file that have blocks, with holes between them.
struct Regions {
    list: Vec<Range<FileOffset>>,
    /// The maximum length of the list.
    max: usize,
}

impl Regions {
    /// Adds a part after the others. Errors: `Unsupported` if there are too many.
    fn add(&mut self, part: Range<FileOffset>) -> Result<()> {
        let regions = self.list.len();
        match self.list.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ if regions == self.max => {
                let operation = "defragmenting a file with more than a million holes";
                return Err(Unsupported::Operation(operation).into());
            }
            _ => self.list.push(part),
        }
        Ok(())
    }
}

/// Returns whether the file begins as a swap area does, with pages of any size.
fn is_swap_area(file: &File) -> Result<bool> {
    for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
        let mut end = [0; 10];
        let at = page_bytes - end.len() as u64;
        let read = file.read_at(&mut end, at)?;
        if read == end.len() && SWAP_MARKS.contains(&&end) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_shares_of_time() {
        let score = |pieces, bytes| Layout { pieces, bytes }.score();
        assert_eq!((score(0, 0), score(1, 4096), score(1, 1 << 40)), (0, 0, 0));
        assert_eq!((score(5, 1 << 20), score(257, 1 << 20)), (50, 98));
        assert_eq!(score(u64::MAX, u64::MAX), 99);
    }

    #[test]
    fn adjacent_parts_are_one_region_and_their_number_is_limited() {
        let part = |start, end| FileOffset(start)..FileOffset(end);
        let mut regions = Regions { list: Vec::new(), max: 2 };
        for (start, end) in [(0, 10), (10, 30), (40, 50), (50, 60)] {
            regions.add(part(start, end)).unwrap();
        }
        let refused = regions.add(part(61, 70)).unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        regions.add(part(60, 70)).unwrap();
        assert_eq!(regions.list, [part(0, 30), part(40, 70)]);
    }
}
