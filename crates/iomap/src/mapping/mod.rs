//! Mappings of file ranges, and the traits that a format implements to return them.
//!
//! No lock of the format is held between mapping a range and using the mapping. So a mapping is
//! used for a folio only under that folio's lock, and only while the format's generation is still
//! the one from before the call (`LastMap`). Otherwise the range is mapped again.

pub(crate) mod transform;

use std::ops::Range;
use std::sync::Arc;

use base::{DeviceOffset, Error, FileOffset, Location, Problem, Result, Unsupported};
use smallvec::SmallVec;

use crate::mapping::transform::Transform;
use crate::read::decode::Encoding;

/// The state of a mapped range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IomapKind {
    /// Nothing is allocated. The range reads as zeroes.
    Hole,
    /// Nothing is allocated yet, but space is reserved for data that the cache holds. Blocks that
    /// are not cached read as zeroes.
    Delalloc,
    /// Blocks on the device hold the data.
    Mapped,
    /// Blocks are allocated but hold no data yet. The range reads as zeroes.
    Unwritten,
    /// The data is within metadata; see [`MapRead::inline_data`].
    Inline,
    /// The range is one cluster: its data is stored in another form, and decoded as a whole; see
    /// [`MapRead::cluster`].
    Encoded,
}

/// Flags of a mapped range. All are false by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapFlags {
    /// Whether the blocks may belong to other files, too (ext4 `shared_blocks`).
    pub shared: bool,
    /// Whether the data on the device is encoded (encrypted or compressed).
    pub encoded: bool,
    /// Whether no allocated range follows in this file.
    pub last: bool,
}

/// The maximum number of bytes in a cluster of encoded data.
pub const CLUSTER_BYTES_MAX: u64 = 4 << 20;

/// A cluster of encoded data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// The first byte in the file.
    pub offset: FileOffset,
    /// The number of bytes in the file, at most [`CLUSTER_BYTES_MAX`]. May reach past the end of
    /// the file.
    pub length: u64,
    /// The stored form: its parts on the device, in order. At least one, and together at most
    /// `length` bytes.
    pub stored: SmallVec<[StoredRun; 1]>,
}

/// Adjacent bytes of the device with a part of a cluster, whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredRun {
    /// The first byte on the device.
    pub address: DeviceOffset,
    /// The number of bytes.
    pub length: u64,
}

impl Cluster {
    /// Returns the bytes of the file.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset.0..self.offset.0.saturating_add(self.length)
    }

    /// Returns the number of stored bytes.
    pub(crate) fn stored_len(&self) -> u64 {
        self.stored.iter().fold(0, |length, run| length.saturating_add(run.length))
    }

    /// Returns this cluster if it is what [`MapRead::cluster`] promises for byte `at` of a file
    /// with blocks of `block` bytes. Errors: `Corrupt`, since a format may pass on what a damaged
    /// image says.
    fn checked(self, at: FileOffset, block: u64) -> Result<Self> {
        let corrupt = |field, found| {
            let problem = Problem::Invalid { field, found };
            Err(Error::corrupt("cluster of a file", Location::default(), problem))
        };
        let stored = self.stored_len();
        if !self.range().contains(&at.0) || self.offset.0 % block != 0 {
            return corrupt("offset", self.offset.0);
        }
        if self.length > CLUSTER_BYTES_MAX || self.length % block != 0 {
            return corrupt("length", self.length);
        }
        if stored > self.length || !self.stored.iter().all(|run| run.length > 0) {
            return corrupt("stored length", stored);
        }
        if self.stored.is_empty() {
            return corrupt("stored length", 0);
        }
        Ok(self)
    }
}

/// A range of a file, its state, and its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Iomap {
    /// The first byte in the file.
    pub offset: FileOffset,
    /// The number of bytes; never zero. May reach past the end of the file.
    pub length: u64,
    /// The state.
    pub kind: IomapKind,
    /// The first byte on the device; `None` without blocks, and for inline data whose address is
    /// unknown.
    pub address: Option<DeviceOffset>,
    /// The flags.
    pub flags: MapFlags,
}

impl Iomap {
    /// Returns the byte of the file after the last one.
    pub fn end(&self) -> u64 {
        self.offset.0.saturating_add(self.length)
    }
}

/// The part of a format that maps a file for reading.
pub trait MapRead: Send + Sync {
    /// Returns the range that contains byte `at`. It starts at or before `at` and is not empty. A
    /// format returns the longest range that it finds cheaply, so that one call serves many folios.
    /// It need not look beyond `at + length`. Called at or past the end of the file only to report
    /// preallocated blocks there.
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap>;

