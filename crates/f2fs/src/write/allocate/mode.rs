//! Where data is written that needs new blocks. Not here: the logs.

/// Where data goes that is written out of place. The names are those of Linux's mount option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// To free segments, and when few are free, to the free blocks between others (SSR). Writes
    /// seldom wait for cleaning then, but their blocks are not adjacent.
    #[default]
    Adaptive,
    /// To free segments, as long as cleaning makes some. Blocks of a write are adjacent, but others
    /// have to be moved.
    Lfs,
}
