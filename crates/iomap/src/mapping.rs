//! What a format says about a range of a file: where it is, and in what state.

use base::{DeviceOffset, Error, FileOffset, Place, Problem, Result};

/// The state of a mapped range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IomapKind {
    /// Nothing is allocated: it reads as zeroes.
    Hole,
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
}

/// The range of `mapper` that contains byte `at`, held to what [`MapRead`] promises: the loops over
/// a file must not depend on a format being right about images that lie.
pub(crate) fn map_at(mapper: &dyn MapRead, at: FileOffset, length: u64) -> Result<Iomap> {
    let map = mapper.map_read(at, length)?;
    if map.offset > at || map.end() <= at.0 {
        let problem = Problem::Disorder { field: "range", previous: at.0, found: map.offset.0 };
        return Err(Error::corrupt("file mapping", Place::default(), problem));
    }
    Ok(map)
}
