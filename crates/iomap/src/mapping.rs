//! What a format says about a range of a file: where it is, and in what state.
//!
//! No lock of the format is held between mapping a range and using the mapping. So a mapping is used
//! for a folio only under that folio's lock, and if nothing has changed since it was asked for
//! (`LastMap`); otherwise it is asked for again.

use std::ops::Range;
use std::sync::Arc;

use base::{DeviceOffset, Error, FileOffset, Location, Problem, Result, Unsupported};

use crate::transform::Transform;

/// The state of a mapped range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IomapKind {
    /// Nothing is allocated: it reads as zeroes.
    Hole,
    /// Nothing is allocated yet, but space is reserved for data that the cache holds. Blocks of
    /// which the cache has none read as zeroes.
    Delalloc,
    /// Blocks on the device hold the data.
    Mapped,
    /// Blocks are allocated but hold no data yet: it reads as zeroes.
    Unwritten,
    /// The data lies within metadata; see [`MapRead::inline_data`].
    Inline,
}

/// More about a mapped range. All false by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapFlags {
    /// The blocks may belong to other files too (ext4 `shared_blocks`).
    pub shared: bool,
    /// The data on the device is encoded (encrypted or compressed).
    pub encoded: bool,
    /// No allocated range follows in this file.
    pub last: bool,
}

/// One range of a file and where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Iomap {
    /// The first byte in the file.
    pub offset: FileOffset,
    /// The number of bytes; never zero. May reach past the end of the file.
    pub length: u64,
    /// The state.
    pub kind: IomapKind,
    /// The first byte on the device; `None` for a hole, and for inline data of unknown place.
    pub address: Option<DeviceOffset>,
    /// More about the range.
    pub flags: MapFlags,
}

impl Iomap {
    /// The byte after the last one.
    pub fn end(&self) -> u64 {
        self.offset.0.saturating_add(self.length)
    }
}

/// A format's side of reading a file.
pub trait MapRead: Send + Sync {
    /// The range that contains byte `at`. It starts at or before `at` and is not empty; formats
    /// give the longest run they can tell cheaply, so that one call can serve many folios, and
    /// need look no further than `at + length`. Never called at or past the end of the file, save
    /// for reporting preallocated blocks there.
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap>;

    /// The whole data of a file that [`IomapKind::Inline`] maps.
    fn inline_data(&self) -> Result<Vec<u8>>;

    /// Returns the transform of the file's data, if it has one. Inline data has none.
    fn transform(&self) -> Option<Arc<dyn Transform>> {
        None
    }

    /// The range that contains `at`, if that is known without reading from the device.
    fn map_known(&self, at: FileOffset) -> Option<Iomap> {
        let _ = at;
        None
    }

    /// A number that is another one once a mapping given out before does not hold any more, since
    /// blocks became written, or were taken from the file. For files that nobody writes, always 0.
    fn sequence(&self) -> u64 {
        0
    }
}

/// The way in which a format writes a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritePolicy {
    /// Data is written to the blocks that the range has. New blocks are unwritten until the end of I/O.
    InPlace,
    /// Data is written to new blocks each time. At the end of I/O they replace the blocks that the range had.
    OutOfPlace,
}

/// A format's name for a [`Placement`]. The format gets it back exactly once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub u64);

/// The new blocks for data that is written out of place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The number of bytes, whole blocks; never zero.
    pub length: u64,
    /// The first byte on the device.
    pub address: DeviceOffset,
    /// Given back to the format by [`MapWrite::end_io`] or [`MapWrite::unplace`].
    pub token: Token,
}

/// A format's side of writing a file. Blocks are allocated late. Written in place, they are unwritten until
/// their data is on the device, so that no crash uncovers what they held before (ARCHITECTURE.md,
/// invariant 3); written out of place, they belong to the file only from then on. Past the block that
/// holds the end of the file no block is a written one.
pub trait MapWrite: MapRead {
    /// Sees to it that all of `length` bytes from `at` on can be written: reserves space for the
    /// blocks that have none. Gives the range that contains `at`, like [`MapRead::map_read`]; never
    /// inline data, which the format has moved into a block by then. Called with no folio locked, and no
    /// transaction: it starts one where something has to be moved, or taken away, first.
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap>;