    /// Returns all data of a file whose mapping is [`IomapKind::Inline`].
    fn inline_data(&self) -> Result<Vec<u8>>;

    /// Returns the transform of the file's data, if it has one. Inline data has none.
    fn transform(&self) -> Option<Arc<dyn Transform>> {
        None
    }

    /// Returns whether data must be verified before it is shown, after it is decrypted and decoded.
    /// Such a file is only read, through the cache, and readahead waits for the device.
    fn is_verified(&self) -> bool {
        false
    }

    /// Verifies `data`, whole blocks from byte `at` of the file on, also those of holes. Bytes past
    /// the end of the file are zeroes. Errors: `Corrupt` if the data is not what the file had.
    /// Called by the thread that fills a folio, which is locked; may read from the device.
    fn verify(&self, at: FileOffset, data: &[u8]) -> Result<()> {
        let _ = (at, data);
        Ok(())
    }

    /// Returns the encoding of the file's clusters, if it may have ranges of the kind
    /// [`IomapKind::Encoded`].
    fn encoding(&self) -> Option<Encoding> {
        None
    }

    /// Returns the number of bytes in each cluster of a file that may have ranges of the kind
    /// [`IomapKind::Encoded`], a power of two, if whole clusters are written. The file's folios are
    /// at least as large ([`Mapping::set_order_min`](pagecache::Mapping::set_order_min)). A file
    /// gets clusters only while it has no data.
    fn cluster_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the cluster that contains byte `at`, which is in a range of the kind
    /// [`IomapKind::Encoded`].
    fn cluster(&self, at: FileOffset) -> Result<Cluster> {
        let _ = at;
        Err(Unsupported::Operation("reading encoded data").into())
    }

    /// Returns the range that contains `at`, or `None` if that takes a read from the device.
    fn map_known(&self, at: FileOffset) -> Option<Iomap> {
        let _ = at;
        None
    }

    /// Returns the generation, which changes when a mapping that was returned may be stale: blocks
    /// became written, or were removed from the file. Always 0 for files that are only read.
    fn generation(&self) -> u64 {
        0
    }
}

/// The way in which a format writes a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritePolicy {
    /// Data is written to the blocks that the range has. New blocks are unwritten until the end of
    /// I/O.
    InPlace,
    /// Data is written to new blocks each time. At the end of I/O, they replace the blocks that the
    /// range had.
    OutOfPlace,
}

/// A format's identifier of a [`Placement`]. The format gets it back exactly once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub u64);

/// The new blocks for data that is written out of place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The number of bytes, whole blocks; never zero.
    pub length: u64,
    /// The first byte on the device.
    pub address: DeviceOffset,
    /// The token, which returns to the format by [`MapWrite::end_io`] or [`MapWrite::unplace`].
    pub token: Token,
}

/// The write of a whole cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterWrite {
    /// The bytes of the file: all of the cluster, or those up to the end of the file's last block.
    pub range: Range<FileOffset>,
    /// The number of bytes of the stored form, whole blocks.
    pub stored_length: u64,
    /// Whether the stored form is that of [`MapWrite::encode`]. Otherwise it has the data block by
    /// block.
    pub is_encoded: bool,
}

/// The new blocks for a whole cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterPlacement {
    /// The blocks for the stored form, in order, together as long as it.
    pub runs: SmallVec<[StoredRun; 1]>,
    /// The token, as that of a [`Placement`].
    pub token: Token,
}

/// The part of a format that maps a file for writing. Blocks are allocated late. In place, they are
/// unwritten until their data is on the device, so that no crash exposes what they held before
/// (docs/design/io.md, invariant 3). Out of place, they belong to the file only from then on. No
/// block after the last block of the file is written.
pub trait MapWrite: MapRead {
    /// Reserves space for all blocks of the `length` bytes from `at` on that have none. Returns the
    /// range that contains `at`, like [`MapRead::map_read`]; never inline data, which the format
    /// moves to a block before. The caller has no folio locked, and no transaction: the format
    /// starts one if blocks must be moved or freed first.
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap>;

    /// Releases the reservation of blocks that have bytes in `unused`, to which nothing was
    /// written.
    fn end_write(&self, unused: Range<FileOffset>);

    /// Returns the range that contains `at`, with written or unwritten blocks. Allocates unwritten
    /// blocks where there are none: as many reserved blocks from `at` on as it can at once, but
    /// none beyond `length` bytes. May start a transaction. The caller has a folio locked, so this
    /// waits for no folio.
    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap>;

