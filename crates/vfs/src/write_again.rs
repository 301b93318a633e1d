//! Moving a file's data by writing it again, for formats that write it to new blocks each time.
//! Not here: which files are moved (`defragment.rs`), and the exchange of blocks (`move_extents.rs`).

use std::ops::Range;
use std::sync::Arc;

use base::{Error, FileOffset, Result};
use iomap::{Caching, IomapKind, Readahead};

use crate::defragment::{Defragmented, Layout};
use crate::node::Node;

/// The bytes that are written again while the inode is locked.
const PART_BYTES: u64 = 1 << 20;

impl Node {
    /// Moves the data in `regions` by writing it again. It stays durable: the old blocks are in use until the new ones are
    /// durable. `before` is the layout of the file.
    pub(crate) fn move_by_writing(
        self: &Arc<Self>,
        before: Layout,
        regions: &[Range<FileOffset>],
    ) -> Result<Defragmented> {
        match self.inode().check_room_to_move(before.bytes) {
            Err(Error::NoSpace) => return Ok(Defragmented::Skipped(Error::NoSpace)),
            checked => checked?,
        }
        let Some(file) = self.writable()? else { return Err(Error::ReadOnly) };
        let errors = file.errors().cursor();
        for region in regions {
            let mut at = region.start.0;
            while at < region.end.0 {
                let end = region.end.0.min(at.saturating_add(PART_BYTES));
                self.write_part_again(at..end)?;
                at = end;
            }
        }
        self.write_back_and_wait();
        file.errors().check(&errors)?;
        let after = self.layout()?;
        Ok(match after.pieces < before.pieces {
            true => Defragmented::Moved { before, after },
            false => Defragmented::Kept(after),
        })
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