    /// Gives up what is reserved for blocks that have bytes in `unused`: nothing was written there.
    fn end_write(&self, unused: Range<FileOffset>);

    /// The range that contains `at`, with blocks: written ones, or unwritten ones, which are
    /// allocated where there are none, as many at once as it can of what is reserved from `at` on,
    /// looking no further than `length` bytes. May start a transaction. Called with a folio
    /// locked, so it waits for no folio.
    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap>;

    /// Returns the policy for all of `range`, which is dirty or about to be written directly.
    fn policy(&self, range: Range<FileOffset>) -> WritePolicy {
        let _ = range;
        WritePolicy::InPlace
    }

    /// Allocates new blocks for the first bytes of `dirty`, whole blocks for which the policy is
    /// [`OutOfPlace`](WritePolicy::OutOfPlace), as many as follow one another on the device. The file keeps the
    /// blocks that it has until the placement ends, and [`map_read`](MapRead::map_read) returns those, or a
    /// delayed range if it has none. The placement is used once, for these bytes. Blocks that are reserved use up
    /// the reservation; for others, the format keeps room for as many as can be on their way. May start a
    /// transaction. Called with a folio locked, so it waits for no folio.
    fn place(&self, dirty: Range<FileOffset>) -> Result<Placement> {
        let _ = dirty;
        Err(Unsupported::Operation("writing out of place").into())
    }

    /// Takes placements back whose data did not reach the device: the file keeps the blocks that it had. May start
    /// transactions, and waits for no folio.
    fn unplace(&self, failed: &[FinishedRange]) {
        let _ = failed;
    }

    /// Returns whether the size on the disk grows only over data that is on the device (ARCHITECTURE.md,
    /// invariant 4). Otherwise the size may pass data that is still on its way, which reads as zeroes after a crash.
    fn orders_size(&self) -> bool {
        true
    }

    /// Gives all blocks that have bytes of `range` a place, past the file's end, too: unwritten ones where
    /// there were none. All or, with `NoSpace`, nothing. Whether it can: not every kind of map has
    /// unwritten blocks. May start transactions. The caller holds the inode's lock alone.
    fn allocate(&self, range: Range<FileOffset>) -> Result<bool> {
        let _ = range;
        Ok(false)
    }

    /// Sees to it that making `range`, whole blocks, written at the end of I/O splits no extents. May start
    /// a transaction.
    fn split_extents(&self, range: Range<FileOffset>) -> Result<()> {
        let _ = range;
        Ok(())
    }

    /// Whether there is so much space for splitting extents that it can be left to the end of I/O.
    fn may_split_at_end(&self) -> bool {
        true
    }

    /// Notes that `finished`, sorted, is on the device: unwritten blocks become written. The size on
    /// the disk may grow to `size`; it shrinks here never. Where this takes several transactions, `finished` becomes
    /// written in order, and the size grows with each as far as all before is written: a crash may come in
    /// between. Ranges with a token replace the blocks that the file has there; only these may overlap, for
    /// direct writes of the same bytes, of which any may win. May start transactions, and waits for no folio. Called for failed writes, too, with what is
    /// left of the batch, perhaps nothing.
    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()>;

    /// Called after a panic in writing data or at the end of a write, perhaps in [`end_io`](Self::end_io), which the
    /// panic hook has reported: the state in memory may be inconsistent. `operation` is the operation that panicked,
    /// as in [`Error::Panicked`](base::Error::Panicked).
    fn panicked(&self, operation: &'static str) {
        let _ = operation;
    }
}

/// A range of a file, whole blocks, whose data is on the device now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FinishedRange {
    /// The first byte in the file.
    pub offset: FileOffset,
    /// The number of bytes.
    pub length: u64,
    /// [`IomapKind::Mapped`] or [`IomapKind::Unwritten`]: what the blocks were mapped as.
    pub kind: IomapKind,
    /// The token of the placement, for data that was written out of place.
    pub token: Option<Token>,
}

impl FinishedRange {
    /// The byte after the last one.
    pub fn end(&self) -> u64 {
        self.offset.0.saturating_add(self.length)
    }