    /// Returns the policy for all of `range`, which is dirty or about to be written directly.
    fn policy(&self, range: Range<FileOffset>) -> WritePolicy {
        let _ = range;
        WritePolicy::InPlace
    }

    /// Checks that the blocks of `range` can be overwritten in place, before a direct write that
    /// maps it for reading. Errors: `Corrupt` if they cannot be the file's.
    fn check_in_place(&self, range: Range<FileOffset>) -> Result<()> {
        let _ = range;
        Ok(())
    }

    /// Allocates new blocks for the first bytes of `dirty`, which are whole blocks with the policy
    /// [`OutOfPlace`](WritePolicy::OutOfPlace): as many blocks as are contiguous on the device. The
    /// file keeps its old blocks until the placement ends, and [`map_read`](MapRead::map_read)
    /// returns those, or a delayed range if there are none. The placement is used once, for these
    /// bytes. Reserved blocks use up their reservation, at the end of I/O at the latest; for other
    /// blocks, the format has room for as many as can be in flight. May start a transaction. The
    /// caller has a folio locked, so this waits for no folio. A format may also return blocks that
    /// the file has at this place, which are then overwritten. A placement that is empty, longer
    /// than `dirty`, or not whole blocks makes the caller panic.
    fn place(&self, dirty: Range<FileOffset>) -> Result<Placement> {
        let _ = dirty;
        Err(Unsupported::Operation("writing out of place").into())
    }

    /// Places data like [`place`](Self::place), after that has failed with `NoSpace`. The caller
    /// has submitted all of its writes, so this may wait for the ends of writes in flight, which
    /// may free blocks.
    fn place_after_waiting(&self, dirty: Range<FileOffset>) -> Result<Placement> {
        self.place(dirty)
    }

    /// Returns the form in which the cluster with `data`, which begins at byte `at` of the file, is
    /// stored: whole blocks, fewer than the cluster has. Returns `None` if the data does not become
    /// smaller. The caller has a folio locked.
    fn encode(&self, at: FileOffset, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let _ = (at, data);
        Ok(None)
    }

    /// Allocates new blocks for a whole cluster, like [`place`](Self::place), and with `may_wait`,
    /// like [`place_after_waiting`](Self::place_after_waiting). They become the file's blocks in
    /// one change, at the end of I/O.
    fn place_cluster(&self, cluster: &ClusterWrite, may_wait: bool) -> Result<ClusterPlacement> {
        let _ = (cluster, may_wait);
        Err(Unsupported::Operation("writing clusters").into())
    }

    /// Ends placements whose data did not reach the device. The file keeps its old blocks. May
    /// start transactions, and waits for no folio.
    fn unplace(&self, failed: &[FinishedRange]) {
        let _ = failed;
    }

    /// Returns whether the size on the disk grows only over data that is on the device
    /// (docs/design/io.md, invariant 4). Otherwise the size may pass data in flight, which reads as
    /// zeroes after a crash.
    fn orders_size(&self) -> bool {
        true
    }

    /// Allocates unwritten blocks where `range` has none, also past the file's end. Returns false
    /// if the file's map cannot have unwritten blocks. Errors: `NoSpace`, and nothing is allocated.
    /// May start transactions. The caller holds the inode's lock alone.
    fn allocate(&self, range: Range<FileOffset>) -> Result<bool> {
        let _ = range;
        Ok(false)
    }

    /// Splits extents at both ends of `range`, whole blocks, so that the end of I/O need not split
    /// any. May start a transaction.
    fn split_extents(&self, range: Range<FileOffset>) -> Result<()> {
        let _ = range;
        Ok(())
    }

    /// Returns whether enough blocks are reserved to split extents at the end of I/O.
    fn may_split_at_end(&self) -> bool {
        true
    }

    /// Records that `finished`, sorted by offset, is on the device. Unwritten blocks become
    /// written, and ranges with a token replace the old blocks. The size on the disk may grow to
    /// `size`; it never shrinks here. If this takes several transactions, `finished` becomes
    /// written in order, and the size grows with each transaction as far as all data before it is
    /// written: a crash may come in between.
    ///
    /// Ranges may overlap after direct writes of the same bytes, of which any may win. Ranges
    /// without a token that are neighbours in `finished` and of one kind do not. Called after
    /// failed writes, too, with the rest of the batch, which may be empty. May start transactions,
    /// and waits for no folio.
    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()>;

    /// Called after a panic in writeback or at the end of a write, perhaps in
    /// [`end_io`](Self::end_io): the state in memory may be inconsistent. The panic hook has
    /// reported the panic. `operation` is the operation that panicked, as in [`Error::Panicked`].
    fn panicked(&self, operation: &'static str) {
        let _ = operation;
    }
}

