//! Images and volumes on disk: their kinds, their creation, and parts of them.

pub(crate) mod cpio;
pub mod encryption;
pub(crate) mod format;
pub(crate) mod image;
pub(crate) mod kind;
pub mod log_writes;
pub mod verity;