    pub(crate) fn bytes(&self) -> Range<u64> {
        self.offset.0..self.end()
    }

    /// Returns whether `next`, also written in place, is of the same kind and begins where this one ends.
    pub(crate) fn is_continued_by(&self, next: &Self) -> bool {
        let in_place = self.token.is_none() && next.token.is_none();
        in_place && self.kind == next.kind && self.end() == next.offset.0
    }
}

/// Returns what `mapper` gives as a placement of the first bytes of `dirty`, if that is what [`MapWrite::place`]
/// promises.
pub(crate) fn place(mapper: &dyn MapWrite, dirty: Range<u64>) -> Result<Placement> {
    let placement = mapper.place(FileOffset(dirty.start)..FileOffset(dirty.end))?;
    let max = dirty.end - dirty.start;
    if placement.length == 0 || placement.length > max {
        let found = placement.length;
        unplace(mapper, dirty.start, &placement);
        let problem = Problem::Range { field: "length of a placement", found, min: 1, max };
        return Err(Error::corrupt("file mapping", Location::default(), problem));
    }
    Ok(placement)
}

/// Takes back a placement that was never submitted.
fn unplace(mapper: &dyn MapWrite, at: u64, placement: &Placement) {
    mapper.unplace(&[FinishedRange {
        offset: FileOffset(at),
        length: placement.length,
        kind: IomapKind::Mapped,
        token: Some(placement.token),
    }]);
}

/// The mapping used last.
#[derive(Debug, Default)]
pub(crate) struct LastMap {
    map: Option<Iomap>,
    sequence: u64,
}

impl LastMap {
    /// The mapping that contains byte `at`: the last one if it does and still holds, or what `ask`
    /// gives. The caller has the folio with that byte locked.
    pub(crate) fn at(
        &mut self,
        mapper: &dyn MapRead,
        at: u64,
        ask: impl FnOnce() -> Result<Iomap>,
    ) -> Result<Iomap> {
        // Before asking: what changes meanwhile makes the answer one that is not used again.
        let sequence = mapper.sequence();
        let contains = |map: &Iomap| map.offset.0 <= at && at < map.end();
        if let Some(map) = self.map.filter(contains).filter(|_| self.sequence == sequence) {
            return Ok(map);
        }
        let map = check(ask()?, FileOffset(at))?;
        *self = Self { map: Some(map), sequence };
        Ok(map)
    }
}

/// The range of `mapper` that contains byte `at`, held to what [`MapRead`] promises: the loops over
/// a file must not depend on a format being right about images that lie.
pub(crate) fn map_at(mapper: &dyn MapRead, at: FileOffset, length: u64) -> Result<Iomap> {
    check(mapper.map_read(at, length)?, at)
}

/// `map`, if it contains byte `at`.
fn check(map: Iomap, at: FileOffset) -> Result<Iomap> {
    if map.offset > at || map.end() <= at.0 {
        let problem = Problem::Disorder { field: "range", previous: at.0, found: map.offset.0 };
        return Err(Error::corrupt("file mapping", Location::default(), problem));
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A file of one hole, and how often that changed.
    #[derive(Default)]
    struct Changing(AtomicU64);

    impl MapRead for Changing {
        fn map_read(&self, _at: FileOffset, length: u64) -> Result<Iomap> {
            let (offset, kind, flags) = (FileOffset(0), IomapKind::Hole, MapFlags::default());
            Ok(Iomap { offset, length, kind, address: None, flags })
        }

        fn inline_data(&self) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn sequence(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_mapping_is_used_again_until_something_changes() {
        let (file, mut map, mut asked) = (Changing::default(), LastMap::default(), 0);
        let mut at = |at, changes_meanwhile| {
            let ask = || {
                asked += 1;
                file.0.fetch_add(u64::from(changes_meanwhile), Ordering::Relaxed);
                file.map_read(FileOffset(at), 100)
            };
            map.at(&file, at, ask).map(|_| asked)
        };
        assert_eq!((at(0, false), at(99, false)), (Ok(1), Ok(1)));
        file.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!((at(99, true), at(99, false), at(0, false)), (Ok(2), Ok(3), Ok(3)));
        assert!(at(100, false).is_err(), "a mapping that does not contain the byte");
    }
}