/// A range of a file, whole blocks, whose write has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FinishedRange {
    /// The first byte in the file.
    pub offset: FileOffset,
    /// The number of bytes.
    pub length: u64,
    /// The state of the blocks when they were mapped: [`IomapKind::Mapped`] or
    /// [`IomapKind::Unwritten`].
    pub kind: IomapKind,
    /// The token of the placement, for data that was written out of place.
    pub token: Option<Token>,
}

impl FinishedRange {
    /// Returns the byte of the file after the last one.
    pub fn end(&self) -> u64 {
        self.offset.0.saturating_add(self.length)
    }

    pub(crate) fn bytes(&self) -> Range<u64> {
        self.offset.0..self.end()
    }

    /// Returns whether `next`, also written in place, is of the same kind and begins where this one
    /// ends.
    pub(crate) fn is_continued_by(&self, next: &Self) -> bool {
        self.is_like(next) && self.end() == next.offset.0
    }

    /// Adds `next`, which begins at or after this range's start, to this range. Returns false if
    /// they are not alike, or not adjacent.
    pub(crate) fn merge(&mut self, next: &Self) -> bool {
        let can_merge = self.is_like(next) && next.offset.0 <= self.end();
        if can_merge {
            self.length = self.end().max(next.end()) - self.offset.0;
        }
        can_merge
    }

    /// Returns whether `other` has the same kind, and both are written in place.
    fn is_like(&self, other: &Self) -> bool {
        self.token.is_none() && other.token.is_none() && self.kind == other.kind
    }

    /// Returns whether the range is what a format gets at the end of I/O: whole blocks of `block`
    /// bytes, at least one, which had an address.
    pub(crate) fn is_valid(&self, block: u64) -> bool {
        self.length > 0
            && self.offset.0 % block == 0
            && self.length % block == 0
            && matches!(self.kind, IomapKind::Mapped | IomapKind::Unwritten)
    }
}

/// Returns a placement of the first bytes of `dirty`, whole blocks of `block` bytes.
///
/// Panics if the placement is not what [`MapWrite::place`] promises. An image cannot cause that,
/// since a format chooses placements itself, and data would be written to blocks that belong to
/// other data.
pub(crate) fn place(mapper: &dyn MapWrite, dirty: Range<u64>, block: u64) -> Result<Placement> {
    let placed = mapper.place(FileOffset(dirty.start)..FileOffset(dirty.end));
    checked_placement(mapper, dirty, block, placed)
}

/// As [`place`], for a caller that has submitted all of its writes.
pub(crate) fn place_after_waiting(
    mapper: &dyn MapWrite,
    dirty: Range<u64>,
    block: u64,
) -> Result<Placement> {
    let placed = mapper.place_after_waiting(FileOffset(dirty.start)..FileOffset(dirty.end));
    checked_placement(mapper, dirty, block, placed)
}

fn checked_placement(
    mapper: &dyn MapWrite,
    dirty: Range<u64>,
    block: u64,
    placed: Result<Placement>,
) -> Result<Placement> {
    debug_assert!(!dirty.is_empty() && dirty.start % block == 0 && dirty.end % block == 0);
    let placement = placed?;
    let Placement { length, address, token } = placement;
    let is_inside = length > 0 && length <= dirty.end - dirty.start;
    let is_aligned = length % block == 0 && address.0 % block == 0;
    if !is_inside || !is_aligned {
        mapper.unplace(&[FinishedRange {
            offset: FileOffset(dirty.start),
            length,
            kind: IomapKind::Mapped,
            token: Some(token),
        }]);
    }
    assert!(is_inside, "{placement:?} is not inside the dirty bytes {dirty:?}");
    assert!(is_aligned, "{placement:?} is not whole blocks of {block} bytes");
    Ok(placement)
}

/// The mapping that was used last.
#[derive(Debug, Default)]
pub(crate) struct LastMap {
    map: Option<Iomap>,
    /// The generation before the mapping was returned ([`MapRead::generation`]).
    generation: u64,
}

impl LastMap {
    /// Returns the mapping that contains byte `at`: the last one if it contains the byte and is not
    /// stale, or else the result of `map`. The caller has the folio with that byte locked. Errors:
    /// `Corrupt` if the result does not contain the byte.
    pub(crate) fn at(
        &mut self,
        mapper: &dyn MapRead,
        at: u64,
        map: impl FnOnce() -> Result<Iomap>,
    ) -> Result<Iomap> {
        // Before the call: if the generation changes during it, the result is not used a second
        // time.
        let generation = mapper.generation();
        let contains = |map: &Iomap| map.offset.0 <= at && at < map.end();
        if let Some(map) = self.map.filter(contains).filter(|_| self.generation == generation) {
            return Ok(map);
        }
        let map = check(map()?, FileOffset(at))?;
        *self = Self { map: Some(map), generation };
        Ok(map)
    }
}

