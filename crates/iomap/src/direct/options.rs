//! Options of direct I/O.

/// The alignment of positions and lengths of direct requests, in bytes: the sector of a device.
pub const DIRECT_ALIGNMENT: u64 = 512;

/// The time at which preallocated extents are split for writes to a part of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SplitExtents {
    /// At the end of I/O, with blocks that the volume reserves for that; before the I/O while few
    /// are left.
    #[default]
    AtEnd,
    /// Before the I/O.
    Before,
}

/// Options of direct writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectOptions {
    /// Whether overwrites of existing blocks, written or preallocated, hold the inode's lock
    /// shared. Otherwise they hold it alone, until they have ended.
    pub shared_overwrites: bool,
    /// When extents are split.
    pub split: SplitExtents,
}

impl Default for DirectOptions {
    fn default() -> Self {
        Self { shared_overwrites: true, split: SplitExtents::default() }
    }
}