/// Returns the range of `mapper` that contains byte `at`. Errors: `Corrupt` if the range does not
/// contain it, since a format may pass on what a damaged image says, and loops over a file must
/// end.
pub(crate) fn map_at(mapper: &dyn MapRead, at: FileOffset, length: u64) -> Result<Iomap> {
    check(mapper.map_read(at, length)?, at)
}

/// Returns the cluster of `mapper` that contains byte `at`, of a file with blocks of `block` bytes.
/// Errors: `Corrupt` if it is not what the format promises.
pub(crate) fn cluster_at(mapper: &dyn MapRead, at: FileOffset, block: u64) -> Result<Cluster> {
    mapper.cluster(at)?.checked(at, block)
}

/// Returns `map` if it contains byte `at`.
fn check(map: Iomap, at: FileOffset) -> Result<Iomap> {
    if map.offset > at || map.end() <= at.0 {
        let problem = Problem::Disorder { field: "range", previous: at.0, found: map.offset.0 };
        return Err(Error::corrupt("file mapping", Location::default(), problem));
    }
    Ok(map)
}

/// Returns the device offset of byte `at` of the file, which `map` contains. Errors: `Corrupt` if
/// `map` has no address.
pub(crate) fn device_address(map: &Iomap, at: u64) -> Result<DeviceOffset> {
    let address = map.address.and_then(|address| address.checked_add(at - map.offset.0));
    address.ok_or_else(|| {
        let found = map.address.unwrap_or_default().0;
        Error::corrupt(
            "file mapping",
            Location::default(),
            Problem::Invalid { field: "address", found },
        )
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A file of one hole, and its generation.
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

        fn generation(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// A format that returns one placement for everything, and counts the placements that it gets
    /// back.
    struct Placing {
        placement: Placement,
        unplaced: AtomicU64,
    }

    impl MapRead for Placing {
        fn map_read(&self, _at: FileOffset, _length: u64) -> Result<Iomap> {
            Err(Error::NotFound)
        }

        fn inline_data(&self) -> Result<Vec<u8>> {
            Err(Error::NotFound)
        }
    }

    impl MapWrite for Placing {
        fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
            self.map_read(at, length)
        }

        fn end_write(&self, _unused: Range<FileOffset>) {}

        fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
            self.map_read(at, length)
        }

        fn place(&self, _dirty: Range<FileOffset>) -> Result<Placement> {
            Ok(self.placement)
        }

        fn unplace(&self, failed: &[FinishedRange]) {
            self.unplaced.fetch_add(failed.len() as u64, Ordering::Relaxed);
        }

        fn end_io(&self, _finished: &[FinishedRange], _size: FileOffset) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_placement_outside_the_dirty_bytes_or_of_parts_of_blocks_panics() {
        for (length, address, is_valid) in [
            (4096, 512 << 10, true),
            (1024, 1024, true),
            (0, 1024, false),
            (5120, 1024, false),
            (1000, 1024, false),
            (1024, 1000, false),
        ] {
            let placement = Placement { length, address: DeviceOffset(address), token: Token(1) };
            let format = Placing { placement, unplaced: AtomicU64::new(0) };
            let placed = catch_unwind(AssertUnwindSafe(|| place(&format, 8192..12_288, 1024)));
            assert_eq!(placed.is_ok_and(|placed| placed == Ok(placement)), is_valid, "{length}");
            let unplaced = format.unplaced.load(Ordering::Relaxed);
            assert_eq!(unplaced, u64::from(!is_valid), "{length}");
        }
    }

    #[test]
    fn a_mapping_is_used_again_until_the_generation_changes() {
        let file = Changing::default();
        let mut map = LastMap::default();
        let mut calls = 0;
        let mut at = |at, changes_during_call| {
            let map_again = || {
                calls += 1;
                file.0.fetch_add(u64::from(changes_during_call), Ordering::Relaxed);
                file.map_read(FileOffset(at), 100)
            };
            map.at(&file, at, map_again).map(|_| calls)
        };
        assert_eq!((at(0, false), at(99, false)), (Ok(1), Ok(1)));
        file.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!((at(99, true), at(99, false), at(0, false)), (Ok(2), Ok(3), Ok(3)));
        assert!(at(100, false).is_err(), "a mapping that does not contain the byte");
    }
}
